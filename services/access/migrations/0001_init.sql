-- Access: who may use what was bought, and the requests that contradicted what was granted.
DO $$
BEGIN
    CREATE ROLE payonce_access LOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another database of it may have made this one
END
$$;
CREATE SCHEMA access;
GRANT USAGE ON SCHEMA access TO payonce_access;

-- Events whose effect is committed.
CREATE TABLE access.inbox (
    event_id    uuid PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX inbox_received_at ON access.inbox (received_at);
GRANT SELECT, INSERT, DELETE ON access.inbox TO payonce_access;

CREATE TABLE access.access_right (
    operation_key text PRIMARY KEY, -- grant:ORDER, grant:ORDER:gN
    order_id      text NOT NULL,
    customer_id   text NOT NULL, -- the recipient; never changed
    purpose       text NOT NULL,
    item          text NOT NULL,
    qualification int NOT NULL CHECK (qualification > 0),
    content       bytea NOT NULL, -- SHA-256 of the order, recipient, purpose and item: same key, same right?
    granted_at    timestamptz NOT NULL,
    state         text NOT NULL CHECK (state IN ('granted', 'revoked')),
    revoked_at    timestamptz,
    CHECK ((revoked_at IS NOT NULL) = (state = 'revoked')),
    UNIQUE (order_id, qualification)
);
-- At most one right is alive per order.
CREATE UNIQUE INDEX access_right_alive ON access.access_right (order_id) WHERE state = 'granted';
GRANT SELECT, INSERT ON access.access_right TO payonce_access;
GRANT UPDATE (state, revoked_at) ON access.access_right TO payonce_access;

-- A request under the key of a right that says another thing: kept once, carried out never.
CREATE TABLE access.conflict (
    operation_key text NOT NULL REFERENCES access.access_right,
    content       bytea NOT NULL,
    order_id      text NOT NULL,
    customer_id   text NOT NULL,
    purpose       text NOT NULL,
    item          text NOT NULL,
    event_id      uuid NOT NULL, -- the first that said so
    decided_at    timestamptz NOT NULL,
    PRIMARY KEY (operation_key, content)
);
GRANT SELECT, INSERT ON access.conflict TO payonce_access;

-- ingest: what providers said, what was decided, and what others must hear of it.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'payonce_ingest') THEN
        CREATE ROLE payonce_ingest LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'payonce_relay') THEN
        CREATE ROLE payonce_relay LOGIN;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS ingest;

-- The immutable log (P1). Keys and digests stay ≥ 400 days; only `raw` may be erased.
CREATE TABLE ingest.provider_event (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider    text COLLATE "C" NOT NULL,
    account     text COLLATE "C" NOT NULL, -- our alias: a provider account and its mode
    event_id    text COLLATE "C" NOT NULL, -- the provider's; "foreign:…" and "sha256:…" are ours
    type        text        NOT NULL,
    disposition text        NOT NULL CHECK (disposition IN ('facts', 'ignored', 'foreign', 'quarantined')),
    problem     text        NOT NULL,      -- why foreign or quarantined
    digest      bytea       NOT NULL,      -- of what was read: same id, other digest = conflict (P2)
    raw_sha256  bytea       NOT NULL,
    raw         bytea,                     -- the verified bytes
    headers     text[]      NOT NULL,      -- the provider's headers, in the adapter's order
    traceparent text        NOT NULL,
    tracestate  text        NOT NULL DEFAULT '',
    occurred_at timestamptz,
    received_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (provider, account, event_id)
);

CREATE TABLE ingest.event_conflict (
    provider    text COLLATE "C" NOT NULL,
    account     text COLLATE "C" NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    digest      bytea       NOT NULL,
    raw_sha256  bytea       NOT NULL,
    raw         bytea,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, account, event_id, digest)
);

-- The shop's order and its projection: the position after the last decision.
CREATE TABLE ingest.shop_order (
    order_id         text COLLATE "C" PRIMARY KEY,
    customer_id      text        NOT NULL,
    purpose          text        NOT NULL,
    item             text        NOT NULL,
    policy           text        NOT NULL,
    profile          text        NOT NULL, -- lightning: the node that may receive it; '' = any
    accounts         text[]      NOT NULL, -- aliases of the policy's provider that may pay it
    live             boolean     NOT NULL,
    currency         text        NOT NULL,
    exponent         integer     NOT NULL,
    price            bigint      NOT NULL CHECK (price >= 0),
    max_discount     bigint      NOT NULL CHECK (max_discount BETWEEN 0 AND price),
    revoke_on_refund boolean     NOT NULL,
    expires_at       timestamptz,
    content          bytea       NOT NULL, -- SHA-256 of all that a repeated registration must equal
    created_at       timestamptz NOT NULL DEFAULT now(),

    has_contact      boolean     NOT NULL DEFAULT false,
    canceled_by_shop boolean     NOT NULL DEFAULT false,
    expiry_swept     boolean     NOT NULL DEFAULT false,
    state            text        NOT NULL DEFAULT 'open'
        CHECK (state IN ('open', 'paid', 'review', 'canceled', 'reversed')),
    verdict          text        NOT NULL DEFAULT '',
    reason           text        NOT NULL DEFAULT '',
    due              bigint      NOT NULL,
    received         bigint      NOT NULL DEFAULT 0,
    refunded         bigint      NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND received),
    late             boolean     NOT NULL DEFAULT false,
    partial          boolean     NOT NULL DEFAULT false,
    over             boolean     NOT NULL DEFAULT false,
    qualification    integer     NOT NULL DEFAULT 0,
    sequence         bigint      NOT NULL DEFAULT 0 -- last one given out, raised under this row's lock
) WITH (fillfactor = 80);
CREATE INDEX shop_order_expiry ON ingest.shop_order (expires_at) WHERE NOT expiry_swept AND expires_at IS NOT NULL;

-- A reference belongs to one order for ever (P17). No foreign key to the order: whoever adds one holds the order's
-- row or has just inserted it, orders are never deleted, and the check would cost as much as the insert.
CREATE TABLE ingest.order_ref (
    provider text COLLATE "C" NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    value    text COLLATE "C" NOT NULL,
    account  text COLLATE "C" NOT NULL,
    order_id text COLLATE "C" NOT NULL,
    payment  text NOT NULL, -- the payment key it belongs to; '' = not known
    PRIMARY KEY (provider, kind, value, account)
);

CREATE TABLE ingest.order_contact (
    order_id text COLLATE "C" PRIMARY KEY REFERENCES ingest.shop_order,
    email    text NOT NULL,
    language text NOT NULL
);

-- What is known of an order, merged (P7).
CREATE TABLE ingest.fact (
    order_id      text COLLATE "C" NOT NULL,
    provider      text COLLATE "C" NOT NULL,
    account       text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    object        text COLLATE "C" NOT NULL,
    currency      text COLLATE "C" NOT NULL,
    exponent      integer NOT NULL,
    payment       text    NOT NULL,
    state         text    NOT NULL,
    rank          integer NOT NULL,
    canceled_seen boolean NOT NULL,
    waived        boolean NOT NULL,
    amount        bigint, -- NULL: not stated
    amount_most   bigint,
    discount      bigint  NOT NULL,
    at            timestamptz,
    PRIMARY KEY (order_id, provider, account, kind, object, currency, exponent)
);

-- Every decision ever made; never edited (P5).
CREATE TABLE ingest.decision (
    decision_id    uuid PRIMARY KEY,
    order_id       text COLLATE "C" NOT NULL,
    event          bigint,      -- provider_event.id, written in the same transaction; NULL: a command of the shop
    policy         text        NOT NULL,
    policy_version integer     NOT NULL,
    verdict        text        NOT NULL,
    reason         text        NOT NULL,
    why            text        NOT NULL, -- the transition's own words
    emits          text        NOT NULL, -- '' = nothing that others must hear
    state          text        NOT NULL, -- the position after it …
    due            bigint      NOT NULL,
    received       bigint      NOT NULL,
    refunded       bigint      NOT NULL,
    qualification  integer     NOT NULL,
    sequence       bigint      NOT NULL,
    facts          jsonb       NOT NULL, -- … and the facts it was drawn from
    decided_at     timestamptz NOT NULL
);
CREATE INDEX decision_order ON ingest.decision (order_id);

-- Events that wait for what they need (P4). `awaits` holds "order:ID", "ref:PROVIDER:ACCOUNT:KIND:VALUE" and
-- "pay:PROVIDER:ACCOUNT:PAYMENT"; whoever makes one known wakes the row in the same transaction.
CREATE TABLE ingest.undecided (
    event       bigint PRIMARY KEY REFERENCES ingest.provider_event,
    reason      text        NOT NULL,
    awaits      text[]      NOT NULL,
    unmatched   boolean     NOT NULL DEFAULT false, -- 72 h without its order: kept, no longer swept
    due_at      timestamptz NOT NULL, -- 'epoch': can be decided now, before all that is looked at once more in case
    attempts    integer     NOT NULL DEFAULT 0,
    lease_token uuid,
    lease_until timestamptz,
    last_error  text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX undecided_awaits ON ingest.undecided USING gin (awaits) WITH (fastupdate = off);
CREATE INDEX undecided_due ON ingest.undecided (due_at) WHERE NOT unmatched;

-- The transactional outbox: see common/outbox/outbox.sql. Appended under the order's row lock.
CREATE TABLE ingest.outbox (
    id          bigint GENERATED ALWAYS AS IDENTITY (CACHE 1 NO CYCLE) PRIMARY KEY,
    topic       text NOT NULL CHECK (topic <> ''),      -- Kafka topic
    key         text NOT NULL CHECK (key <> ''),        -- Kafka key: an order or a customer, never a constant
    event_id    uuid NOT NULL,                          -- ce_id: consumers dedupe by it
    ce_type     text NOT NULL CHECK (ce_type <> ''),    -- payonce.payment.qualified
    ce_source   text NOT NULL CHECK (ce_source <> ''),  -- /payonce/ingest
    ce_time     timestamptz NOT NULL,                   -- when it happened
    sequence    bigint NOT NULL,                        -- per key, rising
    traceparent text,                                   -- W3C trace context of the request behind it
    tracestate  text,
    schema_fp   bytea CHECK (octet_length(schema_fp) = 32), -- SHA-256 of the writer schema's text
    body        bytea,                                  -- bare Avro binary; NULL is a tombstone
    created_at  timestamptz NOT NULL DEFAULT now(),     -- retention, and re-sending after a fail-over
    CONSTRAINT outbox_body_has_schema CHECK (body IS NULL OR schema_fp IS NOT NULL),
    -- Only compacted topics know tombstones.
    CONSTRAINT outbox_tombstone_topic CHECK (body IS NOT NULL OR topic IN ('contacts.v1'))
);

-- The very schemas that wrote the bodies, by fingerprint. A writer makes its schemas known before its first row;
-- relay registers the text under the subject and frames bodies with the id it is given.
CREATE TABLE ingest.outbox_schema (
    fp         bytea NOT NULL CHECK (octet_length(fp) = 32), -- SHA-256 of `schema`
    subject    text NOT NULL CHECK (subject <> ''),          -- TOPIC-value
    schema     text NOT NULL,                                -- Avro schema, JSON
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (fp, subject)
);

-- Least privilege: the log and the decisions are append-only even for ingest itself.
GRANT USAGE ON SCHEMA ingest TO payonce_ingest, payonce_relay;
GRANT SELECT, INSERT ON ingest.provider_event, ingest.event_conflict, ingest.order_ref, ingest.decision,
    ingest.outbox, ingest.outbox_schema TO payonce_ingest;
GRANT SELECT, INSERT, UPDATE ON ingest.shop_order, ingest.order_contact, ingest.fact TO payonce_ingest;
GRANT UPDATE (payment) ON ingest.order_ref TO payonce_ingest; -- never whose it is
GRANT SELECT, INSERT, UPDATE, DELETE ON ingest.undecided TO payonce_ingest;
GRANT SELECT, DELETE ON ingest.outbox TO payonce_relay;
GRANT SELECT ON ingest.outbox_schema, ingest.outbox_id_seq TO payonce_relay;

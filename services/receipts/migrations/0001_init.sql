-- Receipts: where mail goes, and what became of each mail. A mail row holds no address: the address is read
-- from `contact` at the moment of sending, so that erasing it there is enough.
DO $$
BEGIN
    CREATE ROLE payonce_receipts LOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles belong to the whole cluster: another database of it may have made this one
END
$$;
CREATE SCHEMA receipts;
GRANT USAGE ON SCHEMA receipts TO payonce_receipts;

-- Events whose effect is committed.
CREATE TABLE receipts.inbox (
    event_id    uuid PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX inbox_received_at ON receipts.inbox (received_at);
GRANT SELECT, INSERT, DELETE ON receipts.inbox TO payonce_receipts;

-- The highest sequence seen per order, tombstones included (email NULL): a late copy of an erased address
-- finds a higher sequence here and changes nothing. So a row is never deleted.
CREATE TABLE receipts.contact (
    order_id text PRIMARY KEY,
    sequence bigint NOT NULL,
    email    text
);
GRANT SELECT, INSERT, UPDATE ON receipts.contact TO payonce_receipts;

-- One row per mail that a payment asks for, whether it is wanted or not.
CREATE TABLE receipts.mail (
    mail_key     text PRIMARY KEY, -- payment_receipt:PURPOSE:ORDER
    message_id   text NOT NULL UNIQUE, -- derived from mail_key: a repeated delivery carries the same one
    -- What it says; never changed.
    order_id     text NOT NULL,
    customer_id  text NOT NULL,
    purpose      text NOT NULL,
    item         text NOT NULL,
    amount_minor bigint NOT NULL,
    currency     text NOT NULL,
    exponent     int NOT NULL CHECK (exponent BETWEEN 0 AND 18),
    paid_at      timestamptz NOT NULL,
    -- What became of it.
    state        text NOT NULL
                 CHECK (state IN ('waiting_address', 'due', 'sent', 'not_wanted', 'review')),
    attempts     int NOT NULL DEFAULT 0,
    due_at       timestamptz, -- due: earliest next attempt; waiting_address: end of the wait
    lease_token  uuid,
    lease_until  timestamptz,
    last_error   text,
    sent_at      timestamptz,
    CHECK ((due_at IS NOT NULL) = (state IN ('waiting_address', 'due')))
);
CREATE INDEX mail_due ON receipts.mail (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX mail_order ON receipts.mail (order_id);
GRANT SELECT, INSERT ON receipts.mail TO payonce_receipts;
GRANT UPDATE (state, attempts, due_at, lease_token, lease_until, last_error, sent_at)
    ON receipts.mail TO payonce_receipts;

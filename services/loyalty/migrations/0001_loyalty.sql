-- Loyalty's schema. Entries are appended; what an order gave and a customer has are rows that move.
DO $$ BEGIN
    CREATE ROLE payonce_loyalty LOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;
CREATE SCHEMA IF NOT EXISTS loyalty;
GRANT USAGE ON SCHEMA loyalty TO payonce_loyalty;

CREATE TABLE loyalty.inbox (
    event_id uuid PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX inbox_received_at ON loyalty.inbox (received_at);
GRANT SELECT, INSERT, DELETE ON loyalty.inbox TO payonce_loyalty;

-- What an order has given so far, and by which sequence. moved: what the last event changed.
CREATE TABLE loyalty.order_points (
    order_id text PRIMARY KEY,
    customer_id text NOT NULL,
    last_sequence bigint NOT NULL,
    position text NOT NULL, -- the event's, as text: what an equal sequence must say again
    points bigint NOT NULL CHECK (points >= 0),
    moved bigint NOT NULL
);
CREATE INDEX order_points_customer ON loyalty.order_points (customer_id);
GRANT SELECT, INSERT, UPDATE ON loyalty.order_points TO payonce_loyalty;

CREATE TABLE loyalty.points_entry (
    entry_key text PRIMARY KEY, -- points:ORDER:SEQUENCE
    order_id text NOT NULL,
    customer_id text NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    delta bigint NOT NULL CHECK (delta <> 0),
    occurred_at timestamptz NOT NULL,
    UNIQUE (order_id, sequence)
);
CREATE INDEX points_entry_customer ON loyalty.points_entry (customer_id);
GRANT SELECT, INSERT ON loyalty.points_entry TO payonce_loyalty;

CREATE TABLE loyalty.customer (
    customer_id text PRIMARY KEY,
    points bigint NOT NULL CHECK (points >= 0), -- the sum of the customer's entries
    last_visit timestamptz                      -- of a qualified payment; moves forward only
);
GRANT SELECT, INSERT, UPDATE ON loyalty.customer TO payonce_loyalty;

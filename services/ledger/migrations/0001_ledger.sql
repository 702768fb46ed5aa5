-- The ledger's schema. The role reads and appends; only the position of an order is ever updated, and only
-- the inbox forgets.
DO $$ BEGIN
    CREATE ROLE payonce_ledger LOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;
CREATE SCHEMA IF NOT EXISTS ledger;
GRANT USAGE ON SCHEMA ledger TO payonce_ledger;

CREATE TABLE ledger.inbox (
    event_id uuid PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX inbox_received_at ON ledger.inbox (received_at);
GRANT SELECT, INSERT, DELETE ON ledger.inbox TO payonce_ledger;

-- What is booked for an order, and by which sequence. moved_*: what the last event changed.
CREATE TABLE ledger.order_position (
    order_id text PRIMARY KEY,
    last_sequence bigint NOT NULL,
    position text NOT NULL, -- the event's, as text: what an equal sequence must say again
    currency text NOT NULL,
    exponent integer NOT NULL,
    net bigint NOT NULL CHECK (net >= 0), -- on the clearing accounts
    revenue bigint NOT NULL CHECK (revenue >= 0),
    customer_credit bigint NOT NULL CHECK (customer_credit >= 0),
    suspense bigint NOT NULL CHECK (suspense >= 0),
    moved_net bigint NOT NULL,
    moved_revenue bigint NOT NULL,
    moved_customer_credit bigint NOT NULL,
    moved_suspense bigint NOT NULL,
    CHECK (net = revenue + customer_credit + suspense)
);
GRANT SELECT, INSERT, UPDATE ON ledger.order_position TO payonce_ledger;

CREATE TABLE ledger.journal (
    journal_id text PRIMARY KEY, -- journal:ORDER:SEQUENCE
    order_id text NOT NULL,
    sequence bigint NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    position text NOT NULL,
    occurred_at timestamptz NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (order_id, sequence)
);
GRANT SELECT, INSERT ON ledger.journal TO payonce_ledger;

-- Debit is positive. One unit per order, so one per journal; the check below does not rely on it.
CREATE TABLE ledger.journal_line (
    journal_id text NOT NULL REFERENCES ledger.journal,
    account text NOT NULL,
    amount bigint NOT NULL CHECK (amount <> 0),
    currency text NOT NULL,
    exponent integer NOT NULL,
    PRIMARY KEY (journal_id, account),
    CHECK (account IN ('revenue', 'customer_credit', 'suspense') OR account LIKE 'clearing:_%:_%')
);
CREATE INDEX journal_line_account ON ledger.journal_line (account);
GRANT SELECT, INSERT ON ledger.journal_line TO payonce_ledger;

-- What one statement adds to a journal sums to zero per unit; so every journal does, at all times.
CREATE FUNCTION ledger.check_balanced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    SELECT journal_id INTO bad FROM added GROUP BY journal_id, currency, exponent HAVING sum(amount) <> 0 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'journal % does not sum to zero', bad;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER journal_line_balanced AFTER INSERT ON ledger.journal_line
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ledger.check_balanced();

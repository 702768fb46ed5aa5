-- What refunds and sessions say beside their amounts. A program of before keeps what it does not know of a row that it
-- updates, and leaves the default in what it writes: a refund of no known charge counts to each charge of its payment,
-- one that failed at no known time counts as if it had not before any total was stated, and a session adds nothing to
-- the price. Running totals stay as they are, one row per statement ("CHARGE:CUMULATIVE"): they are read as one fact of
-- the charge, beside the one row that is kept of it now.
ALTER TABLE ingest.fact
    ADD COLUMN charge text NOT NULL DEFAULT '', -- of a refund: the charge it is of
    ADD COLUMN failed_at timestamptz,           -- of a refund: the earliest event that says failed
    ADD COLUMN total bigint NOT NULL DEFAULT 0, -- of a paid session: what it asked for in all
    ADD COLUMN tax bigint NOT NULL DEFAULT 0,
    ADD COLUMN shipping bigint NOT NULL DEFAULT 0;

ALTER TABLE ingest.shop_order
    ADD COLUMN tax bigint NOT NULL DEFAULT 0,      -- of due: what a session added to the price
    ADD COLUMN shipping bigint NOT NULL DEFAULT 0,
    ADD COLUMN unexplained bigint NOT NULL DEFAULT 0; -- refunds that only a running total states
CREATE INDEX shop_order_unexplained ON ingest.shop_order (order_id) WHERE unexplained > 0;

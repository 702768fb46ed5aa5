-- Who an account is: its name, which rows, references, orders and events hold, is of one mode and of one id of the
-- provider's for ever. Written by the program when it meets a name for the first time; compared at every start.
CREATE TABLE ingest.account (
    provider text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    id       text COLLATE "C", -- the provider's; NULL: not told yet, and told once
    mode     text        NOT NULL CHECK (mode IN ('live', 'test')),
    since    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, name),
    UNIQUE (provider, mode, id)
);
GRANT SELECT, INSERT, UPDATE (id) ON ingest.account TO payonce_ingest;
COMMENT ON COLUMN ingest.provider_event.account IS 'the account''s name; it is of one mode';
COMMENT ON COLUMN ingest.shop_order.accounts IS 'names of the accounts that may pay it';

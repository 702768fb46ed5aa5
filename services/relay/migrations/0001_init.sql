-- relay: how far each outbox is published, and who publishes it.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'payonce_relay') THEN
        CREATE ROLE payonce_relay LOGIN;
    END IF;
END $$;

CREATE SCHEMA IF NOT EXISTS relay;

-- One row per outbox: the lease and the checkpoint together, so that every write is guarded by the epoch.
CREATE TABLE relay.cursor (
    outbox        text        PRIMARY KEY, -- the schema that owns it
    epoch         bigint      NOT NULL,    -- raised by each new holder
    holder        text        NOT NULL,    -- host and process, for people
    expires_at    timestamptz NOT NULL,    -- database clock
    -- Every id ≤ floor is acknowledged, dead or inside [open_lo[i], open_hi[i]].
    floor         bigint      NOT NULL DEFAULT 0,
    open_lo       bigint[]    NOT NULL DEFAULT '{}',
    open_hi       bigint[]    NOT NULL DEFAULT '{}',
    -- Which server these ids were handed out by; NULL before the first checkpoint.
    system_id     bigint,
    timeline      text,
    server_start  timestamptz,
    checkpoint_at timestamptz
) WITH (fillfactor = 50);

GRANT USAGE ON SCHEMA relay TO payonce_relay;
GRANT SELECT, INSERT, UPDATE ON relay.cursor TO payonce_relay;

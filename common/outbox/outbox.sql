-- The transactional outbox: the canonical text. Each owner copies it into its first migration, with its own
-- schema in the place of `owner`. Rows are appended in the transaction that makes them true, and by a writer that
-- already holds its aggregate's row lock; relay publishes them in id order per key and prunes them by id.
--
-- The table is append-only. Relay's reading rests on three things here: INSERT takes its table lock before the
-- identity is drawn, ids are drawn one by one (CACHE 1), and they never run backwards (NO CYCLE, and writers keep
-- synchronous_commit at `local` or above). There is no index but the key: all reading and pruning is by id, and
-- every further index would be paid by each event.
CREATE TABLE owner.outbox (
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
CREATE TABLE owner.outbox_schema (
    fp         bytea NOT NULL CHECK (octet_length(fp) = 32), -- SHA-256 of `schema`
    subject    text NOT NULL CHECK (subject <> ''),          -- TOPIC-value
    schema     text NOT NULL,                                -- Avro schema, JSON
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (fp, subject)
);

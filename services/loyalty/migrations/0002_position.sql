-- Where this consumer stands in each partition, and by which two records it would know the log again: a
-- topic's log may be replaced by another of the same name, and offsets say nothing of that.
CREATE TABLE loyalty.position (
    topic       text NOT NULL,
    partition   int NOT NULL,
    turn        bigint NOT NULL, -- of this row; who does not know the last one moves nothing
    next_offset bigint NOT NULL, -- behind the last record taken …
    event_id    uuid NOT NULL,   -- … which has this ce_id …
    record_time timestamptz,     -- … and timestamp
    sure_offset bigint NOT NULL, -- the last one that was found in the log once more
    sure_id     uuid NOT NULL,
    sure_time   timestamptz,
    PRIMARY KEY (topic, partition)
);
GRANT SELECT, INSERT, UPDATE ON loyalty.position TO payonce_loyalty;

-- Members that prune side by side lock what they take, which needs this right; nothing is ever updated.
GRANT UPDATE (received_at) ON loyalty.inbox TO payonce_loyalty;

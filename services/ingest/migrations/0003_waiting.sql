-- What waits: who is woken comes first, what names nothing of ours waits by reference alone, and a look at either
-- begins where the living rows are.

ALTER TABLE ingest.undecided ALTER due_at DROP NOT NULL, ADD COLUMN woken_at timestamptz;
COMMENT ON COLUMN ingest.undecided.due_at IS 'looked at once more then, in case; NULL: woken by a reference only';
COMMENT ON COLUMN ingest.undecided.woken_at IS 'what it waits for became known then: it goes before all that is merely due';
COMMENT ON COLUMN ingest.undecided.unmatched IS
    'names nothing of ours, or 72 h without its order: kept, woken by its references, counted apart';

-- The woken, who were due at the epoch until now; what is unmatched is not looked at again; what names no order gets
-- one look more.
UPDATE ingest.undecided
SET woken_at = CASE WHEN due_at = 'epoch' THEN now() END,
    due_at = CASE WHEN unmatched THEN NULL ELSE greatest(due_at, now()) END,
    unmatched = unmatched OR (due_at <> 'epoch' AND reason = 'order_unknown'
                              AND NOT EXISTS (SELECT FROM unnest(awaits) AS a WHERE a LIKE 'order:%'));

CREATE INDEX undecided_woken ON ingest.undecided (woken_at, event) WHERE woken_at IS NOT NULL;
DROP INDEX ingest.undecided_due;
CREATE INDEX undecided_due ON ingest.undecided (due_at, event) WHERE due_at IS NOT NULL;
-- For the counts, and the age of the oldest.
CREATE INDEX undecided_waiting ON ingest.undecided (created_at) WHERE NOT unmatched;
CREATE INDEX undecided_unmatched ON ingest.undecided (created_at) WHERE unmatched;

-- The expiry sweep goes on from where it was, also among orders of one moment.
CREATE INDEX shop_order_expiring ON ingest.shop_order (expires_at, order_id)
    WHERE NOT expiry_swept AND expires_at IS NOT NULL;
DROP INDEX ingest.shop_order_expiry;

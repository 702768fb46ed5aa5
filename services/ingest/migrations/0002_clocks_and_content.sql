-- What a repeated registration must equal is rendered anew (the lists in it are told apart): each digest says which
-- rendering made it and is compared under that one. A program of before writes the first.
ALTER TABLE ingest.shop_order ADD COLUMN content_version smallint NOT NULL DEFAULT 1;

-- Orders whose clock had run out stayed open when their last attempt had failed, or said a word without a meaning.
-- Whatever such an order was last decided by is decided once more, by programs of today: those of before are given time
-- to leave.
INSERT INTO ingest.undecided (event, reason, awaits, due_at)
SELECT DISTINCT d.event, 'order_busy', '{}'::text[], now() + interval '10 minutes'
  FROM ingest.shop_order o
 CROSS JOIN LATERAL (SELECT event FROM ingest.decision d JOIN ingest.provider_event e ON e.id = d.event
                      WHERE d.order_id = o.order_id AND (e.raw IS NOT NULL OR e.provider = 'payonce')
                      ORDER BY d.decided_at DESC, d.decision_id DESC LIMIT 1) d
 WHERE o.state = 'open' AND o.verdict IN ('failed', 'unsupported')
   AND EXISTS (SELECT FROM ingest.fact f WHERE f.order_id = o.order_id
                  AND (f.kind = 'expiry' OR (f.kind = 'payment' AND f.state = 'expired' AND o.verdict = 'failed')))
    ON CONFLICT DO NOTHING;

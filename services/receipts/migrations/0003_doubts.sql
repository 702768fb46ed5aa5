-- Deliveries in doubt are counted apart: each may be a copy that the customer has.
ALTER TABLE receipts.mail ADD COLUMN doubts int NOT NULL DEFAULT 0 CHECK (doubts >= 0); -- since the last address
GRANT UPDATE (doubts) ON receipts.mail TO payonce_receipts;

-- An address that was given after the payment brings its mail; such a mail had been given up for good. What was paid
-- long ago stays as it is, since nobody expects that receipt any more.
UPDATE receipts.mail m SET state = 'due', due_at = now()
WHERE state = 'not_wanted' AND paid_at > now() - interval '7 days'
AND EXISTS (SELECT FROM receipts.contact c WHERE c.order_id = m.order_id AND c.email IS NOT NULL);

-- The sequence that brought this address: a contact that says the same address again brings no mail.
ALTER TABLE receipts.contact ADD COLUMN email_since bigint NOT NULL DEFAULT 0;

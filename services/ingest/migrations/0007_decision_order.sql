-- In what order an order's decisions were made: given out while its row is locked. Clocks of several programs cannot say
-- it. Decisions of before have none; they keep the whole snapshot, and come first. No row is rewritten.
CREATE SEQUENCE ingest.decision_made_seq;
ALTER TABLE ingest.decision ADD COLUMN made bigint;
ALTER TABLE ingest.decision ALTER made SET DEFAULT nextval('ingest.decision_made_seq');
GRANT USAGE ON SEQUENCE ingest.decision_made_seq TO payonce_ingest;

COMMENT ON COLUMN ingest.decision.made IS 'rises with each decision of an order; NULL: before all that have one';
COMMENT ON COLUMN ingest.decision.facts IS
    'facts_are ''changed'': those that it changed, after it; ''all'': the whole snapshot. Folded by made they are the order''s facts at any decision';

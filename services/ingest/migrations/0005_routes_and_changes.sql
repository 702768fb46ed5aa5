-- What a reference was learnt by: '' or 'shop': registered, or learnt from an event that a registered one had led to
-- its order; 'money': the paid event names the order itself; 'word': another event, or a visitor, names it; 'conflict':
-- words differ, a person decides. Rows of before, and of programs of before, count as the shop's, as they did.
ALTER TABLE ingest.order_ref ADD COLUMN known_by text NOT NULL DEFAULT '';

-- A decision keeps the facts it changed, with their values after it: an order's snapshot at any decision is its
-- decisions' facts, folded in the order of decided_at and decision_id. 'all': the whole snapshot, as programs of before
-- write it; 'changed': what differs from the decision before.
ALTER TABLE ingest.decision ADD COLUMN facts_are text NOT NULL DEFAULT 'all' CHECK (facts_are IN ('all', 'changed'));

-- Keys of further generations become `grant.gN:ORDER`. As `grant:ORDER:gN` the second generation of order `X` and the
-- first of order `X:g2` shared one: whoever came later was taken for a contradiction and got no right.
ALTER TABLE access.conflict DROP CONSTRAINT conflict_operation_key_fkey;

-- A contradiction's generation: its key says it, read with its own order.
CREATE FUNCTION access.generation_of(operation_key text, order_id text) RETURNS int LANGUAGE sql IMMUTABLE AS
    $$ SELECT CASE WHEN operation_key = 'grant:' || order_id THEN 1
       ELSE substr(operation_key, length('grant:' || order_id || ':g') + 1)::int END $$;
CREATE FUNCTION access.key_of(order_id text, generation int) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT CASE WHEN generation = 1 THEN 'grant:' ELSE 'grant.g' || generation || ':' END || order_id $$;

UPDATE access.access_right SET operation_key = access.key_of(order_id, qualification) WHERE qualification > 1;

-- What was refused because another order had the key is given now: the first that asked for it.
INSERT INTO access.access_right (operation_key, order_id, customer_id, purpose, item, qualification, content, granted_at,
    state, revoked_at)
SELECT DISTINCT ON (c.order_id, generation) access.key_of(c.order_id, generation), c.order_id, c.customer_id, c.purpose,
    c.item, generation, c.content, c.decided_at,
    CASE WHEN later THEN 'revoked' ELSE 'granted' END, CASE WHEN later THEN c.decided_at END
FROM (SELECT *, access.generation_of(operation_key, order_id) AS generation FROM access.conflict) c,
    LATERAL (SELECT EXISTS (SELECT FROM access.access_right r WHERE r.order_id = c.order_id AND r.qualification > generation)
        OR EXISTS (SELECT FROM access.conflict o WHERE o.order_id = c.order_id
            AND access.generation_of(o.operation_key, o.order_id) > generation) AS later) AS l
WHERE NOT EXISTS (SELECT FROM access.access_right r WHERE r.order_id = c.order_id AND r.qualification = generation)
ORDER BY c.order_id, generation, c.decided_at, c.event_id;

UPDATE access.conflict SET operation_key = access.key_of(order_id, access.generation_of(operation_key, order_id));
DELETE FROM access.conflict c USING access.access_right r WHERE r.operation_key = c.operation_key AND r.content = c.content;

ALTER TABLE access.conflict ADD FOREIGN KEY (operation_key) REFERENCES access.access_right;
DROP FUNCTION access.generation_of, access.key_of;

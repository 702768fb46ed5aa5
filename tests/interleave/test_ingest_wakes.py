"""What wakes a waiting event against the worker that has it in hand."""

from shop import Shop
from test_ingest_races import aside, gate  # noqa: F401 (a fixture)
from test_ingest_review import waiting
from wait import until

REGISTER = """
INSERT INTO ingest.shop_order (order_id, customer_id, purpose, item, policy, profile, accounts, live, currency, exponent,
 price, max_discount, revoke_on_refund, content, due) SELECT %s, customer_id, purpose, item, policy, profile, accounts,
 live, currency, exponent, price, max_discount, revoke_on_refund, content, due FROM ingest.shop_order WHERE order_id = %s
"""
WAKE = """
UPDATE ingest.undecided SET woken_at = now(), lease_token = NULL, lease_until = NULL, unmatched = false WHERE event = %s
"""


def test_p4_a_worker_overtaken_by_the_wake_puts_nothing_off(services, stack, tag, gate, events) -> None:  # noqa: F811
    """It has looked in vain and is about to give the old row up as unmatched; the registration comes in between: we
    stand in for it, queued at the row behind the worker's claim and before its verdict."""
    services.start("ingest", env={"PAYONCE_UNDECIDED_WORKERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    shop.register("b")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shut = gate("fact", "false")
    with stack.postgres.connect() as conn:  # behind the statement that has claimed the old row, so that it holds it
        conn.execute("CREATE FUNCTION gate_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                     " IF current_query() LIKE '%lease_token = $2,%' AND EXISTS (SELECT FROM claimed"
                     " WHERE created_at < now() - interval '72 h') THEN PERFORM gate_stop(); END IF; RETURN NULL; END $$")
        conn.execute("CREATE TRIGGER claim AFTER UPDATE ON ingest.undecided REFERENCING NEW TABLE AS claimed"
                     " FOR EACH STATEMENT EXECUTE FUNCTION gate_claim()")

    def waits_for_lock(user: str) -> bool:
        return bool(stack.postgres.query(
            "SELECT 1 FROM pg_stat_activity WHERE usename = %s AND wait_event_type = 'Lock'", user))

    try:
        shop.send(event)
        [(row,)] = stack.postgres.query("SELECT id FROM ingest.provider_event WHERE event_id = %s", event["id"])
        stack.postgres.query("UPDATE ingest.undecided SET created_at = now() - interval '73 hours', due_at = now(),"
                             " lease_token = NULL, lease_until = NULL WHERE event = %s", row)
        until(lambda: shut.held() == 1, what="the worker claims the row")
        with aside() as run, stack.postgres.connect(autocommit=False) as conn:
            locked = run(conn.execute, "SELECT FROM ingest.undecided WHERE event = %s FOR UPDATE", [row])
            until(lambda: waits_for_lock("postgres"), what="we are next")
            shut.open()
            locked.result()
            until(lambda: waits_for_lock("payonce_ingest"), what="the worker has looked in vain", every=0.002)
            conn.execute(REGISTER, [shop.id("a"), shop.id("b")])
            conn.execute(WAKE, [row])
            conn.commit()
        shop.wait_state("a", "paid")
    finally:
        shut.open()
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER claim ON ingest.undecided; DROP FUNCTION gate_claim()")
    assert waiting(stack, event["id"]) == [] and events(shop.id("a")) == [("qualified", 1)]

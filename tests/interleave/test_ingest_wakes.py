"""What wakes a waiting event against the worker that has it in hand."""

from shop import Shop
from test_ingest_races import gate  # noqa: F401 (a fixture)
from test_ingest_review import waiting
from wait import until


def test_p4_a_worker_overtaken_by_the_wake_puts_nothing_off(services, stack, tag, gate, events) -> None:  # noqa: F811
    """It has looked in vain and is about to give the old row up as unmatched; the registration comes in between."""
    services.start("ingest", env={"PAYONCE_UNDECIDED_WORKERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shut = gate("fact", "false")
    with stack.postgres.connect() as conn:  # before the statement, so that it holds no row yet
        conn.execute("CREATE FUNCTION gate_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                     " WHILE current_query() LIKE '%attempts = attempts + 1%' AND EXISTS (SELECT FROM gate)"
                     " LOOP PERFORM pg_sleep(0.002); END LOOP; RETURN NULL; END $$")
        conn.execute("CREATE TRIGGER later BEFORE UPDATE ON ingest.undecided FOR EACH STATEMENT"
                     " EXECUTE FUNCTION gate_later()")
    try:
        shop.send(event)
        stack.postgres.query("UPDATE ingest.undecided SET created_at = now() - interval '73 hours', due_at = now()"
                             " WHERE event = (SELECT id FROM ingest.provider_event WHERE event_id = %s)", event["id"])
        until(lambda: shut.held() == 1, 10, "the worker is about to put the row off")
        shop.register("a")
        shut.open()
        shop.wait_state("a", "paid")
    finally:
        shut.open()
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER later ON ingest.undecided; DROP FUNCTION gate_later()")
    assert waiting(stack, event["id"]) == [] and events(shop.id("a")) == [("qualified", 1)]

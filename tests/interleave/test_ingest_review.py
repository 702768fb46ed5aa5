"""Interleavings of ingest found by review: what meets in one batch, what wakes what, who reads what behind a lock."""

import uuid
from concurrent.futures import ThreadPoolExecutor

from service import Answer
from shop import Shop
from test_ingest_races import aside, gate, replicas  # noqa: F401 (fixtures)
from wait import until


def waiting(stack, event_id: str) -> list[tuple]:
    return stack.postgres.query(
        "SELECT u.reason, u.awaits, u.attempts FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event"
        " WHERE e.event_id = %s", event_id)


def test_p2_p3_one_batch_of_repeats_conflicts_refunds_and_routes_is_decided_one_by_one(
        services, stack, tag, gate, events) -> None:  # noqa: F811
    """One writer is held; what comes meanwhile is one batch, each event decided against the one before."""
    services.start("ingest", env={"PAYONCE_WRITERS": "1", "PAYONCE_HTTP_THREADS": "4"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    for name in ("hold", "a", "b", "c", "d", "e"):
        shop.register(name)
    completed = "checkout.session.completed"
    paid_a = shop.stripe_event(completed, shop.session("a"))
    other_a = paid_a | {"data": {"object": shop.session("a", total=9900)}}
    batch = [
        shop.stripe_event("refund.created", shop.refund("a", "1", 900)),
        shop.stripe_event("charge.refunded", shop.charge("a", 4900, 900)),
        paid_a, paid_a, paid_a, other_a, other_a,
        shop.stripe_event(completed, shop.session("b", 3000)),
        shop.stripe_event(completed, shop.session("b", 1900, payment=f"pi_{tag}_b2", session=f"cs_{tag}_b2")),
        shop.stripe_event("payment_intent.succeeded", {
            "id": f"pi_{tag}_c", "object": "payment_intent", "latest_charge": f"ch_{tag}_c",
            "metadata": {"order_id": shop.id("c")}}),
        shop.stripe_event(completed, shop.session("c", order=None)),  # finds its order by what the one before claimed
        # Names by client_reference_id alone, which its account does not allow, an order that others of the batch find.
        shop.stripe_event(completed, shop.session("x", order=None) | {"client_reference_id": shop.id("c")}),
        shop.stripe_event(completed, shop.session("d", payment=f"pi_{tag}_shared")),
        shop.stripe_event(completed, shop.session("e", payment=f"pi_{tag}_shared")),
        shop.stripe_event("customer.created", {"id": "cus_1", "object": "customer"}),
        b'{"id": "nothing',
    ]
    shut = gate("fact", f"NEW.order_id = '{shop.id('hold')}'")
    with aside() as run, ThreadPoolExecutor(len(batch)) as pool:
        held = run(shop.paid, "hold")
        until(lambda: shut.held() == 1, what="the writer is inside its transaction")
        before = shop.ingest.metric("payonce_ingest_batches_total")
        sent = [pool.submit(shop.send, event, expect=None) for event in batch]
        until(lambda: shop.ingest.metric("payonce_http_body_bytes") >= sum(
            len(str(e)) for e in batch) * 0.8, what="all have come", every=0.01)
        shut.open()
        held.result()
        answers: list[Answer] = [one.result() for one in sent]
    assert {a.status for a in answers} == {200}
    assert shop.ingest.metric("payonce_ingest_batches_total") - before <= 4, "hold, the batch, and workers none"
    results = [a.json()["result"] for a in answers[2:7]]
    assert results.count("recorded") == 1 and results.count("conflict") in (2, 3), results
    shop.wait_state("c", "paid", received=4900)
    shop.wait_state("b", "paid", received=4900)
    assert [t for t, _ in events(shop.id("b"))] == ["review_required", "qualified"]
    # One intent, two paid sessions, two names: whichever is first, neither has the money.
    assert {(v["state"], v["reason"], v["received"]) for v in map(shop.show, "de")} == {
        ("review", "route_conflict", 0)}
    until(lambda: shop.show("a")["refunded"] == 900, what="the refund found its payment")
    got = events(shop.id("a"))
    assert [s for _, s in got] == list(range(1, len(got) + 1))
    assert stack.postgres.query(
        "SELECT count(DISTINCT digest), count(*) FROM ingest.event_conflict WHERE event_id = %s", paid_a["id"]) == [(1, 1)]


def test_p4_a_claim_in_progress_loses_its_row_to_the_wake(shop, stack, events) -> None:
    """A worker that died with the row, or is still at it, does not keep it from what woke it."""
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    token = uuid.uuid4()
    stack.postgres.query(
        "UPDATE ingest.undecided SET lease_token = %s, lease_until = now() + interval '1 hour', unmatched = true"
        " WHERE event = (SELECT id FROM ingest.provider_event WHERE event_id = %s)", token, event["id"])
    shop.register("a")
    shop.wait_state("a", "paid")
    assert waiting(stack, event["id"]) == [] and events(shop.id("a")) == [("qualified", 1)]


def wait_together(shop: Shop, stack, names: str) -> dict[str, int]:
    """A paid session of each order waits; the orders then come without a wake, as if it had been missed. The rows."""
    shop.register("made")
    rows = {}
    for name in names:
        event = shop.stripe_event("checkout.session.completed", shop.session(name))
        shop.send(event)
        [(rows[name],)] = stack.postgres.query(
            "UPDATE ingest.undecided SET due_at = NULL, woken_at = NULL, lease_token = NULL, lease_until = NULL WHERE event ="
            " (SELECT id FROM ingest.provider_event WHERE event_id = %s) RETURNING event", event["id"])
        stack.postgres.query(
            "INSERT INTO ingest.shop_order SELECT (jsonb_populate_record(o, jsonb_build_object('order_id', %s::text))).*"
            " FROM ingest.shop_order o WHERE order_id = %s", shop.id(name), shop.id("made"))
    return rows


def make_due(stack, rows: dict[str, int]) -> None:
    stack.postgres.query("UPDATE ingest.undecided SET unmatched = false, woken_at = now() WHERE event = ANY(%s)",
                         list(rows.values()))


def transactions(shop: Shop, stack, names: str) -> list[int]:
    """How many decisions, and in how many transactions."""
    [(n, of)] = stack.postgres.query("SELECT count(*), count(DISTINCT xmin::text) FROM ingest.decision WHERE order_id"
                                     " = ANY(%s)", [shop.id(name) for name in names])
    return [n, of]


def test_p4_what_one_claim_takes_is_decided_in_one_transaction(services, stack, tag, events) -> None:
    services.start("ingest", env={"PAYONCE_UNDECIDED_WORKERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    names = "abcdefgh"
    make_due(stack, wait_together(shop, stack, names))
    for name in names:
        shop.wait_state(name, "paid")
        assert events(shop.id(name)) == [("qualified", 1)]
    assert transactions(shop, stack, names) == [8, 1]


def test_p4_a_claim_that_loses_one_row_decides_nothing_and_goes_on_row_by_row(
        services, stack, tag, gate, events) -> None:  # noqa: F811
    services.start("ingest", env={"PAYONCE_UNDECIDED_WORKERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    rows = wait_together(shop, stack, "abc")
    shut = gate("fact", f"NEW.order_id = '{shop.id('a')}'")
    make_due(stack, rows)
    until(lambda: shut.held() == 1, what="the worker is inside the transaction of all three")
    stack.postgres.query("UPDATE ingest.undecided SET lease_token = NULL, lease_until = NULL WHERE event = %s", rows["b"])
    shut.open()
    for name in "abc":
        shop.wait_state(name, "paid")
        assert events(shop.id(name)) == [("qualified", 1)]
    assert transactions(shop, stack, "abc") == [3, 3]


def test_p4_one_row_of_a_claim_that_fails_fails_alone(services, stack, tag, events) -> None:
    services.start("ingest", env={"PAYONCE_UNDECIDED_WORKERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    rows = wait_together(shop, stack, "abc")
    with stack.postgres.connect() as conn:
        conn.execute("CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'bad' USING ERRCODE ="
                     " '54000'; END $$")
        conn.execute("CREATE TRIGGER bad BEFORE INSERT ON ingest.fact FOR EACH ROW"
                     f" WHEN (NEW.order_id = '{shop.id('b')}') EXECUTE FUNCTION bad()")
    try:
        make_due(stack, rows)
        for name in "ac":
            shop.wait_state(name, "paid")
        [(error,)] = until(lambda: stack.postgres.query(
            "SELECT last_error FROM ingest.undecided WHERE event = %s AND last_error <> ''", rows["b"]), what="put off")
        assert error.startswith("54000")
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER bad ON ingest.fact; DROP FUNCTION bad()")
    for name in "abc":
        shop.wait_state(name, "paid")
        assert events(shop.id(name)) == [("qualified", 1)]


def test_p4_a_registration_that_meets_a_worker_at_its_row_is_repeated_and_wakes_it(
        replicas, gate, stack, events) -> None:  # noqa: F811
    """The row's lock is held by the worker that puts it off: 503, nothing registered; then the repeat finds it."""
    one, two = replicas
    event = one.stripe_event("checkout.session.completed", one.session("a"))
    one.send(event)
    [(row,)] = stack.postgres.query("SELECT id FROM ingest.provider_event WHERE event_id = %s", event["id"])
    shut = gate("undecided", f"NEW.lease_token IS NULL AND OLD.lease_token IS NOT NULL AND NEW.event = {row}", on="UPDATE")
    until(lambda: shut.held() >= 1, what="a worker puts the row off")
    got = two.api("POST", "/v1/orders", two.order("a"))
    assert got.status == 503
    assert two.api("GET", f"/v1/orders/{two.id('a')}").status == 404, "one transaction"
    shut.open()
    until(lambda: two.api("POST", "/v1/orders", two.order("a")).status in (200, 201), what="registered")
    one.wait_state("a", "paid")
    assert events(one.id("a")) == [("qualified", 1)]


def test_orders_one_new_address_in_two_sessions_is_one_contact(replicas, gate, stack) -> None:  # noqa: F811
    """A statement that locks the order does not see anew what is joined to it: the address is read behind it."""
    one, two = replicas
    one.register("a", contact="ann@example.org")
    order = one.order("a", contact="bob@example.org")
    shut = gate("order_contact", f"NEW.order_id = '{one.id('a')}'", until_waited_for=True)

    def told(shop: Shop) -> Answer | None:
        got = shop.api("POST", "/v1/orders", order)
        return got if got.status != 503 else None  # a lock is waited for 250 ms, no longer

    with aside() as run:
        first = run(told, one)
        until(lambda: shut.held() == 1, what="the first session is inside its transaction")
        assert until(lambda: told(two), what="the second, behind the order's lock").status == 200
        assert first.result().status == 200
    rows = stack.postgres.query(
        "SELECT sequence FROM ingest.outbox WHERE topic = 'contacts.v1' AND key = %s ORDER BY id", one.id("a"))
    assert rows == [(1,), (2,)], "ann, then bob, once"

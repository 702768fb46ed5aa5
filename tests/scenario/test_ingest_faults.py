"""Ingest under faults: killed, cut off from its database, drained while callers stay, fed with what does not fit. The
callers are like providers: they repeat until a 2xx."""

import http.client
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import accounts
from link import PostgresLink
from service import Answer, Service, call
from shop import Shop, encode, now
from sign import stripe_header
from stack import Postgres, Stack
from wait import until


def insist(shop: Shop, event: dict[str, Any]) -> Answer:
    """Sends as a provider does: signed anew each time, until a 2xx; broken connections are no answer."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException, RuntimeError):
            got = shop.send(event, expect=None)
            if got.status == 200:
                return got
        time.sleep(0.05)
    raise TimeoutError(f"{event['id']} was never taken")


# --- Killed

def test_p1_p3_killed_again_and_again_every_event_is_recorded_and_counted_once(services, stack, tag, events) -> None:
    """FAULTS 19, PROVIDERS fault 12: kill -9 at any moment; every provider repeats until it is answered."""
    services.start("ingest")
    shop = Shop(services["ingest"], stack.api_token, tag)
    names = [f"o{i}" for i in range(120)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shop.register, names))
    sends = []
    for name in names:
        sends += [shop.stripe_event("checkout.session.completed", shop.session(name, 3000)),
                  shop.stripe_event("checkout.session.completed", shop.session(
                      name, 1900, payment=f"pi_{tag}_{name}_2", session=f"cs_{tag}_{name}_2")),
                  shop.stripe_event("refund.created", shop.refund(name, name, 900))]
    dice = random.Random(7)
    dice.shuffle(sends)
    answered, kills = [], 0
    with ThreadPoolExecutor(16) as pool:
        pending = [pool.submit(lambda e: answered.append(insist(shop, e)), e) for e in sends]
        while (left := len(sends) - len(answered)) > 30:
            until(lambda: len(sends) - len(answered) <= left - 20, what="it takes events again", every=0.001)
            time.sleep(dice.uniform(0, 0.02))
            services["ingest"].kill9()
            services["ingest"].start()
            kills += 1
        for one in pending:
            one.result()
    assert kills >= 5
    services["ingest"].wait_ready()
    for name in names:
        shop.wait_state(name, "paid", received=4900, refunded=900)
        got = events(shop.id(name))
        assert [s for _, s in got] == list(range(1, len(got) + 1)), "no number twice, none left out"
        assert [t for t, _ in got].count("qualified") == 1, got
    [(recorded,)] = stack.postgres.query(
        "SELECT count(*) FROM ingest.provider_event WHERE event_id LIKE %s AND disposition = 'facts'", f"evt_{tag}%")
    assert recorded == len(sends)


def test_p2_a_lost_reply_to_commit_is_503_and_the_repeat_a_duplicate(services, stack, tag, events) -> None:
    with PostgresLink(stack.postgres.port) as link:
        services.start("ingest", env={"PAYONCE_DSN": link.dsn("payonce_ingest"), "PAYONCE_WRITERS": "1"})
        shop = Shop(services["ingest"], stack.api_token, tag)
        shop.register("a")
        shop.send(shop.stripe_event("customer.created", {"id": "cus_1", "object": "customer"}))
        event = shop.stripe_event("checkout.session.completed", shop.session("a"))
        link.only, link.lose = event["id"].encode(), 1
        assert shop.send(event, expect=None).status == 503
        assert link.lost == 1 and events(shop.id("a")) == [("qualified", 1)], "it was committed all the same"
        shop.send(event, expect="duplicate")
        assert events(shop.id("a")) == [("qualified", 1)]


def test_p4_a_worker_that_loses_the_reply_to_commit_decides_once(services, stack, tag, events) -> None:
    with PostgresLink(stack.postgres.port) as link:
        services.start("ingest", env={"PAYONCE_DSN": link.dsn("payonce_ingest"), "PAYONCE_UNDECIDED_WORKERS": "1"})
        shop = Shop(services["ingest"], stack.api_token, tag)
        direct = services.start("ingest", label="direct")
        shop.paid("a")
        link.lose = 1
        Shop(direct, stack.api_token, tag).register("a")
        shop.wait_state("a", "paid")
        assert events(shop.id("a")) == [("qualified", 1)]


def test_orders_commands_whose_reply_to_commit_was_lost_are_repeated_without_effect(services, stack, tag, events) -> None:
    with PostgresLink(stack.postgres.port) as link:
        services.start("ingest", env={"PAYONCE_DSN": link.dsn("payonce_ingest")})
        shop = Shop(services["ingest"], stack.api_token, tag)
        order = shop.order("a", contact="ann@example.org", refs={"session": f"cs_{tag}_a"})
        link.only, link.lose = shop.id("a").encode(), 1
        assert shop.api("POST", "/v1/orders", order).status == 503
        got = shop.api("POST", "/v1/orders", order)
        assert (got.status, got.json()["sequence"]) == (200, 1), "one contact row"
        link.lose = 1
        assert shop.cancel("a").status == 503
        assert shop.cancel("a").status == 200
        assert events(shop.id("a")) == [("canceled", 2)]


def test_p1_a_server_that_ends_the_session_at_commit_has_stored_nothing(shop, stack, events) -> None:
    """The other half of an uncertain COMMIT: the session dies in it, the repeat is the first."""
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    with stack.postgres.connect() as conn:
        conn.execute("CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
                     " PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$")
        conn.execute("CREATE CONSTRAINT TRIGGER die AFTER INSERT ON ingest.provider_event DEFERRABLE INITIALLY DEFERRED"
                     f" FOR EACH ROW WHEN (NEW.event_id = '{event['id']}') EXECUTE FUNCTION die()")
    try:
        assert shop.send(event, expect=None).status == 503
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER die ON ingest.provider_event; DROP FUNCTION die()")
    shop.send(event)
    assert events(shop.id("a")) == [("qualified", 1)]


# --- Draining

class Caller:
    """A connection that is kept alive."""

    def __init__(self, ingest: Service) -> None:
        self._conn = http.client.HTTPConnection("127.0.0.1", ingest.port("http"), timeout=60)
        self._conn.connect()

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        self._conn.request("POST", path, body, headers)
        got = self._conn.getresponse()
        got.read()
        return got.status


@pytest.mark.parametrize("path", ["/webhooks/stripe/shop", "/v1/orders"])
def test_drain_answers_callers_on_open_connections_to_its_last_moment(shop, stack, tag, path: str) -> None:
    """A request that comes in on a connection kept alive finds the queues closed, never gone."""
    callers = [Caller(shop.ingest) for _ in range(16)]
    with stack.postgres.connect() as conn:  # one call of the orders API holds the drain up
        conn.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NEW;"
                     " END $$")
        conn.execute("CREATE TRIGGER slow BEFORE INSERT ON ingest.shop_order FOR EACH ROW"
                     f" WHEN (NEW.order_id = '{shop.id('slow')}') EXECUTE FUNCTION slow()")
    body = encode(shop.stripe_event("customer.created", {"id": "cus_1", "object": "customer"}))
    if path == "/v1/orders":
        body = encode(shop.order("a"))
    statuses = []
    try:
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(shop.api, "POST", "/v1/orders", shop.order("slow"))
            until(lambda: stack.postgres.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"), what="held")
            ended = ThreadPoolExecutor(1).submit(shop.ingest.term)
            until(lambda: shop.ingest.log_lines("stopping"), what="it is stopping")
            for caller in callers:  # at many moments of the drain
                time.sleep(0.05)
                headers = {"Stripe-Signature": stripe_header(accounts.secret("shop"), body, now()),
                           "Authorization": f"Bearer {stack.api_token}"}
                with suppress(ConnectionError, http.client.RemoteDisconnected):
                    statuses.append(caller.post(path, body, headers))
            assert held.result().status in (201, 503), "what was taken is finished, or late on a busy machine"
            assert ended.result() == 0
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER slow ON ingest.shop_order; DROP FUNCTION slow()")
    assert set(statuses) <= {200, 201, 503}, statuses


# --- A database that stands still

@pytest.fixture
def own(stack: Stack, tag: str):
    """A cluster of this test's own, that it may freeze."""
    it = Postgres(stack.scratch, name=f"pg-{tag}").start()
    with it.connect(dbname="postgres") as conn:
        conn.execute("CREATE DATABASE payonce")
    stack.migrate("ingest", it)
    yield it
    it.thaw()
    it.stop("immediate")


def test_a_frozen_database_holds_up_no_answer_no_memory_and_no_exit(services, stack, tag, own) -> None:
    """Answers within 2 s, bodies held are bounded although their requests were answered, and the
    drain does not wait for what nobody waits for."""
    services.start("ingest", env={"PAYONCE_DSN": own.dsn("payonce_ingest")})
    shop = Shop(services["ingest"], stack.api_token, tag)
    shop.register("a")
    shop.paid("a")
    own.freeze()
    large = encode(shop.stripe_event("customer.created", {"object": "customer", "pad": "x" * ((1 << 20) - 2000)}))
    signed = {"Stripe-Signature": stripe_header(accounts.secret("shop"), large, now())}
    token = {"Authorization": f"Bearer {shop.token}"}
    took: list[float] = []

    def ask(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> str:
        began = time.monotonic()
        got = call(method, shop.ingest.url(path), body, headers, timeout=30)
        took.append(time.monotonic() - began)
        assert got.status == 503 and got.headers["retry-after"]
        return got.json()["error"]["code"]

    with ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(lambda _: ask("POST", "/webhooks/stripe/shop", large, signed), range(80)))
    assert codes.count("late") <= 40 and "busy" in codes, "64 MiB and no more are held, copies included"
    assert shop.ingest.metric("payonce_ingest_answer_seconds_count") == shop.ingest.metric(
        "payonce_ingest_answer_seconds_bucket", le="2.5"), "2 s, counted where a busy machine counts least"
    assert shop.ingest.admin_get("/healthz").status == 200
    took.clear()
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: ask("GET", f"/v1/orders/{shop.id('a')}", None, token), range(12)))
    assert max(took) < 8, "2 s, and some for a busy machine"
    assert shop.ingest.term(60) == 0, "it ends by itself: within 30 s, and some for a busy machine"


# --- What does not fit

def waiting(stack: Stack, event_id: str) -> list[tuple]:
    return stack.postgres.query(
        "SELECT u.reason FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event WHERE e.event_id = %s",
        event_id)


def test_p1_a_verified_event_is_recorded_whatever_bytes_its_header_holds(shop, stack, events) -> None:
    """Unknown parts of the signature header may hold any byte; the log takes text."""
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    body = encode(event)
    header = stripe_header(accounts.secret("shop"), body, now())
    for odd in (b"\xff\xfe", "₹".encode()):
        got = shop.post("/webhooks/stripe/shop", body, {"Stripe-Signature": header.encode() + b",x=" + odd})
        assert got.status == 200, got.body
    assert events(shop.id("a")) == [("qualified", 1)]


@pytest.mark.parametrize("segment", ["%00", "%FF", "a%0Ab", "%27%3B--", "x" * 5000, "..%2f"])
def test_orders_a_path_may_hold_any_byte(shop, segment: str) -> None:
    for method, path in (("GET", ""), ("POST", "/cancel")):
        got = shop.api(method, f"/v1/orders/{segment}{path}")
        assert got.status in (400, 404), (got.status, got.body)
    got = shop.api("POST", f"/v1/orders/{segment}/references",
                   {"references": [{"account": "shop", "kind": "session", "value": "cs_1"}]})
    assert got.status in (400, 404), (got.status, got.body)


def test_p1_ids_as_long_and_odd_as_allowed_are_recorded_and_decided(shop, stack, events) -> None:
    """255 bytes of printable ASCII, the separators of our own keys among them."""
    odd = ':,;"\'\\{}%_$~|' + shop.tag
    long = odd + "x" * (255 - len(odd))
    name = "a" * (100 - len(shop.tag) - 3)
    shop.register(name, refs={"session": long})
    session = shop.session(name, payment=long, order=None, session=long)
    shop.send(shop.stripe_event("checkout.session.completed", session, id=long))
    refund = shop.refund(name, "1", 900) | {"id": long, "charge": long, "payment_intent": long}
    shop.send(shop.stripe_event("refund.created", refund))
    shop.wait_state(name, "paid", received=4900, refunded=900)
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("b", payment=long[::-1], order=long, session=long[1:] + "y")))
    shop.send(shop.stripe_event("charge.refunded", shop.charge("b", 4900, 9223372036854775807) | {
        "id": long[1:] + "z", "payment_intent": long[::-1]}))


def test_p4_what_cannot_be_decided_is_kept_and_decided_when_it_can(shop, stack, events) -> None:
    """An event that fails alone is recorded, answered 200, and hurts none of its batch."""
    names = ["a", "bad", "c"]
    for name in names:
        shop.register(name)
    with stack.postgres.connect() as conn:
        conn.execute("CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'bad' USING ERRCODE ="
                     " '54000'; END $$")
        conn.execute("CREATE TRIGGER bad BEFORE INSERT ON ingest.fact FOR EACH ROW"
                     f" WHEN (NEW.order_id = '{shop.id('bad')}') EXECUTE FUNCTION bad()")
    sends = {n: shop.stripe_event("checkout.session.completed", shop.session(n)) for n in names}
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(shop.send, sends.values()))
        assert waiting(stack, sends["bad"]["id"]) == [("failed",)]
        assert [shop.show(n)["state"] for n in names] == ["paid", "open", "paid"]
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER bad ON ingest.fact; DROP FUNCTION bad()")
    shop.wait_state("bad", "paid")
    assert events(shop.id("bad")) == [("qualified", 1)]


# --- Undecided

def test_p4_an_event_that_its_account_no_longer_reads_stays_in_the_queue(services, stack, tag, tmp_path, events) -> None:
    """A configuration that makes an event foreign must not make it vanish undecided: the database has forgotten which
    mode the account is of."""
    services.start("ingest")
    shop = Shop(services["ingest"], stack.api_token, tag)
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    services["ingest"].term()
    tmp_path.chmod(0o755)
    stack.postgres.query("TRUNCATE ingest.account")
    other = (accounts.Account("stripe", "shop", "test", accounts.DEFAULT[0].secrets, "acct_shop"),)
    services.start("ingest", label="wrong", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, other))})
    own = "event = (SELECT id FROM ingest.provider_event WHERE event_id = %s)"
    stack.postgres.query(f"UPDATE ingest.undecided SET due_at = now(), attempts = 0 WHERE {own}", event["id"])
    until(lambda: stack.postgres.query(f"SELECT 1 FROM ingest.undecided WHERE {own} AND last_error <> ''", event["id"]),
          what="looked at")
    assert waiting(stack, event["id"])
    services["wrong"].term()
    stack.postgres.query("TRUNCATE ingest.account")
    services["ingest"].start().wait_ready()
    shop.register("a")
    shop.wait_state("a", "paid")


def test_p17_an_alias_of_another_provider_is_another_account(services, stack, tag, tmp_path) -> None:
    """An order names accounts of its policy's provider; metadata of another one's event does not reach it."""
    tmp_path.chmod(0o755)
    twins = (*accounts.DEFAULT, accounts.Account("lightning", "shop", "live", accounts.DEFAULT[3].secrets, "02-shop"))
    services.start("ingest", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, twins))})
    shop = Shop(services["ingest"], stack.api_token, tag)
    shop.register("a", 1000, "BTC/11", accounts=["shop"], refs={"payment_hash": shop.hash("a")})
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    assert [reason for reason, *_ in waiting(stack, event["id"])] == ["order_unknown"]
    view = shop.show("a")
    assert (view["state"], view["sequence"]) == ("open", 0)


def test_p4_a_woken_event_overtakes_those_that_wait_in_vain(shop, stack, events) -> None:
    """PROVIDERS fault 30: another application on the account must not delay what has found its order."""
    shop.paid("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("vain", order=shop.id("vain")))
    body = encode(event)
    stack.postgres.query(
        "WITH e AS (INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, problem, digest,"
        " raw_sha256, raw, headers, traceparent) SELECT 'stripe', 'shop', %s || n, 'x', 'facts', '', '', '', %s, '{}', ''"
        " FROM generate_series(1, 20000) n RETURNING id)"
        " INSERT INTO ingest.undecided (event, reason, awaits, due_at) SELECT id, 'order_unknown', ARRAY[%s], now()"
        " FROM e", f"vain_{shop.tag}_", body, f"order:{shop.id('vain')}")
    try:
        shop.register("a")
        shop.wait_state("a", "paid")
        [(left,)] = stack.postgres.query("SELECT count(*) FROM ingest.undecided WHERE attempts = 0 AND awaits = ARRAY[%s]",
                                         f"order:{shop.id('vain')}")
        assert left > 10000, "most of those that were due before it still wait for their turn"
    finally:
        stack.postgres.query("DELETE FROM ingest.undecided WHERE awaits = ARRAY[%s]", f"order:{shop.id('vain')}")


@pytest.mark.parametrize("known", ["registered", "taught by the refund"])
def test_p7_a_refund_that_names_its_charge_alone_finds_its_payment(shop, events, known: str) -> None:
    """A reference that came without its payment learns it later."""
    charge = f"ch_{shop.tag}_a"
    shop.register("a", refs={"charge": charge} if known == "registered" else {})
    refund = shop.refund("a", "1", 900) | {"payment_intent": None, "metadata": {"order_id": shop.id("a")}}
    shop.send(shop.stripe_event("refund.created", refund))
    shop.paid("a")
    shop.send(shop.stripe_event("charge.succeeded", shop.charge("a", 4900, 0)))
    shop.wait_state("a", "paid", received=4900, refunded=900)
    assert events(shop.id("a")) == [("qualified", 1), ("refunded", 2)]


def test_p17_a_hash_registered_at_two_accounts_of_one_order_is_no_foreign_payment(shop, events) -> None:
    refs = [{"account": a, "kind": "payment_hash", "value": shop.hash("a")} for a in ("node1", "node2")]
    shop.register("a", 1500, "BTC/11", accounts=["node1", "node2"], references=refs)
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500), alias="node1")
    assert shop.show("a")["state"] == "paid"
    assert events(shop.id("a")) == [("qualified", 1)]


def test_p4_after_72_hours_an_event_is_unmatched_and_still_woken(shop, stack, events) -> None:
    """Kept, no longer looked at, woken by its reference."""
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    own = "event = (SELECT id FROM ingest.provider_event WHERE event_id = %s)"
    stack.postgres.query("UPDATE ingest.undecided SET created_at = now() - interval '73 hours', due_at = now()"
                         f" WHERE {own}", event["id"])
    until(lambda: stack.postgres.query(f"SELECT unmatched FROM ingest.undecided WHERE {own}", event["id"]) == [(True,)],
          what="unmatched")
    shop.register("a")
    shop.wait_state("a", "paid")
    assert events(shop.id("a")) == [("qualified", 1)]


def test_p4_a_refund_long_unmatched_is_woken_by_its_payment(shop, stack, events) -> None:
    """Nothing sweeps it any more: the fact it awaits wakes it in its own transaction."""
    shop.register("a")
    refund = shop.stripe_event("refund.created", shop.refund("a", "1", 900) | {"metadata": {"order_id": shop.id("a")}})
    shop.send(refund)
    assert waiting(stack, refund["id"]) == [("payment_unknown",)]
    own = "event = (SELECT id FROM ingest.provider_event WHERE event_id = %s)"
    stack.postgres.query("UPDATE ingest.undecided SET created_at = now() - interval '73 hours', due_at = now()"
                         f" WHERE {own}", refund["id"])
    until(lambda: stack.postgres.query(f"SELECT unmatched FROM ingest.undecided WHERE {own}", refund["id"]) == [(True,)],
          what="unmatched")
    shop.paid("a")
    shop.wait_state("a", "paid", received=4900, refunded=900)
    assert events(shop.id("a")) == [("qualified", 1), ("refunded", 2)]


# --- Two replicas

def test_p3_p6_two_replicas_and_one_hot_order(services, stack, tag, events) -> None:
    """PROVIDERS faults 13, 17: every payment counts once, numbers have no gap, and ids rise with them."""
    services.start("ingest", label="one")
    services.start("ingest", label="two")
    shops = [Shop(services[name], stack.api_token, tag, 1000 * i) for i, name in enumerate(("one", "two"))]
    shops[0].register("a", expires_at="2026-01-01T00:00:00Z")
    sends = []
    for i in range(60):
        part = dict(payment=f"pi_{tag}_{i}", session=f"cs_{tag}_{i}")
        sends.append(shops[0].stripe_event("checkout.session.completed", shops[0].session("a", 100, **part)))
        if i % 3 == 0:
            sends.append(shops[0].stripe_event("refund.created", shops[0].refund("a", str(i), 40) | {
                "payment_intent": part["payment"], "charge": f"ch_{tag}_{i}"}))
    dice = random.Random(11)
    jobs = [(shop, event) for event in sends for shop in shops]
    dice.shuffle(jobs)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda job: insist(*job), jobs))
    shops[0].wait_state("a", "paid", received=6000, refunded=800)
    got = events(shops[0].id("a"))
    assert [s for _, s in got] == list(range(1, len(got) + 1)) and [t for t, _ in got].count("qualified") == 1
    assert stack.postgres.query("SELECT count(*) FROM ingest.provider_event WHERE event_id LIKE %s", f"evt_{tag}%") == [
        (len(sends),)]


def test_p2_a_key_held_elsewhere_costs_its_twin_alone(services, stack, tag) -> None:
    """The batch is halved until the twin is alone with its 503."""
    services.start("ingest", env={"PAYONCE_WRITERS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    sends = [shop.stripe_event("customer.created", {"id": f"cus_{i}", "object": "customer"}) for i in range(40)]
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, problem, digest,"
                     " raw_sha256, headers, traceparent) VALUES ('stripe', 'shop', %s, '', 'ignored', '', '', '', '{}', '')",
                     (sends[20]["id"],))
        with ThreadPoolExecutor(40) as pool:
            statuses = list(pool.map(lambda i: shop.send(sends[i], expect=None if i == 20 else "recorded").status,
                                     range(40)))
        conn.rollback()
    assert [i for i, status in enumerate(statuses) if status != 200] == [20], statuses
    shop.send(sends[20])


def test_a_session_whose_plans_are_outgrown_is_replaced(services, stack, tag) -> None:
    """A column of another type ends "cached plan must not change result type": of that session for ever."""
    services.start("ingest", env={"PAYONCE_WRITERS": "1", "PAYONCE_ORDER_THREADS": "1"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    for name in "ab":
        shop.register(name)
    shop.paid("a")
    try:
        stack.postgres.query("ALTER TABLE ingest.shop_order ALTER customer_id TYPE varchar(200)")
        insist(shop, shop.stripe_event("checkout.session.completed", shop.session("b")))
        until(lambda: shop.api("GET", f"/v1/orders/{shop.id('b')}").status == 200, what="the orders API answers")
        shop.wait_state("b", "paid")
    finally:
        stack.postgres.query("ALTER TABLE ingest.shop_order ALTER customer_id TYPE text")


# --- One order with thousands

def pile_up(stack: Stack, shop: Shop, name: str, n: int) -> None:
    """n payments of an order that wait for it, as if they had come in; each is small."""
    part = {"payment": f"pi_{shop.tag}_{name}_NNN", "session": f"cs_{shop.tag}_{name}_NNN"}
    body = encode(shop.stripe_event("checkout.session.completed", shop.session(name, 1, **part), id=f"evt_{shop.tag}_{name}_NNN"))
    stack.postgres.query(
        "WITH e AS (INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, problem, digest,"
        " raw_sha256, raw, headers, traceparent) SELECT 'stripe', 'shop', replace(%s, 'NNN', n::text),"
        " 'checkout.session.completed', 'facts', '', '', '', convert_to(replace(%s, 'NNN', n::text), 'UTF8'), '{}', ''"
        " FROM generate_series(1, %s) n RETURNING id)"
        " INSERT INTO ingest.undecided (event, reason, awaits, due_at) SELECT id, 'order_unknown', ARRAY[%s],"
        " now() + interval '1 hour' FROM e",
        f"evt_{shop.tag}_{name}_NNN", body.decode(), n, f"order:{shop.id(name)}")


def test_p4_an_order_with_thousands_of_events_holds_up_no_other(shop, stack) -> None:
    """FAULTS 35: woken ones were taken strictly by their age."""
    shop.paid("b")
    pile_up(stack, shop, "hot", 20000)
    try:
        shop.register("hot")
        shop.register("b")
        shop.wait_state("b", "paid")
        [(left,)] = stack.postgres.query(
            "SELECT count(*) FROM ingest.undecided WHERE awaits = ARRAY[%s]", f"order:{shop.id('hot')}")
        assert left > 10000, "most of those that were woken before it still wait for their turn"
    finally:
        stack.postgres.query("DELETE FROM ingest.undecided WHERE awaits = ARRAY[%s] OR awaits = '{}'",
                             f"order:{shop.id('hot')}")


def test_p3_an_order_with_ten_thousand_facts_fails_none_of_its_neighbours(shop, stack) -> None:
    """FAULTS 32: 250 more of them, among 50 other payments; 27 of the 50 were answered 503."""
    shop.register("hot")
    stack.postgres.query(
        "INSERT INTO ingest.fact SELECT %s, 'stripe', 'shop', 'payment', 'pi_' || n, 'EUR', 2, '', 'paid', 40, false,"
        " false, 1, 1, 0, now() FROM generate_series(1, 10000) n", shop.id("hot"))
    sends = []
    for i in range(250):
        part = {"payment": f"pi_{shop.tag}_h{i}", "session": f"cs_{shop.tag}_h{i}"}
        sends.append(shop.stripe_event("checkout.session.completed", shop.session("hot", 1, **part)))
    for i in range(50):
        shop.register(f"n{i}")
        sends.insert(6 * i, shop.stripe_event("checkout.session.completed", shop.session(f"n{i}")))
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda event: shop.send(event, expect=None).status, sends))
    assert answers == [200] * 300
    for i in range(50):
        shop.wait_state(f"n{i}", "paid")
    shop.wait_state("hot", "paid", received=10250)
    [(size,)] = stack.postgres.query(
        "SELECT sum(octet_length(facts::text)) FROM ingest.decision WHERE order_id = %s", shop.id("hot"))
    assert size < 250 * 1000


def test_p4_what_is_woken_is_woken_whatever_the_clock_says(shop, stack) -> None:
    """After a fail-over to a database whose clock is behind: neither the wake nor a dead worker's lease lies ahead."""
    shop.register("b")
    shop.paid("a")
    until(lambda: stack.postgres.query("SELECT 1 FROM ingest.undecided WHERE lease_token IS NULL AND %s = ANY (awaits)",
                                       f"order:{shop.id('a')}"), what="waiting")
    stack.postgres.query(
        "INSERT INTO ingest.shop_order (order_id, customer_id, purpose, item, policy, profile, accounts, live, currency,"
        " exponent, price, max_discount, revoke_on_refund, content, due) SELECT %s, customer_id, purpose, item, policy,"
        " profile, accounts, live, currency, exponent, price, max_discount, revoke_on_refund, content, due"
        " FROM ingest.shop_order WHERE order_id = %s", shop.id("a"), shop.id("b"))
    stack.postgres.query(
        "UPDATE ingest.undecided SET woken_at = now() + interval '1 day', due_at = NULL, lease_token = gen_random_uuid(),"
        " lease_until = now() + interval '1 day' WHERE %s = ANY (awaits)", f"order:{shop.id('a')}")
    shop.wait_state("a", "paid")

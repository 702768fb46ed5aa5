"""The shell of ingest, around what it decides: sessions that end, batches that are too much, jobs that must go on, what
waits and what that costs, and the words of its answers."""

import hashlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import accounts
from conftest import Services
from service import Answer, call
from shop import Shop, encode, now
from sign import standard_webhook_headers, stripe_header
from stack import ROOT, Postgres, Stack
from wait import until


def cluster(stack: Stack, tag: str, settings: dict[str, str] | None = None) -> Postgres:
    it = Postgres(stack.scratch, settings, name=f"pg-{tag}").start()
    with it.connect(dbname="postgres") as conn:
        conn.execute("CREATE DATABASE payonce")
    return it


@pytest.fixture
def own(stack: Stack, tag: str) -> Iterator[Postgres]:
    """A cluster of this test's own, in which nobody else's events wait."""
    it = cluster(stack, tag)
    stack.migrate("ingest", it)
    yield it
    it.stop("immediate")


def shop_at(services: Services, stack: Stack, own: Postgres, tag: str, **env: str) -> Shop:
    services.start("ingest", env={"PAYONCE_DSN": own.dsn("payonce_ingest")} | env)
    return Shop(services["ingest"], stack.api_token, tag)


def event_row(postgres: Postgres, event_id: str) -> int:
    [(row,)] = postgres.query("SELECT id FROM ingest.provider_event WHERE event_id = %s", event_id)
    return int(row)


# --- Sessions that end

def test_a_restarted_database_costs_no_idle_connection_a_503(services, stack, tag, own) -> None:
    """FAULTS 64: every writer and every thread of the orders API holds a dead session; none is used."""
    shop = shop_at(services, stack, own, tag, PAYONCE_WRITERS="4", PAYONCE_ORDER_THREADS="4")
    shop.register("a")

    def round(first: int) -> set[int]:
        ways: list[Callable[[int], Answer]] = [
            lambda i: shop.api("GET", f"/v1/orders/{shop.id('a')}"),
            lambda i: shop.api("POST", "/v1/orders", shop.order(f"r{i}")),
            lambda i: shop.send(shop.stripe_event("customer.created", {"id": f"cus_{i}", "object": "customer"}), expect=None)]
        with ThreadPoolExecutor(12) as pool:
            return {a.status for a in pool.map(lambda i: ways[i % 3](i), range(first, first + 60))}

    for turn in range(3):
        assert round(100 * turn) <= {200, 201}, "all sessions are open"
        own.restart()
        assert round(100 * turn + 60) <= {200, 201}, "at once after the restart"


def test_a_session_that_ends_before_commit_is_replaced_and_its_batch_done_again(shop, stack, events) -> None:
    """FAULTS 64: nothing can have been committed, so what was sent is sent again."""
    for name in "ab":
        shop.register(name)
    with stack.postgres.connect() as conn:
        conn.execute("CREATE SEQUENCE deaths; GRANT USAGE ON deaths TO PUBLIC;"
                     "CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
                     " IF nextval('deaths') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW;"
                     " END $$")
    try:
        for table, when, ask in (
                ("fact", f"NEW.order_id = '{shop.id('a')}'", lambda: shop.paid("a")),
                ("shop_order", f"NEW.order_id = '{shop.id('c')}'", lambda: shop.register("c"))):
            with stack.postgres.connect() as conn:
                conn.execute(f"CREATE TRIGGER die BEFORE INSERT ON ingest.{table} FOR EACH ROW WHEN ({when})"
                             " EXECUTE FUNCTION die_once()")
            ask()
            stack.postgres.query(f"DROP TRIGGER die ON ingest.{table}; SELECT setval('deaths', 1, false)")
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP FUNCTION die_once() CASCADE; DROP SEQUENCE deaths")
    assert events(shop.id("a")) == [("qualified", 1)]


# --- Batches that are too much

def test_a_batch_that_outlasts_the_statement_time_out_is_halved(services, stack, tag) -> None:
    """FAULTS 44: 57014 is not the events' fault, but it is the batch's: nobody sends these events again, and all are
    recorded."""
    services.start("ingest", env={"PAYONCE_WRITERS": "1", "PAYONCE_HTTP_THREADS": "4"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    names = [f"o{i}" for i in range(48)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(shop.register, names))
    with stack.postgres.connect() as conn:  # all of them take 7.2 s, which a statement may not
        conn.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.15); RETURN NEW;"
                     " END $$")
        conn.execute("CREATE TRIGGER slow BEFORE INSERT ON ingest.fact FOR EACH ROW"
                     f" WHEN (NEW.order_id LIKE '{tag}-o%') EXECUTE FUNCTION slow()")
    sends = [shop.stripe_event("checkout.session.completed", shop.session(n)) for n in names]
    try:
        with ThreadPoolExecutor(len(sends)) as pool:
            list(pool.map(lambda e: shop.send(e, expect=None), sends))
        until(lambda: stack.postgres.query("SELECT count(*) FROM ingest.provider_event WHERE event_id LIKE %s",
                                           f"evt_{tag}_%") == [(len(sends),)], what="all are recorded")
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER slow ON ingest.fact; DROP FUNCTION slow()")
    assert shop.ingest.metric("payonce_ingest_narrowed_total", code="57014") >= 1, "it was too much at first"
    for name in names:
        shop.wait_state(name, "paid")


def test_a_row_locked_elsewhere_costs_its_own_event_alone(services, stack, tag) -> None:
    """FAULTS 44: another session holds a reference that one event of a batch is about to teach."""
    services.start("ingest", env={"PAYONCE_WRITERS": "1", "PAYONCE_HTTP_THREADS": "4"})
    shop = Shop(services["ingest"], stack.api_token, tag)
    names = [f"o{i}" for i in range(20)]
    for name in names:
        shop.register(name)
    sends = {n: shop.stripe_event("checkout.session.completed", shop.session(n)) for n in names}
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO ingest.order_ref (provider, kind, value, account, order_id, payment)"
                     " VALUES ('stripe', 'session', %s, 'shop', 'x', '')", [f"cs_{tag}_o7"])
        with ThreadPoolExecutor(len(sends)) as pool:
            list(pool.map(lambda e: shop.send(e, expect=None), sends.values()))
        for name in names:
            if name != "o7":
                shop.wait_state(name, "paid")
        until(lambda: stack.postgres.query(
            "SELECT u.reason FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event"
            " WHERE e.event_id LIKE %s", f"evt_{tag}_%") == [("failed",)], what="that one is kept, alone")
        conn.rollback()
    shop.wait_state("o7", "paid")


# --- Jobs that must go on

def test_expiry_goes_past_orders_that_cannot_be_expired(shop, stack, tag) -> None:
    """FAULTS 33: more of them than the sweep looks at in one go, all older than the one that can."""
    shop.register("late")
    bad = 520
    with stack.postgres.connect() as conn:
        conn.execute("CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'bad' USING ERRCODE ="
                     " '54000'; END $$")
        conn.execute("CREATE TRIGGER bad BEFORE INSERT ON ingest.fact FOR EACH ROW"
                     f" WHEN (NEW.order_id LIKE '{tag}-bad%') EXECUTE FUNCTION bad()")
    try:
        stack.postgres.query(
            "INSERT INTO ingest.shop_order (order_id, customer_id, purpose, item, policy, profile, accounts, live, currency,"
            " exponent, price, max_discount, revoke_on_refund, content, due, expires_at) SELECT %s || n, customer_id,"
            " purpose, item, policy, profile, accounts, live, currency, exponent, price, max_discount, revoke_on_refund,"
            " content, due, '2020-01-01' FROM ingest.shop_order, generate_series(1, %s) n WHERE order_id = %s",
            shop.id("bad"), bad, shop.id("late"))
        stack.postgres.query("UPDATE ingest.shop_order SET expires_at = '2021-01-01' WHERE order_id = %s", shop.id("late"))
        shop.wait_state("late", "canceled", reason="expired")
        assert stack.postgres.query("SELECT count(*) FROM ingest.shop_order WHERE order_id LIKE %s AND NOT expiry_swept",
                                    f"{tag}-bad%") == [(bad,)], "none of them could be"
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER bad ON ingest.fact; DROP FUNCTION bad()")
    until(lambda: stack.postgres.query("SELECT count(*) FROM ingest.shop_order WHERE order_id LIKE %s AND NOT expiry_swept",
                                       f"{tag}-bad%") == [(0,)], what="they are expired once they can be", timeout=180)


def test_expiry_goes_on_while_what_waits_cannot_be_counted(services, stack, tag, own) -> None:
    """FAULTS 33: the jobs of the sweep fail each by itself."""
    shop = shop_at(services, stack, own, tag)
    shop.register("a")
    with own.connect(autocommit=False) as conn:
        conn.execute("LOCK ingest.undecided IN ACCESS EXCLUSIVE MODE")
        own.query("UPDATE ingest.shop_order SET expires_at = now() WHERE order_id = %s", shop.id("a"))
        shop.wait_state("a", "canceled", reason="expired")
        conn.rollback()


# --- What waits, and what that costs

def test_an_event_that_names_nothing_of_ours_waits_by_reference_alone(services, stack, tag, own, events) -> None:
    """FAULTS 34: looked at twice, for what was uncommitted then; counted apart from the first moment; woken."""
    shop = shop_at(services, stack, own, tag)
    shop.paid("a", order=None)
    shop.paid("b")  # names an order
    row = event_row(own, f"evt_{tag}_1")

    def counted() -> bool:
        got = shop.ingest.status()["undecided"]
        assert (got["waiting"], got["unmatched"]) == (1, 1), got
        return True

    until(counted, what="each is counted where it belongs")
    own.query("UPDATE ingest.undecided SET created_at = now() - interval '1 h' WHERE event <> %s", row)
    until(lambda: (shop.ingest.status()["undecided"]["oldest_ms"] or 0) > 3000000, what="the age is that of the other")
    own.query("UPDATE ingest.undecided SET created_at = now() WHERE event <> %s", row)
    own.query("UPDATE ingest.undecided SET created_at = now() - interval '10 minutes', due_at = now() WHERE event = %s", row)
    until(lambda: own.query("SELECT due_at FROM ingest.undecided WHERE event = %s", row) == [(None,)],
          what="it is not looked at again")
    assert own.query("SELECT attempts <= 2, unmatched FROM ingest.undecided WHERE event = %s", row) == [(True, True)]
    until(lambda: shop.ingest.status()["undecided"]["oldest_ms"] < 300000, what="ten minutes of a stranger alarm nobody")
    shop.register("a", refs={"session": f"cs_{tag}_a"})
    shop.wait_state("a", "paid")
    assert own.query("SELECT 1 FROM ingest.undecided WHERE event = %s", row) == []


def test_what_waited_before_comes_through_the_migration(services, stack, tag) -> None:
    """FAULTS 34: strangers by reference alone, the woken woken, the unmatched unmatched."""
    own = cluster(stack, tag)
    try:
        first = (ROOT / "services/ingest/migrations/0001_init.sql").read_text()
        with own.connect() as conn:
            conn.execute(first)
            conn.execute("CREATE TABLE ingest.schema_migration (version int PRIMARY KEY, name text NOT NULL, sha256 bytea NOT"
                         " NULL, applied_at timestamptz NOT NULL DEFAULT now())")
            conn.execute("INSERT INTO ingest.schema_migration (version, name, sha256) VALUES (1, '0001_init.sql', %s)",
                         [hashlib.sha256(first.encode()).digest()])
            rows = {"stranger": (["ref:stripe:shop:session:cs_1"], "now()", False),
                    "named": (["ref:stripe:shop:session:cs_2", "order:x"], "now() + interval '1 h'", False),
                    "woken": (["ref:stripe:shop:session:cs_3"], "'epoch'", False),
                    "unmatched": (["order:y"], "now()", True)}
            for name, (awaits, due, unmatched) in rows.items():
                conn.execute(
                    "WITH e AS (INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, problem,"
                    " digest, raw_sha256, headers, traceparent) VALUES ('stripe', 'shop', %s, 'x', 'facts', '', '', '',"
                    " '{}', '') RETURNING id) INSERT INTO ingest.undecided (event, reason, awaits, unmatched, due_at)"
                    f" SELECT id, 'order_unknown', %s, %s, {due} FROM e", [name, awaits, unmatched])
        stack.migrate("ingest", own)
        got = {name: rest for name, *rest in own.query(
            "SELECT e.event_id, u.unmatched, u.due_at IS NOT NULL, u.woken_at IS NOT NULL FROM ingest.undecided u"
            " JOIN ingest.provider_event e ON e.id = u.event")}
        assert got == {"stranger": [True, True, False], "named": [False, True, False], "woken": [False, True, True],
                       "unmatched": [True, False, False]}
    finally:
        own.stop("immediate")


def entries_read(postgres: Postgres, index: str) -> tuple[int, int]:
    [(scans, entries)] = postgres.query(
        "SELECT coalesce(sum(idx_scan), 0), coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE indexrelname = %s",
        index)
    return int(scans), int(entries)


def test_an_empty_queue_is_found_empty_at_once_whatever_died_in_it(services, stack, tag, own) -> None:
    """FAULTS 35: index entries of dead rows, kept by a held snapshot, are not read again by each claim."""
    dead = 20000
    shop = shop_at(services, stack, own, tag)
    shop.register("a")
    with own.connect(autocommit=False) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM ingest.undecided")
        own.query("WITH e AS (INSERT INTO ingest.provider_event (provider, account, event_id, type, disposition, problem,"
                  " digest, raw_sha256, raw, headers, traceparent) SELECT 'stripe', 'shop', %s || n, 'x', 'facts', '', '',"
                  " '', '', '{}', '' FROM generate_series(1, %s) n RETURNING id)"
                  " INSERT INTO ingest.undecided (event, reason, awaits, due_at) SELECT id, 'order_unknown', '{}',"
                  " now() + interval '1 h' FROM e", f"dead_{tag}_", dead)
        own.query("UPDATE ingest.undecided SET due_at = '2026-01-01'; DELETE FROM ingest.undecided")
        scans, entries = entries_read(own, "undecided_due")
        until(lambda: entries_read(own, "undecided_due")[0] > scans + 300, what="300 looks")
        then_scans, then_entries = entries_read(own, "undecided_due")
        each = (then_entries - entries) / (then_scans - scans)
        assert each < dead / 10, f"{each:.0f} entries are read by each look at an empty queue"
        shop.paid("b")
        shop.register("b")  # woken, while the snapshot is held
        shop.wait_state("b", "paid")
        holder.rollback()


# --- Words

ODD_SEGMENTS = ["%ff", "%FF%FE", "%00", "a%00b", "%C0%80", "%ED%A0%80", "%F0%9F%92%A9", "%C3%A4", "a%0Ab", "%20",
                "%27%3B--", "x" * 101, "x" * 5000, "..%2f", "99999999999999999999999", "%E2%82%B9"]
FOREIGN = re.compile(r"SQLSTATE|\b(?:22|23|40|42|53|55|57|08)[0-9A-Z]{3}\b|show_order|lock_order|put_order|read_orders|find_routes|"
                     r"ingest\.|postgres|byte sequence|encoding|relation|constraint|violates|connection|timeout|libpq|trigger",
                     re.IGNORECASE)
CODES = {400: {"invalid", "signature_malformed", "bad_request"}, 401: {"unauthorized", "signature_missing", "signature_wrong"},
         404: {"not_found", "unknown_account"},
         405: {"method_not_allowed"}, 409: {"order_differs", "reference_taken", "paid"}, 413: {"too_large"},
         414: {"uri_too_long"}, 431: None, 503: {"unavailable", "late", "busy"}}


def own_words(got: Answer, status: set[int], what: Any) -> None:
    assert got.status in status, (what, got.status, got.body)
    if got.status >= 400:
        error = got.json()["error"]
        assert error["message"] and error["code"] in CODES[got.status], (what, got.body)
        assert not FOREIGN.search(got.body.decode()), (what, got.body)


def test_no_path_brings_out_the_words_of_the_database(shop) -> None:
    """FAULTS 38: every route, with bytes that are no id."""
    token = {"Authorization": f"Bearer {shop.token}"}
    refs = encode({"references": [{"account": "shop", "kind": "session", "value": "cs_1"}]})
    for segment in ODD_SEGMENTS:
        for method, path, body, headers in (
                ("GET", f"/v1/orders/{segment}", None, token), ("POST", f"/v1/orders/{segment}/cancel", b"", token),
                ("POST", f"/v1/orders/{segment}/references", refs, token),
                ("POST", f"/webhooks/stripe/{segment}", b"{}", {}), ("POST", f"/webhooks/{segment}/shop", b"{}", {}),
                ("POST", f"/observations/lightning/{segment}", b"{}", {}),
                ("POST", f"/observations/{segment}/node1", b"{}", {})):
            own_words(call(method, shop.ingest.url(path), body, headers), {400, 404, 414}, (method, path[:60]))
    for path in ("/v1/orders/", "/v1/orders//cancel", "/webhooks/stripe/", "/webhooks//shop", "//", "/v1/orders/%"):
        own_words(call("POST", shop.ingest.url(path), b"{}", token), {400, 404, 405}, path)


ODD_VALUES = [None, True, 0, -1, 1.5, 10**30, 9223372036854775807, 9223372036854775808, -(10**19), "", " ", "x" * 300, "\u0000",
              "a\u0000b", "ä", "\U0001f4a9", "\ud800", "a/b", "a\nb", [], {}, [[]], ["\u0000"], {"\u0000": 1}]


def test_no_body_brings_out_the_words_of_the_database(shop) -> None:
    """FAULTS 38: every member of every body, of every type."""
    whole = shop.order("w", contact="ann@example.org", refs={"session": f"cs_{shop.tag}_w"}, max_discount=0,
                       revoke_on_refund=True, profile="", expires_at="2030-01-01T00:00:00Z")
    bodies: list[tuple[str, bytes]] = []
    for key in whole:
        bodies += [(f"{key}={value!r:.40}", encode(whole | {key: value})) for value in ODD_VALUES]
    for outer, keys in (("amount", ("minor", "currency", "exponent")), ("contact", ("email", "language"))):
        bodies += [(f"{outer}.{key}={value!r:.40}", encode(whole | {outer: whole[outer] | {key: value}}))
                   for key in keys for value in ODD_VALUES]
    for key in ("account", "kind", "value"):
        bodies += [(f"reference.{key}={value!r:.40}", encode(whole | {"references": [whole["references"][0] | {key: value}]}))
                   for value in ODD_VALUES]
    bodies += [("a member of odd name", encode(whole | {name: 1})) for name in ("ä" * 60, "x" * 300, "a\nb", "%s")]
    bodies += [("odd text", b) for b in (b"", b"{", b"\xff", b"[1]", b"null", b'{"a":1,"a":2}', b"{}" * 2, b"[" * 100,
                                         b'{"order_id":"\xc0\x80"}', b"\xef\xbb\xbf{}", b"1e999", b'"x"')]
    token = {"Authorization": f"Bearer {shop.token}"}
    shop.register("r")
    for at, (what, body) in enumerate(bodies):
        body = body.replace(shop.id("w").encode(), shop.id(f"w{at}").encode())  # each is an order of its own, if one
        own_words(call("POST", shop.ingest.url("/v1/orders"), body, token), {200, 201, 400, 409}, what)
    for value in ODD_VALUES:
        for body in ({"references": value}, {"references": [value]},
                     {"references": [{"account": value, "kind": value, "value": value}]},
                     {"references": [{"account": "shop", "kind": "session", "value": value}]}):
            own_words(call("POST", shop.ingest.url(f"/v1/orders/{shop.id('r')}/references"), encode(body), token),
                      {200, 400, 409}, body)


def test_no_event_brings_out_the_words_of_the_database(shop) -> None:
    """FAULTS 38: signed as it must be, whatever it says."""
    bodies = [b"", b"{", b"\xff\xfe", b'{"id":"a\\u0000b"}', b"[]", b"null"]
    for value in ODD_VALUES:
        event = shop.stripe_event("checkout.session.completed", shop.session("a"))
        bodies += [encode(event | {key: value}) for key in ("id", "type", "created", "livemode", "data", "api_version")]
        bodies += [encode(event | {"id": event["id"] + key, "data": {"object": shop.session("a") | {key: value}}})
                   for key in ("id", "amount_total", "currency", "payment_intent", "metadata", "total_details")]
    for body in bodies:
        own_words(shop.post("/webhooks/stripe/shop", body, {
            "Stripe-Signature": stripe_header(accounts.secret("shop"), body, now())}), {200, 400}, body[:80])
        own_words(shop.post("/observations/lightning/node1", body, standard_webhook_headers(
            accounts.secret("node1"), f"obs_{hashlib.sha256(body).hexdigest()[:20]}", now(), body)), {200, 400}, body[:80])


@pytest.mark.parametrize("sqlstate", ["22021", "23514", "P0001", "54000", "42501", "57014", "XX000"])
def test_no_fault_of_the_database_speaks_to_the_caller(shop, stack, sqlstate: str) -> None:
    """FAULTS 38: whatever it says, the answer is ours: send it again."""
    with stack.postgres.connect() as conn:
        conn.execute("CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'its own words about ingest.x'"
                     f" USING ERRCODE = '{sqlstate}'; END $$")
        conn.execute("CREATE TRIGGER bad BEFORE INSERT ON ingest.shop_order FOR EACH ROW"
                     f" WHEN (NEW.order_id = '{shop.id('a')}') EXECUTE FUNCTION bad()")
    try:
        got = shop.api("POST", "/v1/orders", shop.order("a"))
        own_words(got, {503}, sqlstate)
        assert b"its own words" not in got.body
    finally:
        with stack.postgres.connect() as conn:
            conn.execute("DROP TRIGGER bad ON ingest.shop_order; DROP FUNCTION bad()")

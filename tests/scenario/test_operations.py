"""What a running program says of itself: probes (FAULTS 62), status (FAULTS 63), log lines (FAULTS 65)."""

import fcntl
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

import accounts
import process
from broker_link import BrokerLink
from conftest import Services
from outboxes import Outbox
from service import Answer, Service, call
from shop import Shop, encode, now
from sign import stripe_header
from stack import Postgres, Stack
from topic import PAYMENTS, Topic, in_partition
from wait import until

WAITING = "waiting for a dependency"


def nowhere() -> str:
    """An address at which nobody listens."""
    return f"127.0.0.1:{process.free_port()}"


def dependency(one: Service, name: str) -> dict:
    found = {d["name"]: d for d in one.page("/statusz").json()["dependencies"]}
    return found[name]


@contextmanager
def database(stack: Stack, name: str, *migrated: str) -> Iterator[Callable[[str], str]]:
    """A database of the test's own on the common server: its DSN by role."""
    with stack.postgres.connect() as conn:
        conn.execute(f"CREATE DATABASE {name}")
    for service in migrated:
        log = stack.scratch / f"migrate-{name}.log"
        process.finish(process.start((stack.programs / f"payonce-{service}", "migrate"), log,
                                     {"PAYONCE_MIGRATE_DSN": stack.postgres.dsn(dbname=name), "PAYONCE_DSN": ""}),
                       log, f"{service} migrate")
    try:
        yield lambda role: stack.postgres.dsn(role, name)
    finally:
        with stack.postgres.connect() as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def outbox(stack: Stack, tag: str) -> Outbox:
    return Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create()


def never_ready(one: Service, needs: str, seconds: float = 3) -> None:
    """It says what it waits for, is alive for its probe, and not ready: at no moment of some seconds."""
    until(lambda: one.admin_get("/statusz").status == 200, what=f"{one.label} can be asked")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert one.admin_get("/readyz").status == 503, "it is ready and could never work"
        time.sleep(0.02)
    until(lambda: one.log_lines(WAITING), what="a line says so")
    assert {line["dependency"] for line in one.log_lines(WAITING)} == {needs}
    assert dependency(one, needs)["last_success_at"] is None and dependency(one, needs)["error"]
    assert one.admin_get("/readyz").json()["waiting_for"] == needs
    assert one.admin_get("/readyz").status == 503
    assert one.admin_get("/healthz").status == 200 and one.alive, "a startup probe asks about the process alone"


# --- FAULTS 62: green though it never could work

@pytest.mark.parametrize(("name", "setting", "needs"), [
    ("ingest", "PAYONCE_DSN", "database"),
    ("loyalty", "PAYONCE_DSN", "database"),
    ("loyalty", "PAYONCE_KAFKA_BROKERS", "kafka"),
    ("loyalty", "PAYONCE_REGISTRY_URL", "registry"),
])
def test_faults_62_what_could_never_work_is_not_ready(services: Services, name: str, setting: str, needs: str) -> None:
    where = {"PAYONCE_DSN": f"postgresql://payonce_{name}@{nowhere()}/payonce", "PAYONCE_KAFKA_BROKERS": nowhere(),
             "PAYONCE_REGISTRY_URL": f"http://{nowhere()}"}[setting]
    one = services.make(name, {setting: where}).start()
    never_ready(one, needs)
    assert one.term() == 0


@pytest.mark.parametrize(("setting", "needs"), [("KAFKA_BROKERS", "kafka"), ("REGISTRY_URL", "registry")])
def test_faults_62_an_active_relay_that_could_never_send_is_not_ready_and_a_standby_is(
        services: Services, outbox: Outbox, setting: str, needs: str) -> None:
    wrong = outbox.env(**{setting: nowhere() if needs == "kafka" else f"http://{nowhere()}"})
    one = services.make("relay", wrong, "active").start()
    never_ready(one, needs)
    assert one.term() == 0
    services.start("relay", env=outbox.env())
    services.start("relay", env=wrong, label="standby")


def test_faults_62_a_relay_without_its_outbox_is_not_ready(services: Services, tag: str) -> None:
    one = services.make("relay", {"PAYONCE_RELAY_OUTBOXES": tag}).start()
    until(lambda: one.log_lines("no session with the outbox"), what="a line says so")
    assert one.admin_get("/readyz").status == 503 and one.admin_get("/healthz").status == 200


@pytest.mark.parametrize("name", ["ingest", "relay", "loyalty"])
def test_faults_62_a_schema_that_was_not_migrated_is_waited_for(services: Services, stack: Stack, tag: str,
                                                                name: str) -> None:
    with database(stack, tag) as dsn:
        one = services.make(name, {"PAYONCE_DSN": dsn(f"payonce_{name}"), "PAYONCE_RELAY_OUTBOXES": tag}).start()
        never_ready(one, "database")
        assert f"payonce-{name} migrate" in one.log_lines(WAITING)[0]["error"]
        assert one.term() == 0


def test_faults_62_an_older_schema_is_waited_for_and_a_newer_one_is_fine(services: Services, stack: Stack,
                                                                         tag: str) -> None:
    with database(stack, tag, "loyalty") as dsn, psycopg.connect(dsn("postgres"), autocommit=True) as conn:
        conn.execute("UPDATE loyalty.schema_migration SET version = -version")
        one = services.make("loyalty", {"PAYONCE_DSN": dsn("payonce_loyalty")}).start()
        never_ready(one, "database")
        assert dependency(one, "database")["code"] == "schema_version"
        conn.execute("UPDATE loyalty.schema_migration SET version = 9000 - version")  # the next release has migrated
        one.wait_ready()
        until(lambda: one.log_lines("partitions assigned"), what="it has joined")
        told = [x["msg"] for x in one.log_lines() if x.get("dependency", "database") == "database"]
        assert told.index("dependency reached") < told.index("partitions assigned"), "it took what others could do"
        assert one.term() == 0


def test_faults_62_a_program_that_has_started_stays_ready_without_what_all_replicas_share(
        services: Services, stack: Stack, tag: str) -> None:
    """Above all a schema that is older again, or a database that is gone, takes nobody out."""
    own = Postgres(stack.scratch, name=f"pg-{tag}").start()
    try:
        with own.connect(dbname="postgres") as conn:
            conn.execute("CREATE DATABASE payonce")
        stack.migrate("loyalty", own)
        one = services.start("loyalty", env={"PAYONCE_DSN": own.dsn("payonce_loyalty")})
        own.stop()
        until(lambda: dependency(one, "database")["away_since"], what="an idle consumer notices")
        assert one.admin_get("/readyz").status == 200 and one.admin_get("/healthz").status == 200
        assert one.log_lines(WAITING)[-1]["reached_before"] is True
    finally:
        own.stop("immediate")


# --- FAULTS 63: status hides trouble

def waiting(one: Service) -> dict | None:
    return one.status()["waiting"]


def last_success(one: Service, name: str) -> float:
    return one.metric("payonce_dependency_last_success_timestamp_seconds", dependency=name)


LAG, WAITS = "payonce_consumer_lag_seconds", "payonce_consumer_waiting_seconds"


def test_faults_63_an_idle_consumer_without_brokers_waits_and_knows_no_lag(services: Services, stack: Stack) -> None:
    with BrokerLink(stack.kafka.port) as link:
        one = services.start("loyalty", env={"PAYONCE_KAFKA_BROKERS": link.brokers})
        until(lambda: one.metric(LAG) == 0, what="nothing is behind")
        until(lambda: waiting(one) is None and one.metric(WAITS) == 0, what="nothing is waited for")
        link.cut()
        waits = until(lambda: waiting(one), what="it says that it waits")
        assert waits["since"] and waits["error"]
        until(lambda: math.isnan(one.metric(LAG)), what="what is not known is not 0")
        until(lambda: one.metric(WAITS) > 1, what="the wait is counted")
        before = last_success(one, "kafka")
        assert 0 < before < time.time() and last_success(one, "database") > before - 60
        assert dependency(one, "kafka")["last_success_age_seconds"] > 0
        until(lambda: last_success(one, "database") > before + 1, what="what is there is still asked")
        assert last_success(one, "kafka") == before and one.admin_get("/readyz").status == 200


def test_faults_63_a_blocked_partition_is_lag(services: Services, stack: Stack, topic: Topic, tag: str) -> None:
    partition = 1
    end = stack.kafka.ends(PAYMENTS)[partition]
    order = topic.order(in_partition(f"{tag}-", partition))
    one = services.start("loyalty")
    order.says("qualified", received=-1)
    topic.flush()
    try:
        until(lambda: one.metric("payonce_consumer_blocked_partitions") == 1, what="it is refused")
        first = until(lambda: one.metric(LAG) > 0 and one.metric(LAG), what="what is held up is behind")
        until(lambda: one.metric(LAG) > first + 2, what="and ever more so")
    finally:
        assert one.term() == 0
        topic.drop_before({partition: end + 1})


def test_faults_63_idle_programs_notice_that_their_database_is_gone(services: Services, stack: Stack, tag: str) -> None:
    own = Postgres(stack.scratch, name=f"pg-{tag}").start()
    try:
        with own.connect(dbname="postgres") as conn:
            conn.execute("CREATE DATABASE payonce")
        for name in ("ingest", "relay", "loyalty"):
            stack.migrate(name, own)
            services.make(name, {"PAYONCE_DSN": own.dsn(f"payonce_{name}")}).start()
        for one in services:
            one.wait_ready()
        own.stop()
        for one in services:
            until(lambda one=one: dependency(one, "database")["away_since"], what=f"{one.label} notices")
            assert one.admin_get("/readyz").status == 200, one.label
        assert waiting(services["loyalty"])
        relay, ingest = services["relay"], services["ingest"]
        until(lambda: relay.status()["outboxes"][0]["oldest_ms"] is None, what="what the relay does not see is not 0")
        outbox = relay.status()["outboxes"][0]
        assert {name for name, value in outbox.items() if value is not None} == {"outbox", "active", "connected"}, outbox
        for name in ("unfinished_rows", "waiting_rows", "gaps", "refused_rows", "held_keys", "stopped"):
            assert math.isnan(relay.metric(f"payonce_relay_{name}")), name
        until(lambda: ingest.status()["undecided"]["waiting"] is None, what="what ingest cannot count is not 0")
        assert set(ingest.status()["undecided"].values()) == {None}, ingest.status()
        assert math.isnan(ingest.metric("payonce_ingest_undecided_events"))
        until(lambda: math.isnan(ingest.metric("payonce_work_due")), what="nor what is due")
        own.start()
        for one in services:
            until(lambda one=one: not dependency(one, "database")["away_since"], what=f"{one.label} has it back")
            assert one.log_lines("dependency reached")
        until(lambda: waiting(services["loyalty"]) is None, what="nothing is waited for")
    finally:
        for one in services:
            one.term()
        own.stop("immediate")


# --- FAULTS 65: log lines

def of(one: Service, msg: str, n: int = 1) -> list[dict]:
    """Its lines with this msg, once there are so many: they are written a little later than what they tell of."""
    return until(lambda: (found := one.log_lines(msg)) if len(one.log_lines(msg)) >= n else None, what=f"{n} × {msg}")


def test_faults_65_normal_work_leaves_a_line_per_outcome(shop: Shop) -> None:
    shop.register("a", contact="kim@customer.example")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    shop.send(event, expect="duplicate")
    shop.send(event | {"data": {"object": shop.session("a", total=1)}}, expect="conflict")
    shop.register("b")
    assert shop.cancel("b").status == 200
    shop.paid("b")
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("later")))
    shop.register("later")
    shop.wait_state("later", "paid")

    lines = {(x["order_id"], x["result"]): x for x in of(shop.ingest, "event", 5)}
    recorded = lines[shop.id("a"), "recorded"]
    assert (recorded["level"], recorded["verdict"], recorded["event_id"]) == ("info", "qualified", event["id"])
    assert (recorded["provider"], recorded["account"], recorded["type"]) == ("stripe", "shop", event["type"])
    assert recorded["traceparent"].startswith("00-")
    assert lines[shop.id("a"), "duplicate"]["event_id"] == event["id"]
    assert lines[shop.id("later"), "recorded"]["verdict"] == "undecided"
    assert lines[shop.id("later"), "decided"]["verdict"] == "qualified"
    [review] = of(shop.ingest, "order needs review")
    assert (review["level"], review["order_id"], review["reason"]) == ("warn", shop.id("b"), "paid_after_cancel")
    [conflict] = of(shop.ingest, "event id says something else than before; the first stays")
    assert conflict["event_id"] == event["id"] and conflict["level"] == "error"
    calls = {(x["call"], x["order_id"], x["status"]) for x in of(shop.ingest, "order call", 4)}
    assert {("register", shop.id("a"), 201), ("cancel", shop.id("b"), 200)} <= calls
    text = shop.ingest.tail(1000)
    assert "customer.example" not in text and "checkout.session\"" not in text and shop.token not in text
    assert accounts.secret("shop") not in text


def test_faults_65_a_refusal_names_alias_peer_and_skew(shop: Shop) -> None:
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    assert shop.send(event, t=now() - 4000, expect=None).status == 401
    assert shop.post("/webhooks/stripe/shop", encode(event), {}).status == 401
    assert shop.post("/webhooks/stripe/nobody", encode(event), {}).status == 404
    assert call("GET", shop.ingest.url("/v1/orders/a"), headers={"Authorization": "Bearer no"}).status == 401
    stale, missing, unknown, token = of(shop.ingest, "request refused", 4)
    assert (stale["code"], stale["account"], missing["code"]) == ("signature_stale", "shop", "signature_missing")
    assert 3990 <= stale["skew_seconds"] <= 4100
    assert (unknown["code"], unknown["account"], token["code"]) == ("unknown_account", "nobody", "unauthorized")
    assert all(x["peer"].startswith("127.0.0.1:") and x["level"] == "warn" for x in (stale, missing, unknown, token))


def summed(one: Service, field: str) -> int:
    return sum(x.get(field, 0) for x in one.log_lines("further outcomes, counted alone"))


def test_faults_65_above_the_rate_outcomes_are_counted(services: Services, stack: Stack, tag: str) -> None:
    """Forged requests without end are no lines without end, either."""
    shop = Shop(services.start("ingest", env={"PAYONCE_LOG_RATE": "2"}), stack.api_token, tag)
    n, began = 60, time.monotonic()
    for i in range(n):
        assert shop.post("/webhooks/stripe/shop", b"{}", {}).status == 401
        shop.send(shop.stripe_event("checkout.session.completed", shop.session(f"{i}")))
    took = time.monotonic() - began
    one = shop.ingest

    def told(msg: str, field: str, **only: str) -> int:
        def lines() -> int:
            return len([x for x in one.log_lines(msg) if only.items() <= x.items()])

        until(lambda: lines() + summed(one, field) == n, what=f"each {msg} is told or counted")
        return lines()

    assert 2 <= told("event", "event_recorded", result="recorded") <= 2 * (took + 2)
    assert told("request refused", "refused_signature_missing") <= 10 * (took + 2)


def slowest(port: int, n: int = 400) -> float:
    """Sends refused and recorded events, some at a time; how long the slowest answer took."""
    def ask(i: int) -> float:
        body = encode({"id": f"evt_{port}_{i}_{time.time_ns()}", "object": "event", "type": "test.ignored", "created": now(),
                       "livemode": True, "api_version": "2026-10-28.endive", "data": {"object": {}}})
        headers = {"Stripe-Signature": stripe_header(accounts.secret("shop"), body, now())} if i % 2 else {}
        began = time.monotonic()
        got: Answer = call("POST", f"http://127.0.0.1:{port}/webhooks/stripe/shop", body, headers, timeout=20)
        assert got.status == (200 if i % 2 else 401), got
        return time.monotonic() - began

    with ThreadPoolExecutor(8) as pool:
        return max(pool.map(ask, range(n)))


def test_faults_65_a_reader_of_stdout_that_stands_still_delays_no_answer(stack: Stack) -> None:
    """The pipe is full after some lines, and stays so until the end."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    env = os.environ | stack.env("ingest") | {"PAYONCE_LOG_RATE": "100000"}
    proc = subprocess.Popen([stack.programs / "payonce-ingest", "run"], stdout=write, env=env)
    os.close(write)
    go_on = threading.Event()
    ports: dict[str, int] = {}

    def reader() -> None:
        """Reads all lines until told to stop."""
        with os.fdopen(os.dup(read), "rb") as out:
            while not go_on.is_set() and (line := out.readline()):
                said = json.loads(line)
                if said["msg"] == "listening":
                    ports[said["listener"]] = said["port"]

    try:
        thread = threading.Thread(target=reader, daemon=True)
        thread.start()
        until(lambda: len(ports) == 2, what="it listens")
        until(lambda: call("GET", f"http://127.0.0.1:{ports['admin']}/readyz").status == 200, what="it is ready")
        with_reader = slowest(ports["http"])
        go_on.set()  # from the next line on nobody reads
        without = slowest(ports["http"], 800)
        held = fcntl.ioctl(read, 0x541B, b"\0" * 4)  # FIONREAD
        print(f"slowest answer: {with_reader:.3f} s with a reader, {without:.3f} s without; {int.from_bytes(held, 'little')}")
        assert without < 2 * with_reader + 2, "an answer waited for the reader of a log"
        assert call("GET", f"http://127.0.0.1:{ports['admin']}/healthz").status == 200
        proc.send_signal(signal.SIGTERM)
        assert proc.wait(60) == 0, "nor does the end wait for it"
    finally:
        proc.kill()
        proc.wait()
        os.close(read)

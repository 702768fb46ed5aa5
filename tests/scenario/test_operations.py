"""What a running program says of itself: probes (FAULTS 62), status (FAULTS 63)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

import process
from conftest import Services
from outboxes import Outbox
from service import Service
from stack import Postgres, Stack
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

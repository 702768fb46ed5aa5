"""Consumers while something breaks: what is not the event's fault is waited out, what is refused holds up its own
partition, and a kill between any two steps leaves each effect once."""

import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from conftest import Services
from effects import CONSUMERS, Effects
from service import Service
from smtp_sink import SmtpSink
from stack import Stack
from topic import PAYMENTS, Event, in_partition, uuid7
from wait import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    with Services(stack, sink) as it:
        it.start(*CONSUMERS)
        yield it


def waiting(*services: Service, seconds: float = 0) -> bool:
    return all(s.metric("payonce_consumer_waiting_seconds") > seconds for s in services)


def told(service: Service, msg: str) -> list[tuple[str, str]]:
    """(level, code) of the lines that say so. Others may come first: a log that cannot be asked yet is one."""
    return [(line["level"], line["code"]) for line in service.log_lines(msg)]


def well(services: Iterable[Service]) -> bool:
    """No probe fails for what all replicas share."""
    return all(s.admin_get(f"/{probe}").status == 200 for s in services for probe in ("healthz", "readyz"))


@contextmanager
def locked(stack: Stack, table: str) -> Iterator[None]:
    """Nobody else touches the table meanwhile."""
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        conn.rollback()


def sessions(stack: Stack, role: str, where: str) -> int:
    [(n,)] = stack.postgres.query(f"SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND {where}", role)
    return int(n)


def once(effects: Effects, events: list[Event]) -> None:
    """Every one of these paid orders has each effect once."""
    orders = [e["order_id"] for e in events]
    for table in ("ledger.journal", "loyalty.points_entry", "receipts.mail", "access.access_right"):
        found = effects.stack.postgres.query(
            f"SELECT order_id, count(*) FROM {table} WHERE order_id = ANY(%s) GROUP BY 1", orders)
        assert sorted(found) == sorted((o, 1) for o in orders), table
    assert effects.unbalanced() == []


# --- Settings

@pytest.mark.parametrize("setting, value", [("PAYONCE_REGISTRY_URL", "registry:8081"), ("PAYONCE_BATCH", "0")])
@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_with_an_unusable_setting_names_it_and_does_not_start(services, name, setting, value) -> None:
    service = services[name]
    for command in ("check-config", "run"):
        got = subprocess.run([service.program, command], env=service.env | {setting: value}, capture_output=True, text=True,
                             timeout=30)
        assert got.returncode != 0 and setting in got.stderr


# --- Kills

def test_p19_killed_inside_the_transaction_nothing_and_then_one_balanced_journal(services, stack, topic, effects,
                                                                                tag) -> None:
    """FAULTS 19: SIGKILL when the inbox row and the journal are written and their lines wait for a lock."""
    ledger = services["ledger"]
    with locked(stack, "ledger.journal_line"):
        events = [topic.order(f"{tag}-{i}").says("qualified", received=1000) for i in range(50)]
        topic.flush()
        until(lambda: sessions(stack, "payonce_ledger", "wait_event_type = 'Lock'"), what="ledger in its transaction",
              every=0.01)  # it waits 1 s at a time
        ledger.kill9()
    until(lambda: sessions(stack, "payonce_ledger", "true") == 0, what="its session is gone")
    assert not any(effects.taken("ledger", [e]) or effects.journals(e["order_id"]) for e in events)
    ledger.start()
    effects.wait_taken(events, *CONSUMERS)
    once(effects, events)


def test_p19_killed_between_commit_and_offset_the_inbox_knows(services, stack, topic, effects, tag) -> None:
    """FAULTS 12, the other half: the offset follows the effect, so the event comes again."""
    ledger = services["ledger"]
    assert ledger.term() == 0
    before = stack.kafka.committed("payonce-ledger", PAYMENTS)
    ledger.start()
    events = [topic.order(f"{tag}-{i}").says("qualified", received=1000) for i in range(20)]
    effects.wait_taken(events, *CONSUMERS)
    ledger.kill9()
    # As if it had been killed before the offsets went out. Its session holds the group until it ends.
    stack.kafka.move("payonce-ledger", PAYMENTS, before)
    ledger.start().wait_ready()
    until(lambda: ledger.metric("payonce_consumer_duplicates_total") == 20, what="all 20 came again")
    once(effects, events)


def test_p19_postgresql_stopped_under_load_and_a_member_killed_nothing_is_skipped(services, stack, topic, effects,
                                                                                  tag) -> None:
    """FAULTS 12, P20."""
    events = [topic.order(f"{tag}-{i}").event("qualified", received=1000) for i in range(2000)]
    half, go_on, pace = threading.Event(), threading.Event(), threading.Event()

    def load() -> None:
        for i, event in enumerate(events):
            topic.send(event)
            pace.wait(0.001)
            if i == 700:
                half.set()
            if i == 1400:
                go_on.wait()
        topic.flush()

    sender = threading.Thread(target=load)
    sender.start()
    assert half.wait(300)
    stack.postgres.stop("immediate")
    try:
        until(lambda: waiting(*services, seconds=2), what="all wait for PostgreSQL")
        assert well(services)
        services["ledger"].kill9()
        services["ledger"].start().port("admin")
        until(lambda: waiting(services["ledger"]), what="the new member waits too")
        assert services["ledger"].admin_get("/readyz").status == 503, "it has not started yet (FAULTS 62)"
    finally:
        stack.postgres.start()
        go_on.set()
        sender.join()
    effects.wait_taken(events, *CONSUMERS)
    once(effects, events)
    assert all(s.metric("payonce_consumer_blocked_partitions") == 0 for s in services)


# --- Waiting

def test_p20_without_the_registry_a_consumer_waits(services, stack, topic, effects, tag) -> None:
    """P21 too: those that know the schema already go on."""
    known = topic.order(f"{tag}-0").says("qualified", received=1000)
    effects.wait_taken([known], *CONSUMERS)
    stack.registry.stop()
    try:
        ledger = services["ledger"]
        assert ledger.term() == 0
        ledger.start()  # not ready before it has reached the registry once
        event = topic.order(tag).says("qualified", received=1000)
        effects.wait_taken([event], "loyalty", "access", "receipts")
        until(lambda: ("warn", "registry") in told(ledger, "waiting"), what="ledger waits")
        assert waiting(ledger) and ledger.admin_get("/healthz").status == 200
        assert ledger.metric("payonce_consumer_blocked_partitions") == 0
        assert well([s for s in services if s is not ledger])
    finally:
        stack.registry.start()
    effects.wait_taken([event], "ledger")
    once(effects, [event])
    until(lambda: not waiting(ledger), what="waiting is over")


def test_p20_without_a_broker_a_consumer_waits_and_ends_when_told_to(services, stack, topic, effects, tag) -> None:
    """FAULTS 17: nobody answers the one that leaves the group."""
    first = [topic.order(f"{tag}-a{i}").says("qualified", received=1000) for i in range(50)]
    topic.flush()
    stack.kafka.kill()
    try:
        assert well(services)
        second = [topic.order(f"{tag}-b{i}").says("qualified", received=1000) for i in range(50)]
        assert services["access"].term(25) == 0
    finally:
        stack.kafka.start()
    services["access"].start()
    topic.flush()
    effects.wait_taken(first + second, *CONSUMERS)
    once(effects, first + second)


def test_p20_without_its_table_a_consumer_waits_and_alarms(services, stack, topic, effects, tag) -> None:
    """A missing migration is a deployment fault, never the event's (P21: the others go on)."""
    ledger = services["ledger"]
    stack.postgres.query("ALTER TABLE ledger.journal RENAME TO journal_away")
    try:
        event = topic.order(tag).says("qualified", received=1000)
        effects.wait_taken([event], "loyalty", "access", "receipts")
        until(lambda: ledger.metric("payonce_consumer_deployment_fault") == 1, what="the alarm")
        until(lambda: waiting(ledger), what="the wait is shown")
        assert ledger.metric("payonce_consumer_blocked_partitions") == 0
        line = until(lambda: ledger.log_lines("waiting"), what="a line says so")[-1]
        assert (line["level"], line["code"]) == ("error", "42P01")
    finally:
        stack.postgres.query("ALTER TABLE ledger.journal_away RENAME TO journal")
    effects.wait_taken([event], "ledger")
    until(lambda: ledger.metric("payonce_consumer_deployment_fault") == 0, what="the alarm ends")
    once(effects, [event])


def test_p21_a_broken_mail_server_delays_the_mail_and_nothing_else(services, topic, effects, sink, tag) -> None:
    """P26."""
    sink.refuse()
    try:
        order = topic.order(tag, receipt=True)
        order.contact(f"{tag}@example.org")
        event = order.says("qualified", received=1000)
        effects.wait_taken([event], *CONSUMERS)
        until(lambda: (effects.mail(tag) or ("", 0))[1] >= 2, what="two attempts")
        once(effects, [event])
    finally:
        sink.accept()
    until(lambda: (effects.mail(tag) or ("",))[0] == "sent", what="the mail goes out")
    assert len(sink.to(f"{tag}@example.org")) == 1


def test_p20_a_batch_that_needs_longer_than_a_statement_may_is_halved(services, stack, topic, effects, tag) -> None:
    """FAULTS 44: 400 events that take 20 s, where 8 s are allowed; repeated whole they would never be taken."""
    loyalty = services["loyalty"]
    stack.postgres.query("CREATE FUNCTION loyalty.slow() RETURNS trigger LANGUAGE plpgsql AS"
                         " $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$")
    loyalty.stop_signal()  # so that all of them are one batch
    events = [topic.order(f"{tag}-{i}").says("qualified", received=1000) for i in range(400)]
    topic.flush()
    stack.postgres.query("CREATE TRIGGER slow BEFORE INSERT ON loyalty.inbox FOR EACH ROW EXECUTE FUNCTION loyalty.slow()")
    try:
        loyalty.cont()

        def all_taken() -> bool:
            ids = [e["event_id"] for e in events]
            [(n,)] = stack.postgres.query("SELECT count(*) FROM loyalty.inbox WHERE event_id = ANY(%s::uuid[])", ids)
            assert n == 400, f"{n} of 400 events are taken"
            return True

        until(all_taken, 150, "all are taken")
    finally:
        loyalty.cont()
        stack.postgres.query("DROP TRIGGER slow ON loyalty.inbox")
        stack.postgres.query("DROP FUNCTION loyalty.slow()")
    assert loyalty.metric("payonce_consumer_blocked_partitions") == 0
    effects.wait_taken(events, *CONSUMERS)
    once(effects, events)


def test_p20_a_locked_row_holds_up_its_own_partition_at_most(services, stack, topic, effects, tag) -> None:
    """FAULTS 44: somebody else keeps one order's row; the events of other partitions are taken all the same."""
    loyalty = services["loyalty"]
    kept = topic.order(in_partition(f"{tag}-kept-", 0))
    first = kept.says("qualified", received=1000)
    effects.wait_taken([first], *CONSUMERS)
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("SELECT FROM loyalty.order_points WHERE order_id = %s FOR UPDATE", [kept.id])
        waits = kept.says("refunded", received=1000, refunded=100)
        others = [topic.order(in_partition(f"{tag}-{i}-", p)).says("qualified", received=1000)
                  for i in range(5) for p in range(1, 6)]
        topic.flush()
        effects.wait_taken(others, "loyalty")
        until(lambda: loyalty.metric("payonce_consumer_blocked_partitions") == 1, what="one partition is held up")
        [line] = [x for x in loyalty.log_lines() if x["msg"].startswith("partition held up")]
        assert (line["partition"], line["level"], line["code"]) == (0, "warn", "55P03")
        assert not effects.taken("loyalty", [waits])
        conn.rollback()
    effects.wait_taken([waits], "loyalty")
    until(lambda: loyalty.metric("payonce_consumer_blocked_partitions") == 0, what="it goes on")
    assert effects.entries(kept.id) == [(1, 10), (2, -1)]
    once(effects, others)


# --- Refused events

def more(schema: dict, field: str) -> dict:
    return schema | {"fields": [*schema["fields"], {"name": field, "type": "string", "default": ""}]}


def test_p20_a_refused_event_holds_up_its_own_partition_alone(services, stack, topic, effects, tag) -> None:
    """Five partitions with an unreadable event each, one without; nothing is skipped until someone acts."""
    orders = [topic.order(in_partition(f"{tag}-", p)) for p in range(6)]
    events = [o.event("qualified", received=1000) for o in orders]
    good = topic.body(PAYMENTS, events[0])
    coming = more(topic.schema(PAYMENTS), f"b_{tag}")
    unknown = topic.register(f"{tag}-a", more(topic.schema(PAYMENTS), f"a_{tag}")) + 1
    for p, value, headers in (
        (0, b"neither a frame nor Avro", {}),
        (1, good[:len(good) // 2], {}),
        (2, good, {"ce_sequence": "first"}),
        (3, topic.body(PAYMENTS, events[3] | {"event_id": uuid7()}), {}),
        (4, topic.body(PAYMENTS, events[4] | {f"b_{tag}": "x"}, coming, unknown), {}),
    ):
        topic.put(PAYMENTS, orders[p].id, value, "payment.qualified", 1, events[p]["event_id"], **headers)
        topic.flush()
    bad = {p: end - 1 for p, end in stack.kafka.ends(PAYMENTS).items() if p < 5}
    behind = [topic.order(in_partition(f"{tag}-behind-", p)).says("qualified", received=1000) for p in range(6)]
    effects.wait_taken(behind[5:], *CONSUMERS)
    for service in services:
        until(lambda s=service: s.metric("payonce_consumer_blocked_partitions") == 5, what=f"{service.label} blocked")
    assert well(services)

    # The schema of partition 4 becomes known, so that goes on: by then the others were tried again, too.
    assert topic.register(f"{tag}-b", coming) == unknown
    effects.wait_taken([events[4], behind[4]], *CONSUMERS)
    for service in services:
        lines = [x for x in service.log_lines() if x["msg"].startswith("partition blocked")]
        assert sorted((x["partition"], x["level"]) for x in lines if x["offset"] == bad[x["partition"]]) == [
            (p, "error") for p in range(5)], "logged once each"
        assert not any(effects.taken(service.name, [event]) for event in behind[:4])
        committed = stack.kafka.committed(f"payonce-{service.name}", PAYMENTS)
        assert all(committed[p] <= bad[p] for p in range(4)), "nothing is skipped"

    for service in services:
        assert service.term() == 0
    topic.drop_before({p: bad[p] + 1 for p in range(4)})
    for service in services:
        service.start()
    effects.wait_taken(behind, *CONSUMERS)
    once(effects, [*behind, events[4]])
    for service in services:
        lines = service.log_lines("events were deleted from the topic before this group had read them")
        assert sorted((x["partition"], x["committed"], x["begins"], x["level"]) for x in lines) == [
            (p, bad[p], bad[p] + 1, "error") for p in range(4)]
        assert service.metric("payonce_consumer_missed_total") == 4

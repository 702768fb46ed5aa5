"""Consumers and what an event, a database or a worker does to them at its worst: positions that cannot be, values at
the ends of their types, replies to COMMIT that never come, leases that run out while a mail is on its way."""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conftest import Services
from effects import CONSUMERS, Effects
from link import PostgresLink
from service import Service
from smtp_sink import SmtpSink
from stack import Stack
from topic import CONTACTS, PAYMENTS, Event, Topic, in_partition
from wait import until

QUICK = {"PAYONCE_KAFKA_EXTRA": "session.timeout.ms=6000"}
MOST = 2**63 - 1


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    with Services(stack, sink) as it:
        it.start(*CONSUMERS, env=QUICK)
        yield it


def nothing_done(effects: Effects, order: str) -> bool:
    return (effects.journals(order), effects.entries(order), effects.mail(order), effects.rights(order)) == ([], [], None, [])


@contextmanager
def refused(services: Iterable[Service], topic: Topic, offsets: dict[int, int]) -> Iterator[None]:
    """What lies before these offsets is refused; in the end, whatever comes, all go past it by an operator's way."""
    try:
        yield
    finally:
        services = list(services)
        for service in services:
            assert service.term() == 0
        topic.drop_before(offsets)
        for service in services:
            service.start()


# --- Events that cannot be

ABSURD: dict[str, dict[str, Any]] = {
    "due below nothing": {"due": -5},
    "refunded below nothing": {"received": 1000, "refunded": -1},
    "refunded above received": {"received": 1000, "refunded": 1001},
    "received below nothing": {"received": -1},
    "qualified and not paid": {"received": 1000, "state": "ü" * 300},  # told, and cut inside a character
    "a time that no database holds": {"received": 1000, "occurred_at": -(2**63 // 1000), "decided_at": -(2**63 // 1000)},
}


def test_p20_a_position_that_cannot_be_is_refused_by_all_and_has_no_effect(services, stack, topic, effects, tag) -> None:
    """Net ≥ 0; qualified says paid. No consumer gives for what the ledger would not book."""
    bad, ends = {}, {}
    for p, (_, fields) in enumerate(ABSURD.items()):
        ends[p] = stack.kafka.ends(PAYMENTS)[p]
        bad[p] = topic.order(in_partition(f"{tag}-", p)).says("qualified", **fields)
    topic.flush()
    with refused(services, topic, {p: at + 1 for p, at in ends.items()}):
        for service in services:
            until(lambda s=service: s.metric("payonce_consumer_blocked_partitions") == 6, what=f"{service.label} refuses all")
            rows = service.status()["partitions"]
            assert sum("blocked" in row for row in rows) == 6
        for event in bad.values():
            assert nothing_done(effects, event["order_id"])
    effects.wait_taken(topic.mark(tag), *CONSUMERS)


def test_p20_what_says_one_thing_outside_and_another_inside_is_refused_by_all(services, stack, topic, effects,
                                                                               tag) -> None:
    """Dedupe and order would work on something else than the effect."""
    ends = stack.kafka.ends(PAYMENTS)
    orders = [topic.order(in_partition(f"{tag}-", p)) for p in range(4)]
    events = [order.event("qualified", received=1000) for order in orders]
    bodies = [topic.body(PAYMENTS, event) for event in events]
    bodies[2] = topic.body(PAYMENTS, events[2] | {"type": "payment.refunded"})
    for p, (key, value, sequence) in enumerate((
            (in_partition(f"{tag}-other-", 0), bodies[0], 1), (orders[1].id, bodies[1], 2), (orders[2].id, bodies[2], 1),
            (orders[3].id, None, 1))):
        topic.put(PAYMENTS, key, value, "payment.qualified", sequence, events[p]["event_id"])
    topic.flush()
    with refused(services, topic, {p: ends[p] + 1 for p in range(4)}):
        for service in services:
            until(lambda s=service: s.metric("payonce_consumer_blocked_partitions") == 4, what=f"{service.label} refuses all")
        for order in orders:
            assert nothing_done(effects, order.id)
    effects.wait_taken(topic.mark(tag), *CONSUMERS)


def test_p27_an_order_that_changes_its_unit_is_refused_and_never_mixed(services, stack, topic, effects, tag) -> None:
    """The ledger keeps an order in one unit, whatever a later position says."""
    ends = stack.kafka.ends(PAYMENTS)
    order = topic.order(in_partition(f"{tag}-", 0))
    effects.wait_taken([order.says("qualified", received=1000)], "ledger")
    order.says("adjusted", state="paid", received=2000, currency="EUR")
    topic.flush()
    with refused([services["ledger"]], topic, {0: ends[0] + 2}):
        until(lambda: services["ledger"].metric("payonce_consumer_blocked_partitions") == 1, what="ledger refuses")
        assert effects.journals(order.id) == [1]
        assert effects.balances(order.id) == {"clearing:stripe:shop": 1000, "revenue": -1000}
    effects.wait_taken(topic.mark(tag), *CONSUMERS)


def test_p9_amounts_at_the_end_of_their_type_are_booked_exactly(services, topic, effects, tag) -> None:
    order = topic.order(tag, due=MOST)
    events = [order.says("qualified", received=MOST), order.says("refunded", refunded=MOST - 1),
              order.says("refunded", refunded=MOST)]
    effects.wait_taken(events[:1] + events[2:], "ledger", "loyalty")
    effects.wait_taken(events[:1], "receipts", "access")
    assert effects.balances(tag) == {} and effects.journals(tag) == [1, 2, 3] and effects.unbalanced() == []
    assert effects.entries(tag)[0] == (1, MOST // 100) and effects.points(tag) == 0


def test_p27_money_that_nobody_states_any_more_is_booked_all_the_same(services, topic, effects, tag) -> None:
    """A ledger that begins behind an order's first events (new on an old topic) meets its money in the shop's own
    event, which names no provider: the position is booked, the partition goes on."""
    order = topic.order(tag)
    event = order.says("canceled", sequence=3, received=400, provider="", account="", provider_event_id="")
    effects.wait_taken([event], "ledger")
    assert effects.balances(tag) == {"clearing:unknown:unknown": 400, "suspense": -400}
    effects.wait_taken([order.says("refunded", refunded=400, state="canceled")], "ledger")
    assert effects.balances(tag) == {"clearing:unknown:unknown": 400, "clearing:stripe:shop": -400}


def test_p28_an_erasure_erases_whatever_it_carries(services, stack, topic, effects, sink, tag) -> None:
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org")
    record = {"order_id": tag, "email": f"{tag}@example.org", "language": "en"}
    topic.put(CONTACTS, tag, topic.body(CONTACTS, record), "contact.erased", 2)
    order.sequence = 2
    until(lambda: stack.postgres.query("SELECT sequence, email FROM receipts.contact WHERE order_id = %s", tag)
          == [(2, None)], what="the address is gone")


# --- Replies that never come

def test_p19_a_lost_reply_to_commit_is_asked_of_the_inbox(services, stack, topic, effects, tag) -> None:
    """The server has committed, the consumer cannot know: the batch again, and each effect once."""
    with PostgresLink(stack.postgres.port) as link:
        for name in CONSUMERS:
            assert services[name].term() == 0
            services.start(name, env=QUICK | {"PAYONCE_DSN": link.dsn(f"payonce_{name}"), "PAYONCE_BATCH": "7"},
                           label=f"{name} by link")
        events: list[Event] = []
        for round in range(5):
            link.lose = 4
            events += [topic.order(f"{tag}-{round}-{i}").says("qualified", received=1000) for i in range(30)]
            topic.flush()
            effects.wait_taken(events, *CONSUMERS)
        assert link.lost >= 8
        for table in ("ledger.journal", "loyalty.points_entry", "receipts.mail", "access.access_right"):
            found = stack.postgres.query(f"SELECT order_id, count(*) FROM {table} WHERE order_id LIKE %s GROUP BY 1",
                                         f"{tag}-%")
            assert sorted(found) == sorted((e["order_id"], 1) for e in events), table
        assert effects.unbalanced() == []
        for name in CONSUMERS:
            assert services[f"{name} by link"].metric("payonce_consumer_blocked_partitions") == 0
            assert services[f"{name} by link"].term() == 0
            services[name].start().wait_ready()


def test_p27_a_conflict_is_told_although_the_reply_to_commit_is_lost(services, stack, topic, effects, tag) -> None:
    """The inbox knows the event from then on: nobody would look at it again."""
    with PostgresLink(stack.postgres.port) as link:
        for name in ("ledger", "loyalty", "receipts"):
            assert services[name].term() == 0
            told = services.start(name, env=QUICK | {"PAYONCE_DSN": link.dsn(f"payonce_{name}")}, label=f"{name} told")
            order = topic.order(f"{tag}-{name}")
            effects.wait_taken([order.says("qualified", received=1000)], name)
            link.lose = 1
            effects.wait_taken([order.says("qualified", due=900, sequence=1)], name)
            effects.wait_taken(topic.mark(tag), name)
            until(lambda t=told: t.metric("payonce_consumer_conflicts_total") == 1, what="the conflict is told")
            assert link.lose == 0
            assert told.term() == 0
            services[name].start().wait_ready()


# --- Waits that end

def test_p20_a_session_that_cannot_write_is_replaced(services, stack, topic, effects, tag) -> None:
    """A former primary, or a plan that the schema has outgrown: that session fails for ever, another does not."""
    stack.postgres.query("ALTER ROLE payonce_ledger SET default_transaction_read_only = on")
    try:
        stack.postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'payonce_ledger'")
        event = topic.order(tag).says("qualified", received=1000)
        until(lambda: services["ledger"].metric("payonce_consumer_waiting_seconds") > 0, what="ledger waits")
    finally:
        stack.postgres.query("ALTER ROLE payonce_ledger RESET default_transaction_read_only")
    effects.wait_taken([event], "ledger")
    assert effects.balances(tag) == {"clearing:stripe:shop": 1000, "revenue": -1000}

def test_p35_sigterm_while_the_database_is_frozen_ends_in_time(services, stack, topic, effects, tag) -> None:
    """FAULTS 17: a server that says nothing, not even that it is away, holds up no exit beyond the grace time."""
    ledger = services["ledger"]
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("LOCK TABLE ledger.inbox")
        topic.mark(tag)
        until(lambda: stack.postgres.query("SELECT 1 FROM pg_stat_activity WHERE usename = 'payonce_ledger'"
                                           " AND wait_event_type = 'Lock'"), what="ledger is in its transaction")
        stack.postgres.freeze()
        try:
            assert ledger.term(30) == 0
        finally:
            stack.postgres.thaw()
        conn.rollback()
    ledger.start()
    effects.wait_taken(topic.mark(tag), "ledger")


# --- A mail on its way

def test_p26_a_worker_that_slept_past_its_lease_records_nothing(services, stack, topic, effects, sink, tag) -> None:
    """FAULTS 20: two workers, one mail. The one that was stopped while sending finds its lease taken over."""
    sleeper = services["receipts"]
    assert sleeper.term() == 0
    env = QUICK | {"PAYONCE_SMTP_TIMEOUT": "10s", "PAYONCE_MAIL_PARALLEL": "1"}  # time to stop it in
    sink.hang(times=1)
    first = services.start("receipts", env=env, label="receipts that sleeps")
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org")
    event = order.says("qualified", received=1000)
    try:
        until(lambda: sink.held == [f"{tag}@example.org"], what="it is sending the mail", every=0.005)
        first.stop_signal()
        second = services.start("receipts", env=env, label="receipts that takes over")
        until(lambda: (effects.mail(tag) or ("",))[0] == "sent", what="the other sends it")
        assert effects.mail(tag) == ("sent", 1, None)
        first.cont()
        until(lambda: first.metric("payonce_work_skipped_total") == 1, what="it records nothing")
        assert effects.mail(tag) == ("sent", 1, None)
        assert len(sink.to(f"{tag}@example.org")) == 1
        effects.wait_taken([event], "receipts")
        assert first.term() == 0 and second.term() == 0
    finally:
        first.cont()
        sleeper.start().wait_ready()


def test_p26_a_worker_whose_lease_went_before_it_began_sends_nothing(services, stack, topic, effects, sink, tag) -> None:
    """FAULTS 20: it has claimed the mail, and asks for the address only after another has taken the mail over."""
    receipts = services["receipts"]
    skipped = receipts.metric("payonce_work_skipped_total")
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org")
    sink.refuse()
    try:
        order.says("qualified", received=1000)
        until(lambda: (effects.mail(tag) or ("", 0))[1] >= 1, what="an attempt, put off")
        with stack.postgres.connect(autocommit=False) as conn:
            conn.execute("LOCK TABLE receipts.contact IN ACCESS EXCLUSIVE MODE")
            until(lambda: stack.postgres.query("SELECT 1 FROM pg_stat_activity WHERE usename = 'payonce_receipts'"
                                               " AND wait_event_type = 'Lock'"), what="the next one asks for the address")
            sink.accept()
            stack.postgres.query("UPDATE receipts.mail SET lease_token = gen_random_uuid(), lease_until = now() +"
                                 " interval '1 h' WHERE order_id = %s", tag)
            conn.rollback()
        until(lambda: receipts.metric("payonce_work_skipped_total") == skipped + 1, what="it lets go")
        assert sink.to(f"{tag}@example.org") == []
    finally:
        sink.accept()
    stack.postgres.query("UPDATE receipts.mail SET lease_until = now() WHERE order_id = %s", tag)
    until(lambda: (effects.mail(tag) or ("",))[0] == "sent", what="the next claim sends it")
    assert len(sink.to(f"{tag}@example.org")) == 1


# --- Growth

def test_p20_no_statement_walks_a_table_that_has_grown(services, stack, topic, effects, tag) -> None:
    """Plans are kept for a session's life: one made while a table was small must not read all of it later. On a
    database of its own, which is small at first."""
    stack.postgres.query(f"CREATE DATABASE {tag}")
    ends = stack.kafka.ends(PAYMENTS)
    for name in CONSUMERS:
        stack.kafka.move(f"{tag}-{name}", PAYMENTS, ends)
        env = {"PAYONCE_MIGRATE_DSN": stack.postgres.dsn(dbname=tag), "PAYONCE_DSN": ""}
        subprocess.run([stack.programs / f"payonce-{name}", "migrate"], env=env, check=True, timeout=60)
        services.start(name, label=f"{name} on small tables", env={
            "PAYONCE_DSN": stack.postgres.dsn(f"payonce_{name}", tag),
            "PAYONCE_KAFKA_EXTRA": f"group.id={tag}-{name}"})
    small = [services[f"{name} on small tables"] for name in CONSUMERS]

    def send(n: int, kind: str) -> None:
        for i in range(n):
            order = topic.order(f"{tag}-{kind}-{i}", customer_id=f"c{i % 50}", receipt=True)
            order.contact(f"{order.id}@example.org")
            order.says("qualified", received=1000)
            order.says("refunded", refunded=100)
        topic.flush()
        for service in small:
            until(lambda s=service: stack.kafka.drained(f"{tag}-{s.name}", PAYMENTS), 300, f"{service.label} is through")

    with stack.postgres.connect(dbname=tag) as conn:
        def walked() -> dict[str, int]:
            rows = conn.execute("SELECT schemaname || '.' || relname, seq_tup_read FROM pg_stat_user_tables").fetchall()
            return {str(table): int(n) for table, n in rows}

        send(20, "few")
        conn.execute("ANALYZE")
        before = walked()
        send(1500, "many")
        after = walked()
    assert {t: after[t] - before[t] for t in after if after[t] - before[t] > 20000} == {}
    for service in small:
        assert service.term() == 0
    stack.postgres.query(f"DROP DATABASE {tag} WITH (FORCE)")

"""Consumers and what an event, a database or a worker does to them at its worst: positions that cannot be, values at
the ends of their types, replies to COMMIT that never come, leases that run out while a mail is on its way."""

import hashlib
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from conftest import Services
from effects import CONSUMERS, Effects
from http_server import HttpServer
from link import PostgresLink
from outboxes import Outbox
from service import Service, call
from smtp_sink import SmtpSink
from stack import ROOT, Stack
from topic import CONTACTS, PAYMENTS, Event, Topic, in_partition
from wait import until

pytestmark = pytest.mark.slow

MOST = 2**63 - 1


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    with Services(stack, sink) as it:
        it.start(*CONSUMERS)
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
            services.start(name, env={"PAYONCE_DSN": link.dsn(f"payonce_{name}"), "PAYONCE_BATCH": "7"},
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
            told = services.start(name, env={"PAYONCE_DSN": link.dsn(f"payonce_{name}")}, label=f"{name} told")
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
    env = {"PAYONCE_SMTP_TIMEOUT": "10s", "PAYONCE_MAIL_PARALLEL": "1"}  # time to stop it in
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
        assert effects.mail(tag) == ("sent", 2, None)
        first.cont()
        until(lambda: first.metric("payonce_work_skipped_total") == 1, what="it records nothing")
        assert effects.mail(tag) == ("sent", 2, None)
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


def state_of(effects: Effects, order: str) -> str:
    return (effects.mail(order) or ("",))[0]


def test_faults_42_an_attempt_whose_outcome_cannot_be_recorded_is_counted(services, stack, topic, effects, sink,
                                                                          tag) -> None:
    """FAULTS 42: a right that the role has lost. The attempt is counted before the mail is out, so there is an end to
    the copies, and the log says who must act."""
    query = stack.postgres.query
    query("REVOKE UPDATE (sent_at) ON receipts.mail FROM payonce_receipts")
    try:
        order = topic.order(tag, receipt=True)
        order.contact(f"{tag}@example.org")
        order.says("qualified", received=1000)
        for copies in range(1, 4):
            until(lambda n=copies: len(sink.to(f"{tag}@example.org")) == n, what=f"copy {copies}")
            assert effects.mail(tag) == ("due", copies, None)
            until(lambda n=copies: len([line for line in services["receipts"].log_lines("outcome of a mail not recorded")
                                        if line["level"] == "error" and line["code"] == "42501"]) >= n, what="told")
            query("UPDATE receipts.mail SET lease_until = now() WHERE order_id = %s", tag)
        until(lambda: state_of(effects, tag) == "review", what="a person looks")
        assert effects.mail(tag) == ("review", 4, "in_doubt no_record")
        assert len(sink.to(f"{tag}@example.org")) == 3 and len(sink.copies()) >= 1
    finally:
        query("GRANT UPDATE (sent_at) ON receipts.mail TO payonce_receipts")


def test_faults_43_a_delivery_in_doubt_has_a_small_limit_of_its_own(services, topic, effects, sink, tag) -> None:
    """FAULTS 43: a server that keeps each mail and drops the reply gets three copies under one Message-ID, not as many
    as an outage has attempts; what it puts off is not counted among them."""
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org")
    sink.refuse()
    try:
        order.says("qualified", received=1000)
        until(lambda: (effects.mail(tag) or ("", 0))[1] >= 2, what="put off, and tried again")
        sink.drop()
        until(lambda: state_of(effects, tag) == "review" or len(sink.to(f"{tag}@example.org")) > 3, what="an end")
        assert effects.mail(tag) == ("review", effects.mail(tag)[1], "in_doubt no_reply")
        first, *copies = sink.to(f"{tag}@example.org")
        assert copies == [first, first]
    finally:
        sink.accept()
    order.contact(f"{tag}+other@example.org")
    until(lambda: state_of(effects, tag) == "sent", what="another address ends the review")


def test_faults_43_any_2xx_after_the_message_is_acceptance(services, topic, effects, sink, tag) -> None:
    sink.take("252 2.1.5 cannot verify, will try")
    try:
        order = topic.order(tag, receipt=True)
        order.contact(f"{tag}@example.org")
        order.says("qualified", received=1000)
        until(lambda: effects.mail(tag) == ("sent", 1, None) or len(sink.to(f"{tag}@example.org")) > 1, what="sent")
        assert len(sink.to(f"{tag}@example.org")) == 1
    finally:
        sink.accept()


def test_faults_48_an_address_given_after_payment_brings_the_mail(services, topic, effects, sink, tag) -> None:
    """FAULTS 48: nobody had given an address; the mail goes out when one comes, once, whatever comes again."""
    order = topic.order(tag)
    event = order.says("qualified", received=1000)
    until(lambda: effects.mail(tag) == ("not_wanted", 0, None), what="no address")
    order.contact(f"{tag}@example.org")
    until(lambda: state_of(effects, tag) == "sent", 60, "the mail")
    topic.send(event)
    order.contact(f"{tag}@example.org", 2)
    order.contact(f"{tag}+other@example.org", 3)
    order.says("adjusted", received=1200, state="paid")
    topic.flush()
    effects.wait_taken(topic.mark(tag), "receipts")
    effects.wait_drained("receipts", topics=(CONTACTS,))
    assert effects.mail(tag) == ("sent", 1, None) and len([m for m in sink.mails if tag in m.recipients[0]]) == 1


def test_faults_48_an_address_that_overtakes_the_payment_brings_the_mail(services, stack, topic, effects, sink,
                                                                         tag) -> None:
    """FAULTS 48: two topics, in no order between them. The event was decided before the address was given."""
    order = topic.order(tag)
    order.contact(f"{tag}@example.org", 2)
    until(lambda: stack.postgres.query("SELECT 1 FROM receipts.contact WHERE order_id = %s", tag), what="the address")
    order.says("qualified", received=1000, sequence=1)
    until(lambda: state_of(effects, tag) == "sent", 60, "the mail")


def test_faults_48_an_address_and_a_payment_that_do_not_see_each_other(services, stack, topic, effects, sink,
                                                                       tag) -> None:
    """FAULTS 48: two members of the group in the same moment, each inside its transaction."""
    query = stack.postgres.query
    services.start("receipts", label="another receipts")
    order = topic.order(tag)
    query("CREATE FUNCTION receipts.hold() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$")
    query("CREATE TRIGGER hold AFTER INSERT ON receipts.mail FOR EACH ROW"
          f" WHEN (NEW.order_id = '{tag}') EXECUTE FUNCTION receipts.hold()")
    try:
        with stack.postgres.connect(autocommit=False) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(7)")
            topic.send(order.event("qualified", received=1000), partition=0)
            until(lambda: query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), what="one is inside")
            record = {"order_id": tag, "email": f"{tag}@example.org", "language": "en"}
            topic.put(CONTACTS, tag, topic.body(CONTACTS, record), "contact.set", 2, partition=5)
            until(lambda: query("SELECT 1 FROM receipts.contact WHERE order_id = %s AND email IS NOT NULL", tag)
                  or query("SELECT 1 FROM pg_locks WHERE locktype <> 'advisory' AND NOT granted"), what="so is the other")
            conn.rollback()
        until(lambda: state_of(effects, tag) == "sent", 60, "the mail")
    finally:
        query("DROP FUNCTION receipts.hold CASCADE")
        assert services["another receipts"].term() == 0


def put_off(stack: Stack, order: str) -> None:
    """Once its first attempt is refused for now, its next one is far away."""
    until(lambda: stack.postgres.query(
        "UPDATE receipts.mail SET due_at = now() + interval '1 day' WHERE order_id = %s AND state = 'due'"
        " AND attempts > 0 AND lease_token IS NULL RETURNING true", order), what="put off")


def wait_address(stack: Stack, order: str, email: str) -> None:
    until(lambda: stack.postgres.query("SELECT 1 FROM receipts.contact WHERE order_id = %s AND email = %s", order, email),
          what="the address")


@pytest.mark.parametrize("reply, counted, of_old", [
    ("550 5.1.1 no such user", "attempts = 1", "refused"), ("451 4.3.0 try again later", "attempts = 719", "gave_up"),
    ("", "doubts = 2", "in_doubt"), ("451 4.3.0 try again later", "attempts = 300", "later")])
def test_faults_48_an_address_corrected_while_the_old_one_is_tried(services, stack, topic, effects, sink, tag,
                                                                   reply: str, counted: str, of_old: str) -> None:
    """FAULTS 48: what the server says of the old address is no verdict about the new one, which gets its mail at once."""
    old, new = f"old-{tag}@example.org", f"new-{tag}@example.org"
    order = topic.order(tag, receipt=True)
    sink.refuse()
    try:
        order.contact(old)
        order.says("qualified", received=1000)
        put_off(stack, tag)
        sink.hang(reply)
        stack.postgres.query(f"UPDATE receipts.mail SET due_at = now(), {counted} WHERE order_id = %s", tag)
        until(lambda: old in sink.held, what="the old one is tried")
        order.contact(new)
        wait_address(stack, tag, new)
    finally:
        sink.accept()
    until(lambda: state_of(effects, tag) in ("sent", "review"), 60, "an end")
    assert effects.mail(tag) == ("sent", 1, None)
    assert [len(sink.to(address)) for address in (old, new)] == [0, 1]


def test_faults_48_an_address_corrected_while_the_old_one_is_found_bad(services, stack, topic, effects, sink,
                                                                       tag) -> None:
    """FAULTS 48: the worker has read the old one, and has not recorded yet what it thinks of it."""
    query = stack.postgres.query
    query("CREATE FUNCTION receipts.hold() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$")
    query("CREATE TRIGGER hold AFTER UPDATE ON receipts.mail FOR EACH ROW"
          f" WHEN (NEW.order_id = '{tag}' AND NEW.doubts > OLD.doubts) EXECUTE FUNCTION receipts.hold()")
    try:
        with stack.postgres.connect(autocommit=False) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(7)")
            order = topic.order(tag, receipt=True)
            order.contact("no address at all")
            order.says("qualified", received=1000)
            until(lambda: query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), what="it is begun")
            order.contact(f"{tag}@example.org")
            until(lambda: query("SELECT 1 FROM receipts.contact WHERE order_id = %s AND email = %s", tag,
                                f"{tag}@example.org")
                  or query("SELECT 1 FROM pg_locks WHERE locktype <> 'advisory' AND NOT granted"), what="it comes")
            conn.rollback()
        until(lambda: state_of(effects, tag) == "sent", 60, "the mail")
        assert len(sink.to(f"{tag}@example.org")) == 1
    finally:
        query("DROP FUNCTION receipts.hold CASCADE")


def test_faults_48_another_address_does_not_wait_for_the_patience_with_the_old_one(services, stack, topic, effects, sink,
                                                                                   tag) -> None:
    """FAULTS 48: put off for long, since the server did not take it for the old one."""
    order = topic.order(tag, receipt=True)
    sink.refuse()
    try:
        order.contact(f"old-{tag}@example.org")
        order.says("qualified", received=1000)
        put_off(stack, tag)
    finally:
        sink.accept()
    order.contact(f"new-{tag}@example.org")
    until(lambda: effects.mail(tag) == ("sent", 1, None), 60, "the mail")


def test_faults_48_the_same_address_again_brings_no_further_copies(services, topic, effects, sink, tag) -> None:
    """FAULTS 48, 43: a contact that changes the language alone. The customer may have three copies already."""
    order = topic.order(tag, receipt=True)
    sink.drop()
    try:
        order.contact(f"{tag}@example.org")
        order.says("qualified", received=1000)
        until(lambda: state_of(effects, tag) == "review", 60, "three are in doubt")
        review = effects.mail(tag)
        order.contact(f"{tag}@example.org")
        topic.flush()
        effects.wait_drained("receipts", topics=(CONTACTS,))
        assert effects.mail(tag) == review == ("review", 3, "in_doubt no_reply")
    finally:
        sink.accept()
    order.contact(f"{tag}+other@example.org")
    until(lambda: state_of(effects, tag) == "sent", 60, "another address ends the review")
    assert len(sink.to(f"{tag}@example.org")) == 3 and len({m.message_id for m in sink.mails if tag in m.recipients[0]}) == 1


def test_faults_50_a_server_that_is_silent_after_quit_costs_no_time(services, topic, effects, sink, tag) -> None:
    """FAULTS 50: two workers and a time-out of 30 s a mail would need five minutes for these."""
    sink.mute_quit()
    try:
        orders = [topic.order(f"{tag}-{i}", receipt=True) for i in range(20)]
        for order in orders:
            order.contact(f"{order.id}@example.org")
            order.says("qualified", received=1000)
        until(lambda: all(state_of(effects, order.id) == "sent" for order in orders), 90, "all are sent")
        assert all(len(sink.to(f"{order.id}@example.org")) == 1 for order in orders)
    finally:
        sink.accept()


def test_faults_51_a_late_copy_behind_its_tombstone_is_no_address(services, stack, topic, effects, sink, tag) -> None:
    """FAULTS 51: a relay sends it again after a fail-over, and compaction keeps it, since it is the last of its key.
    What was erased stays so, also for one who reads the topic from its beginning and knows none of the events."""
    order = topic.order(tag, receipt=True)
    order.contact(f"{tag}@example.org", 1)
    order.contact(None, 2)
    order.contact(f"{tag}@example.org", 1)
    topic.flush()
    effects.wait_drained("receipts", topics=(CONTACTS,))
    row = "SELECT sequence, email FROM receipts.contact WHERE order_id = %s"
    assert stack.postgres.query(row, tag) == [(2, None)]
    order.contact(None, 2)  # the tombstone's own repeat
    order.says("qualified", received=1000, sequence=3)
    order.contact(f"{tag}@example.org", 1)
    topic.flush()
    effects.wait_taken(topic.mark(tag), "receipts")
    effects.wait_drained("receipts", topics=(CONTACTS,))
    assert stack.postgres.query(row, tag) == [(2, None)]
    assert state_of(effects, tag) == "waiting_address" and sink.to(f"{tag}@example.org") == []


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and the file with the certificate authority that nobody else knows."""
    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True, timeout=60)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=a shop's own")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=mail")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "san", "-out", "server.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    return context, folder / "ca.pem"


@pytest.mark.parametrize("tls", ["try", "require"])
def test_faults_55_a_mail_server_with_a_private_ca(services, topic, effects, tmp_path, tag, tls: str) -> None:
    """FAULTS 55: without its CA file that is an alarm, at once; with it mail goes out, over TLS."""
    context, ca = certificate(tmp_path)
    assert services["receipts"].term() == 0
    order = topic.order(tag, receipt=True)
    with SmtpSink(tls=context) as secret:
        env = {"PAYONCE_SMTP_URL": secret.url, "PAYONCE_SMTP_TLS": tls}
        try:
            blind = services.start("receipts", env=env, label=f"receipts without the CA, {tls}")
            order.contact(f"{tag}@example.org")
            order.says("qualified", received=1000)
            until(lambda: (effects.mail(tag) or ("", 0))[1] >= 2, what="tried twice")
            told = blind.log_lines("the mail server's certificate is not trusted: no mail goes out")
            assert [line["level"] for line in told] == ["error"], "once a minute"
            assert blind.metric("payonce_receipts_mails_total", outcome="certificate") >= 1
            assert secret.mails == [] and state_of(effects, tag) == "due"
            assert blind.term() == 0
            services.start("receipts", env=env | {"PAYONCE_SMTP_CA_FILE": str(ca)}, label=f"receipts with the CA, {tls}")
            until(lambda: state_of(effects, tag) == "sent", what="sent over TLS")
            assert len(secret.to(f"{tag}@example.org")) == 1
            assert services[f"receipts with the CA, {tls}"].term() == 0
        finally:
            services["receipts"].start().wait_ready()


@contextmanager
def over_tls(url: str, context: ssl.SSLContext) -> Iterator[str]:
    """The HTTP server at `url`, by TLS."""
    class Forward(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            got = call(self.command, url + self.path, body, {"Content-Type": self.headers.get("Content-Type") or ""})
            self.send_response(got.status)
            self.send_header("Content-Length", str(len(got.body)))
            self.end_headers()
            self.wfile.write(got.body)

        do_GET = do_POST = do_PUT = forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HttpServer(("127.0.0.1", 0), Forward)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_faults_55_a_registry_with_a_private_ca(services, stack, topic, effects, tmp_path, tag) -> None:
    """FAULTS 55: the same for a consumer and for relay, which reach the registry over https."""
    context, ca = certificate(tmp_path)
    outbox = Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create()
    assert services["ledger"].term() == 0
    event = topic.order(tag).says("qualified", received=1000)
    with stack.postgres.connect() as conn:
        outbox.put(conn, "a")
    try:
        with over_tls(stack.registry.url, context) as url:
            trusting = {"PAYONCE_REGISTRY_URL": url, "PAYONCE_REGISTRY_CA_FILE": str(ca)}
            blind = {"PAYONCE_REGISTRY_URL": url}
            ledger = services.make("ledger", blind, "ledger without the CA").start()  # it is never ready
            relay = services.make("relay", outbox.env() | blind, "relay without the CA").start()
            until(lambda: ledger.metric("payonce_consumer_deployment_fault") == 1, what="the alarm")
            for service, msg in (ledger, "waiting"), (relay, "a schema cannot be registered: its rows wait"):
                until(lambda s=service, m=msg: any((line["level"], line["code"]) == ("error", "certificate")
                                                   for line in s.log_lines(m)), what=f"{service.label} tells")
                assert service.term() == 0
            services.start("ledger", env=trusting, label="ledger with the CA")
            services.start("relay", env=outbox.env() | trusting, label="relay with the CA")
            effects.wait_taken([event], "ledger")
            until(lambda: outbox.seen() == {"a": [1]}, what="relay publishes")
            for label in "ledger with the CA", "relay with the CA":
                assert services[label].term() == 0
    finally:
        services["ledger"].start().wait_ready()


# --- Keys

def test_faults_45_a_further_generation_is_no_other_order(services, topic, effects, tag) -> None:
    """FAULTS 45: an order's id may hold whatever stands between the parts of a key."""
    order = topic.order(tag)
    order.says("qualified", received=1000)
    order.says("reversed", received=0)
    order.says("qualified", received=1000, qualification=2)
    others = [topic.order(f"{tag}:g2"), topic.order(f"grant.g2:{tag}"), topic.order(f"{tag}:1"), topic.order(f":{tag}:")]
    events = [other.says("qualified", received=1000) for other in others]
    effects.wait_taken(events + topic.mark(tag), *CONSUMERS)
    assert effects.rights(tag) == [(f"grant:{tag}", "c-" + tag, "revoked"), (f"grant.g2:{tag}", "c-" + tag, "granted")]
    for other in others:
        assert effects.rights(other.id) == [(f"grant:{other.id}", "c-" + other.id, "granted")]
        assert effects.journals(other.id) == [1] and effects.entries(other.id) == [(1, 10)]
        assert effects.mail(other.id) == ("not_wanted", 0, None)


def test_faults_45_a_purpose_that_could_share_a_key_is_refused(services, stack, topic, effects, tag) -> None:
    """FAULTS 45: payment_receipt:PURPOSE:ORDER. ingest registers no such purpose; another writer might."""
    ends = stack.kafka.ends(PAYMENTS)
    order = topic.order(in_partition(f"{tag}-", 0))
    order.says("qualified", received=1000, purpose="course:x")
    topic.flush()
    with refused([services["receipts"]], topic, {0: ends[0] + 1}):
        until(lambda: services["receipts"].metric("payonce_consumer_blocked_partitions") == 1, what="receipts refuses")
        assert effects.mail(order.id) is None
    effects.wait_taken(topic.mark(tag), "receipts")


@contextmanager
def before_migration(stack: Stack, tag: str, service: str, migration: str) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A connection to a database in which `migration` and later files of the service are not applied yet, and the call
    that applies them."""
    stack.postgres.query(f"CREATE DATABASE {tag}")
    files = sorted((ROOT / "services" / service / "migrations").glob("*.sql"))
    try:
        with stack.postgres.connect(dbname=tag) as conn:
            for version, file in enumerate(files, 1):
                if file.stem.partition("_")[2] == migration:
                    break
                conn.execute(file.read_text())
                conn.execute(f"CREATE TABLE IF NOT EXISTS {service}.schema_migration (version int PRIMARY KEY, name text"
                             " NOT NULL, sha256 bytea NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())")
                conn.execute(f"INSERT INTO {service}.schema_migration VALUES (%s, %s, %s)",
                             (version, file.name, hashlib.sha256(file.read_bytes()).digest()))
            env = {"PAYONCE_MIGRATE_DSN": stack.postgres.dsn(dbname=tag), "PAYONCE_DSN": ""}
            yield conn, lambda: subprocess.run([stack.programs / f"payonce-{service}", "migrate"], env=env, check=True,
                                               timeout=60)
    finally:
        stack.postgres.query(f"DROP DATABASE {tag} WITH (FORCE)")


def test_faults_45_stored_keys_of_further_generations_are_renamed(stack, tag) -> None:
    """FAULTS 45: and who got no right, since another order had the key, has it afterwards."""
    with before_migration(stack, tag, "access", "operation_keys") as (conn, migrate):
        right = ("INSERT INTO access.access_right VALUES (%s, %s, %s, 'course', 'tea', %s, %s, '2026-07-01', %s,"
                 " CASE WHEN %s = 'revoked' THEN timestamptz '2026-07-02' END)")
        for key, order, generation, state in [
                ("grant:A", "A", 1, "revoked"), ("grant:A:g2", "A", 2, "granted"), ("grant:A:g2:g2", "A:g2", 2, "granted"),
                ("grant:B:g2", "B:g2", 1, "granted"), ("grant:B", "B", 1, "revoked"), ("grant:C", "C", 1, "granted")]:
            conn.execute(right, (key, order, "c-" + order, generation, b"of " + order.encode(), state, state))
        conflict = ("INSERT INTO access.conflict VALUES (%s, %s, %s, %s, 'course', 'tea', gen_random_uuid(),"
                    " timestamptz '2026-07-03' + %s * interval '1 day')")
        for key, content, order, customer, day in [
                ("grant:A:g2", b"of A:g2", "A:g2", "c-A:g2", 0),  # an order's first, before its second generation
                ("grant:B:g2", b"of B", "B", "c-B", 0),  # a second generation that found its key taken
                ("grant:B:g2", b"later", "B", "c-else", 1),  # and what contradicts it
                ("grant:C", b"else", "C", "c-else", 0),  # what was a contradiction stays one
                ("grant:A:g2", b"of another", "A", "c-else", 0)]:
            conn.execute(conflict, (key, content, order, customer, day))
        migrate()
        migrate()
        assert conn.execute("SELECT operation_key, customer_id, qualification, state FROM access.access_right"
                            " ORDER BY order_id, qualification").fetchall() == [
            ("grant:A", "c-A", 1, "revoked"), ("grant.g2:A", "c-A", 2, "granted"),
            ("grant:A:g2", "c-A:g2", 1, "revoked"), ("grant.g2:A:g2", "c-A:g2", 2, "granted"),
            ("grant:B", "c-B", 1, "revoked"), ("grant.g2:B", "c-B", 2, "granted"),
            ("grant:B:g2", "c-B:g2", 1, "granted"), ("grant:C", "c-C", 1, "granted")]
        assert conn.execute("SELECT operation_key, customer_id FROM access.conflict ORDER BY 1").fetchall() == [
            ("grant.g2:A", "c-else"), ("grant.g2:B", "c-else"), ("grant:C", "c-else")]


def test_faults_48_what_was_given_up_too_early_is_sent_after_the_migration(stack, tag) -> None:
    """FAULTS 48: mails that nobody wanted, whose address has come since; not those of long ago."""
    with before_migration(stack, tag, "receipts", "doubts") as (conn, migrate):
        for order, state, days, email in [("now", "not_wanted", 1, "a@example.org"), ("old", "not_wanted", 8, "a@example.org"),
                                          ("never", "not_wanted", 1, None), ("sent", "sent", 1, "a@example.org")]:
            conn.execute("INSERT INTO receipts.mail (mail_key, message_id, order_id, customer_id, purpose, item,"
                         " amount_minor, currency, exponent, paid_at, state) VALUES (%s, %s, %s, 'c', 'course', 'tea', 1,"
                         " 'USD', 2, now() - %s * interval '1 day', %s)", (order, order, order, days, state))
            conn.execute("INSERT INTO receipts.contact VALUES (%s, 1, %s)", (order, email))
        migrate()
        migrate()
        assert conn.execute("SELECT order_id, state, doubts FROM receipts.mail ORDER BY 1").fetchall() == [
            ("never", "not_wanted", 0), ("now", "due", 0), ("old", "not_wanted", 0), ("sent", "sent", 0)]


def test_faults_48_an_address_of_before_is_the_same_one_after_the_migration(stack, tag) -> None:
    """FAULTS 48: what is stored was not brought by whatever comes next."""
    with before_migration(stack, tag, "receipts", "email_since") as (conn, migrate):
        conn.execute("INSERT INTO receipts.contact VALUES ('given', 3, 'a@example.org'), ('erased', 4, NULL)")
        migrate()
        migrate()
        assert conn.execute("SELECT * FROM receipts.contact ORDER BY 1").fetchall() == [
            ("erased", 4, None, 0), ("given", 3, "a@example.org", 0)]


# --- Growth

def test_p20_no_statement_walks_a_table_that_has_grown(programs, sink, tag) -> None:
    """Plans are kept for a session's life: one made while a table was small must not read all of it later. On a
    stack of its own, whose tables are small at first."""
    with Stack(programs) as stack, Services(stack, sink) as services:
        topic = Topic(stack)
        services.start(*CONSUMERS)

        def send(n: int, kind: str) -> None:
            for i in range(n):
                order = topic.order(f"{tag}-{kind}-{i}", customer_id=f"c{i % 50}", receipt=True)
                order.contact(f"{order.id}@example.org")
                order.says("qualified", received=1000)
                order.says("refunded", refunded=100)
            topic.flush()
            for name in CONSUMERS:
                until(lambda n=name: stack.kafka.drained(f"payonce-{n}", PAYMENTS), 300, f"{name} is through")

        with stack.postgres.connect() as conn:
            def walked() -> dict[str, int]:
                rows = conn.execute("SELECT schemaname || '.' || relname, seq_tup_read FROM pg_stat_user_tables"
                                    " WHERE schemaname = ANY(%s)", (list(CONSUMERS),)).fetchall()
                return {str(table): int(n) for table, n in rows}

            send(20, "few")
            conn.execute("ANALYZE")
            before = walked()
            send(1500, "many")
            after = walked()
        assert {t: after[t] - before[t] for t in after if after[t] - before[t] > 20000} == {}

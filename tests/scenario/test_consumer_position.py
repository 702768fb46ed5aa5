"""FAULTS 52: a consumer's position belongs to one log. Where another log has taken its name, or the same one has lost
its end, a member notices, tells it, and reads what it has not read; whoever reads the same log goes on."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewPartitions

from broker_link import BrokerLink
from conftest import Services
from service import Service
from smtp_sink import SmtpSink
from stack import Stack, answered
from topic import PAYMENTS, Event, Topic
from wait import until

pytestmark = pytest.mark.slow

GROUP = "payonce-ledger"
ANOTHER = "the topic's log is another one than was read: reading what it holds from that time on"


@pytest.fixture(scope="module")
def stack(programs) -> Iterator[Stack]:
    """One of this module's own, since its topic is deleted; one partition, so that every event counts."""
    with Stack(programs, partitions=1) as it:
        yield it


@pytest.fixture
def services(stack: Stack) -> Iterator[Services]:
    with SmtpSink() as sink, Services(stack, sink) as it:
        yield it


@pytest.fixture
def ledger(services: Services) -> Service:
    return services.start("ledger")


def sent(stack: Stack, tag: str, n: int) -> list[Event]:
    """By a producer of their own, since the last one's knows the log that was."""
    topic = Topic(stack)
    events = [topic.order(f"{tag}-{i}").says("qualified", received=1000) for i in range(n)]
    topic.flush()
    return events


def read(stack: Stack, ledger: Service, tag: str, n: int) -> list[Event]:
    """The log's first events, all of them taken and committed."""
    stack.kafka.remake(PAYMENTS, 1)
    events = sent(stack, tag, n)
    until(lambda: stack.kafka.drained(GROUP, PAYMENTS) and stack.kafka.ends(PAYMENTS) == {0: n}, what="all are read")
    return events


def missing(stack: Stack, events: list[Event]) -> list[str]:
    taken = {str(i) for (i,) in stack.postgres.query("SELECT event_id FROM ledger.inbox")}
    return [e["order_id"] for e in events if e["event_id"] not in taken]


def wait_once(stack: Stack, effects, events: list[Event]) -> None:
    """Each has its effect, once."""
    def none() -> bool:
        lost = missing(stack, events)
        assert not lost, f"{len(lost)} of {len(events)} events were never read"
        return True

    until(none, what="every event is read")
    orders = [e["order_id"] for e in events]
    rows = stack.postgres.query("SELECT order_id, count(*) FROM ledger.journal WHERE order_id = ANY(%s) GROUP BY 1", orders)
    assert sorted(rows) == sorted((o, 1) for o in orders) and effects.unbalanced() == []


def told(member: Service) -> bool:
    lines = member.log_lines(ANOTHER)
    return bool(lines) and all((x["topic"], x["partition"], x["level"]) == (PAYMENTS, 0, "error") for x in lines) and (
        member.metric("payonce_consumer_other_log_total") == len(lines))


def test_p20_a_log_made_anew_under_a_running_member_is_read_and_told(stack, effects, ledger, tag) -> None:
    """The review's case: 150 events where 60 had been read; the offsets below were never looked at."""
    read(stack, ledger, f"{tag}-a", 60)
    stack.kafka.remake(PAYMENTS, 1)
    events = sent(stack, f"{tag}-b", 150)
    wait_once(stack, effects, events)
    until(lambda: told(ledger), what="it is told")
    until(lambda: stack.kafka.drained(GROUP, PAYMENTS), what="and read to its end")
    ledger.restart()
    more = sent(stack, f"{tag}-c", 5)
    wait_once(stack, effects, events + more)
    assert not ledger.log_lines(ANOTHER), "after a restart there is nothing new to tell"


def test_p20_a_log_made_anew_while_nobody_reads_is_read_and_told(stack, effects, ledger, tag) -> None:
    """The group's offsets outlive the log: committed by a member that had not noticed, or restored."""
    read(stack, ledger, f"{tag}-a", 60)
    assert ledger.term() == 0
    stack.kafka.remake(PAYMENTS, 1)
    events = sent(stack, f"{tag}-b", 150)
    stack.kafka.move(GROUP, PAYMENTS, {0: 60})
    ledger.start().wait_ready()
    wait_once(stack, effects, events)
    assert told(ledger)


def test_p20_a_log_made_anew_behind_a_member_that_dies_is_read_all_the_same(stack, effects, ledger, tag) -> None:
    """It has read on, and committed, before it could notice: what it last knew of the log that was is kept."""
    read(stack, ledger, f"{tag}-a", 60)
    ledger.stop_signal()
    stack.kafka.remake(PAYMENTS, 1)
    events = sent(stack, f"{tag}-b", 150)
    ledger.cont()
    until(lambda: len(missing(stack, events)) <= 90, what="it reads on", every=0.005)
    ledger.kill9()
    ledger.start().wait_ready()
    wait_once(stack, effects, events)


def test_p20_a_broker_that_restarts_and_does_not_know_the_topic_for_a_while_makes_nothing_read_again(
        stack, services, effects, tag) -> None:
    """Brokers say so of living topics while they restart: five times, for 10 s each."""
    with BrokerLink(stack.kafka.port) as link:
        ledger = services.make("ledger", {"PAYONCE_KAFKA_BROKERS": link.brokers}).start().wait_ready()
        events = read(stack, ledger, f"{tag}-a", 60)
        known = len(ledger.log_lines(ANOTHER))  # of the log that was before
        duplicates = ledger.metric("payonce_consumer_duplicates_total")
        for i in range(5):
            link.hides = True
            stack.kafka.restart()
            before = link.hidden
            time.sleep(10)  # so long the scenario says
            assert link.hidden > before, "somebody asked meanwhile"
            link.hides = False
            events += sent(stack, f"{tag}-{i}", 10)
            wait_once(stack, effects, events)
            until(lambda: stack.kafka.drained(GROUP, PAYMENTS), what="all is committed")
        assert ledger.metric("payonce_consumer_duplicates_total") == duplicates
        assert len(ledger.log_lines(ANOTHER)) == known == ledger.metric("payonce_consumer_other_log_total")


def test_p20_a_log_that_lost_its_end_is_read_from_before_that_and_told(stack, effects, ledger, tag) -> None:
    """Records that a member had taken are gone, others have their offsets: effects stay once, nothing is missed."""
    first = read(stack, ledger, f"{tag}-a", 60)
    assert ledger.term() == 0
    stack.kafka.remake(PAYMENTS, 1)
    again = Topic(stack)
    for event in first[:55]:
        again.send(event)
    again.flush()
    other = sent(stack, f"{tag}-b", 10)  # five of them where the lost ones were
    stack.kafka.move(GROUP, PAYMENTS, {0: 60})
    ledger.start().wait_ready()
    wait_once(stack, effects, first + other)
    assert told(ledger)
    until(lambda: ledger.metric("payonce_consumer_duplicates_total") == 55, what="what is known came again")


def test_p20_an_added_partition_is_read_within_a_minute_and_counted_at_once(stack, effects, ledger, tag) -> None:
    """FAULTS 56."""
    read(stack, ledger, f"{tag}-a", 5)
    until(lambda: ledger.metric("payonce_consumer_unread_messages") == 0, what="nothing is unread")
    answered(lambda: stack.kafka.admin.create_partitions([NewPartitions(PAYMENTS, 2)])[PAYMENTS].result(60), "one more")
    with stack.postgres.connect(autocommit=False) as conn:  # whoever reads it is held up
        conn.execute("LOCK TABLE ledger.inbox IN ACCESS EXCLUSIVE MODE")
        topic = Topic(stack)
        events = [topic.send(topic.order(f"{tag}-{i}").event("qualified", received=1000), partition=1) for i in range(7)]
        topic.flush()
        until(lambda: ledger.metric("payonce_consumer_unread_messages") == 7, what="they are counted")
        conn.rollback()
    effects.wait_taken(events, "ledger", timeout=60)
    until(lambda: ledger.metric("payonce_consumer_unread_messages") == 0, what="none is left")

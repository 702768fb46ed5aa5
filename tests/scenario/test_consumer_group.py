"""Several members of one consumer group, the ledger's: coming, going, killed and hanging, while events flow."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from conftest import Services
from service import Service
from smtp_sink import SmtpSink
from stack import Stack
from topic import PAYMENTS, in_partition
from wait import until

GROUP = "payonce-ledger"
SHARES = {1: [6], 2: [3, 3], 4: [1, 1, 2, 2]}


@pytest.fixture(scope="module")
def services(stack: Stack) -> Iterator[Services]:
    with SmtpSink() as sink, Services(stack, sink) as it:
        yield it


@pytest.fixture(scope="module")
def members(services: Services) -> list[Service]:
    """Four, none of them started."""
    return [services.make("ledger", label=f"ledger{i}") for i in range(4)]


def settled(members: list[Service], n: int) -> list[Service]:
    """The first n run and share the six partitions, the others are down."""
    for i, member in enumerate(members):
        if i < n and not member.alive:
            member.start()
        elif i >= n and member.alive:
            assert member.term() == 0
    run = members[:n]
    until(lambda: sorted(m.metric("payonce_consumer_partitions") for m in run) == SHARES[n], what=f"{n} members share")
    return run


def partitions(member: Service) -> list[int]:
    return [row["partition"] for row in member.status()["partitions"]]


def duplicates(members: list[Service]) -> float:
    return sum(m.metric("payonce_consumer_duplicates_total") for m in members)


def test_p19_two_members_with_one_event_make_one_effect(services, stack, topic, effects, members, tag) -> None:
    """FAULTS 14: the same event in two partitions, both members in their transactions at the same moment."""
    run = settled(members, 2)
    before = duplicates(run)
    mine, other = (partitions(m)[0] for m in run)
    event = topic.order(in_partition(tag, mine)).event("qualified", received=1000)
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO ledger.inbox (event_id) VALUES (%s)", [event["event_id"]])
        for partition in (mine, other):
            topic.send(event, partition=partition)
        topic.flush()
        until(lambda: stack.postgres.query(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'payonce_ledger' AND wait_event_type = 'Lock'")
            == [(2,)], what="both wait for the same key")
        conn.rollback()
    marks = topic.mark(tag)
    effects.wait_taken([event, *marks], "ledger")
    assert effects.journals(event["order_id"]) == [1] and effects.unbalanced() == []
    until(lambda: duplicates(run) == before + 1, what="one duplicate")


def test_p19_what_is_in_hand_at_a_rebalance_goes_to_the_next_owner(services, stack, topic, effects, members,
                                                                 tag) -> None:
    """FAULTS 13: a member that waits with events in hand gives up partitions; nothing was theirs but the effect."""
    [first] = settled(members, 1)
    stack.postgres.query("ALTER TABLE ledger.journal RENAME TO journal_away")
    try:
        events = [topic.order(f"{tag}-{i}").says("qualified", received=1000) for i in range(60)]
        topic.flush()
        until(lambda: first.metric("payonce_consumer_waiting_seconds") > 0, what="it waits with events in hand")
        settled(members, 2)
        assert not any(effects.taken("ledger", [e]) for e in events)
    finally:
        stack.postgres.query("ALTER TABLE ledger.journal_away RENAME TO journal")
    effects.wait_taken(events, "ledger")
    assert [effects.journals(e["order_id"]) for e in events] == [[1]] * 60 and effects.unbalanced() == []


def test_p19_members_come_go_and_die_while_events_flow(services, stack, topic, effects, members, tag) -> None:
    """FAULTS 13: effects are events, and no committed offset ever falls."""
    settled(members, 4)
    events = [topic.order(f"{tag}-{i}").event("qualified", received=1000) for i in range(5000)]
    ended, seen, fell = threading.Event(), dict.fromkeys(range(6), 0), []

    def load() -> None:
        for event in events:
            topic.send(event)
            ended.wait(0.001)
        topic.flush()

    def watch() -> None:
        while not ended.wait(0.1):
            now = stack.kafka.committed(GROUP, PAYMENTS)
            fell.extend((p, seen[p], now[p]) for p in now if now[p] < seen[p])
            seen.update(now)

    threads = [threading.Thread(target=load), threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    try:
        effects.wait_taken(events[:500], "ledger")
        members[0].kill9()
        assert members[1].term() == 0
        members[1].start()
        effects.wait_taken(events[:2500], "ledger")
        members[2].kill9()
        members[0].start()
        effects.wait_taken(events, "ledger")
        effects.wait_drained("ledger")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert fell == [] and len(seen) == 6
    rows = stack.postgres.query(
        "SELECT count(*), count(DISTINCT order_id) FROM ledger.journal WHERE order_id LIKE %s", f"{tag}-%")
    assert rows == [(5000, 5000)] and effects.unbalanced() == []


def test_p35_sigterm_during_a_rebalance_ends_in_time(services, stack, topic, effects, members, tag) -> None:
    """FAULTS 17: a hanging member keeps the rebalance open; those told to end leave and exit all the same."""
    ends, joins = members[1], members[2]
    settled([ends, *(m for m in members if m is not ends)], 1)
    # It lives for the broker, but does not poll.
    hanging = Consumer({"bootstrap.servers": stack.kafka.brokers, "group.id": GROUP, "log_level": 0,
                        "partition.assignment.strategy": "range", "session.timeout.ms": 60000,
                        "max.poll.interval.ms": 300000, "enable.auto.commit": False})
    try:
        hanging.subscribe([PAYMENTS])
        until(lambda: hanging.poll(0.1) is None and hanging.assignment(), what="it is a member")
        joins.start()
        until(lambda: ends.metric("payonce_consumer_partitions") == 0, what="a rebalance is under way")
        assert ends.term(15) == 0 and joins.term(15) == 0
    finally:
        hanging.close()
    settled(members, 1)
    effects.wait_taken(topic.mark(tag), "ledger")

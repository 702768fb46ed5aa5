"""What Kafka's library does while it is told to end is not in our hands; that we end is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Services
from smtp_sink import SmtpSink
from stack import Stack, answered
from topic import PAYMENTS, Topic
from wait import until

GRACE = 30  # seconds, as an orchestrator gives


@pytest.fixture(scope="module")
def stack(programs: Path) -> Iterator[Stack]:
    """Of its own, for its topics do not live long."""
    with Stack(programs) as it:
        yield it


@pytest.fixture
def services(stack: Stack) -> Iterator[Services]:
    with SmtpSink() as sink, Services(stack, sink) as it:
        yield it


def make_anew(stack: Stack) -> None:
    answered(lambda: [done.result(10) for done in stack.kafka.admin.delete_topics([PAYMENTS]).values()], "the topic is deleted")
    until(lambda: PAYMENTS not in stack.kafka.admin.list_topics(timeout=10).topics, what="it is gone")
    stack.kafka.create_topic(PAYMENTS)


@pytest.mark.parametrize("told", ["at once", "once it has been read again", "while it is away"])
def test_p35_a_consumer_whose_topic_was_made_anew_ends_in_time(stack: Stack, services: Services, tag: str,
                                                               told: str) -> None:
    """FAULTS 41: the library may wait for ever for threads of its own."""
    services.start("ledger", "loyalty")
    topic = Topic(stack)

    def taken(name: str, event: dict) -> bool:
        return bool(stack.postgres.query(f"SELECT FROM {name}.inbox WHERE event_id = %s", event["event_id"]))

    def send(kind: str) -> None:
        events = [topic.order(f"{tag}{kind}{i}").says("qualified", received=1000) for i in range(50)]
        topic.flush()
        for service in services:
            until(lambda s=service: all(taken(s.name, e) for e in events), what=f"{service.label} has taken all")

    send("before")
    if told == "while it is away":
        answered(lambda: [d.result(10) for d in stack.kafka.admin.delete_topics([PAYMENTS]).values()], "it is deleted")
        until(lambda: any(line for s in services for line in s.log_lines("kafka says")), 30, "a consumer has noticed")
    else:
        make_anew(stack)
    if told == "once it has been read again":
        send("after")
    codes = {s.label: s.term(GRACE) for s in services}
    if told == "while it is away":
        stack.kafka.create_topic(PAYMENTS)
    assert codes == {"ledger": 0, "loyalty": 0}

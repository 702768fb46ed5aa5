"""What Kafka does not say: brokers that fall silent, and topics that are not there. A consumer turns on, says what it
waits for, ends when it is told to, and does not fill the log."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Services
from effects import Effects
from service import Service
from smtp_sink import SmtpSink
from stack import Stack, topics
from topic import PAYMENTS, Topic
from wait import until

pytestmark = pytest.mark.slow

GRACE = 30  # seconds, as an orchestrator gives
LINES = 60  # of the library's in 20 s: a few a second


@pytest.fixture(scope="module")
def stack(programs: Path) -> Iterator[Stack]:
    """Of its own, since its topics do not live long."""
    with Stack(programs) as it:
        yield it


@pytest.fixture
def services(stack: Stack) -> Iterator[Services]:
    with SmtpSink() as sink, Services(stack, sink) as it:
        yield it


def consumed(stack: Stack, tag: str, *names: str) -> None:
    topic = Topic(stack)
    events = [topic.order(f"{tag}{i}").says("qualified", received=1000) for i in range(20)]
    topic.flush()
    Effects(stack).wait_taken(events, *names)


def waits(service: Service) -> str | None:
    waiting = service.status().get("waiting")
    return waiting["code"] if waiting else None


def test_a_consumer_turns_and_ends_while_kafka_is_silent(stack: Stack, services: Services, tag: str) -> None:
    services.start("ledger", "receipts")
    members = list(services)
    consumed(stack, tag, "ledger")
    stack.kafka.freeze()
    try:
        for member in members:
            until(lambda m=member: waits(m), what=f"{member.label} knows that it waits")
            for _ in range(2):  # it is shown by each turn of the loop
                at = member.metric("payonce_consumer_waiting_seconds")
                until(lambda m=member, at=at: m.metric("payonce_consumer_waiting_seconds") > at, 30,
                      f"{member.label} turns")
        time.sleep(15)  # so long the scenario says
        assert [m.admin_get("/healthz").status for m in members] == [200, 200]
        codes = {m.label: m.term(GRACE) for m in members}
    finally:
        stack.kafka.thaw()
    assert codes == {"ledger": 0, "receipts": 0}


def test_a_topic_that_is_missing_at_the_start_is_named(stack: Stack, services: Services) -> None:
    for topic in topics():
        stack.kafka.delete_topic(topic["name"])
    try:
        ledger = services.make("ledger").start()
        until(lambda: ledger.admin_get("/readyz").json().get("waiting_for") == "topics", what="it says what it waits for")
        until(lambda: waits(ledger) == "UNKNOWN_TOPIC_OR_PART", what="and why")
        assert math.isnan(ledger.metric("payonce_consumer_unread_messages"))
        until(lambda: ledger.metric("payonce_consumer_waiting_seconds") > 0, what="and for how long")

        def lines(level: str) -> list[dict[str, str]]:
            return [x for x in ledger.log_lines("waiting for a dependency")
                    if (x["dependency"], x["level"]) == ("topics", level)]

        assert len(lines("warn")) == 1 and not lines("error")
        until(lambda: lines("error"), 120, "it is told again")
        assert ledger.admin_get("/healthz").status == 200
    finally:
        for topic in topics():
            stack.kafka.create_topic(topic["name"])
    ledger.wait_ready()
    assert ledger.status()["waiting"] is None


def test_a_topic_that_goes_while_it_is_read_is_named_and_does_not_fill_the_log(stack: Stack, services: Services,
                                                                               tag: str) -> None:
    stack.kafka.remake(PAYMENTS)
    ledger = services.start("ledger")
    consumed(stack, tag, "ledger")
    stack.kafka.delete_topic(PAYMENTS)
    try:
        until(lambda: ledger.log_lines("kafka says"), what="the library says so")
        before = len(ledger.log_lines("librdkafka"))
        time.sleep(20)  # so long the scenario says
        lines = ledger.log_lines("librdkafka")[before:]
        assert len(lines) <= LINES, f"{len(lines)} lines in 20 s, such as {lines[-1]}"
        until(lambda: waits(ledger) == "UNKNOWN_TOPIC_OR_PART", what="it says what it waits for")
    finally:
        stack.kafka.create_topic(PAYMENTS)
    until(lambda: waits(ledger) is None, what="it goes on")

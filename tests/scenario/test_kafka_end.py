"""What Kafka's library does while it is told to end is not in our hands; that we end is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Services
from effects import Effects
from outboxes import Outbox
from service import Service
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


def delete(stack: Stack, topic: str) -> None:
    answered(lambda: [done.result(10) for done in stack.kafka.admin.delete_topics([topic]).values()], f"{topic} is deleted")


def missed(service: Service) -> bool:
    """Whether the library has told that there is no such topic."""
    return any("does not exist" in line.get("error", "") for line in service.log_lines("kafka says"))


@pytest.mark.parametrize("told", ["made anew", "while it is away", "made anew after it was missed"])
def test_p35_a_consumer_whose_topic_was_made_anew_ends_in_time(stack: Stack, services: Services, tag: str, told: str,
                                                               tmp_path: Path) -> None:
    """FAULTS 41: the library may wait for ever for threads of its own."""
    (tmp_path / "kafka").write_text("# of the operator\nsecurity.protocol=plaintext\nclient.rack=a\n")
    for name in ("ledger", "loyalty"):
        stack.kafka.rewind(f"payonce-{name}", PAYMENTS)  # of the log before
    services.start("ledger", "loyalty", env={"PAYONCE_KAFKA_SETTINGS_FILE": str(tmp_path / "kafka")})
    topic = Topic(stack)
    events = [topic.order(f"{tag}{i}").says("qualified", received=1000) for i in range(50)]
    topic.flush()
    Effects(stack).wait_taken(events, "ledger", "loyalty")
    delete(stack, PAYMENTS)
    if told != "made anew":
        until(lambda: all(missed(s) for s in services), what="they have noticed")
    if told != "while it is away":
        until(lambda: PAYMENTS not in stack.kafka.admin.list_topics(timeout=10).topics, what="it is gone")
        stack.kafka.create_topic(PAYMENTS)
    codes = {s.label: s.term(GRACE) for s in services}
    if told == "while it is away":
        stack.kafka.create_topic(PAYMENTS)
    assert codes == {"ledger": 0, "loyalty": 0}


def test_p35_a_relay_whose_topic_was_made_anew_goes_on_and_ends_in_time(stack: Stack, services: Services, tag: str) -> None:
    """FAULTS 41: its producers are replaced meanwhile, each of which the library may not let go."""
    outbox = Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create()
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "a")
        until(lambda: outbox.seen() == {"a": [1]}, what="the first row is out")
        delete(stack, outbox.topic)
        outbox.put(conn, "a")
        outbox.put(conn, "b")
        until(lambda: relay.metric("payonce_relay_send_failures_total") >= 2, what="producers were replaced")
        stack.kafka.create_topic(outbox.topic)
        until(lambda: outbox.seen() == {"a": [2], "b": [1]}, what="the others are out")
        delete(stack, outbox.topic)
        outbox.put(conn, "a")
    assert relay.term(GRACE) == 0

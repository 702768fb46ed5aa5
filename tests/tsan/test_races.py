"""All programs under the thread sanitizer, at their busiest: 20,000 payments through every one of them, while members
come and go, the active relay ends, and PostgreSQL and Kafka are started anew. A data race makes a program end with
another exit code than 0, and the log of the failed test holds the report."""

import os
import threading
from collections.abc import Iterator

import pytest

from bench import Bench, Size
from conftest import Services
from effects import CONSUMERS, Effects
from stack import ROOT, Stack
from wait import until

pytestmark = pytest.mark.slow

EVENTS, MAILS = 20_000, 200


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Of programs that are built for this; a report makes their exit code 66."""
    os.environ.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tests/tsan/suppressions")
    with Stack(ROOT / "build/tsan/bin") as it:
        yield it


def test_no_two_threads_touch_one_thing_unordered(services: Services, stack: Stack) -> None:
    bench, effects = Bench(stack, Size(events=EVENTS, connections=128)), Effects(stack)
    bench.learn()
    bench.reset(EVENTS)
    ingest = services.start("ingest")
    bench.shop.ingest = ingest
    services.start("relay", *CONSUMERS)
    services.start("relay", label="standby")
    services.start("ledger", label="member")

    def mails() -> None:
        for i in range(MAILS):
            bench.shop.register(f"m{i}", contact=f"m{i}@shop.example")
            bench.shop.paid(f"m{i}")

    mailing = threading.Thread(target=mails)
    mailing.start()
    load = bench.load(ingest, EVENTS, connections=128, seconds=120)
    mailing.join()
    assert services["relay"].term() == 0
    assert services["member"].term() == 0
    assert load["sent"] == EVENTS and load["recorded"] == EVENTS, load
    stack.postgres.restart()
    stack.kafka.restart()
    services["ledger"].restart()

    for table in ("ledger.journal", "loyalty.points_entry", "access.access_right"):
        until(lambda t=table: bench.count(t) >= EVENTS + MAILS, 180, f"{EVENTS + MAILS} rows in {table}")
    until(lambda: bench.count("receipts.mail WHERE state = 'sent'") >= MAILS, 180, f"{MAILS} mails")
    assert effects.unbalanced() == []
    assert services.end() == []

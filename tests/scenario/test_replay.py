"""The topics read again from their first record: nothing that was done is done again, nor undone."""

import pytest

from demo import READS, Demo
from generate import generate
from oracle import Stream
from smtp_sink import SmtpSink
from stack import Stack


def changed(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """Rows that are in one of two dumps only."""
    return {t: sorted(set(before[t]) ^ set(after[t])) for t in before if before[t] != after[t]}


def read_again(demo: Demo) -> None:
    demo.rewind()
    assert not demo.stack.kafka.drained("payonce-ledger", "payments.v1")
    demo.start(*READS).drain()
    assert demo.stop(*READS) == []


@pytest.mark.timeout(600)
def test_p19_a_replay_of_the_topics_changes_no_row(stack: Stack, sink: SmtpSink, tag: str) -> None:
    """P19, P25, P26, P27, FAULTS 14: with the inboxes, every row of the four schemas stays as it is; without
    them, every effect does."""
    stream = Stream.read(generate(seed=3, prefix=tag, share=0))
    demo = Demo(stack, stream, sink)
    try:
        demo.start().play()
        demo.drain()
        report = demo.verify()
        assert report.ok, report.table()
        assert all(e.done for e in report.effects)
        assert demo.stop(*READS) == []

        before, mails = demo.dump(), sink.copies()
        read_again(demo)
        assert changed(before, demo.dump()) == {}

        demo.truncate_inboxes()
        read_again(demo)
        assert changed(demo.dump(without=("inbox",)), {t: r for t, r in before.items() if not t.endswith(".inbox")}) == {}
        assert all(demo.stack.postgres.query(f"SELECT count(*) FROM {name}.inbox") > [(0,)] for name in READS)
        assert sink.copies() == mails
    finally:
        faults = demo.stop()
    assert faults == []

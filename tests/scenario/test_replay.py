"""The topics read again from their first record: nothing that was done is done again, nor undone."""

from pathlib import Path

import pytest
from psycopg import Connection

import verify
from demo import READS, Demo
from generate import generate
from oracle import Stream, expected
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


def tamper(conn: Connection, tag: str) -> None:
    """What the verifier must see: a right gone, an entry of points gone, a journal booked twice."""
    ours = (f"{tag}-%",)
    conn.execute("DELETE FROM access.access_right WHERE order_id ="
                 " (SELECT min(order_id) FROM access.access_right WHERE order_id LIKE %s)", ours)
    conn.execute("DELETE FROM loyalty.points_entry WHERE entry_key ="
                 " (SELECT min(entry_key) FROM loyalty.points_entry WHERE order_id LIKE %s)", ours)
    [(journal,)] = conn.execute(
        "SELECT min(journal_id) FROM ledger.journal JOIN ledger.journal_line USING (journal_id)"
        " WHERE order_id LIKE %s GROUP BY order_id"
        " HAVING count(*) = 2 AND bool_or(account = 'revenue') ORDER BY 1 LIMIT 1", ours).fetchall()
    conn.execute("INSERT INTO ledger.journal SELECT %s, order_id, sequence + 1000, event_id, event_type, position,"
                 " occurred_at FROM ledger.journal WHERE journal_id = %s", (f"{journal}:again", journal))
    conn.execute("INSERT INTO ledger.journal_line SELECT %s, account, amount, currency, exponent"
                 " FROM ledger.journal_line WHERE journal_id = %s", (f"{journal}:again", journal))


@pytest.mark.timeout(1800)
def test_p19_a_replay_of_the_topics_changes_no_row(programs: Path, sink: SmtpSink, tag: str) -> None:
    """P19, P25, P26, P27, FAULTS 14: with the inboxes, every row of the four schemas stays as it is; without
    them, every effect does. On a stack of its own: what other tests left in the topics may never have been taken."""
    with Stack(programs) as stack:
        replayed(stack, sink, tag)


def replayed(stack: Stack, sink: SmtpSink, tag: str) -> None:
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
        effects = {t: rows for t, rows in before.items() if not t.endswith(".inbox")}
        assert changed(effects, demo.dump(without=("inbox",))) == {}
        assert all(demo.stack.postgres.query(f"SELECT count(*) FROM {name}.inbox") > [(0,)] for name in READS)
        assert sink.copies() == mails

        with stack.postgres.connect() as conn, conn.transaction(force_rollback=True):
            tamper(conn, tag)
            report = verify.compare(expected(stream), verify.read(conn, sink.mails, stream))
        wrong = {e.name: (e.lost, e.doubled) for e in report.effects if e.lost or e.doubled}
        assert wrong == {"rights": (1, 0), "points of orders": (1, 0), "ledger balances": (0, 2)}
    finally:
        faults = demo.stop()
    assert faults == []

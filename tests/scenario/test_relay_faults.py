"""The relay when two of it run, when its producer is beyond repair, when PostgreSQL holds on to dead rows, falls
silent, reads in another order or goes back in time."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker_link import BrokerLink
from conftest import Services
from outboxes import Outbox, firsts
from service import Service
from stack import Stack
from wait import until


@pytest.fixture
def outbox(stack: Stack, tag: str) -> Outbox:
    return Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create(partitions=1)


def status(relay: Service) -> dict[str, Any]:
    return relay.status()["outboxes"][0]


def settled(relay: Service, high: int) -> bool:
    one = status(relay)
    return one["high"] is not None and one["high"] >= high and one["gaps"] + one["unfinished"] == 0


def last_id(outbox: Outbox) -> int:
    return int(outbox.postgres.query(f"SELECT last_value FROM {outbox.schema}.outbox_id_seq")[0][0])


def in_order(outbox: Outbox) -> bool:
    """All rows that were put, the first occurrences of each key in order."""
    return {k: firsts(n) for k, n in outbox.seen().items()} == {
        k: list(range(1, n + 1)) for k, n in outbox.next_n.items()}


@contextmanager
def writing(outbox: Outbox, keys: int, every_s: float) -> Iterator[None]:
    """Rows go on being written, now and then one that is rolled back."""
    stop = threading.Event()

    def run() -> None:
        with outbox.postgres.connect(autocommit=False) as conn:
            for i in itertools.count():
                if i % 10 == 9:
                    conn.execute(f"SELECT nextval('{outbox.schema}.outbox_id_seq')")
                    conn.rollback()
                outbox.put(conn, f"k{i % keys}")
                conn.commit()
                if stop.wait(every_s):
                    return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- Two of it

def test_p18_two_relays_that_are_stopped_in_turn_keep_the_order(stack: Stack, outbox: Outbox) -> None:
    """FAULTS 8: the active one is stopped in the middle of its work, overtaken and continued: it writes no cursor and
    ends; nothing is lost, the floor never falls, and retention, at work in both, takes only what was published."""
    env = outbox.env(RELAY_RETENTION="10s", RELAY_OVERLAP="1s", RELAY_LOOK_LIMIT="64")
    relays = [stack.service("relay", env, f"{outbox.schema}-{i}").start().wait_ready() for i in range(2)]
    floors = []
    try:
        until(lambda: any(status(r)["active"] for r in relays))
        with writing(outbox, 7, 0.002):
            for _ in range(3):
                active, standby = sorted(relays, key=lambda r: not status(r)["active"])
                begun = last_id(outbox)
                until(lambda b=begun: outbox.cursor()["floor"] > b, what="it is at work")
                epoch = outbox.cursor()["epoch"]
                active.stop_signal()
                floors.append(outbox.cursor()["floor"])
                until(lambda s=standby: status(s)["active"], what="the other takes over")
                assert outbox.cursor()["epoch"] == epoch + 1
                floors.append(outbox.cursor()["floor"])
                active.cont()
                until(lambda a=active: a.exit_code == 1, what="fenced")
                assert active.log_lines("gave up")[-1]["code"] == "fenced"
                active.start().wait_ready()
        until(lambda: any(status(r)["active"] and settled(r, 1) for r in relays))
        until(lambda: in_order(outbox), what="all rows, in order")
        assert floors == sorted(floors)
        pruned = stack.postgres.query(f"SELECT count(*) FROM {outbox.schema}.outbox")[0][0]
        assert pruned < sum(outbox.next_n.values()), "retention was at work"
        assert not any(r.log_lines("a row has gone before it was published", all_starts=True) for r in relays
                       if status(r)["active"])
    finally:
        for relay in relays:
            relay.kill9()


# --- Kafka

@pytest.mark.parametrize(("code", "name"), [
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER"), (29, "TOPIC_AUTHORIZATION_FAILED"), (44, "POLICY_VIOLATION")])
def test_p18_what_the_producer_cannot_mend_is_sent_again_by_another(stack: Stack, services: Services, outbox: Outbox,
                                                                   code: int, name: str) -> None:
    """FAULTS 9, 6: records that the broker has stored, and whose answer makes the idempotent producer give up, or is
    nobody's fault: all that is unacknowledged goes again through a new producer, nothing is refused."""
    with BrokerLink(stack.kafka.port) as link:
        relay = services.start("relay", env=outbox.env(KAFKA_BROKERS=link.brokers))
        with stack.postgres.connect() as conn:
            outbox.put(conn, "k0")
            until(lambda: settled(relay, 1))
            for round in range(1, 4):
                link.spoil(code)
                with conn.transaction():
                    for i in range(40):
                        outbox.put(conn, f"k{i % 8}")
                until(lambda: settled(relay, last_id(outbox)))
                assert link.spoiled == round
        assert in_order(outbox)
        assert sum(map(len, outbox.seen().values())) > 121, "what was stored is there twice"
        assert relay.metric("payonce_relay_refused_rows") == 0
        lines = relay.log_lines("sending has stopped")
        assert lines and name in str(lines[0])


def test_p18_a_lost_answer_is_asked_again_and_stored_once(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 5: the idempotent producer repeats, the broker knows the sequence."""
    with BrokerLink(stack.kafka.port) as link:
        relay = services.start("relay", env=outbox.env(KAFKA_BROKERS=link.brokers))
        with stack.postgres.connect() as conn:
            outbox.put(conn, "k0")
            until(lambda: settled(relay, 1))
            for round in range(1, 4):
                link.spoil(0)
                with conn.transaction():
                    for i in range(40):
                        outbox.put(conn, f"k{i % 8}")
                until(lambda: settled(relay, last_id(outbox)))
                assert link.spoiled == round
        assert outbox.seen() == {k: list(range(1, n + 1)) for k, n in outbox.next_n.items()}


# --- PostgreSQL

def test_p18_whatever_way_rows_are_read_again_none_is_taken_for_gone(stack: Stack, services: Services,
                                                                    outbox: Outbox) -> None:
    """Rows behind others are read again by id; a plan without the index yields them as they lie in the table."""
    postgres, schema = stack.postgres, outbox.schema
    with postgres.connect() as conn:
        for i in range(60):
            outbox.put(conn, f"k{i % 12}")
        for i in range(12, 60, 7):  # moves to the end of the table
            conn.execute(f"UPDATE {schema}.outbox SET created_at = now() WHERE id = %s", (i,))
        conn.execute("ALTER ROLE payonce_relay SET enable_indexscan = off")
    try:
        relay = services.start("relay", env=outbox.env())
        until(lambda: settled(relay, 60))
    finally:
        postgres.query("ALTER ROLE payonce_relay RESET enable_indexscan")
    assert relay.log_lines("a row has gone before it was published") == []
    assert outbox.seen() == {f"k{i}": [1, 2, 3, 4, 5] for i in range(12)}


def test_p28_retention_begins_anew_where_ids_have_run_backwards(stack: Stack, services: Services, outbox: Outbox) -> None:
    """Another server hands out ids again that this process has pruned before: they are pruned again."""
    postgres, schema = stack.postgres, outbox.schema
    relay = services.start("relay", env=outbox.env(RELAY_RETENTION="10s", RELAY_OVERLAP="1s"))

    def write_and_wait_until_gone(n: int) -> None:
        with postgres.connect() as conn:
            for i in range(n):
                outbox.put(conn, f"k{i}")
            until(lambda: status(relay)["active"] and settled(relay, last_id(outbox)))
            conn.execute(f"UPDATE {schema}.outbox SET created_at = now() - interval '1 h'")
            until(lambda: postgres.query(f"SELECT count(*) FROM {schema}.outbox") == [(0,)], what="pruned")

    write_and_wait_until_gone(30)
    postgres.query(f"SELECT setval('{schema}.outbox_id_seq', 1, false)")
    postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'payonce_relay'")
    until(lambda: relay.metric("payonce_relay_moved_total") == 1)
    until(lambda: status(relay)["active"])
    assert outbox.cursor()["floor"] == 0, "else retention, which begins now, goes by a floor of other rows"
    write_and_wait_until_gone(10)


def test_p18_what_is_about_to_commit_when_ids_have_run_backwards_is_not_passed_over(stack: Stack, services: Services,
                                                                                    outbox: Outbox) -> None:
    """The first row that is younger than the overlap has a neighbour whose id was drawn before and that commits after
    the relay has decided where to begin anew."""
    relay = services.start("relay", env=outbox.env(RELAY_OVERLAP="1h", RELAY_RETENTION="24h"))
    with stack.postgres.connect(autocommit=False) as slow, stack.postgres.connect() as conn:
        for i in range(3):
            outbox.put(conn, f"old-{i}")
        until(lambda: settled(relay, 3))
        assert relay.term() == 0
        conn.execute(f"UPDATE {outbox.schema}.outbox SET created_at = now() - interval '2 h'")
        conn.execute("UPDATE relay.cursor SET floor = floor + 1000 WHERE outbox = %s", (outbox.schema,))
        outbox.put(slow, "slow")
        outbox.put(conn, "quick")
        relay.start().wait_ready()
        until(lambda: "quick" in outbox.seen())
        slow.commit()
        until(lambda: "slow" in outbox.seen())
    assert outbox.seen() == {"old-0": [1], "old-1": [1], "old-2": [1], "quick": [1], "slow": [1]}


def rss_kb(relay: Service) -> int:
    with open(f"/proc/{relay.pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_rings_do_not_pile_up_in_a_relay_that_stands_by(stack: Stack, outbox: Outbox) -> None:
    """It may stand by for weeks, while writers ring hundreds of times a second."""
    relays = [stack.service("relay", outbox.env(), f"{outbox.schema}-{i}").start().wait_ready() for i in range(2)]
    try:
        until(lambda: any(status(r)["active"] for r in relays))
        [standby] = [r for r in relays if not status(r)["active"]]
        with stack.postgres.connect() as conn:
            def asked() -> Any:
                """When it last asked for the lease."""
                return conn.execute("SELECT max(query_start) FROM pg_stat_activity WHERE usename = 'payonce_relay'"
                                    " AND query LIKE '%%AS c (outbox%%'").fetchone()[0]

            before, begun = rss_kb(standby), until(asked)
            conn.execute(f"SELECT pg_notify('outbox_{outbox.schema}', i::text) FROM generate_series(1, 300000) AS i")
            rung = conn.execute("SELECT clock_timestamp()").fetchone()[0]
            until(lambda: asked() > max(begun, rung), what="the standby has read what has come")
            assert rss_kb(standby) - before < 8000
        assert not status(standby)["active"]
    finally:
        for relay in relays:
            relay.kill9()


def test_p18_a_database_that_went_back_in_time_is_noticed(stack: Stack, services: Services, outbox: Outbox) -> None:
    """A snapshot of its disk is restored under a running relay: same system, same timeline, and writers are quick to
    draw ids again that the relay knows as published. The checkpoint it finds is not the one it wrote."""
    postgres, schema = stack.postgres, outbox.schema
    relay = services.start("relay", env=outbox.env())
    with postgres.connect() as conn:
        for i in range(30):
            outbox.put(conn, f"k{i % 3}")
        until(lambda: outbox.cursor().get("floor") == 30)
        relay.stop_signal()
        with conn.transaction():
            conn.execute(f"DELETE FROM {schema}.outbox WHERE id > 20")
            conn.execute(f"SELECT setval('{schema}.outbox_id_seq', 20)")
            conn.execute("UPDATE relay.cursor SET floor = 20 WHERE outbox = %s", (schema,))
        for _ in range(15):
            outbox.put(conn, "new")
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'payonce_relay'")
        relay.cont()
        until(lambda: relay.exit_code == 1, what="it ends")
        relay.start().wait_ready()
        until(lambda: outbox.seen().get("new") == list(range(1, 16)), what="and the next one sends what is there")


def test_p35_sigterm_while_the_database_is_frozen_ends_in_time(stack: Stack, services: Services, outbox: Outbox) -> None:
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "k")
    until(lambda: settled(relay, 1))
    stack.postgres.freeze()
    try:
        assert relay.term(30) == 0
    finally:
        stack.postgres.thaw()


@contextmanager
def held_snapshot(stack: Stack) -> Iterator[None]:
    with stack.postgres.connect(autocommit=False) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")
        yield
        conn.rollback()


def test_p18_a_held_snapshot_slows_nothing_down(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 7, in short: rows that are published and pruned while a snapshot is held stay as dead ones; what a look
    touches does not grow with them. The time it takes is measured as well, but here only a collapse would show: the
    machine is shared."""
    postgres, schema = stack.postgres, outbox.schema
    relay = services.start("relay", env=outbox.env(RELAY_RETENTION="10s", RELAY_OVERLAP="1s"))

    def publish(rows: int) -> float:
        begun = time.monotonic()
        outbox.fill(rows, rows)
        until(lambda: settled(relay, last_id(outbox)) or time.sleep(0.01), every=0)
        return time.monotonic() - begun

    def blocks() -> int:
        """That the relay's look touches when there is nothing new."""
        with postgres.connect() as conn:
            sql = until(lambda: conn.execute("SELECT query FROM pg_stat_activity WHERE usename = 'payonce_relay'"
                                             " AND query LIKE '%AS gap%'").fetchone())[0]
            for setting in (f"search_path = {schema}", "enable_seqscan = off", "enable_bitmapscan = off",
                            "plan_cache_mode = force_generic_plan"):
                conn.execute(f"SET {setting}")
            conn.execute(f"PREPARE look (int8[], int8[], int8, int8, int8) AS {sql}")
            asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE look ('{{}}', '{{}}', {last_id(outbox)}, 2048, 4096)"
            plan = conn.execute(asked).fetchone()[0][0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    publish(1000)
    before = min(publish(6000) for _ in range(3))
    with held_snapshot(stack):
        for _ in range(2):
            publish(10000)
            postgres.query(f"UPDATE {schema}.outbox SET created_at = now() - interval '1 h'")
            until(lambda: postgres.query(f"SELECT count(*) FROM {schema}.outbox") == [(0,)], what="pruned")
        until(lambda: publish(6000) < 3 * before, 180, "as quick as before: its best time, as the one before")
        assert blocks() <= 10

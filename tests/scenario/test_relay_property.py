"""The relay's read, as a property: whatever concurrent writers do (lock waits, savepoints, two-phase commits,
rollbacks, killed sessions), whatever limit a look has, however often the relay, its session or PostgreSQL ends:
every committed row is published, the rows of a key in their order, and no gap stays open. The relay is the
real program, on a cluster of its own."""

import random
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from outboxes import PUT, V1, Outbox, encode, fingerprint, firsts
from service import Service
from stack import Postgres, Stack, scratch_folder
from wait import until

WRITERS, KEYS, ROWS = 12, 40, 21000
LIMITS = (1, 2, 7, 50, 300, 2048)
# Of a second phase: somebody else has done it, or is about to.
SETTLED = (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState)


@pytest.fixture
def postgres(stack: Stack) -> Iterator[Postgres]:
    folder = scratch_folder("payonce-relay-")
    one = Postgres(folder)
    try:
        one.start()
        one.connect(dbname="postgres").execute("CREATE DATABASE payonce").connection.close()
        stack.migrate("relay", one)
        yield one
    finally:
        one.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


class Writers:
    """Each thread runs transactions of random shape. A writer holds its key's row lock before it appends and
    numbers the key's rows under it; so the table itself says what must arrive."""

    def __init__(self, outbox: Outbox, seed: int) -> None:
        self.outbox, self.postgres = outbox, outbox.postgres
        self.stopping = threading.Event()
        self.faults: list[BaseException] = []
        self.shapes: dict[str, int] = {}
        with self.postgres.connect() as conn:
            conn.execute(f"CREATE TABLE {outbox.schema}.aggregate (key text PRIMARY KEY, n bigint NOT NULL)")
            conn.execute(f"INSERT INTO {outbox.schema}.aggregate SELECT 'k' || i, 0 FROM generate_series(1, %s) AS i",
                         (KEYS,))
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed * 100 + i),))
                        for i in range(WRITERS)]

    def start(self) -> None:
        for one in self.threads:
            one.start()

    def stop(self) -> None:
        self.stopping.set()
        for one in self.threads:
            one.join()
        if self.faults:
            raise self.faults[0]

    def run(self, rng: random.Random) -> None:
        try:
            while not self.stopping.is_set():
                # The server goes away now and then, and sessions are killed: begin again.
                with suppress(psycopg.OperationalError), self.postgres.connect(autocommit=False) as conn:
                    for _ in range(rng.randint(5, 200)):
                        if self.stopping.is_set():
                            break
                        self.transaction(conn, rng)
        except BaseException as err:
            self.faults.append(err)

    def transaction(self, conn: psycopg.Connection, rng: random.Random) -> None:
        shape = rng.choices(("plain", "savepoint", "prepared", "killed", "slow"), (70, 14, 8, 1, 7))[0]
        self.shapes[shape] = self.shapes.get(shape, 0) + 1
        # Locks in the order of keys, as the services take theirs.
        keys = sorted(rng.sample(range(1, KEYS + 1), rng.choice((1, 1, 1, 2))))
        self.append(conn, keys[0], rng)
        if shape == "slow":
            time.sleep(rng.choice((0.01, 0.05, 0.4)))
        if shape == "savepoint":
            conn.execute("SAVEPOINT s")
            self.append(conn, keys[-1], rng)
            conn.execute(rng.choice(("ROLLBACK TO s", "RELEASE s")))
        self.append(conn, keys[-1], rng)
        if shape == "prepared":
            self.two_phases(conn, rng)
        elif shape == "killed":
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        elif rng.random() < 0.15:
            conn.rollback()
        else:
            conn.commit()

    def append(self, conn: psycopg.Connection, key: int, rng: random.Random) -> None:
        rows, schema = rng.choice((1, 1, 2, 3, 9)), self.outbox.schema
        row = conn.execute(f"UPDATE {schema}.aggregate SET n = n + %s WHERE key = %s RETURNING n",
                           (rows, f"k{key}")).fetchone()
        assert row is not None
        for n in range(row[0] - rows + 1, row[0] + 1):
            conn.execute(PUT.format(s=schema), (self.outbox.topic, f"k{key}", uuid.uuid4(), n, None,
                                                fingerprint(V1), encode(V1, {"n": n, "pad": ""})))

    def two_phases(self, conn: psycopg.Connection, rng: random.Random) -> None:
        gid = uuid.uuid4().hex
        conn.execute(f"PREPARE TRANSACTION '{gid}'")
        conn.rollback()  # psycopg's own bookkeeping: nothing is open
        time.sleep(rng.choice((0, 0.02, 0.3)))
        self.second_phase(conn, gid, "COMMIT" if rng.random() < 0.8 else "ROLLBACK")

    def second_phase(self, conn: psycopg.Connection, gid: str, verb: str) -> None:
        conn.autocommit = True
        with suppress(*SETTLED):
            conn.execute(f"{verb} PREPARED '{gid}'")
        conn.autocommit = False

    def settle(self) -> None:
        """Second phases that a restart has cut off: the row locks of their keys are still held."""
        with self.postgres.connect() as conn:
            for i, (gid,) in enumerate(conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall()):
                with suppress(*SETTLED):
                    conn.execute(f"{'ROLLBACK' if i % 3 == 2 else 'COMMIT'} PREPARED '{gid}'")


class Relays:
    """One relay at a time, ended in every way there is, each with another limit."""

    def __init__(self, stack: Stack, outbox: Outbox, rng: random.Random) -> None:
        self.stack, self.outbox, self.rng, self.n = stack, outbox, rng, 0
        self.now = self.start()

    def start(self, limit: int = 0) -> Service:
        self.n += 1
        env = self.outbox.env(RELAY_LOOK_LIMIT=limit or self.rng.choice(LIMITS),
                              DSN=self.outbox.postgres.dsn("payonce_relay"))
        self.now = self.stack.service("relay", env, f"{self.outbox.schema}-{self.n}").start().wait_ready()
        return self.now

    def active(self) -> dict:
        def found() -> dict:
            one = self.now.status()["outboxes"][0]
            assert one["active"] and one["connected"]
            return one

        return until(found, what="the relay is active")

    def cut_session(self) -> None:
        self.outbox.postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                   " WHERE application_name = 'payonce-relay'")

    def kill(self) -> None:
        self.now.kill9()
        self.start()

    def end(self) -> None:
        assert self.now.term() == 0, self.now.tail()
        self.start()


def idle_foreign(postgres: Postgres) -> psycopg.Connection:
    """A transaction with an id that has nothing to do with the outbox and never ends (FAULTS 3)."""
    conn = postgres.connect(autocommit=False)
    conn.execute("SELECT pg_current_xact_id()")
    return conn


def published_rows(outbox: Outbox) -> int:
    return sum(outbox.kafka.ends(outbox.topic).values())


@pytest.mark.timeout(1800)
def test_p18_every_committed_row_arrives_in_the_order_of_its_key(stack: Stack, postgres: Postgres, tag: str) -> None:
    """P18, FAULTS 1, 2, 3, 6: the property."""
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    outbox = Outbox(postgres, stack.kafka, tag, f"{tag}.v1").create()
    writers, foreign = Writers(outbox, seed), idle_foreign(postgres)
    relays = Relays(stack, outbox, rng)
    try:
        writers.start()
        rows = 0
        steps = [relays.cut_session, relays.kill, relays.end, relays.cut_session, "restart", relays.kill,
                 relays.cut_session, relays.end, relays.kill, relays.cut_session]
        while steps or rows < ROWS:
            mark = published_rows(outbox)
            until(lambda m=mark: writers.faults or published_rows(outbox) > m + 150, what="rows go on being published")
            if writers.faults:
                break  # raised by stop()
            step = steps.pop(0) if steps else relays.cut_session
            if step == "restart":
                postgres.restart("immediate")
                foreign = idle_foreign(postgres)
                writers.settle()
            else:
                step()
            relays.active()
            [(rows,)] = postgres.query(f"SELECT count(*) FROM {tag}.outbox")
        writers.stop()
        writers.settle()
        relays.now.term()
        relays.start(2048)
        assert_everything_arrived(outbox, relays, writers)
    except BaseException:
        print(relays.now.admin_get("/statusz").body.decode(), relays.now.tail(), writers.shapes)
        raise
    finally:
        writers.stopping.set()
        relays.now.kill9()
        with suppress(psycopg.Error):
            foreign.close()


def assert_everything_arrived(outbox: Outbox, relays: Relays, writers: Writers) -> None:
    [(committed, last)] = outbox.postgres.query(f"SELECT count(*), max(id) FROM {outbox.schema}.outbox")
    [(drawn,)] = outbox.postgres.query(f"SELECT last_value FROM {outbox.schema}.outbox_id_seq")
    # Is this the storm that was ordered?
    assert committed >= ROWS - 1000 and (drawn - committed) / drawn >= 0.10
    assert all(writers.shapes[s] > 10 for s in ("plain", "savepoint", "prepared", "killed", "slow"))

    def settled() -> bool:
        one = relays.active()
        assert (one["high"], one["gaps"], one["unfinished"]) == (last, 0, 0)
        return one["floor"] == last

    until(settled, 120, "no gap, nothing unfinished")
    expected = dict(outbox.postgres.query(
        f"SELECT key, array_agg(sequence ORDER BY id) FROM {outbox.schema}.outbox GROUP BY key"))
    for key, [n] in outbox.postgres.query(f"SELECT key, array[n] FROM {outbox.schema}.aggregate WHERE n > 0"):
        assert expected[key] == list(range(1, n + 1))  # the writers kept their side
    seen = outbox.seen()
    assert {key: firsts(n) for key, n in seen.items()} == expected
    copies = sum(map(len, seen.values())) - committed
    print(f"{committed} rows of {drawn} ids, {relays.n} relays, {copies} copies")

"""Races of ingest as explicit interleavings: a gate (a trigger that holds a transaction until the test opens it) stops
one session inside its transaction; the other runs into it; the test sees that it waits, and opens."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from conftest import Services
from service import Answer
from shop import Shop
from stack import Stack
from wait import until

GATE = """
CREATE TABLE gate (until_waited_for boolean);
GRANT SELECT ON gate TO PUBLIC;
CREATE FUNCTION gate_stop() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4900); -- to be counted; it hinders nobody
    LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM gate);
        -- pg_locks is looked at anew each time; a session gives a lock up after 250 ms.
        EXIT WHEN EXISTS (SELECT FROM gate WHERE until_waited_for) AND EXISTS (
            SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)));
        PERFORM pg_sleep(0.002);
    END LOOP;
END $$;
CREATE FUNCTION gate_wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM gate_stop(); RETURN NEW; END $$;
"""


class Gate:
    def __init__(self, stack: Stack) -> None:
        self._query = stack.postgres.query

    def open(self) -> None:
        self._query("DELETE FROM gate")

    def held(self) -> int:
        """Sessions whose transaction has come to the gate."""
        [(n,)] = self._query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4900")
        return n


@pytest.fixture
def gate(stack: Stack) -> Iterator[Callable[..., Gate]]:
    """gate(TABLE, WHEN) shuts a gate before inserts into ingest.TABLE whose NEW row meets WHEN, or before updates. The
    test opens it; with until_waited_for it lets a session through when, and only when, another waits for a lock of
    that session."""
    made: list[str] = []

    def shut(table: str, when: str, until_waited_for: bool = False, on: str = "INSERT") -> Gate:
        made.append(table)
        with stack.postgres.connect() as conn:
            conn.execute(GATE)
            conn.execute("INSERT INTO gate VALUES (%s)", [until_waited_for])
            conn.execute(f"CREATE TRIGGER gate BEFORE {on} ON ingest.{table} FOR EACH ROW WHEN ({when})"
                         " EXECUTE FUNCTION gate_wait()")
        return Gate(stack)

    yield shut
    with stack.postgres.connect() as conn:
        for table in made:
            conn.execute("DELETE FROM gate")
            conn.execute(f"DROP TRIGGER IF EXISTS gate ON ingest.{table}")
        conn.execute("DROP FUNCTION IF EXISTS gate_wait(), gate_stop(); DROP TABLE IF EXISTS gate")


@pytest.fixture
def replicas(services: Services, stack: Stack, tag: str) -> tuple[Shop, Shop]:
    """One shop at two ingests: two sessions that do not share a batch."""
    services.start("ingest", label="one")
    services.start("ingest", label="two")
    return Shop(services["one"], stack.api_token, tag), Shop(services["two"], stack.api_token, tag, 1000)


@contextmanager
def aside() -> Iterator[Callable[..., Future]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def test_p3_thirty_and_nineteen_of_forty_nine_qualify_once(replicas, gate, events) -> None:
    """The second session waits on the order's lock, then reads what the first wrote."""
    one, two = replicas
    one.register("a", 4900)
    parts = [s.stripe_event("checkout.session.completed",
                            s.session("a", total, payment=f"pi_{s.tag}_{total}", session=f"cs_{s.tag}_{total}"))
             for s, total in ((one, 3000), (two, 1900))]
    shut = gate("fact", f"NEW.order_id = '{one.id('a')}' AND NEW.amount = 3000", until_waited_for=True)
    with aside() as run:
        first = run(one.send, parts[0])
        until(lambda: shut.held() == 1, what="the first session is inside its transaction")
        second = run(two.send, parts[1])  # waits on the order's lock
        assert first.result().status == second.result().status == 200
    one.wait_state("a", "paid", received=4900)
    assert events(one.id("a")) == [("review_required", 1), ("qualified", 2)]


def test_p4_no_answer_waits_for_a_lock_held_elsewhere(replicas, gate, events) -> None:
    """The order's lock is not to be had in 250 ms: the event is recorded undecided, answered, decided later."""
    one, two = replicas
    one.register("a", 4900)
    shut = gate("fact", f"NEW.order_id = '{one.id('a')}' AND NEW.amount = 3000")
    with aside() as run:
        first = run(one.send, one.stripe_event("checkout.session.completed", one.session("a", 3000)))
        until(lambda: shut.held() == 1, what="the first session is inside its transaction")
        other = two.session("a", 1900, payment=f"pi_{two.tag}_b", session=f"cs_{two.tag}_b")
        got = two.send(two.stripe_event("checkout.session.completed", other), expect=None)
        assert (got.status, got.json()) == (200, {"result": "recorded"})
        assert shut.held() == 1, "the first session still holds the lock"
        shut.open()
        assert first.result().status == 200
    one.wait_state("a", "paid", received=4900)
    assert events(one.id("a")) == [("review_required", 1), ("qualified", 2)]


def test_p2_the_same_event_in_two_sessions_is_recorded_once(replicas, gate, stack, events) -> None:
    """FAULTS 15, PROVIDERS fault 13: the second finds the key held: duplicate if the first commits in time, else 503."""
    one, two = replicas
    one.register("a")
    event = one.stripe_event("checkout.session.completed", one.session("a"))
    shut = gate("fact", f"NEW.order_id = '{one.id('a')}'")
    with aside() as run:
        first = run(one.send, event)
        until(lambda: shut.held() == 1, what="the first session has inserted the key")
        busy: Answer = two.send(event, expect=None)
        assert busy.status == 503, "its twin is being stored: no promise"
        shut.open()
        assert first.result().status == 200
    two.send(event, expect="duplicate")
    assert events(one.id("a")) == [("qualified", 1)]


def test_p2_the_same_event_in_two_sessions_waits_for_the_first(replicas, gate, events) -> None:
    """As above, and the first commits while the second waits."""
    one, two = replicas
    one.register("a")
    event = one.stripe_event("checkout.session.completed", one.session("a"))
    shut = gate("fact", f"NEW.order_id = '{one.id('a')}'", until_waited_for=True)
    with aside() as run:
        first = run(one.send, event)
        until(lambda: shut.held() == 1, what="the first session has inserted the key")

        def second() -> Answer | None:
            got = two.send(event, expect=None)
            return got if got.status == 200 else None  # else the first was too slow for 250 ms of patience

        assert until(second, what="the second is answered").json() == {"result": "duplicate"}
        assert first.result().status == 200
    assert events(one.id("a")) == [("qualified", 1)]


def test_p4_an_event_recorded_while_its_order_is_being_registered_is_found_by_the_sweep(replicas, gate, events) -> None:
    """PROVIDERS fault 22: the registration cannot see the uncommitted undecided row, so nobody wakes it."""
    one, two = replicas
    shut = gate("undecided", "true")
    with aside() as run:
        sent = run(one.send, one.stripe_event("checkout.session.completed", one.session("a")))
        until(lambda: shut.held() == 1, what="the event leaves its undecided row")
        two.register("a")
        shut.open()
        assert sent.result().status == 200
    two.wait_state("a", "paid")
    assert events(one.id("a")) == [("qualified", 1)]


def test_p17_one_reference_taught_in_two_sessions_belongs_to_one_order(replicas, gate, stack) -> None:
    """Both sessions saw it unknown; the second finds it taken, looks again, and sees that it was a name as good as its
    own that made it the other order's: neither has the money, as in any other order of arrival."""
    one, two = replicas
    for name in "ab":
        one.register(name)
    shared = f"pi_{one.tag}_shared"
    sends = [(s, s.stripe_event("checkout.session.completed", s.session(name, payment=shared)))
             for s, name in ((one, "a"), (two, "b"))]
    shut = gate("fact", f"NEW.order_id = '{one.id('a')}'", until_waited_for=True)
    with aside() as run:
        first = run(one.send, sends[0][1])
        until(lambda: shut.held() == 1, what="the first session has taught the reference")
        second = run(two.send, sends[1][1])  # waits on the reference
        first.result(), second.result()
    until(lambda: stack.postgres.query("SELECT object FROM ingest.fact WHERE order_id = %s", one.id("b")) ==
          [(f"route_conflict:{shared}",)], what="the second order has the evidence, and it alone")
    for name in "ab":
        assert one.wait_state(name, "review", reason="route_conflict")["received"] == 0
    assert stack.postgres.query("SELECT order_id FROM ingest.order_ref WHERE value = %s", shared) == [(one.id("a"),)]


def test_orders_the_same_registration_in_many_sessions_is_one_order(replicas) -> None:
    one, two = replicas
    results: list[int] = []
    barrier = threading.Barrier(16)

    def register(i: int) -> None:
        barrier.wait()
        results.append((one, two)[i % 2].api("POST", "/v1/orders", one.order("a", contact="ann@example.org")).status)

    threads = [threading.Thread(target=register, args=(i,)) for i in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results.count(201) == 1 and set(results) <= {200, 201, 503}
    assert one.show("a")["sequence"] == 1, "one contact row"

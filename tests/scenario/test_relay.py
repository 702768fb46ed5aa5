"""The relay at work on real parts: order, loss, refusals, schemas, retention and fail-over."""

import subprocess
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from conftest import Services
from outboxes import V1, V2, Outbox, decode, firsts, header, key_of
from service import Service
from stack import Stack
from topic import in_partition
from wait import until

pytestmark = pytest.mark.slow

LIMIT = "20000"  # max.message.bytes of topics here


@pytest.fixture
def outbox(stack: Stack, tag: str) -> Outbox:
    return Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create(config={"max.message.bytes": LIMIT})


def outbox_status(relay: Service) -> dict[str, Any]:
    return relay.status()["outboxes"][0]


def is_settled(relay: Service, rows: int, outbox: Outbox) -> Callable[[], bool]:
    """So many rows are published, and nothing is left of what was written: the page is a little older than the
    counter, so it must have seen the last row, too."""
    def settled() -> bool:
        [(last,)] = outbox.postgres.query(f"SELECT coalesce(max(id), 0) FROM {outbox.schema}.outbox")
        one = outbox_status(relay)
        return (relay.metric("payonce_relay_published_total") >= rows and one["high"] is not None and one["high"] >= last
                and one["gaps"] + one["unfinished"] == 0)

    return settled


def set_topic(stack: Stack, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    stack.kafka.admin.incremental_alter_configs([resource])[resource].result(30)


# --- Tombstones

def test_faults_57_a_tombstone_reaches_what_lies_in_another_partition(stack: Stack, services: Services, tag: str) -> None:
    """FAULTS 57: partitions are added after an address was written. Kafka leaves it where it is, and compaction works
    within a partition, so the tombstone goes to all of them, also of a relay that runs on."""
    kafka = stack.kafka
    outbox = Outbox(stack.postgres, kafka, tag, f"{tag}.v1").create(partitions=1)
    stack.postgres.query(f"ALTER TABLE {tag}.outbox DROP CONSTRAINT outbox_tombstone_topic")
    relay = services.start("relay", env=outbox.env())
    keys = [in_partition("order-", p) for p in range(6)]
    tombstone = (f"INSERT INTO {tag}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence) VALUES"
                 " (%s, %s, gen_random_uuid(), 'payonce.contact.erased', '/payonce/test', now(), 2)")
    with stack.postgres.connect() as conn:
        for key in keys:
            outbox.put(conn, key)
        until(is_settled(relay, 6, outbox))
        kafka.admin.create_partitions([NewPartitions(outbox.topic, 6)])[outbox.topic].result(30)
        until(lambda: len(kafka.ends(outbox.topic)) == 6, what="the partitions are there")
        for key in keys:
            conn.execute(tombstone, (outbox.topic, key))
    until(is_settled(relay, 12, outbox))
    erased = {(m.partition(), key_of(m)) for m in kafka.records(outbox.topic) if m.value() is None}
    assert erased == {(p, key) for p in range(6) for key in keys}
    first = [key_of(m) for m in kafka.records(outbox.topic) if m.partition() == 0 and m.value() is not None]
    assert sorted(first) == sorted(keys), "where the values lie"


# --- Order and loss

def test_p18_an_id_that_commits_late_is_not_lost(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 1: ids commit out of order; the later one does not wait for the earlier."""
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect(autocommit=False) as first, stack.postgres.connect() as second:
        low = outbox.put(first, "a")
        high = outbox.put(second, "b")
        assert low < high
        until(lambda: outbox.seen() == {"b": [1]}, what="the committed one is out")
        until(lambda: outbox_status(relay)["gaps"] == 1, what="the page shows the other's gap")
        first.commit()
        until(lambda: outbox.seen() == {"a": [1], "b": [1]}, what="the other follows")
        until(is_settled(relay, 2, outbox))


def test_p18_a_rolled_back_id_holds_nothing_up(stack: Stack, services: Services, outbox: Outbox) -> None:
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect(autocommit=False) as conn:
        outbox.put(conn, "lost")
        conn.execute("SAVEPOINT s")
        outbox.put(conn, "lost")
        conn.execute("ROLLBACK TO s")
        conn.rollback()
        outbox.put(conn, "kept")
        conn.commit()
    until(is_settled(relay, 1, outbox))
    assert outbox.seen() == {"kept": [1]}
    assert relay.metric("payonce_relay_dead_ids_total") == 2


def test_p18_a_prepared_transaction_is_waited_for(stack: Stack, services: Services, outbox: Outbox) -> None:
    """Two-phase commit: its locks outlive its session, and a relay that begins meanwhile knows nothing of it."""
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        conn.execute("BEGIN")
        outbox.put(conn, "a")
        conn.execute(f"PREPARE TRANSACTION '{outbox.schema}'")
        outbox.put(conn, "b")
        until(lambda: outbox.seen() == {"b": [1]})
        until(lambda: outbox.cursor()["floor"] == 2, what="an old gap does not hold the floor back")
        assert outbox.cursor()["open_lo"] == [1]
        relay.restart()
        until(lambda: outbox_status(relay)["gaps"] == 1)
        outbox.put(conn, "b")
        until(lambda: outbox.seen() == {"b": [1, 2]})
        conn.execute(f"COMMIT PREPARED '{outbox.schema}'")
        until(lambda: outbox.seen() == {"a": [1], "b": [1, 2]})
        until(lambda: outbox.cursor()["open_lo"] == [])


def test_p18_one_key_keeps_commit_order_whatever_its_transaction_ids(stack: Stack, services: Services,
                                                                    outbox: Outbox) -> None:
    """FAULTS 2: the transaction that began first commits second; sorted by transaction the key would turn."""
    relay = services.start("relay", env=outbox.env())
    postgres, schema = stack.postgres, outbox.schema
    postgres.query(f"CREATE TABLE {schema}.payment (id text PRIMARY KEY)")
    postgres.query(f"INSERT INTO {schema}.payment VALUES ('P')")
    relay.stop_signal()
    try:
        with postgres.connect(autocommit=False) as a, postgres.connect(autocommit=False) as b:
            a.execute(f"INSERT INTO {schema}.payment VALUES ('webhook')")  # takes its transaction id
            for conn in (b, a):
                conn.execute(f"SELECT FROM {schema}.payment WHERE id = 'P' FOR NO KEY UPDATE")
                outbox.put(conn, "P")
                conn.commit()
        [(first,), (second,)] = postgres.query(f"SELECT xmin::text::bigint FROM {schema}.outbox ORDER BY id")
        assert first > second
    finally:
        relay.cont()
    until(lambda: outbox.seen() == {"P": [1, 2]})


def test_p18_a_foreign_transaction_stalls_nothing(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 3, 7: neither one with an id, nor one with an old snapshot; not even with a gap to resolve."""
    relay = services.start("relay", env=outbox.env())
    with ExitStack() as held, stack.postgres.connect(autocommit=False) as conn:
        idle = held.enter_context(stack.postgres.connect(autocommit=False))
        idle.execute("SELECT pg_current_xact_id()")
        reader = held.enter_context(stack.postgres.connect(autocommit=False))
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SELECT count(*) FROM {outbox.schema}.outbox")
        outbox.put(conn, "first")  # the producers and the schema take their time once
        conn.commit()
        until(is_settled(relay, 1, outbox))
        before = relay.metric("payonce_relay_publish_seconds_sum")
        for i in range(20):
            outbox.put(conn, f"rolled-back-{i}")
            conn.rollback()
            outbox.put(conn, f"k{i}")
            conn.commit()
        until(is_settled(relay, 21, outbox))
        took = (relay.metric("payonce_relay_publish_seconds_sum") - before) / 20
        assert took < 1, "published within the normal latency"


def test_p18_many_rows_of_few_keys_arrive_once_and_in_order(stack: Stack, services: Services, outbox: Outbox) -> None:
    """A hot key waits for itself alone, row by row; large bodies between small ones are read apart."""
    with stack.postgres.connect() as conn, conn.transaction():
        for i in range(300):
            outbox.put(conn, f"k{i % 3}", pad=12000 if i % 10 == 0 else 10)
    relay = services.start("relay", env=outbox.env(RELAY_LOOK_LIMIT=1024))
    until(is_settled(relay, 300, outbox))
    assert outbox.seen() == {f"k{i}": list(range(1, 101)) for i in range(3)}
    assert relay.metric("payonce_relay_published_total") == 300


# --- What Kafka does not take

def test_p18_a_refused_row_blocks_its_key_and_nothing_else(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 4, 5: rows 2 and 3 of the key wait behind the refused row 1; all of them go once Kafka takes it."""
    with stack.postgres.connect() as conn, conn.transaction():
        outbox.put(conn, "K", pad=60000)
        outbox.put(conn, "K")
        outbox.put(conn, "K")
        for i in range(30):
            outbox.put(conn, f"bad-{i}", pad=50000)
            outbox.put(conn, f"good-{i}")
    relay = services.start("relay", env=outbox.env())
    until(lambda: relay.metric("payonce_relay_refused_rows") == 31)
    until(lambda: outbox.seen() == {f"good-{i}": [1] for i in range(30)}, what="the good ones are out")
    until(lambda: relay.metric("payonce_relay_published_total") == 30, what="counted")
    before = relay.metric("payonce_relay_publish_seconds_sum")
    with stack.postgres.connect() as conn:
        outbox.put(conn, "late")
    until(lambda: "late" in outbox.seen(), what="another good one goes out")
    until(lambda: relay.metric("payonce_relay_published_total") == 31, what="counted")
    assert relay.metric("payonce_relay_publish_seconds_sum") - before < 5, "it waits for no other row's next attempt"
    until(lambda: outbox.cursor()["floor"] == 64, what="they are listed as open")
    assert outbox.cursor()["open_lo"][:2] == [1, 6]  # 1 to 3 are the key's, and 4 is bad-0
    set_topic(stack, outbox.topic, "max.message.bytes", "100000")
    until(lambda: outbox.seen().get("K") == [1, 2, 3])
    until(is_settled(relay, 64, outbox))
    assert relay.metric("payonce_relay_refused_rows") == 0
    assert len(relay.log_lines("a row is refused: its key is blocked")) == 31, "each is logged once"
    seen = outbox.seen()
    assert all(seen[f"bad-{i}"] == [1] for i in range(30))


def test_p18_a_batch_over_a_lowered_limit_is_not_the_rows_fault(stack: Stack, services: Services,
                                                                outbox: Outbox) -> None:
    """The topic's limit falls below a full batch while the producer is running: each row is still good."""
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "first")
        until(is_settled(relay, 1, outbox))
        set_topic(stack, outbox.topic, "max.message.bytes", "4000")
        with conn.transaction():
            for i in range(200):
                outbox.put(conn, f"k{i}", pad=1000)
    until(is_settled(relay, 201, outbox))
    assert relay.metric("payonce_relay_refused_rows") == 0
    assert relay.log_lines("a row is refused: its key is blocked") == []
    assert all(n == [1] for n in outbox.seen().values())


def test_p18_what_is_not_the_rows_fault_parks_nothing(stack: Stack, services: Services, tag: str) -> None:
    """FAULTS 6: an unknown topic. The cursor stays below the first unacknowledged id; all arrives afterwards."""
    outbox = Outbox(stack.postgres, stack.kafka, tag, f"{tag}.v1").create(topic=False)
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        for i in range(10):
            outbox.put(conn, f"k{i % 2}")
    until(lambda: relay.metric("payonce_relay_stopped") == 1)
    assert relay.metric("payonce_relay_refused_rows") == 0

    def nothing_passed() -> bool:
        now = outbox.cursor()
        covered = {i for lo, hi in zip(now["open_lo"], now["open_hi"], strict=True) for i in range(lo, hi + 1)}
        return set(range(1, now["floor"] + 1)) <= covered

    assert nothing_passed()
    outbox.kafka.create_topic(outbox.topic, 3)
    until(is_settled(relay, 10, outbox))
    until(lambda: outbox.cursor()["floor"] == 10, what="the cursor follows")
    assert {k: firsts(n) for k, n in outbox.seen().items()} == {"k0": [1, 2, 3, 4, 5], "k1": [1, 2, 3, 4, 5]}
    until(lambda: relay.metric("payonce_relay_stopped") == 0)


def test_p18_a_broker_that_is_away_loses_nothing(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 6: rows go on being written, the relay dies meanwhile, the broker comes back."""
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "k")
        until(is_settled(relay, 1, outbox))
        stack.kafka.stop()
        try:
            for _ in range(50):
                outbox.put(conn, "k")
                outbox.put(conn, uuid.uuid4().hex)
            until(lambda: outbox_status(relay)["unfinished"] == 100)
            until(lambda: (outbox_status(relay)["oldest_ms"] or 0) > 1500)
            assert relay.metric("payonce_relay_refused_rows") == 0
            relay.kill9()
            relay.start().wait_ready()
        finally:
            stack.kafka.start()
    until(is_settled(relay, 100, outbox))
    seen = outbox.seen()
    assert firsts(seen["k"]) == list(range(1, 52)) and len(seen) == 51


def test_nobody_can_append_what_has_no_outcome(stack: Stack, outbox: Outbox) -> None:
    """FAULTS 10: empty and null keys, bodies without a schema, tombstones where the topic is not compacted."""
    with stack.postgres.connect() as conn:
        for key in ("", None):
            with pytest.raises(psycopg.errors.IntegrityError):
                outbox.put(conn, key)  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.IntegrityError):
            conn.execute(f"INSERT INTO {outbox.schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time,"
                         " sequence) VALUES (%s, 'k', gen_random_uuid(), 't', 's', now(), 1)", (outbox.topic,))
        with pytest.raises(psycopg.errors.IntegrityError):
            conn.execute(f"INSERT INTO {outbox.schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time,"
                         " sequence, body) VALUES (%s, 'k', gen_random_uuid(), 't', 's', now(), 1, 'x')",
                         (outbox.topic,))


# --- The wire

def test_a_tombstone_has_no_value_and_all_headers(stack: Stack, services: Services, outbox: Outbox, tag: str) -> None:
    relay = services.start("relay", env=outbox.env())
    event = uuid.uuid4()
    trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    stack.postgres.query(
        f"INSERT INTO {outbox.schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence, traceparent)"
        " VALUES ('contacts.v1', %s, %s, 'payonce.contact.erased', '/payonce/test', '2026-01-02T03:04:05Z', 7, %s)",
        tag, event, trace)
    until(is_settled(relay, 1, outbox))
    records = [m for m in stack.kafka.records("contacts.v1") if key_of(m) == tag]
    assert len(records) == len(stack.kafka.ends("contacts.v1")), "one in each partition"
    for record in records:
        assert record.value() is None
        assert {n: v.decode() for n, v in record.headers()} == {
            "ce_specversion": "1.0", "ce_id": str(event), "ce_type": "payonce.contact.erased",
            "ce_source": "/payonce/test", "ce_time": "2026-01-02T03:04:05.000000Z", "ce_subject": tag, "ce_sequence": "7",
            "content-type": "application/avro", "traceparent": trace}


def test_two_schema_versions_interleaved_decode_right(stack: Stack, services: Services, outbox: Outbox) -> None:
    """A second implementation reads the topic: two writers of one outbox, one a version ahead."""
    outbox.know(V2)
    with stack.postgres.connect() as conn:
        for i in range(40):
            schema, more = ((V2, {"note": f"note {i}"}) if i % 3 == 0 else (V1, {}))
            outbox.put(conn, f"k{i % 4}", schema, **more)
    relay = services.start("relay", env=outbox.env())
    until(is_settled(relay, 40, outbox))
    client = SchemaRegistryClient({"url": stack.registry.url})
    read = AvroDeserializer(client)
    got: dict[str, list[tuple[int, str | None]]] = {}
    for m in outbox.kafka.records(outbox.topic):
        value = read(m.value(), SerializationContext(m.topic(), MessageField.VALUE))
        assert header(m, "ce_sequence") == str(value["n"])
        got.setdefault(key_of(m), []).append((value["n"], value.get("note")))
    want: dict[str, list[tuple[int, str | None]]] = {}
    for i in range(40):
        want.setdefault(f"k{i % 4}", []).append((i // 4 + 1, f"note {i}" if i % 3 == 0 else None))
    assert got == want
    assert len(client.get_versions(f"{outbox.topic}-value")) == 2
    assert client.get_config(f"{outbox.topic}-value").compatibility_level.name == "FULL_TRANSITIVE"


def test_a_key_has_the_partition_of_a_java_producer(stack: Stack, services: Services, outbox: Outbox) -> None:
    """FAULTS 11, beside a living Java producer."""
    keys = ["21", "foobar", "abc", "a", *(f"ord_{i}" for i in range(60)), "é", "₹" * 9, "long-" * 40]
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        for key in keys:
            outbox.put(conn, key)
    until(is_settled(relay, len(keys), outbox))
    ours = {key_of(m): m.partition() for m in outbox.kafka.records(outbox.topic)}
    outbox.kafka.produce_by_java(outbox.topic, keys)
    records = outbox.kafka.records(outbox.topic)
    assert len(records) == 2 * len(keys)
    assert {(key_of(m), m.partition()) for m in records} == set(ours.items())
    assert len(ours) == len(keys) and len(set(ours.values())) == 3


# --- Schemas

def test_a_refused_schema_waits_alone(stack: Stack, services: Services, outbox: Outbox, tag: str) -> None:
    """Incompatible with what the subject has: its rows wait, with an alarm; nothing is parked, other keys flow."""
    bad = {**V1, "fields": [{"name": "n", "type": "string"}]}
    outbox.know(bad)
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "a")
        until(is_settled(relay, 1, outbox))
        conn.execute(f"INSERT INTO {outbox.schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence,"
                     " schema_fp, body) SELECT topic, 'held', gen_random_uuid(), ce_type, ce_source, ce_time, 1, fp, ''"
                     f" FROM {outbox.schema}.outbox, {outbox.schema}.outbox_schema WHERE schema LIKE '%%\"string\"}}]}}'"
                     " AND schema NOT LIKE '%%pad%%'")
        outbox.put(conn, "held")
        outbox.put(conn, "a")
        until(lambda: outbox.seen() == {"a": [1, 2]})
    until(lambda: relay.log_lines("a schema cannot be registered: its rows wait"))
    until(lambda: (relay.metric("payonce_relay_held_keys"), outbox_status(relay)["unfinished"]) == (1, 2),
          what="one key waits, with two rows")


def test_a_schema_nobody_made_known_waits_until_somebody_does(stack: Stack, services: Services,
                                                              outbox: Outbox) -> None:
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "late", V2, note="x")
        outbox.put(conn, "a")
    until(lambda: outbox.seen() == {"a": [1]})
    until(lambda: relay.metric("payonce_relay_held_keys") == 1)
    outbox.know(V2)
    until(lambda: outbox.seen() == {"a": [1], "late": [1]})
    until(is_settled(relay, 2, outbox))


def test_a_registry_that_is_away_delays_and_loses_nothing(stack: Stack, services: Services, outbox: Outbox) -> None:
    stack.registry.stop()
    try:
        relay = services.make("relay", outbox.env()).start()
        with stack.postgres.connect() as conn:
            for _ in range(3):
                outbox.put(conn, "k")
        relay.port("admin")
        until(lambda: relay.metric("payonce_relay_held_keys") == 1)
        assert relay.admin_get("/healthz").status == 200
    finally:
        stack.registry.start()
    until(is_settled(relay, 3, outbox))
    assert outbox.seen() == {"k": [1, 2, 3]}


# --- Retention

def test_retention_spares_what_is_open_and_it_is_sent_afterwards(stack: Stack, services: Services,
                                                                 outbox: Outbox) -> None:
    """An open gap and a refused row below the floor survive; so do young rows. Contacts go after 24 h at most."""
    relay = services.start("relay", env=outbox.env(RELAY_RETENTION="40h", RELAY_OVERLAP="1s"))
    postgres, schema = stack.postgres, outbox.schema

    def left() -> list[int]:
        return [i for (i,) in postgres.query(f"SELECT id FROM {schema}.outbox ORDER BY id")]

    with postgres.connect(autocommit=False) as slow, postgres.connect() as conn:
        outbox.put(slow, "slow")  # 1
        assert outbox.put(conn, "refused", pad=50000) == 2
        for i in range(3, 1500):
            outbox.put(conn, f"k{i}")
        conn.execute(f"INSERT INTO {schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence)"
                     " SELECT 'contacts.v1', 'c' || i, gen_random_uuid(), 't', 's', now(), 1"
                     " FROM generate_series(1, 5) AS i")  # 1500 to 1504
        young = outbox.put(conn, "young")
        until(lambda: outbox.cursor()["floor"] == young and outbox.cursor()["open_lo"] == [1])
        conn.execute(f"UPDATE {schema}.outbox SET created_at = now() - interval '30 h' WHERE id < %s", (young,))
        relay.restart()  # prunes soon after it is active
        until(lambda: left() == [*range(2, 1500), young], what="contacts are gone, the rest is kept for 40 h")
        until(lambda: relay.metric("payonce_relay_pruned_total") == 5, what="counted")
        relay.term()
        keeps_less = services.start("relay", env=outbox.env(RELAY_RETENTION="10s", RELAY_OVERLAP="1s"), label="less")
        conn.execute(f"UPDATE {schema}.outbox SET created_at = now() + interval '1 h' WHERE id = %s", (young,))
        until(lambda: left() == [2, young])
        slow.commit()
    set_topic(stack, outbox.topic, "max.message.bytes", "100000")
    until(lambda: {"slow", "refused"} <= outbox.seen().keys())
    until(lambda: left() == [young], what="what is published in the end goes too")
    until(lambda: keeps_less.metric("payonce_relay_pruned_total") == 1499, what="counted")


@pytest.mark.parametrize("setting, env", [("RELAY_RETENTION", {"RELAY_RETENTION": "90m", "RELAY_OVERLAP": "1h"}),
                                          ("REGISTRY_URL", {"REGISTRY_URL": "registry:8081"})])
def test_an_unusable_setting_refuses_to_start(stack: Stack, outbox: Outbox, setting: str, env: dict[str, str]) -> None:
    env = stack.env("relay") | outbox.env(**env)
    got = subprocess.run([stack.programs / "payonce-relay", "check-config"], env=env, capture_output=True, timeout=30)
    assert got.returncode == 2 and f"PAYONCE_{setting}".encode() in got.stdout + got.stderr


# --- Who relays, and from where

def test_a_relay_that_was_overtaken_is_fenced(stack: Stack, outbox: Outbox) -> None:
    """FAULTS 8: stopped past its lease, then continued: it ends, and per key the first occurrences keep their order."""
    first = stack.service("relay", outbox.env(), f"{outbox.schema}-first").start().wait_ready()
    until(lambda: outbox_status(first)["active"])
    second = stack.service("relay", outbox.env(), f"{outbox.schema}-second").start().wait_ready()
    try:
        until(lambda: second.log_lines("standing by: another relay is active"), what="it has asked for the lease")
        assert not outbox_status(second)["active"], "a standby is ready, and does nothing"
        with stack.postgres.connect() as conn:
            for i in range(300):
                outbox.put(conn, f"k{i % 7}")
                if i == 150:
                    first.stop_signal()
            until(lambda: outbox_status(second)["active"])
            first.cont()
            until(lambda: first.exit_code == 1, what="fenced")
            for i in range(300, 350):
                outbox.put(conn, f"k{i % 7}")
        assert first.log_lines("gave up")[-1]["code"] == "fenced"
        until(lambda: {k: firsts(n) for k, n in outbox.seen().items()} == {
            f"k{i}": list(range(1, 51)) for i in range(7)})
        assert outbox.cursor()["epoch"] == 2
    finally:
        first.kill9()
        second.kill9()


def test_a_relay_that_ends_hands_over_at_once(stack: Stack, services: Services, outbox: Outbox) -> None:
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        outbox.put(conn, "k")
        until(is_settled(relay, 1, outbox))
        assert relay.term() == 0
        [(free,)] = conn.execute("SELECT expires_at <= now() FROM relay.cursor WHERE outbox = %s",
                                 (outbox.schema,)).fetchall()
        assert free, "the next one need not wait for the lease to run out"
        relay.start().wait_ready()
        outbox.put(conn, "k")
        until(lambda: outbox.seen() == {"k": [1, 2]}, what="nothing twice, nothing lost")


def test_one_process_serves_a_list_of_outboxes(stack: Stack, services: Services, outbox: Outbox, tag: str) -> None:
    """A thread each: what one refuses or waits for is nothing to the other."""
    other = Outbox(stack.postgres, stack.kafka, f"{tag}_b", f"{tag}.b").create()
    relay = services.start("relay", env={"PAYONCE_RELAY_OUTBOXES": f"{outbox.schema},{other.schema}"})
    with stack.postgres.connect() as conn:
        stack.postgres.query(f"DELETE FROM {outbox.schema}.outbox_schema")
        for i in range(20):
            outbox.put(conn, f"k{i}")
            other.put(conn, f"k{i}")
        until(lambda: other.seen() == {f"k{i}": [1] for i in range(20)})
        assert outbox.seen() == {}
        outbox.know(V1)
        until(lambda: outbox.seen() == {f"k{i}": [1] for i in range(20)})
    assert [one["outbox"] for one in relay.status()["outboxes"]] == [outbox.schema, other.schema]


@pytest.mark.parametrize("outboxes", ["", "ingest,ingest", "Ingest", "ingest;x", "in gest"])
def test_a_name_that_is_no_schema_refuses_to_start(stack: Stack, outboxes: str) -> None:
    env = stack.env("relay") | {"PAYONCE_RELAY_OUTBOXES": outboxes}
    got = subprocess.run([stack.programs / "payonce-relay", "check-config"], env=env, capture_output=True, timeout=30)
    assert got.returncode == 2 and b"PAYONCE_RELAY_OUTBOXES" in got.stdout + got.stderr


@pytest.mark.parametrize("change", ["system_id = 1", "timeline = '000000FF'", "floor = floor + 1000"])
def test_on_another_server_the_young_are_sent_again(stack: Stack, services: Services, outbox: Outbox,
                                                    change: str) -> None:
    """Another system, another timeline, or a sequence behind the floor: ids may mean other rows. Alarm."""
    relay = services.start("relay", env=outbox.env(RELAY_OVERLAP="1h", RELAY_RETENTION="24h"))
    with stack.postgres.connect() as conn:
        for i in range(6):
            outbox.put(conn, f"k{i}")
        until(is_settled(relay, 6, outbox))
        assert relay.term() == 0
        conn.execute(f"UPDATE {outbox.schema}.outbox SET created_at = now() - interval '2 h' WHERE id <= 2")
        conn.execute(f"UPDATE relay.cursor SET {change} WHERE outbox = %s", (outbox.schema,))
    relay.start().wait_ready()
    until(is_settled(relay, 4, outbox))
    assert outbox.seen() == {f"k{i}": [1] if i < 2 else [1, 1] for i in range(6)}
    assert len(relay.log_lines("the outbox is on another server than before: sending again what is younger")) == 1
    assert relay.metric("payonce_relay_moved_total") == 1


def test_a_sequence_it_may_not_read_refuses_to_start(stack: Stack, outbox: Outbox) -> None:
    stack.postgres.query(f"REVOKE SELECT ON {outbox.schema}.outbox_id_seq FROM payonce_relay")
    relay = stack.service("relay", outbox.env(), outbox.schema).start()
    until(lambda: relay.exit_code == 1)


def test_p18_a_database_that_may_forget_commits_refuses_to_start(stack: Stack, outbox: Outbox) -> None:
    """Ids that were handed out would be handed out again, for other rows."""
    stack.postgres.query("ALTER ROLE payonce_relay SET synchronous_commit = off")
    try:
        relay = stack.service("relay", outbox.env(), outbox.schema).start()
        until(lambda: relay.exit_code == 1)
    finally:
        stack.postgres.query("ALTER ROLE payonce_relay RESET synchronous_commit")
    assert "synchronous_commit" in relay.tail()


def test_an_idle_look_is_cheap_and_uses_the_index(stack: Stack, services: Services, outbox: Outbox) -> None:
    """At 500,000 retained rows an idle look costs less than a millisecond; gaps do not change the way in."""
    services.start("relay", env=outbox.env())
    postgres, schema = stack.postgres, outbox.schema
    with postgres.connect() as conn:
        def look() -> str:
            rows = conn.execute("SELECT query FROM pg_stat_activity WHERE application_name = 'payonce-relay'"
                                " AND query LIKE '%AS gap%'").fetchall()
            return rows[0][0] if rows else ""

        sql = until(look, what="the look, as the relay runs it")
        # Retained rows that nobody has to publish: a table of the same shape under another name space.
        conn.execute(f"CREATE SCHEMA {schema}_big")
        conn.execute(f"CREATE TABLE {schema}_big.outbox (LIKE {schema}.outbox INCLUDING ALL)")
        conn.execute(f"INSERT INTO {schema}_big.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence,"
                     " schema_fp, body) SELECT 't', 'k', gen_random_uuid(), 't', 's', now(), 1,"
                     " decode(repeat('00', 32), 'hex'), decode(repeat('ab', 300), 'hex')"
                     " FROM generate_series(1, 500000)")
        for setting in (f"search_path = {schema}_big", "enable_seqscan = off", "enable_bitmapscan = off",
                        "plan_cache_mode = force_generic_plan"):
            conn.execute(f"SET {setting}")
        conn.execute(f"PREPARE look (int8[], int8[], int8, int8, int8) AS {sql}")
        for gaps, most_ms in (("'{}', '{}'", 1.0), ("'{100, 400000}', '{110, 400005}'", 5.0)):
            plans = [conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE look ({gaps}, 500000, 2048, 4096)")
                     .fetchone()[0][0] for _ in range(20)]
            assert "Seq Scan" not in str(plans[0]) and "Bitmap" not in str(plans[0])
            assert min(p["Execution Time"] for p in plans) < most_ms
        conn.execute(f"DROP SCHEMA {schema}_big CASCADE")


def test_bodies_come_out_as_they_went_in(stack: Stack, services: Services, outbox: Outbox) -> None:
    relay = services.start("relay", env=outbox.env())
    with stack.postgres.connect() as conn:
        for pad in (0, 1, 4000, 9000, 19000):
            outbox.put(conn, "k", pad=pad)
    until(is_settled(relay, 5, outbox))
    assert [decode(m)["pad"] for m in outbox.kafka.records(outbox.topic)] == ["x" * p for p in (0, 1, 4000, 9000, 19000)]

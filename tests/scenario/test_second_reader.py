"""A second implementation reads the topics: Python, Confluent's client and its registry-aware deserializer, none of
our code. What ingest and relay published says the same to it, and each header is there."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from conftest import Services
from shop import Shop
from smtp_sink import SmtpSink
from stack import ROOT, Stack
from topic import CONTACTS, PAYMENTS, partition_of, uuid7
from wait import until

HEADERS = {"ce_specversion", "ce_id", "ce_type", "ce_source", "ce_time", "ce_subject", "ce_sequence", "content-type"}
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    key: str
    headers: dict[str, str]
    value: dict[str, Any] | None


@pytest.fixture(scope="module")
def services(stack: Stack) -> Iterator[Services]:
    with SmtpSink() as sink, Services(stack, sink) as it:
        it.start("ingest", "relay")
        yield it


@pytest.fixture(scope="module")
def registry(stack: Stack) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": stack.registry.url})


@pytest.fixture(scope="module")
def shop(services: Services, stack: Stack) -> Shop:
    """Orders of both providers with payments, refunds, reviews, a cancel, and addresses that change."""
    shop = Shop(services["ingest"], stack.api_token, "r" + uuid7()[-10:])
    for i in range(24):
        name = f"card{i}"
        shop.register(name, contact=f"{name}@example.org" if i % 2 else None)
        shop.paid(name, 4900 if i % 3 else 3000)
        shop.send(shop.stripe_event("refund.created", shop.refund(name, name, 100 + i)))
        if i % 4 == 1:
            shop.register(name, contact=f"{name}@example.net", expect=200)
    for i in range(12):
        name = f"node{i}"
        shop.register(name, 1500, "BTC/11", refs={"payment_hash": shop.hash(name)}, contact=f"{name}@example.org",
                      expires_at="2033-05-18T03:33:20Z")
        for state in ("OPEN", "SETTLED") if i % 2 else ("CANCELED", "SETTLED"):
            shop.observe(shop.invoice(name, state, 1500, 1500 + i))
    shop.register("gone")
    assert shop.cancel("gone").status == 200
    return shop


@pytest.fixture(scope="module")
def outbox(stack: Stack, shop: Shop) -> list[tuple[Any, ...]]:
    """What ingest wanted to be published, in order, once it has decided all."""
    until(lambda: stack.postgres.query(
        "SELECT count(*) FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event WHERE e.event_id LIKE %s",
        f"evt_{shop.tag}%") == [(0,)], what="nothing of it is undecided")
    return stack.postgres.query(
        "SELECT topic, key, event_id::text, ce_type, ce_source, ce_time, sequence, traceparent FROM ingest.outbox"
        " WHERE key LIKE %s ORDER BY id", f"{shop.tag}-%")


@pytest.fixture(scope="module")
def records(stack: Stack, shop: Shop, outbox, registry) -> list[Record]:
    """Every record of this shop, read and decoded by the other implementation as it comes."""
    decode = AvroDeserializer(registry)
    reader = Consumer({"bootstrap.servers": stack.kafka.brokers, "group.id": f"second-{shop.tag}", "log_level": 0,
                       "auto.offset.reset": "earliest", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, p, 0) for topic in (PAYMENTS, CONTACTS) for p in range(6)])
    found: list[Record] = []

    def all_there() -> bool:
        for m in reader.consume(500, timeout=0.2):
            if m.error() is None and m.key().decode().startswith(shop.tag):
                pairs = [(k, v.decode()) for k, v in m.headers()]
                assert len(dict(pairs)) == len(pairs), "each header once"
                value = decode(m.value(), SerializationContext(m.topic(), MessageField.VALUE))
                found.append(Record(m.topic(), m.partition(), m.key().decode(), dict(pairs), value))
        return len(found) >= len(outbox)

    try:
        until(all_there, what=f"{len(outbox)} records are read", every=0)
    finally:
        reader.close()
    return found


def test_p18_every_row_of_the_outbox_is_on_its_topic_once_and_in_order_per_key(outbox, records) -> None:
    def by_key(rows) -> dict[tuple[str, str], list[str]]:
        out: dict[tuple[str, str], list[str]] = {}
        for topic, key, id in rows:
            out.setdefault((topic, key), []).append(id)
        return out

    assert len(outbox) > 100
    assert by_key((r.topic, r.key, r.headers["ce_id"]) for r in records) == by_key(row[:3] for row in outbox)


def test_p36_every_record_has_the_headers_of_cloudevents(outbox, records) -> None:
    rows = {row[2]: row for row in outbox}
    for r in records:
        topic, key, id, type, source, time, sequence, trace = rows[r.headers["ce_id"]]
        assert set(r.headers) == HEADERS | {"traceparent"}
        assert (r.headers["ce_specversion"], r.headers["content-type"]) == ("1.0", "application/avro")
        assert (r.topic, r.key, r.headers["ce_subject"]) == (topic, key, key)
        assert (r.headers["ce_type"], r.headers["ce_source"]) == (type, source) and type.startswith("payonce.")
        assert uuid.UUID(id).version == 7
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", r.headers["ce_time"])
        assert datetime.fromisoformat(r.headers["ce_time"]) == time
        assert r.headers["ce_sequence"] == str(sequence)
        assert r.headers["traceparent"] == trace and re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", trace)


def test_p36_the_body_says_what_key_and_headers_say(records) -> None:
    for r in records:
        assert r.value is not None and r.value["order_id"] == r.key
        if r.topic == PAYMENTS:
            assert r.value["event_id"] == r.headers["ce_id"]
            assert "payonce." + r.value["type"] == r.headers["ce_type"]
            assert r.value["sequence"] == int(r.headers["ce_sequence"])
            assert r.value["decided_at"] <= datetime.now(UTC)
            assert timedelta() <= datetime.fromisoformat(r.headers["ce_time"]) - r.value["occurred_at"] < MILLISECOND
        else:
            assert r.headers["ce_type"] == "payonce.contact.set" and r.value["language"] == "en"


def test_p36_the_sequence_rises_per_order_over_both_topics(outbox, records) -> None:
    at = {r.headers["ce_id"]: int(r.headers["ce_sequence"]) for r in records}
    for key in {r.key for r in records}:
        own = [at[row[2]] for row in outbox if row[1] == key]
        assert own == sorted(set(own)) == list(range(1, len(own) + 1)), key


def test_p36_the_last_record_of_an_order_is_its_position(shop, records) -> None:
    """And delta, a check only, sums to what net is."""
    last, net = {}, {}
    for r in records:
        if r.topic == PAYMENTS:
            last[r.key] = r.value
            net[r.key] = net.get(r.key, 0) + r.value["delta"]
            assert net[r.key] == r.value["received"] - r.value["refunded"] >= 0
    assert len(last) == 37
    for key, value in last.items():
        view = shop.show(key.removeprefix(shop.tag + "-"))
        same = ("order_id", "customer_id", "purpose", "item", "state", "currency", "exponent", "due", "received",
                "refunded", "late", "partial", "over", "qualification", "policy")
        assert {k: value[k] for k in same} == {k: view[k] for k in same}
    assert {v["state"] for v in last.values()} == {"paid", "review", "canceled"}


def test_p28_addresses_are_on_their_own_topic_alone(shop, records) -> None:
    latest = {r.key: r.value["email"] for r in records if r.topic == CONTACTS}
    assert latest[shop.id("card1")] == "card1@example.net" and latest[shop.id("card3")] == "card3@example.org"
    for r in records:
        if r.topic == PAYMENTS:
            assert "@" not in json.dumps(r.value, default=str) + json.dumps(r.headers)
            assert r.value["receipt"] == (r.key in latest)


def test_p18_relays_keys_lie_where_a_java_client_looks(records) -> None:
    """FAULTS 11."""
    assert {(r.key, r.partition) for r in records} == {(r.key, partition_of(r.key)) for r in records}
    assert len({r.partition for r in records}) == 6


@pytest.mark.parametrize(("topic", "file"), [(PAYMENTS, "payment_event.avsc"), (CONTACTS, "contact.avsc")])
def test_p36_the_registry_knows_the_published_schema_and_keeps_it_compatible(registry, records, topic, file) -> None:
    own = json.loads((ROOT / "schemas" / file).read_text())
    versions = [registry.get_version(f"{topic}-value", v) for v in registry.get_versions(f"{topic}-value")]
    assert own in [json.loads(v.schema.schema_str) for v in versions]
    assert registry.get_config(f"{topic}-value").compatibility_level == "FULL_TRANSITIVE"

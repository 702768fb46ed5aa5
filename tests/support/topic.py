"""Events put straight on the topics, as relay would: CloudEvents headers, Confluent frame, Avro by the files
in schemas/. A consumer's test says what it means with an Order: `order.says("qualified", received=1000)`."""

import itertools
import json
import time
import uuid
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, SchemaRegistryClient, ServerConfig

from stack import ROOT, Stack, answered
from wait import until

PAYMENTS, CONTACTS = "payments.v1", "contacts.v1"
SCHEMAS = {PAYMENTS: "payment_event.avsc", CONTACTS: "contact.avsc"}
STATES = {"pending": "open", "adjusted": "open", "failed": "open", "review_required": "review",
          "canceled": "canceled", "reversed": "reversed"}  # "paid" after all others

Event = dict[str, Any]


def murmur2(data: bytes) -> int:
    """The hash of Java's default partitioner, written down from its definition (32 bits, seed 0x9747b28c)."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at:at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: str, partitions: int = 6) -> int:
    """Where a Java client puts this key."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def uuid7() -> str:
    """A UUIDv7 of now."""
    raw = (int(time.time() * 1000) << 80) | (7 << 76) | (2 << 62) | (uuid.uuid4().int & ((0xFFF << 64) | ((1 << 62) - 1)))
    return str(uuid.UUID(int=raw))


def in_partition(base: str, partition: int) -> str:
    """A key that begins with `base` and belongs to this partition."""
    return next(key for i in itertools.count() if partition_of(key := f"{base}{i}") == partition)


class Topic:
    """The producer's side of payments.v1 and contacts.v1 on a stack."""

    def __init__(self, stack: Stack) -> None:
        self.kafka = stack.kafka
        self._registry = SchemaRegistryClient({"url": stack.registry.url})
        # Idempotent: what comes twice or in another order was sent so.
        self._producer = Producer({"bootstrap.servers": stack.kafka.brokers, "partitioner": "murmur2_random",
                                   "enable.idempotence": True, "linger.ms": 1, "log_level": 0})
        self._writers: dict[str, tuple[int, Any]] = {}

    def schema(self, topic: str) -> dict[str, Any]:
        return json.loads((ROOT / "schemas" / SCHEMAS[topic]).read_text())

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """The registry's id of this schema under the subject."""
        return self._registry.register_schema(subject, Schema(json.dumps(schema), "AVRO"))

    def keep_compatible(self, topic: str) -> None:
        """As relay does: every version reads every other."""
        self._registry.set_config(f"{topic}-value", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL_TRANSITIVE))

    def body(self, topic: str, record: Event, schema: dict[str, Any] | None = None, id: int = 0) -> bytes:
        """The record in a Confluent frame, written by `schema` or else by the topic's own; it is registered
        unless an id is given."""
        text = json.dumps(schema or self.schema(topic))
        if text not in self._writers:
            parsed = fastavro.parse_schema(json.loads(text))
            self._writers[text] = id or self.register(f"{topic}-value", json.loads(text)), parsed
        id, parsed = self._writers[text]
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        return b"\0" + id.to_bytes(4, "big") + out.getvalue()

    def put(self, topic: str, key: str, value: bytes | None, type: str, sequence: int, id: str = "",
            partition: int = -1, **headers: str) -> None:
        """One message with all its headers; another value for one of them: ce_id="…" and so on."""
        head = {"ce_specversion": "1.0", "ce_id": id or uuid7(), "ce_type": "payonce." + type,
                "ce_source": "/payonce/ingest", "ce_time": "2026-07-01T12:00:00.000Z", "ce_subject": key,
                "ce_sequence": str(sequence), "content-type": "application/avro"} | headers
        self._producer.produce(topic, value, key, headers=[(k, v.encode()) for k, v in head.items()],
                               **({} if partition < 0 else {"partition": partition}))
        self._producer.poll(0)

    def send(self, event: Event, schema: dict[str, Any] | None = None, partition: int = -1, **headers: str) -> Event:
        """A PaymentEvent, once more if it was sent before."""
        self.put(PAYMENTS, event["order_id"], self.body(PAYMENTS, event, schema), event["type"], event["sequence"],
                 event["event_id"], partition, **headers)
        return event

    def flush(self) -> None:
        """Returns when the broker has taken everything."""
        until(lambda: self._producer.flush(1) == 0, what="the broker takes what was produced")

    def drop_before(self, offsets: dict[int, int]) -> None:
        """Deletes what lies before these offsets of payments.v1: an operator's way past a record that nobody reads."""
        to = [TopicPartition(PAYMENTS, p, offset) for p, offset in offsets.items()]
        answered(lambda: [done.result(10) for done in self.kafka.admin.delete_records(to).values()], "the topic is cut")

    def order(self, id: str, **fixed: Any) -> "Order":
        return Order(self, id, fixed)

    def mark(self, tag: str) -> list[Event]:
        """One paid order in each partition, behind everything sent before: a consumer that has taken them has
        taken all that went before, also what it ignores."""
        marks = [self.order(in_partition(f"{tag}-mark-{uuid7()[-12:]}-", p)).says("qualified", received=1000)
                 for p in range(6)]
        self.flush()
        return marks


@dataclass
class Order:
    """One order's events. Amounts stay as the last event said them, unless told otherwise."""

    topic: Topic
    id: str
    fixed: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    _position: dict[str, Any] = field(default_factory=lambda: {"due": 1000, "received": 0, "refunded": 0,
                                                               "qualification": 0})

    def event(self, type: str, **fields: Any) -> Event:
        """The next event, not sent."""
        self.sequence = fields.pop("sequence", self.sequence + 1)
        fields = self.fixed | {"state": STATES.get(type, "paid")} | fields
        before = self._position["received"] - self._position["refunded"]
        if fields["state"] == "paid" and self._position["qualification"] == 0:
            self._position["qualification"] = 1
        self._position |= {k: v for k, v in fields.items() if k in self._position}
        at = 1_782_907_200_000 + 1000 * self.sequence
        return {
            "event_id": uuid7(), "type": "payment." + type, "order_id": self.id, "customer_id": "c-" + self.id,
            "purpose": "course", "item": "course-42", "currency": "USD", "exponent": 2,
            "delta": self._position["received"] - self._position["refunded"] - before, "late": False,
            "partial": False, "over": False, "provider": "stripe", "account": "shop", "provider_event_id": "evt_1",
            "decision_id": uuid7(), "policy": "stripe-v1", "policy_version": 1, "verdict": "", "reason": "",
            "refund_id": None, "receipt": False, "occurred_at": at, "decided_at": at, "sequence": self.sequence,
        } | self._position | fields

    def says(self, type: str, **fields: Any) -> Event:
        return self.topic.send(self.event(type, **fields))

    def contact(self, email: str | None, sequence: int = 0) -> None:
        """The address, or None: the tombstone that erases it."""
        self.sequence = sequence or self.sequence + 1
        record = {"order_id": self.id, "email": email, "language": "en"}
        self.topic.put(CONTACTS, self.id, None if email is None else self.topic.body(CONTACTS, record),
                       "contact.erased" if email is None else "contact.set", self.sequence)

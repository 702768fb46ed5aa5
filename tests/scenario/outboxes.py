"""An outbox of a test's own: a schema made from the canonical DDL, a topic, and rows written as any service
would write them. `n` counts up per key, so a consumer of the topic can see order and loss."""

import hashlib
import io
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import fastavro
import psycopg
from confluent_kafka import Message

from stack import ROOT, Kafka, Postgres

V1 = {"type": "record", "name": "Step", "namespace": "payonce.test",
      "fields": [{"name": "n", "type": "long"}, {"name": "pad", "type": "string"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": "string", "default": "none"}]}

PUT = ("INSERT INTO {s}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence, traceparent, schema_fp,"
       " body) VALUES (%s, %s, %s, 'payonce.test.step', '/payonce/test', now(), %s, %s, %s, %s) RETURNING id")


def text_of(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def fingerprint(schema: dict[str, Any]) -> bytes:
    return hashlib.sha256(text_of(schema).encode()).digest()


def encode(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decode(message: Message, schema: dict[str, Any] = V1) -> dict[str, Any]:
    """Past the frame: the schema id is the registry's business."""
    body = message.value()
    assert body is not None and body[0] == 0
    return fastavro.schemaless_reader(io.BytesIO(body[5:]), fastavro.parse_schema(schema), None)


@dataclass
class Outbox:
    postgres: Postgres
    kafka: Kafka
    schema: str
    topic: str
    next_n: dict[str, int] = field(default_factory=dict)

    def create(self, partitions: int = 3, config: dict[str, str] | None = None, topic: bool = True) -> "Outbox":
        ddl = (ROOT / "common/outbox/outbox.sql").read_text().replace("owner.", f"{self.schema}.")
        with self.postgres.connect() as conn:
            conn.execute(f"CREATE SCHEMA {self.schema}")
            conn.execute(ddl)
            conn.execute(f"GRANT USAGE ON SCHEMA {self.schema} TO payonce_relay")
            conn.execute(f"GRANT SELECT, DELETE ON {self.schema}.outbox TO payonce_relay")
            conn.execute(f"GRANT SELECT ON {self.schema}.outbox_schema, {self.schema}.outbox_id_seq TO payonce_relay")
        self.know(V1)
        if topic:
            self.kafka.create_topic(self.topic, partitions, config)
        return self

    def know(self, schema: dict[str, Any], topic: str = "") -> None:
        """What each writer does before its first row."""
        self.postgres.query(f"INSERT INTO {self.schema}.outbox_schema (fp, subject, schema) VALUES (%s, %s, %s)",
                            fingerprint(schema), f"{topic or self.topic}-value", text_of(schema))

    def put(self, conn: psycopg.Connection[Any], key: str, schema: dict[str, Any] = V1, pad: int = 20,
            topic: str = "", **more: Any) -> int:
        """Appends the key's next row inside whatever transaction conn is in; returns its id."""
        n = self.next_n[key] = self.next_n.get(key, 0) + 1
        body = encode(schema, {"n": n, "pad": "x" * pad, **more})
        row = conn.execute(PUT.format(s=self.schema), (topic or self.topic, key, uuid.uuid4(), n, None,
                                                       fingerprint(schema), body)).fetchone()
        assert row is not None
        return int(row[0])

    def fill(self, rows: int, keys: int, pad: int = 400) -> None:
        """Many rows at once, by the server; n counts per key."""
        body = encode(V1, {"n": 0, "pad": "x" * pad})
        self.postgres.query(
            f"INSERT INTO {self.schema}.outbox (topic, key, event_id, ce_type, ce_source, ce_time, sequence,"
            f" traceparent, schema_fp, body) SELECT %s, 'k' || i %% %s, gen_random_uuid(), 'payonce.test.step',"
            f" '/payonce/test', now(), i / %s + 1, '', %s, %s FROM generate_series(0, %s - 1) AS i",
            self.topic, keys, keys, fingerprint(V1), body, rows)

    def cursor(self) -> dict[str, Any]:
        with self.postgres.connect(row_factory=psycopg.rows.dict_row) as conn:
            return conn.execute("SELECT * FROM relay.cursor WHERE outbox = %s", (self.schema,)).fetchone() or {}

    def env(self, **more: Any) -> dict[str, str]:
        return {"PAYONCE_RELAY_OUTBOXES": self.schema} | {f"PAYONCE_{k}": str(v) for k, v in more.items()}

    def seen(self, topic: str = "") -> dict[str, list[int]]:
        """ce_sequence per key, in the order of the topic."""
        out: dict[str, list[int]] = {}
        for m in self.kafka.records(topic or self.topic):
            out.setdefault(key_of(m), []).append(int(header(m, "ce_sequence")))
        return out


def key_of(message: Message) -> str:
    key = message.key()
    assert isinstance(key, bytes)
    return key.decode()


def header(message: Message, name: str) -> str:
    return dict(message.headers() or [])[name].decode()


def firsts(sequence: list[int]) -> list[int]:
    """First occurrences, in order: what a consumer that dedupes sees."""
    return list(dict.fromkeys(sequence))

"""What ingest and relay bear, each beside the limit of its surroundings, measured in the same run on the same
PostgreSQL (fsync on) and Kafka: machines and their neighbours differ, ratios travel. Every figure comes with a
proof that nothing was lost or doubled on the way.

ingest: signed Stripe webhooks over many orders, answered once durable and decided; limit: the very statements it
        sends, alone (`full`), and only the insert of event and outbox row (`lean`).
relay:  an outbox filled beforehand; limit: its own producer with the same records from memory, and its own looks
        with nothing done to the rows. Then both together at an even 2,000 events a second: from COMMIT in ingest to
        the broker's append.
connections: (only when named) ingest over twice and four times as many connections as one epoll_wait() of the HTTP
        library returns, and over a thousand: the slowest answer, and that none is cut.

usage: bench.py [--short] [--json FILE] [ingest] [relay] [connections]
"""

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

import accounts
import arguments
import process
from service import Service
from shop import Shop, encode
from stack import ROOT, Postgres, Stack
from wait import until

TOPIC, LIMIT_TOPIC = "payments.v1", "payments.limit"
RATE = 2000  # events a second of the paced run
TABLES = ("provider_event", "event_conflict", "undecided", "order_ref", "order_contact", "fact", "decision",
          "outbox", "shop_order")
# What else a session of Stripe's carries: ingest reads past it.
BALLAST = {k: None for k in (
    "after_expiration", "allow_promotion_codes", "billing_address_collection", "consent", "consent_collection",
    "currency_conversion", "customer", "customer_creation", "expires_at", "invoice", "locale", "payment_link",
    "payment_method_collection", "phone_number_collection", "recovered_from", "setup_intent", "shipping_cost",
    "shipping_details", "submit_type", "subscription", "ui_mode", "url")} | {
    "automatic_tax": {"enabled": False, "liability": None, "status": None},
    "custom_text": {"after_submit": None, "shipping_address": None, "submit": None},
    "customer_details": {"address": {"city": None, "country": "DE", "line1": None, "postal_code": None},
                         "email": "someone@shop.example", "name": "Some One", "phone": None, "tax_ids": []},
    "payment_method_options": {"card": {"request_three_d_secure": "automatic"}},
    "payment_method_types": ["card"], "success_url": "https://shop.example/thanks?s={CHECKOUT_SESSION_ID}",
    "cancel_url": "https://shop.example/cart",
}


@dataclass
class Size:
    events: int = 40_000     # per round, one order each
    rows: int = 500_000      # in the outbox of the relay's drain
    keys: int = 100_000
    rounds: int = 3
    connections: int = 512
    paced_s: int = 10
    requests: int = 200_000  # over each number of connections
    slowest_ms: int = 2000   # of their answers


SHORT = Size(events=4000, rows=20_000, keys=4000, rounds=1, connections=64, paced_s=2, requests=4000,
             slowest_ms=10_000)


@dataclass
class Result:
    """One line of the table: a figure, its unit, and what it is compared with."""

    name: str
    rounds: list[float]
    unit: str
    limit: list[float] = field(default_factory=list)
    limit_name: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def ratio(self) -> float | None:
        """The median of the ratios of each round: both sides had the same neighbours."""
        return statistics.median(a / b for a, b in zip(self.rounds, self.limit, strict=True)) if self.limit else None

    def json(self) -> dict[str, Any]:
        more = {"limit": self.limit_name, "limit_rounds": self.limit, "ratio": self.ratio} if self.limit else {}
        return {"name": self.name, "unit": self.unit, "value": self.value, "rounds": self.rounds} | more


class Bench:
    def __init__(self, stack: Stack, size: Size) -> None:
        self.stack, self.size = stack, size
        self.results: list[Result] = []
        self.faults: list[str] = []
        self.template = stack.scratch / "event.json"
        self.shop = Shop(stack.service("ingest"), stack.api_token, "bench")
        self._write_template()

    # --- What is played

    def _write_template(self) -> None:
        """One event per order, `@@@@@@@@@@` being the order's number."""
        session = BALLAST | self.shop.session("@@@@@@@@@@")
        event = self.shop.stripe_event("checkout.session.completed", session, id="evt_bench_@@@@@@@@@@")
        self.template.write_bytes(encode(event))

    def learn(self) -> None:
        """One order and one event through the front door: the rows of all others are made after these."""
        with self.running("ingest") as ingest:
            self.shop.ingest = ingest
            self.shop.register("0000000000", contact=None)
            self.load(ingest, count=1)
        self.sql("CREATE TABLE public.one_order AS SELECT * FROM ingest.shop_order")
        self.sql("CREATE TABLE public.one_row AS SELECT * FROM ingest.outbox")
        self.sql("UPDATE public.one_order SET (state, verdict, received, qualification, sequence)"
                 " = ('open', '', 0, 0, 0)")

    def reset(self, orders: int) -> None:
        """Empty tables, and that many open orders."""
        columns = self.columns("shop_order")
        values = ["'bench-' || lpad(i::text, 10, '0')" if c == "order_id" else c for c in columns]
        self.sql("TRUNCATE " + ", ".join(f"ingest.{t}" for t in TABLES))
        self.sql(f"INSERT INTO ingest.shop_order ({', '.join(columns)}) SELECT {', '.join(values)}"
                 f" FROM public.one_order, generate_series(0, {orders} - 1) AS i")
        self.settle_down()

    def fill_outbox(self, rows: int, keys: int) -> None:
        """The body and headers are those of a real event; key, sequence and id are their own."""
        own = {"key": f"'bench-' || lpad((i % {keys})::text, 10, '0')", "sequence": f"i / {keys} + 1",
               "event_id": "gen_random_uuid()", "created_at": "now()"}
        columns = [c for c in self.columns("outbox") if c != "id"]
        self.sql("TRUNCATE ingest.outbox")
        self.sql(f"INSERT INTO ingest.outbox ({', '.join(columns)}) SELECT {', '.join(own.get(c, c) for c in columns)}"
                 f" FROM public.one_row, generate_series(0, {rows} - 1) AS i")
        self.settle_down()

    def settle_down(self) -> None:
        self.sql("VACUUM (ANALYZE)")
        self.sql("CHECKPOINT")

    # --- Hands

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.stack.postgres.query(text)

    def count(self, text: str) -> int:
        return int(self.sql(f"SELECT count(*) FROM {text}")[0][0])

    def columns(self, table: str) -> list[str]:
        return [r[0] for r in self.sql("SELECT column_name FROM information_schema.columns WHERE table_schema ="
                                       f" 'ingest' AND table_name = '{table}' ORDER BY ordinal_position")]

    @contextmanager
    def running(self, *names: str) -> Iterator[Service]:
        """Started, ready, and ended; yields the last."""
        started: list[Service] = []
        try:
            for name in names:
                started.append(self.stack.service(name))
                started[-1].start()
            for one in started:
                one.wait_ready()
            yield started[-1]
        finally:
            for one in reversed(started):
                if one.term() != 0:
                    self.faults.append(f"{one.label} ended with {one.exit_code}\n{one.tail()}")

    def tool(self, name: str, **options: Any) -> dict[str, Any]:
        """Runs one of our C programs, which prints one JSON object."""
        log = self.stack.scratch / f"{name}.log"
        log.unlink(missing_ok=True)
        argv = [self.stack.programs / f"bench-{name}"]
        for k, v in options.items():
            argv += [f"--{k}={v}"]
        process.finish(process.start(argv, log), log, f"bench-{name}", timeout=180)
        out: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
        return out

    def load(self, ingest: Service, count: int, **options: Any) -> dict[str, Any]:
        return self.tool("load", port=ingest.port("http"), secret=accounts.secret("shop"), template=self.template,
                         count=count, **options)

    def note(self, name: str, rounds: list[float], unit: str, limit: list[float] | None = None,
             limit_name: str = "") -> None:
        self.results.append(Result(name, rounds, unit, limit or [], limit_name))

    def check(self, what: str, got: Any, wanted: Any) -> None:
        if got != wanted:
            self.faults.append(f"{what}: {got}, expected {wanted}")

    # --- Ingest

    def ingest(self) -> None:
        seen: dict[str, list[float]] = {}

        def see(**figures: float) -> None:
            for k, v in figures.items():
                seen.setdefault(k, []).append(v)

        for _ in range(self.size.rounds):
            self.reset(self.size.events)
            limit = self.tool("limit-ingest", dsn=self.stack.postgres.dsn("payonce_ingest"), count=self.size.events,
                              accounts=self.stack.accounts_file, template=self.template,
                              **{"owner-dsn": self.stack.postgres.dsn()})
            self.check("rows of the limit", self.count("ingest.outbox"), self.size.events)
            see(full=limit["full_rate"], lean=limit["lean_rate"])
            self.reset(self.size.events)
            with self.running("ingest") as ingest:
                got = self.load(ingest, self.size.events, connections=self.size.connections)
                rss = resident_mib(ingest.pid)
                batches = ingest.metric("payonce_ingest_batches_total")
            see(rate=got["rate"], p50=got["latency_ms"]["p50"], p99=got["latency_ms"]["p99"], rss=rss,
                batch=got["sent"] / batches)
            self.check_ingest(got)
        self.note("webhooks durable and answered", seen["rate"], "/s", seen["full"], "its SQL alone")
        self.note("the same", seen["rate"], "/s", seen["lean"], "event + outbox row alone")
        self.note(f"answer p50, {self.size.connections} connections", seen["p50"], "ms")
        self.note(f"answer p99, {self.size.connections} connections", seen["p99"], "ms")
        self.note("events per transaction", seen["batch"], "")
        self.note("memory of ingest at its peak", seen["rss"], "MiB")

    def check_ingest(self, got: dict[str, Any]) -> None:
        """Every event sent was answered, is stored once, paid its order once, and has one outgoing event. (A slow
        machine may not have come to send them all.)"""
        n = got["sent"]
        self.check("answers", (got["recorded"], got["duplicate"]), (n, 0))
        self.check("requests cut, and cut but repeated", (got["cut"], got["repeated"]), (0, 0))
        self.check("events stored", self.count("ingest.provider_event"), n)
        self.check("orders paid", self.count("ingest.shop_order WHERE state = 'paid' AND sequence = 1"), n)
        self.check("facts", self.count("ingest.fact"), n)
        self.check("decisions", self.count("ingest.decision"), n)
        self.check("undecided", self.count("ingest.undecided"), 0)
        self.check("outbox", self.sql("SELECT count(*), count(DISTINCT key) FROM ingest.outbox WHERE sequence = 1"),
                   [(n, n)])

    def connections(self) -> None:
        """FAULTS 26: no answer is held up, whatever number of connections is ready at once."""
        for n in (2 * 128, 4 * 128, 1000):
            self.reset(self.size.requests)
            with self.running("ingest") as ingest:
                got = self.load(ingest, self.size.requests, connections=n, seconds=150)
            self.check_ingest(got)
            slowest = got["latency_ms"]["max"]
            self.check(f"{n} connections, {slowest} ms: in time", slowest <= self.size.slowest_ms, True)
            self.note(f"webhooks over {n} connections", [got["rate"]], "/s")
            self.note(f"answer p99, {n} connections", [got["latency_ms"]["p99"]], "ms")
            self.note(f"slowest of {got['sent']:,} answers, {n} connections", [slowest], "ms")

    # --- Relay

    def relay(self) -> None:
        seen: dict[str, list[float]] = {}
        for _ in range(self.size.rounds):
            self.fill_outbox(self.size.rows, self.size.keys)
            self.stack.kafka.create_topic(LIMIT_TOPIC)
            limit = self.tool("limit-relay", dsn=self.stack.postgres.dsn("payonce_relay"), topic=LIMIT_TOPIC,
                              brokers=self.stack.kafka.brokers, count=self.size.rows)
            self.check("records of the limit", sum(self.stack.kafka.ends(LIMIT_TOPIC).values()), self.size.rows)
            self.stack.kafka.admin.delete_topics([LIMIT_TOPIC])[LIMIT_TOPIC].result(30)
            until(lambda: LIMIT_TOPIC not in self.stack.kafka.admin.list_topics(timeout=5).topics, 30, "topic gone")
            limit["rate"], limit["rss"] = self.drain()
            for k, v in limit.items():
                seen.setdefault(k, []).append(v)
        self.note("rows drained", seen["rate"], "/s", seen["produce_rate"], "librdkafka from memory")
        self.note("the same", seen["rate"], "/s", seen["read_rate"], "its looks alone")
        self.note("size of a record", seen["record_bytes"], "bytes")
        self.note("memory of relay at its peak", seen["rss"], "MiB")
        self.note(f"idle look, {self.size.rows} rows retained", [v / 1000 for v in seen["idle_look_us"]], "ms")
        self.paced()

    def drain(self) -> tuple[float, float]:
        """Rows a second from the first acknowledged to the last, and the relay's memory; checks the topic."""
        begins = self.stack.kafka.ends(TOPIC)
        samples: list[tuple[float, float]] = []
        with self.running("relay") as relay:
            def done() -> bool:
                samples.append((time.monotonic(), relay.metric("payonce_relay_published_total")))
                return samples[-1][1] >= self.size.rows
            until(done, 120, "the outbox is drained")
            rss = resident_mib(relay.pid)
        first = next(s for s in samples if s[1] > 0)
        self.check_topic(begins)
        return (samples[-1][1] - first[1]) / max(samples[-1][0] - first[0], 1e-6), rss

    def paced(self) -> None:
        warm, n = RATE, RATE * self.size.paced_s  # a second before: connections, schemas, the broker's code
        self.reset(warm + n)
        self.stamp_on_append()
        begins = self.stack.kafka.ends(TOPIC)
        with self.running("relay") as relay, self.running("ingest") as ingest:
            warm = self.load(ingest, warm, rate=RATE, connections=64)["sent"]
            got = self.load(ingest, n, first=RATE, rate=RATE, connections=64)
            n = got["sent"]
            until(lambda: relay.metric("payonce_relay_published_total") >= warm + n, 30, "all is published")
            rss = {one.name: resident_mib(one.pid) for one in (ingest, relay)}
        self.check("paced answers", (got["recorded"], got["duplicate"]), (n, 0))
        appended = self.check_topic(begins)
        # Commit times are the database's, append times the broker's, in whole milliseconds: rounded up here.
        committed = self.sql("SELECT key, sequence, extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000"
                             f" FROM ingest.outbox ORDER BY id OFFSET {warm}")
        took = sorted(appended[key, sequence] + 1 - float(at) for key, sequence, at in committed)
        self.note(f"webhook answered at {RATE}/s, p50", [got["latency_ms"]["p50"]], "ms")
        self.note(f"webhook answered at {RATE}/s, p99", [got["latency_ms"]["p99"]], "ms")
        self.note(f"commit to acknowledged at {RATE}/s, p50", [quantile(took, 0.5)], "ms")
        self.note(f"commit to acknowledged at {RATE}/s, p99", [quantile(took, 0.99)], "ms")
        for name, mib in rss.items():
            self.note(f"memory of {name} at {RATE}/s", [mib], "MiB")

    def stamp_on_append(self) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[
            ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)])
        self.stack.kafka.admin.incremental_alter_configs([resource])[resource].result(10)

    def check_topic(self, begins: dict[int, int]) -> dict[tuple[str, int], int]:
        """Every row is one record, and in the order of its key; returns the records' times in ms."""
        rows = Counter(self.sql("SELECT key, sequence FROM ingest.outbox"))
        records: Counter[tuple[str, int]] = Counter()
        last: dict[str, int] = {}
        times: dict[tuple[str, int], int] = {}
        backwards = 0
        for key, sequence, ms in read_topic(self.stack, begins):
            records[key, sequence] += 1
            times[key, sequence] = ms
            backwards += sequence < last.get(key, 0)
            last[key] = sequence
        self.check("rows missing in the topic", (rows - records).total(), 0)
        self.check("records too many in the topic", (records - rows).total(), 0)
        self.check("records behind a later one of their key", backwards, 0)
        return times


def read_topic(stack: Stack, begins: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    """(key, sequence, time) of the records from `begins` to the ends of this moment."""
    left = {p: end for p, end in stack.kafka.ends(TOPIC).items() if end > begins[p]}
    reader = Consumer({"bootstrap.servers": stack.kafka.brokers, "group.id": "bench", "enable.auto.commit": False,
                       "log_level": 0})
    try:
        reader.assign([TopicPartition(TOPIC, p, begins[p]) for p in left])
        while left:
            messages = reader.consume(10_000, timeout=10)
            assert messages, "the topic cannot be read to its ends"
            for m in messages:
                if m.error() is None:
                    yield m.key().decode(), int(dict(m.headers())["ce_sequence"]), m.timestamp()[1]
                    if m.offset() + 1 >= left.get(m.partition(), 0):
                        left.pop(m.partition(), None)
    finally:
        reader.close()


def resident_mib(pid: int) -> float:
    """The most memory that was ever resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM")


def quantile(values: list[float], at: float) -> float:
    return values[int(at * (len(values) - 1))]


def print_table(results: list[Result]) -> None:
    for r in results:
        line = f"{r.name:<44} {r.value:>12,.{0 if r.value >= 100 else 2}f} {r.unit:<6}"
        if r.ratio is not None:
            line += f" {r.ratio:6.2f} of {statistics.median(r.limit):,.0f} /s: {r.limit_name}"
        print(line)


def main() -> int:
    parser = arguments.Parser(prog="./dev bench")
    parser.add_argument("what", nargs="*", choices=["ingest", "relay", "connections", []],
                        metavar="ingest|relay|connections")
    parser.add_argument("--short", action="store_true", help="small, one round: for the proofs, not the figures")
    parser.add_argument("--json", type=arguments.file_to_write, default=ROOT / "build/bench.json")
    parser.add_argument("--rounds", type=arguments.at_least(1))
    args = parser.parse_args()
    size = SHORT if args.short else Size()
    size.rounds = args.rounds or size.rounds
    load = os.getloadavg()[0]
    stack = Stack(Path(os.environ.get("PAYONCE_BIN", ROOT / "build/release/bin")))
    stack.postgres = Postgres(stack.scratch, {"track_commit_timestamp": "on"})
    with stack:
        bench = Bench(stack, size)
        bench.learn()
        for what in args.what or ["ingest", "relay"]:
            {"ingest": bench.ingest, "relay": bench.relay, "connections": bench.connections}[what]()
    print_table(bench.results)
    print(f"on {os.cpu_count()} processors, which others kept at a load of {load:.1f} before it began")
    for fault in bench.faults:
        print(f"WRONG: {fault}", file=sys.stderr)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"results": [r.json() for r in bench.results], "faults": bench.faults,
                                     "processors": os.cpu_count(), "load_before": load}, indent=2) + "\n")
    print("nothing lost, nothing doubled" if not bench.faults else f"{len(bench.faults)} faults")
    return bool(bench.faults)


if __name__ == "__main__":
    sys.exit(main())

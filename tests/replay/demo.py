"""Plays a stream of payments through the whole, on real parts, and checks every effect (./dev demo).

A Demo runs the six services on a stack that is up: start, play (with kills, if asked for), drain, verify. Tests use
the same pieces, and dump, rewind and truncate_inboxes for replays of the topics.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import accounts
import arguments
import played
import process
import verify
from oracle import Stream, expected
from player import CONNECTIONS, Outcome, Player
from smtp_sink import SmtpSink
from stack import ROOT, Stack
from wait import until

SERVICES = ("ingest", "relay", "ledger", "loyalty", "access", "receipts")
READS = {"ledger": ("payments.v1",), "loyalty": ("payments.v1",), "access": ("payments.v1",),
         "receipts": ("payments.v1", "contacts.v1")}  # consumers, and what they read
VICTIMS = ("ingest", "relay", "ledger", "receipts")
MAIL_PARALLEL = 2

UNDECIDED = """SELECT count(*) FROM ingest.undecided WHERE reason NOT IN ('order_unknown', 'payment_unknown',
    'reference_unknown')
    OR woken_at IS NOT NULL OR due_at <= now()"""
UNSWEPT = "SELECT count(*) FROM ingest.shop_order WHERE NOT expiry_swept AND expires_at <= now()"
# Rows of the outbox that relay has not recorded as published.
UNPUBLISHED = """SELECT count(*) FROM ingest.outbox o LEFT JOIN relay.cursor c ON c.outbox = 'ingest'
    WHERE o.id <= $1 AND (c.floor IS NULL OR o.id > c.floor OR EXISTS
        (SELECT FROM unnest(c.open_lo, c.open_hi) AS r (lo, hi) WHERE o.id BETWEEN r.lo AND r.hi))"""
UNSENT = "SELECT count(*) FROM receipts.mail WHERE state IN ('due', 'waiting_address')"


class Demo:
    def __init__(self, stack: Stack, stream: Stream, sink: SmtpSink, seed: int = 1) -> None:
        self.stack, self.stream, self.sink, self.seed = stack, stream, sink, seed
        self.port = process.free_port()  # the same after each restart, as providers know only one
        rules = ",".join(f"{unit}={per}" for unit, per in stream.header["points"].items())
        settings = {
            "ingest": {"PAYONCE_LISTEN": f"127.0.0.1:{self.port}"},
            "loyalty": {"PAYONCE_LOYALTY_RULES": rules},
            # A killed sender's mail is free again after this time and 15 s.
            "receipts": {"PAYONCE_SMTP_URL": sink.url, "PAYONCE_SMTP_TIMEOUT": "5s",
                         "PAYONCE_MAIL_PARALLEL": str(MAIL_PARALLEL)},
        }
        self.services = {n: stack.service(n, settings.get(n), f"{n}-{stream.header['prefix']}") for n in SERVICES}
        self.outcome = Outcome()
        self.kills: list[str] = []

    # --- Life

    def start(self, *names: str) -> "Demo":
        started = [self.services[n].start() for n in names or SERVICES]
        for one in started:
            one.wait_ready()
        return self

    def stop(self, *names: str) -> list[str]:
        """Ends them in order; what went wrong (a program ends when told to, and with 0)."""
        faults = []
        for name in names or reversed(SERVICES):
            one = self.services[name]
            code = one.term() if one.alive else one.exit_code
            if code not in (0, None):
                faults.append(f"{name}: exit {code}\n{one.tail()}")
        return faults

    # --- Play

    def play(self, kills_each: int = 0, timeout: float = 300) -> Outcome:
        """Sends the whole stream; kills each victim that often meanwhile, and waits for its recovery."""
        victims = list(VICTIMS * kills_each)
        random.Random(self.seed).shuffle(victims)
        part = len(self.stream.lines) // (len(victims) + 1)  # lines sent from one recovery to the next
        player = Player(self.stream, self.port, self.stack.api_token, self.seed, limit=part if victims else None,
                        timeout=timeout)
        player.start()
        try:
            for i, victim in enumerate(victims):
                if not player.reach(part * i + part // 2):
                    break
                self._kill(victim, player, part * (i + 1))
                player.allow(part * (i + 2) if i + 1 < len(victims) else len(self.stream.lines))
            self.outcome = player.wait()
        finally:
            player.stop()
        return self.outcome

    def _kill(self, victim: str, player: Player, limit: int) -> None:
        """SIGKILL, start anew, and wait until it is ready and its own work goes on."""
        one = self.services[victim]
        one.kill9()
        self.kills.append(victim)
        begun, answered = time.monotonic(), player.answered
        one.start().wait_ready()
        if victim == "ingest":
            player.reach(min(answered + CONNECTIONS + 1, limit))
        elif victim == "relay":
            newest = self._newest()
            until(lambda: self._count(UNPUBLISHED, newest) == 0, 180, "relay publishes again")
        else:
            ends = {topic: self.stack.kafka.ends(topic) for topic in READS[victim]}
            partitions = sum(map(len, ends.values()))
            until(lambda: one.metric("payonce_consumer_partitions") == partitions, 180, f"{victim} is in its group")
            until(lambda: all(self._reached(victim, topic, end) for topic, end in ends.items()), 180,
                  f"{victim} reads again")
        say(f"  killed {victim} after {answered} answers, back after {time.monotonic() - begun:.1f} s")

    # --- Drain: what has flowed out of one stage cannot come back to it

    def drain(self, timeout: float = 120) -> None:
        until(lambda: self._count(UNDECIDED) == 0, timeout, "nothing is undecided that could be decided")
        until(lambda: self._count(UNSWEPT) == 0, timeout, "orders past their time are swept")
        newest = self._newest()
        until(lambda: self._count(UNPUBLISHED, newest) == 0, timeout, "all of the outbox is published")
        for name, topics in READS.items():
            for topic in topics:
                until(lambda: self._reached(name, topic, self.stack.kafka.ends(topic)), timeout,
                      f"{name} has read {topic} to its ends")
        until(lambda: self._count(UNSENT) == 0, timeout, "all mail is sent")

    def _count(self, sql: str, *params: Any) -> int:
        with self.stack.postgres.connect() as conn:
            return int(conn.execute(sql.replace("$1", "%s"), params).fetchone()[0])

    def _newest(self) -> int:
        return self._count("SELECT coalesce(max(id), 0) FROM ingest.outbox")

    def _reached(self, name: str, topic: str, ends: dict[int, int]) -> bool:
        at = self.stack.kafka.committed(f"payonce-{name}", topic)
        return all(at[p] >= end for p, end in ends.items())

    # --- What came of it

    def verify(self) -> verify.Report:
        with self.stack.postgres.connect() as conn:
            found = verify.read(conn, self.sink.mails, self.stream)
        allowed = self.kills.count("receipts") * MAIL_PARALLEL
        report = verify.compare(expected(self.stream), found, allowed)
        report.faults += self.outcome.faults
        report.faults += [f"{name}: {n:g} events said something else under the key of an effect" for name in READS
                          if self.services[name].alive
                          and (n := self.services[name].metric("payonce_consumer_conflicts_total"))]
        return report

    def played(self) -> list[played.Row]:
        """What the stream held, beside what came of it; the database is this demo's alone."""
        query = self.stack.postgres.query
        apart = {str(d): int(n) for d, n in query("SELECT disposition, count(*) FROM ingest.provider_event GROUP BY 1")}
        states = {str(o): str(s) for o, s in query("SELECT order_id, state FROM ingest.shop_order")}
        return (played.requests(self.stream, self.outcome.answers, apart)
                + played.orders(self.stream, states, self._count("SELECT count(*) FROM ingest.undecided")))

    # --- Replays of the topics; the consumers are stopped

    def dump(self, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
        """Every row of every table of the four consumers' schemas, sorted; where they stand in the topics is no effect."""
        with self.stack.postgres.connect() as conn:
            tables = conn.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)",
                                  (list(READS),)).fetchall()
            return {f"{schema}.{table}": sorted(row for (row,) in conn.execute(
                        f'SELECT t::text FROM "{schema}"."{table}" t').fetchall())
                    for schema, table in sorted(tables) if table not in ("position", *without)}

    def rewind(self) -> None:
        for name, topics in READS.items():
            for topic in topics:
                self.stack.kafka.rewind(f"payonce-{name}", topic)

    def truncate_inboxes(self) -> None:
        for name in READS:
            self.stack.postgres.query(f"TRUNCATE {name}.inbox")


# --- The program

def say(text: str) -> None:
    print(text, flush=True)


OWN_ORDER = {"order_id": "mine-1", "customer_id": "me", "purpose": "course", "item": "course-42", "policy": "stripe-v1",
             "accounts": ["shop"], "amount": {"minor": 4900, "currency": "EUR", "exponent": 2},
             "contact": {"email": "mine-1@mail.example", "language": "en"}}
OWN_EVENT = {"id": "evt_mine_1", "object": "event", "type": "checkout.session.completed", "created": 1790000000,
             "livemode": True, "data": {"object": {
                 "id": "cs_mine_1", "object": "checkout.session", "mode": "payment", "payment_status": "paid",
                 "amount_total": 4900, "currency": "eur", "payment_intent": "pi_mine_1",
                 "metadata": {"order_id": "mine-1"}, "total_details": {"amount_discount": 0}}}}


def how_to_send(demo: Demo) -> str:
    """Lines for a shell: an order, its payment as Stripe signs it, and what came of them."""
    at, bearer = f"http://127.0.0.1:{demo.port}", f"-H 'Authorization: Bearer {demo.stack.api_token}'"
    return "\n".join([
        f"  curl -sw '\\n' {bearer} {at}/v1/orders -d '{json.dumps(OWN_ORDER)}'",
        f"  body='{json.dumps(OWN_EVENT)}'",
        f"  t=$(date +%s) secret={accounts.secret('shop')}",
        "  mac=$(printf '%s.%s' $t \"$body\" | openssl dgst -sha256 -hmac $secret -r | cut -c1-64)",
        f"  curl -sw '\\n' -H \"Stripe-Signature: t=$t,v1=$mac\" {at}/webhooks/stripe/shop -d \"$body\"",
        f"  curl -sw '\\n' {bearer} {at}/v1/orders/mine-1",
    ])


def where_to_look(demo: Demo) -> str:
    stack, prefix = demo.stack, demo.stream.header["prefix"]
    pages = [f"  {n:9} {one.url('/statusz', 'admin')}   and /metrics" for n, one in demo.services.items()]
    return "\n".join([
        "Status pages:", *pages,
        "An order:",
        f"  curl -s -H 'Authorization: Bearer {stack.api_token}' "
        f"http://127.0.0.1:{demo.port}/v1/orders/{prefix}-0001",
        "Tables (schemas ingest, relay, ledger, loyalty, access, receipts):",
        f"  psql {stack.postgres.dsn()} -c 'SELECT account, currency, sum(amount) FROM ledger.journal_line "
        "GROUP BY 1, 2 ORDER BY 1, 2'",
        f"Topics payments.v1, contacts.v1: broker {stack.kafka.brokers}, registry {stack.registry.url}",
        f"Mails: {demo.sink.folder}/",
        f"Logs: {stack.scratch}/*.log",
        "Send an event of your own, again and again if you like:",
        how_to_send(demo),
    ])


@contextmanager
def running(args: argparse.Namespace, stream: Stream) -> Iterator[Demo]:
    programs = Path(os.environ.get("PAYONCE_BIN", ROOT / "build/release/bin"))
    kept = ROOT / "build/demo-logs"
    args.mails.mkdir(parents=True, exist_ok=True)
    for mail in args.mails.glob("[0-9]*-*@*.txt"):  # of an earlier demo
        mail.unlink()
    with SmtpSink(args.mails) as sink, Stack(programs) as stack:
        demo = Demo(stack, stream, sink, args.seed)
        try:
            yield demo.start()
            for fault in demo.stop():
                demo.outcome.faults.append(fault)
                say(fault)
        except BaseException:
            args.keep = True
            raise
        finally:
            if args.keep or demo.outcome.faults:
                shutil.rmtree(kept, ignore_errors=True)
                kept.mkdir(parents=True)
                for log in stack.scratch.glob("*.log"):
                    shutil.copy(log, kept)
                say(f"Logs are kept in {kept.relative_to(ROOT)}/")


def run(args: argparse.Namespace) -> bool:
    began = time.monotonic()
    stream = Stream.load(args.stream)
    say(f"Starting PostgreSQL, Kafka, the registry and {len(SERVICES)} services")
    with running(args, stream) as demo:
        say(f"Playing {len(stream.lines)} requests of {args.stream.name} (seed {args.seed})"
            f"{f', killing {args.kills} times each of ' + ', '.join(VICTIMS) if args.kill else ''}")
        demo.play(args.kills if args.kill else 0, timeout=600 if args.kill else 120)
        say("Draining")
        try:
            demo.drain()
        except TimeoutError as err:  # what is there already is counted all the same
            demo.outcome.faults.append(f"not drained: {err}")
        report, rows = demo.verify(), demo.played()
        args.keep = args.keep or not report.ok
        say("\nPlayed, and what came of it:\n" + played.table(rows))
        say("\n" + report.table() + "\n")
        say(f"Mails are in {args.mails}/")
        out = report.json() | {"stream": args.stream.name, "seed": args.seed, "requests": len(stream.lines),
                               "repeated": demo.outcome.repeats, "kills": demo.kills,
                               "played": [vars(row) for row in rows],
                               "seconds": round(time.monotonic() - began, 1)}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(out, indent=2) + "\n")
        say(f"{'Every effect is there once' if report.ok else 'NOT every effect is there once'}; "
            f"{demo.outcome.repeats} requests were repeated; {out['seconds']} s; {args.json}")
        if not args.once:
            try:
                say("\n" + where_to_look(demo) + "\n\nCtrl-C ends it all")
                signal.pause()
            except KeyboardInterrupt:
                say("")
    return report.ok and not demo.outcome.faults


def main() -> int:
    p = arguments.Parser(prog="./dev demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--once", action="store_true", help="end after the table; exit 0 only if nothing is lost or doubled")
    p.add_argument("--kill", action="store_true", help=f"SIGKILL {', '.join(VICTIMS)} meanwhile")
    p.add_argument("--kills", type=arguments.at_least(1), default=3, metavar="N", help="how often each, with --kill (3)")
    p.add_argument("--stream", type=arguments.file_of(Stream.load), metavar="FILE",
                   default=ROOT / "tests/replay/streams/demo.ndjson")
    p.add_argument("--seed", type=int, default=1, help="of the order in which lines are sent and services killed")
    p.add_argument("--json", type=arguments.file_to_write, default=ROOT / "build/demo.json", metavar="FILE",
                   help="the table as JSON")
    p.add_argument("--mails", type=arguments.folder_to_fill, default=ROOT / "build/demo-mails", metavar="FOLDER",
                   help="the mails, as texts")
    p.add_argument("--keep", action="store_true", help="keep the logs in build/demo-logs, as after a failure")
    try:
        return 0 if run(p.parse_args()) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""The player against a server that fails: what is repeated, what is not, and in which order lines go."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import generate
from http_server import HttpServer
from oracle import Stream
from player import Player, written


class Ingest(BaseHTTPRequestHandler):
    """Answers by script: path → statuses, one for each time; 0 cuts the connection; afterwards 200."""

    protocol_version = "HTTP/1.1"
    script: dict[str, list[int]]
    seen: list[tuple[str, bytes, str]]
    lock: threading.Lock
    view: dict[str, Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            self.seen.append((self.path, body, self.headers.get("Stripe-Signature", "")))
            left = self.script.get(self.path, [])
            status = left.pop(0) if left else 200
        if status == 0:
            self.close_connection = True
            return
        self.answer(status, {"result": "recorded"})

    def do_GET(self) -> None:
        with self.lock:
            self.seen.append((self.path, b"", ""))
            self.view["received"] += 1
        self.answer(200, self.view)

    def answer(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def ingest(**script: list[int]) -> Iterator[Any]:
    paths = {"shop": "/webhooks/stripe/shop", "orders": "/v1/orders", "cancel": "/v1/orders/o-1/cancel"}
    handler = type("Scripted", (Ingest,), {"script": {paths[k]: v for k, v in script.items()}, "seen": [],
                                           "lock": threading.Lock(), "view": {"received": 0}})
    server = HttpServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream(*lines: dict[str, Any]) -> Stream:
    header = {"accounts": generate.ACCOUNTS, "prefix": "o"}
    return Stream(header, tuple({"n": i + 1, "case": "x", **line} for i, line in enumerate(lines)))


def event(id: str = "evt_1", **more: Any) -> dict[str, Any]:
    return {"do": "event", "provider": "stripe", "alias": "shop", "body": {"id": id, "created": {"$at": -5}}} | more


def play(server: Any, of: Stream, timeout: float = 60, seed: int = 1) -> tuple[Any, list[tuple[str, bytes, str]]]:
    outcome = Player(of, server.server_address[1], "t", seed, timeout=timeout).start().wait()
    return outcome, server.RequestHandlerClass.seen


def test_what_promises_nothing_is_repeated_with_the_same_bytes_until_it_is_taken() -> None:
    with ingest(shop=[503, 0, 500, 0]) as server:
        outcome, seen = play(server, stream(event()))
    assert (outcome.sent, outcome.repeats, outcome.faults) == (1, 4, [])
    assert len(seen) == 5 and len({body for _, body, _ in seen}) == 1


def test_a_refusal_is_taken_only_where_the_line_expects_that_very_status() -> None:
    for statuses, line, ok in (([401], event(expect=401, sign="wrong"), True), ([400], event(expect=401), False),
                               ([200], event(expect=401), False), ([401], event(), False), ([404], event(), False)):
        with ingest(shop=list(statuses)) as server:
            outcome, seen = play(server, stream(line))
        assert (not outcome.faults, len(seen)) == (ok, 1)


def test_a_result_that_the_line_names_must_come() -> None:
    with ingest() as server:
        outcome, _ = play(server, stream(event(result="conflict")))
    assert "instead of conflict" in outcome.faults[0]


def test_a_server_that_never_takes_it_fails_the_play_in_time() -> None:
    with ingest(shop=[503] * 10000) as server:
        outcome, _ = play(server, stream(event(), event("evt_2", after=[1])), timeout=1)
    assert outcome.sent == 0 and any("out of time" in f for f in outcome.faults)


def test_lines_wait_for_those_they_name_also_while_these_are_repeated() -> None:
    lines = [event("evt_1"), event("evt_2", after=[1]), event("evt_3", after=[1, 2])]
    for seed in range(5):
        with ingest(shop=[503, 503]) as server:
            outcome, seen = play(server, stream(*lines), seed=seed)
        assert [json.loads(body)["id"] for _, body, _ in seen] == ["evt_1"] * 3 + ["evt_2", "evt_3"]
        assert outcome.sent == 3


def test_a_command_waits_for_the_state_it_names() -> None:
    line = {"do": "cancel", "order_id": "o-1", "when": {"order_id": "o-1", "received": 3}, "expect": 409}
    with ingest(cancel=[409]) as server:
        outcome, seen = play(server, stream(line))
    assert [path for path, _, _ in seen] == ["/v1/orders/o-1"] * 3 + ["/v1/orders/o-1/cancel"]
    assert outcome.faults == []


def test_the_same_again_is_the_same_content_in_other_bytes() -> None:
    with ingest() as server:
        _, seen = play(server, stream(event(), {"do": "again", "of": 1}, {"do": "again", "of": 1, "style": "pretty"}))
    bodies = Counter(body for _, body, _ in seen)
    assert sorted(bodies.values()) == [1, 2]
    assert len({json.dumps(json.loads(body), sort_keys=True) for body in bodies}) == 1


def test_a_held_play_sends_no_more_than_it_may() -> None:
    with ingest() as server:
        of = stream(*(event(f"evt_{i}") for i in range(100)))
        player = Player(of, server.server_address[1], "t", limit=30, timeout=60)
        player.start()
        assert player.reach(30) and not player.reach(31, 0.3)
        player.allow(100)
        assert player.wait().sent == 100


def test_styles_write_one_content() -> None:
    value = {"b": 1, "a": {"note": "₹"}}
    texts = [written(value, style) for style in ("", "pretty", "sorted")]
    assert len(set(texts)) == 3 and all(json.loads(t) == value for t in texts)

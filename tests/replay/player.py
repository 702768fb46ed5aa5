"""Plays a stream over HTTP: signs each request when it is sent, over many connections, in a seeded random order
that respects `after`. An answer that promises nothing (5xx, a cut or refused connection) is repeated with the
same id until something better comes, with growing pauses and one deadline for the whole play.
"""

import heapq
import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import accounts
from oracle import Line, Stream
from sign import standard_webhook_headers, stripe_header

CONNECTIONS = 16
PAUSE_S, PAUSE_CAP_S = 0.02, 1.0


@dataclass
class Outcome:
    sent: int = 0  # lines answered as they should be
    repeats: int = 0  # requests that had to be sent again
    answers: dict[int, str] = field(default_factory=dict)  # line → the result that a 200 named, or the status
    faults: list[str] = field(default_factory=list)


class Player:
    """start() sends the whole stream, or with `limit` only so many lines from the front of the order, and more
    once they are allowed: so the play can be held at any place."""

    def __init__(self, stream: Stream, port: int, token: str, seed: int = 1, connections: int = CONNECTIONS,
                 limit: int | None = None, timeout: float = 300) -> None:
        self.stream, self.port, self.token = stream, port, token
        self.base = int(time.time())
        self.outcome = Outcome()
        self._connections, self._seed = connections, seed
        self._order = legal_order(stream.lines, random.Random(seed))
        self._rank = {line["n"]: i for i, line in enumerate(self._order)}
        self._needs = {line["n"]: set(line.get("after", ())) for line in self._order}
        self._leads: dict[int, list[int]] = {}
        for n, needs in self._needs.items():
            for need in needs:
                self._leads.setdefault(need, []).append(n)
        self._ready = [(self._rank[n], n) for n, needs in self._needs.items() if not needs]
        heapq.heapify(self._ready)
        self._left = len(self._order)
        self._limit = self._left if limit is None else limit
        self._turn = threading.Condition()
        self._deadline = time.monotonic() + timeout
        self._threads: list[threading.Thread] = []

    # --- The outside

    def start(self) -> "Player":
        for i in range(self._connections):
            one = threading.Thread(target=self._work, args=(i,), name=f"player-{i}", daemon=True)
            self._threads.append(one)
            one.start()
        return self

    def wait(self) -> Outcome:
        for one in self._threads:
            one.join()
        if self._left:
            self.outcome.faults.append(f"{self._left} lines were not answered in time")
        return self.outcome

    def stop(self) -> None:
        with self._turn:
            self._deadline = 0.0
            self._turn.notify_all()
        for one in self._threads:
            one.join()

    def allow(self, lines: int) -> None:
        with self._turn:
            self._limit = max(self._limit, lines)
            self._turn.notify_all()

    @property
    def answered(self) -> int:
        return len(self._order) - self._left

    def reach(self, lines: int, timeout: float = float("inf")) -> bool:
        """Waits until that many lines are answered; false when the time is up, this one's or the play's."""
        left = min(timeout, self._deadline - time.monotonic())
        with self._turn:
            return self._turn.wait_for(lambda: self.answered >= lines, left)

    # --- Each connection

    def _work(self, number: int) -> None:
        connection = Connection(self.port, random.Random(f"{self._seed} {number}"), self)
        while (line := self._next()) is not None:
            try:
                fault = self._send(connection, line)
            except Exception as err:  # a thread must not die unseen
                fault = repr(err)
            self._answered(line, fault)
        connection.close()

    def _next(self) -> Line | None:
        with self._turn:
            while self._left and time.monotonic() < self._deadline:
                if self._ready and self._ready[0][0] < self._limit:
                    return self.stream.lines[heapq.heappop(self._ready)[1] - 1]
                self._turn.wait(0.5)
            return None

    def _answered(self, line: Line, fault: str | None) -> None:
        with self._turn:
            self._left -= 1
            if fault:
                self.outcome.faults.append(f"line {line['n']} ({line['case']}): {fault}")
            else:
                self.outcome.sent += 1
            for n in self._leads.get(line["n"], ()):
                self._needs[n].discard(line["n"])
                if not self._needs[n]:
                    heapq.heappush(self._ready, (self._rank[n], n))
            self._turn.notify_all()

    def _send(self, connection: "Connection", line: Line) -> str | None:
        """Sends one line until it is answered for good; what was wrong with the answer, or None."""
        of = self.stream.of(line)
        if "when" in line:
            connection.await_state(line["when"])
        status, body = connection.ask(lambda: self._request(of, line.get("style", of.get("style", ""))))
        expect = of.get("expect")
        if status != expect if expect else not 200 <= status < 300:
            return f"{status} instead of {expect or '2xx'}: {body[:200]!r}"
        result = json.loads(body).get("result") if of["do"] == "event" and status == 200 else None
        if "result" in of and result != of["result"]:
            return f"{body[:200]!r} instead of {of['result']}"
        self.outcome.answers[line["n"]] = result or str(status)
        return None

    # --- Requests, made anew for each attempt

    def _request(self, of: Line, style: str) -> tuple[str, str, bytes | None, dict[str, str]]:
        bearer = {"Authorization": f"Bearer {self.token}"}
        if of["do"] == "register":
            return "POST", "/v1/orders", written(self.placed(of["order"]), style), bearer
        if of["do"] == "cancel":
            return "POST", f"/v1/orders/{of['order_id']}/cancel", b"", bearer
        if of["do"] == "references":
            return ("POST", f"/v1/orders/{of['order_id']}/references", written({"references": of["references"]}, style),
                    bearer)
        node = accounts.id_of("lightning", of["alias"]) if of["provider"] == "lightning" else None
        said = {"node": node} | of.get("body", {}) if node else of.get("body")
        body = of["raw"].encode("latin-1") if "raw" in of else written(self.placed(said), style)
        alias, t, how = of["alias"], int(time.time()), of.get("sign", "")
        t += {"stale": -86400, "future": 3600}.get(how, 0)
        secret = "whsec_" + "bm90IG91cnM" * 4 if how == "wrong" else accounts.secret(alias)
        if of["provider"] == "stripe":
            path, headers = f"/webhooks/stripe/{alias}", {"Stripe-Signature": stripe_header(secret, body, t)}
        else:
            path = f"/observations/lightning/{alias}"
            headers = standard_webhook_headers(secret, of["id"], t, body)
        name = next(reversed(headers))
        if how == "missing":
            del headers[name]
        elif how == "malformed":
            headers[name] += ",t=1"
        return "POST", path, body, headers

    def placed(self, value: Any) -> Any:
        """The value with its times put in place."""
        if isinstance(value, list):
            return [self.placed(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$at" in value:
            return self.base + value["$at"]
        if "$text" in value:
            return str(self.base + value["$text"])
        if "$iso" in value:
            return datetime.fromtimestamp(self.base + value["$iso"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {k: self.placed(v) for k, v in value.items()}


class Connection:
    """One kept-alive connection; repeats what was not answered."""

    def __init__(self, port: int, rng: random.Random, player: Player) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._rng, self._player = rng, player

    def close(self) -> None:
        self._http.close()

    def ask(self, request: Any) -> tuple[int, bytes]:
        for attempt in range(1_000_000):
            try:
                method, path, body, headers = request()
                self._http.request(method, path, body, headers)
                got = self._http.getresponse()
                status, text = got.status, got.read()
                if status < 500 and status != 429:
                    return status, text
            except (OSError, http.client.HTTPException) as err:
                self._http.close()
                text = repr(err).encode()
            self._player.outcome.repeats += 1
            self._pause(attempt, text)
        raise AssertionError("unreachable")

    def await_state(self, when: dict[str, Any]) -> None:
        fields = {k: v for k, v in when.items() if k != "order_id"}
        bearer = {"Authorization": f"Bearer {self._player.token}"}
        for attempt in range(1_000_000):
            status, body = self.ask(lambda: ("GET", f"/v1/orders/{when['order_id']}", None, bearer))
            view = json.loads(body) if status == 200 else {}
            if all(view.get(k) == v for k, v in fields.items()):
                return
            self._pause(attempt, json.dumps({k: view.get(k) for k in fields}).encode())

    def _pause(self, attempt: int, why: bytes) -> None:
        left = self._player._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"out of time; at last: {why[:200]!r}")
        pause = min(PAUSE_S * 2 ** min(attempt, 10), PAUSE_CAP_S) * self._rng.uniform(0.5, 1)
        time.sleep(min(pause, left))


def written(value: Any, style: str) -> bytes:
    """The same content in other bytes."""
    if style == "pretty":
        return json.dumps(value, indent=2).encode()
    if style == "sorted":
        return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def legal_order(lines: tuple[Line, ...], rng: random.Random) -> list[Line]:
    """All lines in random order, each behind those it names in `after`. Registrations tend to come early."""
    key = {line["n"]: rng.random() * (0.5 if line["do"] == "register" else 1) for line in lines}
    needs = {line["n"]: set(line.get("after", ())) for line in lines}
    leads: dict[int, list[int]] = {}
    for n, before in needs.items():
        for one in before:
            leads.setdefault(one, []).append(n)
    ready = [(key[n], n) for n, before in needs.items() if not before]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(lines[n - 1])
        for one in leads.get(n, ()):
            needs[one].discard(n)
            if not needs[one]:
                heapq.heappush(ready, (key[one], one))
    assert len(order) == len(lines), "`after` goes round in a circle"
    return order

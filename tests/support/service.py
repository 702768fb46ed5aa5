"""One running payonce program, seen from outside: signals, its log lines, its admin listener."""

import http.client
import json
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import process
from wait import until


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def call(method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None,
         timeout: float = 60) -> Answer:
    """One HTTP request on a connection of its own; every status is an answer, only a broken connection
    raises (OSError or http.client.HTTPException)."""
    to = urlsplit(url)
    conn = http.client.HTTPConnection(to.hostname or "", to.port, timeout=timeout)
    try:
        try:
            conn.request(method, to.path + (f"?{to.query}" if to.query else ""), body, dict(headers or {}))
        except (BrokenPipeError, ConnectionResetError):
            pass  # perhaps answered before all of the body was sent: the answer can still be read
        got = conn.getresponse()
        return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
    finally:
        conn.close()


@dataclass
class Service:
    """`payonce-NAME run`. Listeners bind port 0; the ports are read from the log, so they change with
    every start."""

    name: str
    program: Path
    env: dict[str, str]
    log: Path
    label: str = ""
    _proc: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _begin: int = 0  # where our lines begin in the log file, which others wrote before us
    _from: int = 0  # where this start's lines begin

    def __post_init__(self) -> None:
        self.label = self.label or self.name
        self._begin = self._from = self._log_size()

    def start(self) -> "Service":
        assert not self.alive, f"{self.label} runs already"
        self._from = self._log_size()
        self._proc = process.start([self.program, "run"], self.log, self.env)
        return self

    def wait_ready(self, timeout: float = 90) -> "Service":
        def ready() -> bool:
            self._must_live()
            return self._ports().get("admin") is not None and self.admin_get("/readyz").status == 200

        until(ready, timeout, f"{self.label} ready")
        return self

    def term(self, timeout: float = 30) -> int | None:
        """SIGTERM and the exit code: 0 after a clean drain, -9 if it had to be killed after `timeout`."""
        return process.end(self._proc, signal.SIGTERM, timeout)

    def kill9(self) -> None:
        process.end(self._proc, signal.SIGKILL)

    def stop_signal(self) -> None:
        """SIGSTOP: alive for the kernel, dead for everybody else."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, sig: signal.Signals) -> None:
        """Never to a pid that was reaped, and may be another's by now."""
        assert self._proc is not None, f"{self.label} was not started"
        self._proc.send_signal(sig)

    def restart(self, timeout: float = 30) -> "Service":
        self.term(timeout)
        return self.start().wait_ready(timeout)

    @property
    def pid(self) -> int:
        assert self._proc is not None, f"{self.label} was not started"
        return self._proc.pid

    @property
    def alive(self) -> bool:
        return self._proc is not None and self._proc.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or before it was started; negative: the signal that ended it."""
        return None if self._proc is None else self._proc.poll()

    def port(self, listener: str = "http", timeout: float = 90) -> int:
        def found() -> int | None:
            port = self._ports().get(listener)
            if port is None:
                self._must_live()
            return port

        return until(found, timeout, f"{self.label} listens ({listener})") or 0

    def url(self, path: str = "", listener: str = "http") -> str:
        return f"http://127.0.0.1:{self.port(listener)}{path}"

    def admin_get(self, path: str) -> Answer:
        try:
            return call("GET", self.url(path, "admin"))
        except (OSError, http.client.HTTPException) as err:
            return Answer(0, {}, str(err).encode())

    def page(self, path: str) -> Answer:
        """A page of the admin listener that must be there: without an answer nothing is known, least of all 0."""
        answer = self.admin_get(path)
        assert answer.status == 200, f"{self.label}{path}: {answer.status} {answer.body!r}"
        return answer

    def status(self) -> dict[str, Any]:
        """What /statusz says of this service's own affairs."""
        return self.page("/statusz").json()["status"]

    def metrics(self) -> dict[str, float]:
        """Every sample by its text, labels included: {'x_total{kind="a"}': 3.0, …}."""
        text = self.page("/metrics").body.decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
        return {sample: float(value) for sample, _, value in lines}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of `name` that carry at least these labels; 0 if there are none."""
        total = 0.0
        for sample, value in self.metrics().items():
            base, _, rest = sample.partition("{")
            has = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest))
            if base == name and labels.items() <= has.items():
                total += value
        return total

    def log_lines(self, msg: str | None = None, all_starts: bool = False) -> list[dict[str, Any]]:
        """The JSON lines of this start (or of all), optionally only those with this msg."""
        lines = []
        for line in self._log(self._begin if all_starts else self._from).splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue  # a sanitizer's report, or a line cut by SIGKILL
            if isinstance(one, dict) and (msg is None or one.get("msg") == msg):
                lines.append(one)
        return lines

    def tail(self, lines: int = 40) -> str:
        """The last lines of all starts of this object, for a report."""
        return "\n".join(self._log(self._begin).decode(errors="replace").splitlines()[-lines:])

    def _log(self, start: int) -> bytes:
        if not self.log.exists():
            return b""
        with self.log.open("rb") as f:
            f.seek(start)
            return f.read()

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _ports(self) -> dict[str, int]:
        return {one["listener"]: one["port"] for one in self.log_lines("listening") if "port" in one}

    def _must_live(self) -> None:
        if not self.alive:
            raise RuntimeError(f"{self.label} ended with {self.exit_code}\n{self.tail()}")

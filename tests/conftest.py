"""What every test of running programs needs: one stack for the whole run (of each of its workers, where there are
several), and services that are started for one test and ended after it. Tests share the stack, so each makes its ids
from its own `tag`."""

import os
import signal
import socket
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType

import pytest

import process
from effects import Effects
from service import Service
from shop import Shop
from smtp_sink import SmtpSink
from stack import ROOT, Stack
from topic import Topic


class Services:
    """The services of one test, by label: services.start("ingest", "relay"); services["relay"].kill9(). They end
    with the `with` block."""

    def __init__(self, stack: Stack, sink: SmtpSink) -> None:
        self._stack, self._sink = stack, sink
        self._all: dict[str, Service] = {}

    def start(self, *names: str, env: dict[str, str] | None = None, label: str = "") -> Service:
        """Starts them side by side, waits until all are ready, returns the last. A second instance of one
        service takes a label of its own."""
        started = [self.make(name, env, label).start() for name in names]
        for one in started:
            one.wait_ready()
        return started[-1]

    def make(self, name: str, env: dict[str, str] | None = None, label: str = "") -> Service:
        """A service that is not yet started but is ended with the test."""
        assert (label or name) not in self._all, f"{label or name} exists already: give it a label"
        smtp = {"PAYONCE_SMTP_URL": self._sink.url} if name == "receipts" else {}
        one = self._stack.service(name, smtp | (env or {}), label)
        return self._all.setdefault(one.label, one)

    def __getitem__(self, label: str) -> Service:
        return self._all[label]

    def __iter__(self) -> Iterator[Service]:
        return iter(self._all.values())

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        faults = self.end()
        if faults and kind is None:
            pytest.fail("\n".join(faults), pytrace=False)

    def end(self) -> list[str]:
        """Ends all and returns what went wrong: a program may only end when told to, and with 0 (the
        sanitizers report by the exit code)."""
        faults = []
        for one in reversed(self._all.values()):
            if one.alive:
                one.cont()
                code = one.term()
                if code != 0:
                    faults.append(f"{one.label}: exit {code} after SIGTERM\n{one.tail()}")
            elif one.exit_code not in (None, 0, -signal.SIGKILL):
                faults.append(f"{one.label}: ended with {one.exit_code}\n{one.tail()}")
        return faults


@pytest.fixture(scope="session", autouse=True)
def nameless() -> Iterator[None]:
    """FAULTS 59: no test asks the resolver for a host, since a bare machine's may be silent for a long time."""

    def refuse(*asked: object) -> None:
        raise AssertionError(f"the resolver was asked for a name: {asked}")

    with pytest.MonkeyPatch.context() as patch:
        for question in ("getfqdn", "gethostbyaddr", "gethostbyname", "gethostbyname_ex"):
            patch.setattr(socket, question, refuse)
        yield


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where payonce-NAME are: build/dev/bin unless PAYONCE_BIN says otherwise."""
    return Path(os.environ.get("PAYONCE_BIN", ROOT / "build/dev/bin"))


@pytest.fixture(scope="session")
def stack(programs: Path) -> Iterator[Stack]:
    with Stack(programs) as it:
        yield it


@pytest.fixture
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    with Services(stack, sink) as it:
        yield it


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack)


@pytest.fixture(scope="module")
def effects(stack: Stack) -> Effects:
    return Effects(stack)


@pytest.fixture
def tag() -> str:
    """A prefix for the ids of this test alone."""
    return "t" + uuid.uuid4().hex[:10]


@pytest.fixture
def shop(services: Services, stack: Stack, tag: str) -> Shop:
    """A shop at an ingest of this test's own."""
    services.start("ingest")
    return Shop(services["ingest"], stack.api_token, tag)


@pytest.fixture
def events(stack: Stack) -> Callable[[str], list[tuple[str, int]]]:
    """The payment events in ingest's outbox for an order: (type, sequence), in order of their ids."""

    def of(order_id: str) -> list[tuple[str, int]]:
        rows = stack.postgres.query(
            "SELECT ce_type, sequence FROM ingest.outbox WHERE topic = 'payments.v1' AND key = %s ORDER BY id",
            order_id)
        return [(str(t).removeprefix("payonce.payment."), int(s)) for t, s in rows]

    return of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take the files in this order (--no-loadscope-reorder), so no long one is begun last."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_keyboard_interrupt() -> None:
    """SIGTERM and ^C end the workers too, at once, since xdist waits only 10 s until they have tidied up."""
    for pid in process.children(os.getpid()):
        os.kill(pid, signal.SIGTERM)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = getattr(item, "funcargs", {}).get("services")
    if report.failed and used is not None:
        report.sections += [(f"log of {one.label}", one.tail()) for one in used]
    return report

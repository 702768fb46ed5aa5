"""The demo as people run it: what it prints, what it leaves, how it ends, and that it needs no name of its host."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import played
from generate import generate
from oracle import Stream
from stack import ROOT
from wait import until


@pytest.fixture
def argv(programs: Path, tmp_path: Path) -> list[str | Path]:
    """The demo with one order for each case."""
    stream = tmp_path / "small.ndjson"
    stream.write_text("".join(f"{line}\n" for line in generate(seed=5, prefix="small", share=0)), encoding="utf-8")
    return ["env", f"PAYONCE_BIN={programs}", f"PYTHONPATH={':'.join(sys.path)}", sys.executable,
            ROOT / "tests/replay/demo.py", "--stream", stream, "--json", tmp_path / "demo.json",
            "--mails", tmp_path / "mails"]


@contextmanager
def running(argv: list[str | Path], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    with out.open("wb") as to:
        proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.STDOUT)
    try:
        yield proc
    finally:
        proc.kill()
        proc.wait()


def values(text: str) -> Iterator[Any]:
    """JSON values that stand one after the other."""
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:]
        yield value


def test_it_says_what_it_played_takes_events_of_others_and_ends_well(argv: list[str | Path], tmp_path: Path) -> None:
    """FAULTS 59: ended by ^C after a good verdict it exits 0; the lines it prints work as they stand."""
    out = tmp_path / "out"
    with running(argv, out) as proc:
        def up() -> bool:
            assert proc.poll() is None, out.read_text()
            return "Ctrl-C ends it all" in out.read_text()

        until(up, 300, "the demo has played")
        text = out.read_text()
        lines = text.partition("if you like:\n")[2].partition("\n\n")[0]
        shell = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, timeout=120)
        mails = until(lambda: list((tmp_path / "mails").glob("*-mine-1@mail.example.txt")), what="the mail of my own order")
        mail = until(mails[0].read_text, what="its text")
        proc.send_signal(signal.SIGTERM)  # as ./dev does on ^C, which a child in the background ignores
        assert proc.wait(120) == 0, out.read_text()
    assert re.search(r"^ +6  events forged, stale or not signed  +5 answered 401, 1 answered 400$", text, re.M), text
    assert [a.get("state") or a.get("result") for a in values(shell.stdout)] == ["open", "recorded", "paid"], shell
    assert "Amount: 49.00 EUR" in mail and "Order: mine-1" in mail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself another resolver")
def test_it_asks_no_resolver_for_a_name(argv: list[str | Path], tmp_path: Path) -> None:
    """FAULTS 59: its host stands in no /etc/hosts, and the resolver never answers: whoever asks it waits for long."""
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        address = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
        resolver.bind((address, 53))
        resolver.setblocking(False)
        (tmp_path / "resolv.conf").write_text(f"nameserver {address}\n")
        apart = ("hostname nowhere; mount --bind $0/hosts /etc/hosts; mount --bind $0/resolv.conf /etc/resolv.conf;"
                 ' exec "$@"')
        subprocess.run(["unshare", "--mount", "--uts", "--", "sh", "-euc", apart, tmp_path, *argv, "--once"], check=True,
                       timeout=600)
        with pytest.raises(BlockingIOError):
            raise AssertionError(f"asked: {resolver.recv(512)!r}")


@pytest.mark.parametrize(("argument", "value"), [
    ("--stream", "/nowhere/x"), ("--stream", "/"), ("--stream", "/etc/passwd"), ("--stream", sys.executable),
    ("--stream", "/dev/null"), ("--kills", "0"), ("--kills", "many"), ("--seed", "x"), ("--json", "/"),
    ("--json", "/etc/passwd/x"), ("--mails", "/etc/passwd"), ("--no-such", "x"), ("x", "x")])
def test_an_argument_that_cannot_be_is_one_line_before_anything_starts(argument: str, value: str) -> None:
    wrong_argument(ROOT / "tests/replay/demo.py", argument, value)


@pytest.mark.parametrize(("argument", "value"), [("--rounds", "0"), ("--rounds", "x"), ("--json", "/"), ("relay", "x")])
def test_so_is_one_of_the_bench(argument: str, value: str) -> None:
    wrong_argument(ROOT / "tests/bench/bench.py", argument, value)


def wrong_argument(program: Path, *args: str) -> None:
    got = subprocess.run([sys.executable, program, *args], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert got.returncode == 2 and got.stdout == "", got
    assert got.stderr.startswith("./dev ") and got.stderr.count("\n") == 1, got.stderr


def test_a_stream_that_was_cut_or_spoilt_is_none(tmp_path: Path) -> None:
    lines = list(generate(seed=5, prefix="small", share=0))
    file = tmp_path / "small.ndjson"
    header = json.loads(lines[0])
    for wrong in (lines[:-1], lines[1:], [lines[0].replace('"points"', '"stops"'), *lines[1:]],
                  [json.dumps(header | {"points": 7}), *lines[1:]], [*lines[:5], "7", *lines[6:]]):
        file.write_text("\n".join(wrong), encoding="utf-8")
        with pytest.raises(ValueError, match="no stream of payments: ."):
            Stream.load(file)


def test_what_was_played_is_counted_from_the_stream() -> None:
    stream = Stream.read(generate(seed=5, prefix="small", share=0))
    answers = {line["n"]: "recorded" for line in stream.lines}
    rows = {row.what: row for row in played.requests(stream, answers, {"facts": 2}) + played.orders(stream, {}, 7)}
    forged = [line for line in stream.lines if "sign" in stream.of(line)]
    assert rows["events forged, stale or not signed"] == played.Row(len(forged), "events forged, stale or not signed",
                                                                    f"{len(forged)} recorded")
    assert rows["… with money that came after their time"].n == 1

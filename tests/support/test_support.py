"""The test support itself, where a fault would make other tests lie."""

import itertools
import os
import random
import shutil
import signal
import smtplib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import lint
import process
import sign
import tree
from link import PostgresLink
from process import free_port, release_port
from service import Service, call
from smtp_sink import SmtpSink
from stack import ROOT, Postgres, Stack


def send(sink: SmtpSink, message_id: str, to: str = "b@shop.example", timeout: float = 60) -> None:
    with smtplib.SMTP("127.0.0.1", sink.port, "sender.example", timeout) as client:
        text = f"Message-ID: {message_id}\r\nSubject: x\r\n\r\nhello\r\n"
        client.sendmail("a@shop.example", [to], text)


def test_signatures_match_vectors_computed_elsewhere() -> None:
    body = b'{"id":"evt_A1","object":"event","type":"payment_intent.succeeded"}'
    assert sign.stripe_header("whsec_demo1", body, 1760000000) == (
        "t=1760000000,v1=82e6fa5af4a7d221679432faad6cf9824edb8dd3f69e1ee9638369a0f26568bc")
    secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    head = sign.standard_webhook_headers(secret, "msg_demo1", 1760000000, b'{"type":"order.paid"}')
    assert head["webhook-signature"] == "v1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI="


def test_the_files_of_the_tree_are_known_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 59: a tarball has no .git, and a bare machine no git."""
    monkeypatch.setenv("PATH", "")
    for name in ("a.c", "src/build/kept.c", "build/dropped.o", "src/__pycache__/dropped.pyc", ".git/dropped", "sub/.git"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("/build/\n__pycache__/\n")
    assert [str(f) for f in tree.files(tmp_path)] == [".gitignore", "a.c", "src/build/kept.c"]
    assert Path("tests/support/tree.py") in tree.files()


def test_a_provider_is_named_in_its_own_room_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"stripe", "lightning"} <= set(lint.provider_names()) and lint.named_providers() == []
    room, other = tmp_path / "services/ingest/providers/x.c", tmp_path / "common/log/log.c"
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    for file in (room, other):
        file.parent.mkdir(parents=True)
        file.write_text("const char *one = \"Stripe's\";\nint striped;\nint stripe_words;\n")
    monkeypatch.setattr(lint, "provider_names", lambda: ["stripe"])
    monkeypatch.setattr(lint, "PROVIDERS", room.parent)
    assert lint.named_providers() == [f"common/log/log.c:{n}: names a provider" for n in (1, 3)]


def test_the_sink_asks_nobody_for_the_name_of_a_host(sink: SmtpSink) -> None:
    """FAULTS 59: where neither /etc/hosts nor a resolver knows the machine, each such question takes many seconds.
    A fixture of all tests refuses it."""
    with pytest.raises(AssertionError, match="asked for a name"):
        socket.getfqdn()
    send(sink, "<a>")
    assert sink.copies() == {"<a>": 1}


def test_sink_counts_what_it_took_also_when_the_sender_was_not_told(sink: SmtpSink) -> None:
    send(sink, "<a>")
    sink.drop(times=1)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(sink, "<a>")
    send(sink, "<b>", "c@shop.example")
    assert sink.copies() == {"<a>": 2, "<b>": 1}
    assert [m.message_id for m in sink.to("c@shop.example")] == ["<b>"]


def test_sink_keeps_nothing_of_what_it_refuses(sink: SmtpSink) -> None:
    sink.refuse("550 5.7.1 no", times=1)
    with pytest.raises(smtplib.SMTPDataError, match="5.7.1"):
        send(sink, "<a>")
    sink.refuse_recipient(times=1)
    with pytest.raises(smtplib.SMTPRecipientsRefused):
        send(sink, "<a>")
    sink.hang(times=1)
    with pytest.raises((TimeoutError, smtplib.SMTPServerDisconnected)):
        send(sink, "<a>", timeout=1)
    assert sink.mails == []


def test_metric_sums_samples_that_carry_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Service("x", Path("true"), {}, tmp_path / "x.log")
    samples = {'n_total{a="1",b="x"}': 3.0, 'n_total{a="2",b="x"}': 4.0, "n_total_other": 9.0}
    monkeypatch.setattr(Service, "metrics", lambda self: samples)
    assert (one.metric("n_total"), one.metric("n_total", a="2"), one.metric("none")) == (7, 4, 0)


def test_free_ports_lie_outside_the_ephemeral_range() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(20)]
    assert not any(low <= port <= high for port in ports)
    for port in ports:
        release_port(port)


def test_a_port_is_given_to_one_alone_also_while_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    dice = itertools.chain([first, first], itertools.count(first + 1))
    monkeypatch.setattr(random.SystemRandom, "randint", lambda *_: next(dice))
    second = free_port()
    other = subprocess.run([sys.executable, "-c", f"""
import itertools, random, sys
sys.path.insert(0, {str(Path(process.__file__).parent)!r})
import process
dice = itertools.chain([{first}, {second}], itertools.count({second} + 1))
random.SystemRandom.randint = lambda *_: next(dice)
print(process.free_port())"""], capture_output=True, text=True, check=True).stdout
    assert len({first, second, int(other)}) == 3
    release_port(first)
    release_port(second)


def test_a_metric_is_not_0_because_nobody_answers(stack: Stack, tag: str) -> None:
    one = stack.service("relay", label=tag).start().wait_ready()
    try:
        one.kill9()
        with pytest.raises(AssertionError):
            one.metric("payonce_relay_refused_rows")
    finally:
        one.kill9()


def test_an_answer_before_the_body_is_sent_is_an_answer() -> None:
    """The server answers after the head alone and closes with bytes unread: the client is reset while it sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve() -> None:
            for _ in range(20):
                client, _ = server.accept()
                client.recv(1000)
                client.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
                client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for _ in range(20):
            got = call("POST", f"http://127.0.0.1:{server.getsockname()[1]}/", b"x" * (8 << 20))
            assert (got.status, got.body) == (413, b"no")
        thread.join()


def test_a_link_goes_on_when_nobody_listened_for_a_while() -> None:
    port = free_port()
    with PostgresLink(port) as link:
        with socket.create_connection(("127.0.0.1", link.port), timeout=60) as early:
            assert early.recv(1) == b""
        with socket.create_server(("127.0.0.1", port)) as server:
            with socket.create_connection(("127.0.0.1", link.port), timeout=60) as late:
                behind, _ = server.accept()
                behind.sendall(b"x")
                assert late.recv(1) == b"x"
                behind.close()
    release_port(port)


def test_a_link_that_is_cut_ends_a_connection_that_is_just_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect, asked, may = socket.create_connection, threading.Event(), threading.Event()

        def slowly(*args: object, **options: object) -> socket.socket:
            asked.set()
            may.wait(60)
            return connect(*args, **options)

        monkeypatch.setattr(socket, "create_connection", slowly)
        with PostgresLink(server.getsockname()[1]) as link, connect(("127.0.0.1", link.port), timeout=60) as client:
            assert asked.wait(60)
            link.cut()
            may.set()
            assert client.recv(1) == b""


def test_a_frozen_cluster_thaws_also_when_one_of_its_processes_died_meanwhile(
        stack: Stack, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Postgres(stack.scratch, name=f"pg-{tag}").start()
    try:
        with cluster.connect(dbname="postgres") as session:
            cluster.freeze()
            os.kill(session.info.backend_pid, signal.SIGKILL)
            kill = os.kill
            # Slow signals: who goes on too early has time to reap the dead.
            monkeypatch.setattr(os, "kill", lambda pid, sig: (kill(pid, sig), time.sleep(0.05)))
            cluster.thaw()
            monkeypatch.undo()
        cluster.wait_ready()
        cluster.thaw()  # nothing to do, no harm
        cluster.wait_ready()
    finally:
        cluster.kill()


@pytest.mark.parametrize("preset", ["dev", "release"])
def test_another_presets_stack_is_not_taken_for_the_one_asked_for(tmp_path: Path, preset: str) -> None:
    """What is sourced would otherwise name a database that other programs have migrated."""
    shutil.copy(ROOT / "dev", tmp_path)
    (tmp_path / "build/stack").mkdir(parents=True)
    stands_for = [sys.executable, "-c", "import signal; signal.pause()", "stack.py", "serve", "build/stack",
                  f"build/{preset}/bin"]
    with subprocess.Popen(stands_for, cwd=tmp_path) as up:
        (tmp_path / "build/stack/pid").write_text(f"{up.pid}\n")
        got = {asked: subprocess.run([tmp_path / "dev", "stack", "up", asked], capture_output=True, text=True, timeout=60)
               for asked in ("dev", "release")}
        up.kill()
    same = got.pop(preset)
    assert (same.returncode, same.stdout) == (0, f"{tmp_path}/build/stack/env\n"), same
    [(asked, other)] = got.items()
    assert (other.returncode, other.stdout) == (1, ""), other
    assert other.stderr == (f"dev: a stack of preset {preset} is up, none of preset {asked}; "
                            "./dev stack down ends it\n")

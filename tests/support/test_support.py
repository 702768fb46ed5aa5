"""The test support itself, where a fault would make other tests lie."""

import os
import signal
import smtplib
import time
from pathlib import Path

import pytest

import sign
from process import free_port
from service import Service
from smtp_sink import SmtpSink
from stack import Postgres, Stack


def send(sink: SmtpSink, message_id: str, to: str = "b@shop.example") -> None:
    with smtplib.SMTP("127.0.0.1", sink.port, timeout=1) as client:
        text = f"Message-ID: {message_id}\r\nSubject: x\r\n\r\nhello\r\n"
        client.sendmail("a@shop.example", [to], text)


def test_signatures_match_vectors_computed_elsewhere() -> None:
    body = b'{"id":"evt_A1","object":"event","type":"payment_intent.succeeded"}'
    assert sign.stripe_header("whsec_demo1", body, 1760000000) == (
        "t=1760000000,v1=82e6fa5af4a7d221679432faad6cf9824edb8dd3f69e1ee9638369a0f26568bc")
    secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    head = sign.standard_webhook_headers(secret, "msg_demo1", 1760000000, b'{"type":"order.paid"}')
    assert head["webhook-signature"] == "v1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI="


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
        send(sink, "<a>")
    assert sink.mails == []


def test_metric_sums_samples_that_carry_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Service("x", Path("true"), {}, tmp_path / "x.log")
    samples = {'n_total{a="1",b="x"}': 3.0, 'n_total{a="2",b="x"}': 4.0, "n_total_other": 9.0}
    monkeypatch.setattr(Service, "metrics", lambda self: samples)
    assert (one.metric("n_total"), one.metric("n_total", a="2"), one.metric("none")) == (7, 4, 0)


def test_free_ports_lie_outside_the_ephemeral_range() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= free_port() <= high for _ in range(20))


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
        cluster.connect(dbname="postgres").close()
    finally:
        cluster.kill()

"""Receipts: which mail goes where, and what becomes of it when the mail server or the address is not well."""

import email
import socket
import time
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from typing import Any

import pytest

from conftest import Services
from effects import Effects
from smtp_sink import SmtpSink
from stack import Stack
from topic import CONTACTS, Order, Topic
from wait import until

ENV = {"PAYONCE_MAIL_ADDRESS_WAIT": "1s", "PAYONCE_MAIL_ATTEMPTS": "3",
       "PAYONCE_SMTP_TIMEOUT": "5s"}  # an attempt that fails for slowness would be counted


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    with Services(stack, sink) as it:
        it.start("receipts", env=ENV)
        yield it


@pytest.fixture
def order(services: Services, topic: Topic, tag: str) -> Order:
    return topic.order(tag, receipt=True)


def address(order: Order) -> str:
    return f"{order.id}@example.org"


def wait_mail(effects: Effects, order: Order, *expect: Any) -> None:
    """Its state, attempts and last error."""
    def there() -> bool:
        assert effects.mail(order.id) == expect
        return True
    until(there)


def test_p26_the_mail_says_what_was_paid_and_proves_no_access(order, effects, sink) -> None:
    order.contact(address(order))
    order.says("qualified", due=1250, received=1500, item="Tea-101")
    wait_mail(effects, order, "sent", 1, None)
    [mail] = sink.to(address(order))
    text = email.message_from_bytes(mail.content, _class=EmailMessage, policy=policy.default)
    assert "12.50 USD" in text.get_content() and "Tea-101" in text.get_content()
    assert (text["To"], text["From"]) == (address(order), "receipts@shop.example")
    assert mail.message_id.endswith("@shop.example>")
    assert "c-" + order.id not in mail.content.decode(), "the customer's id is nobody's business"


def test_p26_without_an_address_it_waits_and_then_a_person_looks(order, effects, sink) -> None:
    order.says("qualified", received=1000)
    wait_mail(effects, order, "review", 1, "no_address")
    order.contact(address(order))
    wait_mail(effects, order, "sent", 1, None)
    assert len(sink.to(address(order))) == 1


def test_p26_an_address_that_comes_in_time_is_used_at_once(order, services, effects, sink) -> None:
    order.says("qualified", received=1000)
    until(lambda: (effects.mail(order.id) or ("",))[0] in ("waiting_address", "review"), what="asked for")
    order.contact(address(order))
    wait_mail(effects, order, "sent", 1, None)


def test_p28_an_erased_address_is_not_brought_back_by_a_late_copy(order, stack, effects, sink) -> None:
    order.contact(address(order), 2)
    order.contact(None, 3)
    order.contact(address(order), 2)
    order.topic.flush()
    effects.wait_drained("receipts", topics=(CONTACTS,))  # it reads two topics, in no order between them
    order.says("qualified", received=1000)
    wait_mail(effects, order, "review", 1, "no_address")
    assert stack.postgres.query("SELECT sequence, email FROM receipts.contact WHERE order_id = %s", order.id) == [(3, None)]
    assert sink.to(address(order)) == [] and effects.mail(order.id) == ("review", 1, "no_address")


def test_p26_an_address_refused_for_good_goes_to_a_person(order, effects, sink) -> None:
    sink.refuse_recipient(times=1)
    order.contact(address(order))
    order.says("qualified", received=1000)
    wait_mail(effects, order, "review", 1, "refused 550")
    assert sink.to(address(order)) == []


@pytest.mark.parametrize("first, why", [("no address at all", "bad_address"), ("nobody@example.org", "refused 550")])
def test_p26_another_address_ends_the_review(order, effects, sink, first: str, why: str) -> None:
    if why == "refused 550":
        sink.refuse_recipient(times=1)
    order.contact(first)
    order.says("qualified", received=1000)
    wait_mail(effects, order, "review", 1, why)
    order.contact(address(order))
    wait_mail(effects, order, "sent", 1, None)
    assert len(sink.to(address(order))) == 1 and sink.to(first) == []


def test_p26_an_address_that_comes_while_a_mail_goes_to_review_is_used(order, stack, effects, sink) -> None:
    """Erased, and given anew in the moment in which its worker has found none."""
    query = stack.postgres.query
    sink.refuse()
    order.contact(address(order))
    order.says("qualified", received=1000)
    until(lambda: query("UPDATE receipts.mail SET due_at = 'infinity' WHERE order_id = %s AND state = 'due'"
                        " AND attempts > 0 AND lease_token IS NULL RETURNING true", order.id), what="put off")
    sink.accept()
    order.contact(None)
    until(lambda: query("SELECT 1 FROM receipts.contact WHERE order_id = %s AND email IS NULL", order.id), what="erased")
    query("CREATE FUNCTION receipts.hold() RETURNS trigger LANGUAGE plpgsql AS"
          " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$")
    query("CREATE TRIGGER hold BEFORE UPDATE ON receipts.mail FOR EACH ROW WHEN (NEW.last_error = 'no_address')"
          " EXECUTE FUNCTION receipts.hold()")
    try:
        with stack.postgres.connect(autocommit=False) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(7)")
            query("UPDATE receipts.mail SET due_at = now() WHERE order_id = %s", order.id)
            until(lambda: query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
                  what="the worker has found no address")
            order.contact(address(order))
            until(lambda: query("SELECT 1 FROM receipts.contact WHERE order_id = %s AND email IS NOT NULL", order.id)
                  or query("SELECT 1 FROM pg_locks WHERE locktype <> 'advisory' AND NOT granted"), what="it comes")
            conn.rollback()
        wait_mail(effects, order, "sent", 1, None)
    finally:
        query("DROP FUNCTION receipts.hold CASCADE")


def test_p26_a_mail_that_was_put_off_waits_and_is_counted(order, stack, services, effects, sink) -> None:
    """FAULTS 63: with the mail server away every mail is put off, and none was due any more."""
    sink.refuse()
    order.contact(address(order))
    order.says("qualified", received=1000)
    until(lambda: stack.postgres.query("UPDATE receipts.mail SET due_at = now() + interval '1 h' WHERE order_id = %s"
                                       " AND attempts > 0 AND lease_token IS NULL RETURNING true", order.id), what="put off")
    sink.accept()
    receipts = services["receipts"]
    until(lambda: receipts.metric("payonce_work_due", work="mail") == 1, what="it waits")
    assert receipts.metric("payonce_work_oldest_due_seconds", work="mail") > 0
    stack.postgres.query("UPDATE receipts.mail SET due_at = now() WHERE order_id = %s", order.id)
    until(lambda: effects.mail(order.id)[0] == "sent" and receipts.metric("payonce_work_due", work="mail") == 0,
          what="it waits no more")


def test_p26_refused_for_now_is_tried_again(order, effects, sink) -> None:
    sink.refuse(times=2)
    order.contact(address(order))
    order.says("qualified", received=1000)
    wait_mail(effects, order, "sent", 3, None)
    assert len(sink.to(address(order))) == 1


def test_p26_after_the_last_attempt_a_person_looks(order, effects, sink) -> None:
    sink.refuse()
    try:
        order.contact(address(order))
        order.says("qualified", received=1000)
        wait_mail(effects, order, "review", 3, "gave_up 451")
    finally:
        sink.accept()


def test_p26_a_delivery_in_doubt_is_repeated_as_a_copy_of_the_same_mail(order, effects, sink) -> None:
    """FAULTS 24: never another Message-ID."""
    sink.drop(times=1)
    order.contact(address(order))
    order.says("qualified", received=1000)
    wait_mail(effects, order, "sent", 2, None)
    first, second = sink.to(address(order))
    assert first == second


def test_p26_a_silent_server_is_given_up_and_asked_again(order, effects, sink) -> None:
    sink.hang(times=1)
    order.contact(address(order))
    order.says("qualified", received=1000)
    wait_mail(effects, order, "sent", 2, None)
    assert len(sink.to(address(order))) == 1


def test_p26_a_silent_server_does_not_decide_how_long_stopping_takes(services, topic, stack, effects, sink,
                                                                           tag) -> None:
    """It takes the connection and says nothing; the time that one mail may take is 5 minutes."""
    assert services["receipts"].term() == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {"PAYONCE_SMTP_URL": f"smtp://127.0.0.1:{silent.getsockname()[1]}", "PAYONCE_SMTP_TIMEOUT": "5m"}
        service = services.start("receipts", env=env, label="receipts without a greeting")
        order = topic.order(tag, receipt=True)
        order.contact(address(order))
        order.says("qualified", received=1000)
        talk, _ = silent.accept()
        row = ("SELECT state, doubts, lease_token IS NULL, last_error FROM receipts.mail WHERE order_id = %s", tag)
        until(lambda: stack.postgres.query(*row)[0][:3] == ("due", 1, False), what="the mail is on its way")
        began = time.monotonic()
        assert service.term() == 0
        assert time.monotonic() - began < 15
        [(*mail, why)] = stack.postgres.query(*row)
        assert mail == ["due", 0, True] and why.startswith("stopping")
        talk.close()
    services["receipts"].start().wait_ready()
    wait_mail(effects, order, "sent", 2, None)
    assert len(sink.to(address(order))) == 1


def test_p28_an_address_that_smuggles_headers_is_never_used(order, effects, sink) -> None:
    before = len(sink.mails)
    order.contact(f"{order.id}@example.org\r\nBcc: everybody@example.org")
    order.says("qualified", received=1000)
    wait_mail(effects, order, "review", 1, "bad_address")
    assert len(sink.mails) == before


def test_p26_killed_while_sending_leaves_one_message_id_per_order(services, topic, effects, sink, tag) -> None:
    """FAULTS 20: a killed worker's lease runs out; who holds the row next sends a copy, never another mail."""
    receipts = services["receipts"]
    orders = [topic.order(f"{tag}-{i}", receipt=True) for i in range(60)]
    kills, parallel = 2, 2
    for n in range(kills):
        so_far = len(sink.mails)
        for order in orders[30 * n:30 * n + 30]:
            order.contact(address(order))
            order.says("qualified", received=1000)
        until(lambda n=so_far: len(sink.mails) >= n + 5, what="mails flow", every=0.002)
        receipts.kill9()
        receipts.start().wait_ready()
    for order in orders:
        until(lambda o=order: (effects.mail(o.id) or ("",))[0] == "sent", what=f"mail of {order.id}")
    mails = [m for m in sink.mails if m.recipients[0].startswith(tag)]
    assert len({m.message_id for m in mails}) == len({m.recipients for m in mails}) == 60
    assert len(mails) - 60 <= kills * parallel

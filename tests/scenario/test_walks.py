"""The walks of an order, end to end: provider events at ingest's door, through relay and the topics, until ledger,
points, mail and right stand where they belong. All walks are played side by side, then looked at one by one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import accounts
from conftest import Services
from effects import CONSUMERS, Effects
from shop import Shop, encode, now
from sign import stripe_header
from smtp_sink import SmtpSink
from stack import Stack
from topic import CONTACTS, PAYMENTS, uuid7
from wait import until

MSAT = 1_500_000


@pytest.fixture(scope="module")
def sink() -> Iterator[SmtpSink]:
    with SmtpSink() as it:
        yield it


@pytest.fixture(scope="module")
def services(stack: Stack, sink: SmtpSink) -> Iterator[Services]:
    """The whole way."""
    with Services(stack, sink) as it:
        it.start("ingest", "relay", *CONSUMERS)
        yield it


@pytest.fixture(scope="module")
def shop(services: Services, stack: Stack) -> Shop:
    return Shop(services["ingest"], stack.api_token, "w" + uuid7()[-10:])


def wait_through(shop: Shop, effects: Effects) -> None:
    """Until every consumer has committed behind all that this shop's orders made relay publish."""
    rows = effects.stack.postgres.query(
        "SELECT event_id::text FROM ingest.outbox WHERE topic = %s AND key LIKE %s", PAYMENTS, f"{shop.tag}-%")
    effects.wait_taken([{"event_id": id} for (id,) in rows], "ledger")
    effects.wait_drained(*CONSUMERS)
    effects.wait_drained("receipts", topics=(CONTACTS,))


# --- The walks

@dataclass(frozen=True)
class End:
    """Where an order stands at last."""
    state: str
    received: int
    refunded: int
    balances: dict[str, int]
    points: int = 0
    bought: bool = False  # one mail and one right


def card(**against: int) -> dict[str, int]:
    return {"clearing:stripe:shop": sum(against.values())} | {k: -v for k, v in against.items()}


def node(**against: int) -> dict[str, int]:
    return {"clearing:lightning:node1": sum(against.values())} | {k: -v for k, v in against.items()}


def order(shop: Shop, name: str, **more) -> None:
    shop.register(name, contact=f"{shop.tag}-{name}@example.org", **more)


def invoice(shop: Shop, name: str, *states: str) -> None:
    order(shop, name, minor=MSAT, unit="BTC/11", refs={"payment_hash": shop.hash(name)})
    for nth, state in enumerate(states):
        shop.observe(shop.invoice(name, state, MSAT, MSAT), id=f"obs_{shop.tag}_{name}_{nth}")


def pay(shop: Shop, name: str, total: int, nth: int = 1) -> None:
    """The nth session of the order, each with a payment of its own."""
    shop.paid(name, total, session=f"cs_{shop.tag}_{name}_{nth}",
              payment=f"pi_{shop.tag}_{name}" + ("" if nth == 1 else f"_{nth}"))


def refund(shop: Shop, name: str, amount: int, nth: int = 1) -> None:
    shop.send(shop.stripe_event("refund.created", shop.refund(name, f"{name}_{nth}", amount)))


def topped_up(shop: Shop, name: str) -> None:
    order(shop, name)
    pay(shop, name, 3000)
    pay(shop, name, 1900, 2)


def paid_twice(shop: Shop, name: str) -> None:
    order(shop, name)
    pay(shop, name, 4900)
    pay(shop, name, 4900, 2)


def over(refunds: list[int]) -> Callable[[Shop, str], None]:
    def play(shop: Shop, name: str) -> None:
        order(shop, name)
        pay(shop, name, 6000)
        for nth, amount in enumerate(refunds, 1):
            refund(shop, name, amount, nth)
    return play


def short(*refunds: int) -> Callable[[Shop, str], None]:
    def play(shop: Shop, name: str) -> None:
        order(shop, name)
        pay(shop, name, 3000)
        for nth, amount in enumerate(refunds, 1):
            refund(shop, name, amount, nth)
    return play


def after_cancel(*refunds: int) -> Callable[[Shop, str], None]:
    def play(shop: Shop, name: str) -> None:
        order(shop, name)
        assert shop.cancel(name).status == 200
        pay(shop, name, 4900)
        for nth, amount in enumerate(refunds, 1):
            refund(shop, name, amount, nth)
    return play


def delayed(shop: Shop, name: str) -> None:
    order(shop, name)
    shop.send(shop.stripe_event("checkout.session.completed", shop.session(name, status="unpaid")))
    shop.send(shop.stripe_event("checkout.session.async_payment_succeeded", shop.session(name)))


def refund_first(shop: Shop, name: str) -> None:
    order(shop, name)
    refund(shop, name, 4900)
    pay(shop, name, 4900)
    shop.wait_state(name, "paid", refunded=4900)


def unknown_at_first(shop: Shop, name: str) -> None:
    pay(shop, name, 4900)
    order(shop, name)
    shop.wait_state(name, "paid")


def expired(shop: Shop, name: str) -> None:
    order(shop, name, expires_at="2026-01-01T00:00:00Z")
    shop.wait_state(name, "canceled", reason="expired")
    pay(shop, name, 4900)


def waived(shop: Shop, name: str) -> None:
    order(shop, name, max_discount=4900)
    shop.send(shop.stripe_event("checkout.session.completed", shop.session(
        name, 0, status="no_payment_required", payment=None, discount=4900)))


WALKS: dict[str, tuple[Callable[[Shop, str], None], End]] = {
    "short-topped-up": (topped_up, End("paid", 4900, 0, card(revenue=4900), 49, True)),
    "paid-twice": (paid_twice, End("paid", 9800, 0, card(revenue=4900, customer_credit=4900), 49, True)),
    "over": (over([]), End("paid", 6000, 0, card(revenue=4900, customer_credit=1100), 49, True)),
    "over-partly-refunded": (over([500]), End("paid", 6000, 500, card(revenue=4900, customer_credit=600), 49, True)),
    "over-refunded-below-due": (over([500, 1500]), End("paid", 6000, 2000, card(revenue=4000), 40, True)),
    "over-refunded-all": (over([6000]), End("paid", 6000, 6000, {}, 0, True)),
    "short": (short(), End("review", 3000, 0, card(suspense=3000))),
    "short-refunded-in-part": (short(1000), End("review", 3000, 1000, card(suspense=2000))),
    "short-refunded": (short(1000, 2000), End("review", 3000, 3000, {})),
    "paid-after-cancel": (after_cancel(), End("review", 4900, 0, card(suspense=4900))),
    "paid-after-cancel-refunded": (after_cancel(4900), End("review", 4900, 4900, {})),
    "settled-canceled": (lambda s, n: invoice(s, n, "SETTLED", "CANCELED"),
                         End("review", MSAT, 0, node(suspense=MSAT), 15, True)),
    "canceled-settled": (lambda s, n: invoice(s, n, "CANCELED", "SETTLED"),
                         End("review", MSAT, 0, node(suspense=MSAT))),
    "open-settled-open": (lambda s, n: invoice(s, n, "OPEN", "ACCEPTED", "SETTLED", "OPEN"),
                          End("paid", MSAT, 0, node(revenue=MSAT), 15, True)),
    "unpaid-then-paid": (delayed, End("paid", 4900, 0, card(revenue=4900), 49, True)),
    "refund-before-payment": (refund_first, End("paid", 4900, 4900, {}, 0, True)),
    "paid-before-registered": (unknown_at_first, End("paid", 4900, 0, card(revenue=4900), 49, True)),
    "expired-then-paid": (expired, End("paid", 4900, 0, card(revenue=4900), 49, True)),
    "waived": (waived, End("paid", 0, 0, {}, 0, True)),
}


@pytest.fixture(scope="module")
def played(services: Services, shop: Shop, effects: Effects) -> Shop:
    for name, (play, _) in WALKS.items():
        play(shop, name)
    wait_through(shop, effects)
    mails = [shop.id(name) for name, (_, end) in WALKS.items() if end.bought]
    until(lambda: [(effects.mail(o) or ("",))[0] for o in mails] == ["sent"] * len(mails), what="mails are sent")
    return shop


@pytest.mark.parametrize("name", WALKS)
def test_p11_p27_the_money_lies_where_it_belongs(played, effects, name: str) -> None:
    end, view = WALKS[name][1], played.show(name)
    assert (view["state"], view["received"], view["refunded"]) == (end.state, end.received, end.refunded)
    assert effects.balances(played.id(name)) == end.balances
    assert effects.unbalanced() == []


@pytest.mark.parametrize("name", WALKS)
def test_p25_the_points_follow_the_position(played, effects, name: str) -> None:
    assert effects.points(played.id(name)) == WALKS[name][1].points


@pytest.mark.parametrize("name", WALKS)
def test_p26_one_mail_per_paid_order_and_none_else(played, effects, sink, name: str) -> None:
    order_id, bought = played.id(name), WALKS[name][1].bought
    assert [m.recipients for m in sink.to(f"{order_id}@example.org")] == [(f"{order_id}@example.org",)] * bought
    assert effects.mail(order_id) == (("sent", 1, None) if bought else None)


@pytest.mark.parametrize("name", WALKS)
def test_p22_one_right_per_paid_order_and_none_else(played, effects, name: str) -> None:
    order_id, bought = played.id(name), WALKS[name][1].bought
    assert effects.rights(order_id) == [(f"grant:{order_id}", played.id(f"c-{name}"), "granted")] * bought


def test_p8_settled_and_canceled_end_equal_in_both_orders(played, effects) -> None:
    one, other = (effects.balances(played.id(n)) for n in ("settled-canceled", "canceled-settled"))
    assert one == other == node(suspense=MSAT)


# --- Trace

def test_the_trace_of_the_request_arrives_in_headers_and_log_lines(services, stack, shop, effects) -> None:
    """FAULTS 65: whatever is said about the event, by whom, names the order and the trace."""
    name, trace = "traced", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    shop.register(name)
    # The same sequence with another position is booked already: ledger must speak.
    stack.postgres.query(
        "INSERT INTO ledger.order_position VALUES (%s, 1, 'another', 'EUR', 2, 0, 0, 0, 0, 0, 0, 0, 0)", shop.id(name))
    paid = shop.stripe_event("checkout.session.completed", shop.session(name))
    body = encode(paid)
    got = shop.post("/webhooks/stripe/shop", body, {
        "Stripe-Signature": stripe_header(accounts.secret("shop"), body, now()), "traceparent": trace, "tracestate": "vendor=42"})
    assert got.status == 200
    wait_through(shop, effects)
    [message] = [m for m in stack.kafka.records(PAYMENTS) if m.key() == shop.id(name).encode()]
    assert dict(message.headers())["traceparent"].decode() == trace
    assert dict(message.headers())["tracestate"] == b"vendor=42"
    id = dict(message.headers())["ce_id"].decode()
    for consumer in CONSUMERS:
        until(lambda c=consumer: [x for x in services[c].log_lines("effect done") if x["order_id"] == shop.id(name)],
              what=f"{consumer} speaks")
        lines = [x for x in services[consumer].log_lines() if x.get("order_id") == shop.id(name)]
        assert all((x["traceparent"], x["event_id"]) == (trace, id) for x in lines)
        assert [x["msg"] for x in lines if not x["msg"].startswith("conflict")] == ["effect done"]
    assert any(x["msg"].startswith("conflict") and x["order_id"] == shop.id(name)
               for x in services["ledger"].log_lines())
    [line] = [x for x in shop.ingest.log_lines("event") if x["order_id"] == shop.id(name)]
    assert (line["traceparent"], line["verdict"], line["result"]) == (trace, "qualified", "recorded")
    assert (line["provider"], line["account"]) == ("stripe", "shop") and line["event_id"] == paid["id"]
    [row] = [x for x in services["relay"].log_lines("row published") if x["order_id"] == shop.id(name)]
    assert row["topic"] == PAYMENTS


def test_without_a_trace_one_begins_at_the_door_and_reaches_the_topics(services, stack, shop, effects) -> None:
    shop.register("untraced")
    shop.paid("untraced")
    wait_through(shop, effects)
    [message] = [m for m in stack.kafka.records(PAYMENTS) if m.key() == shop.id("untraced").encode()]
    version, trace, span, flags = dict(message.headers())["traceparent"].decode().split("-")
    assert (version, flags, len(trace), len(span)) == ("00", "01", 32, 16) and int(trace, 16) and int(span, 16)

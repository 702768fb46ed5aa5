"""The oracle and the verifier themselves: handmade facts with positions worked out by hand, the bundled stream,
and effects that were tampered with. A demo that cannot fail would prove nothing."""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import generate
import verify
from oracle import PAID, Expected, Order, Payment, Refund, Stream, Walk, balances, expected, points_of, position
from player import legal_order
from verify import Found, Report

DEMO = Path(__file__).parent / "streams/demo.ndjson"
HEADER: dict[str, Any] = {"prefix": "o", "points": {"EUR/2": 100, "BTC/11": 1000}, "accounts": generate.ACCOUNTS,
                          "ledger": generate.LEDGER}
EMPTY = Stream(HEADER, ())


@pytest.fixture(scope="module")
def demo() -> Stream:
    return Stream.load(DEMO)


@pytest.fixture(scope="module")
def want(demo: Stream) -> Expected:
    return expected(demo)


# --- Positions, worked out by hand; an order of 4900 cents

def order(**more: Any) -> Order:
    return Order.of({"order_id": "o-1", "customer_id": "o-c", "purpose": "course", "item": "i", "policy": "stripe-v1",
                     "accounts": ["shop"], "amount": {"minor": 4900, "currency": "EUR", "exponent": 2}} | more)


def pay(amount: int | None, at: int = 1, key: str = "p", state: str = PAID, currency: str = "EUR", alias: str = "shop",
        **more: Any) -> Payment:
    return Payment(("stripe", alias, key), state, currency, 2, at, amount, **more)


def back(amount: int, at: int = 5, id: str = "r", key: str = "p", state: str = PAID, total: bool = False,
         failed_at: int | None = None) -> Refund:
    return Refund(("stripe", "shop", key), id, state, "EUR", 2, at, amount, total, failed_at)


@pytest.mark.parametrize(("facts", "more", "paid", "net"), [
    ([], {}, False, 0),
    ([pay(None, state="pending")], {}, False, 0),
    ([pay(4900)], {}, True, 4900),
    ([pay(4900), pay(4900, at=9)], {}, True, 4900),  # one payment, stated twice
    ([pay(4899)], {}, False, 4899),
    ([pay(3000), pay(1900, key="q")], {}, True, 4900),
    ([pay(4900), pay(4900, key="q")], {}, True, 9800),
    ([pay(4900), pay(None, state="failed", at=9)], {}, True, 4900),
    ([pay(4900), pay(None, state="canceled")], {}, False, 4900),
    ([pay(4900), pay(5000)], {}, False, 4900),  # two final amounts: the smaller
    ([pay(4900, currency="USD")], {}, False, 0),
    ([pay(4900), pay(4900, key="q", currency="USD")], {}, False, 4900),
    ([pay(None)], {}, False, 0),
    ([pay(None), pay(4900)], {}, True, 4900),
    ([pay(4900), back(900)], {}, True, 4000),
    ([pay(4900), back(900), back(900), back(900, total=True, id="ch")], {}, True, 4000),
    ([pay(4900), back(10), back(10, id="s"), back(20, total=True, id="ch")], {}, True, 4880),
    ([pay(4900), back(900), back(900, state="failed")], {}, True, 4900),
    ([pay(4900), back(900), back(900, state="failed"), back(1200, total=True, id="ch")], {}, True, 4600),
    ([pay(4900), back(900, state="failed", failed_at=6), back(800, 9, total=True, id="ch")], {}, True, 4100),
    ([pay(4900), back(900, state="failed", failed_at=9), back(800, 9, total=True, id="ch")], {}, True, 4900),
    ([pay(4900), back(900), back(800, 4, total=True, id="ch")], {}, True, 3200),  # another one, not named
    ([pay(4900), back(900, 4, total=True, id="ch"), back(800, total=True, id="ch")], {}, True, 4100),  # it may fall
    ([pay(4900), back(900, state="pending")], {}, True, 4900),
    ([pay(4900), back(9000)], {}, False, 0),  # never above what was captured, and told
    ([pay(4900), back(9000), pay(4900, at=9, key="q")], {}, True, 4900),  # until money ends it
    ([pay(4900), back(4900, at=1)], {}, True, 0),  # of one second: the payment first
    ([pay(4900, at=6), back(900, at=5)], {}, True, 4000),  # of two clocks: the payment first
    ([pay(3000), back(3000, at=5), pay(1900, at=9, key="q")], {}, False, 1900),
    ([pay(3000), back(3000, at=9), pay(1900, at=5, key="q")], {}, True, 1900),
    ([back(900)], {}, False, 0),
    ([pay(4400, discount=500)], {}, False, 4400),
    ([pay(4400, discount=500)], {"max_discount": 500}, True, 4400),
    ([pay(4400, discount=500), pay(500, key="q")], {}, True, 4900),
    ([pay(0, waived=True)], {"max_discount": 4900}, True, 0),
    ([pay(0, waived=True)], {"max_discount": 4899}, False, 0),
])
def test_position(facts: list[Payment | Refund], more: dict[str, Any], paid: bool, net: int) -> None:
    one = order(**more)
    one.payments = {f for f in facts if isinstance(f, Payment)}
    one.refunds = {f for f in facts if isinstance(f, Refund)}
    got = position(one)
    assert (got.paid, got.net) == (paid, net)


def test_a_person_outranks_paid() -> None:
    for spoil in ("canceled", "evidence"):
        one = order()
        one.payments = {pay(4900)}
        assert position(one).paid
        setattr(one, spoil, True if spoil == "canceled" else {"route_conflict"})
        assert not position(one).paid and position(one).net == 4900


def test_points_and_accounts_of_a_position() -> None:
    one = order()
    one.payments, one.refunds = {pay(4900), pay(1000, key="q", alias="shop2")}, {back(2400)}
    now = position(one)
    assert now.nets == {("stripe", "shop"): 2500, ("stripe", "shop2"): 1000}
    assert points_of(EMPTY, one, now) == 49 * 3500 // 4900
    assert balances(EMPTY, one, now) == {("o-1", "EUR/2", "clearing:stripe:shop"): 2500,
                                         ("o-1", "EUR/2", "clearing:stripe:shop2"): 1000,
                                         ("o-1", "EUR/2", "revenue"): -3500}
    one.payments.add(pay(4900, key="more"))
    assert balances(EMPTY, one, position(one))["o-1", "EUR/2", "customer_credit"] == -3500
    one.canceled = True
    rows = balances(EMPTY, one, position(one))
    assert rows["o-1", "EUR/2", "suspense"] == -8400 and sum(rows.values()) == 0


def test_satoshi_become_millisatoshi() -> None:
    body = {"policy": "lightning-v1", "amount": {"minor": 3, "currency": "BTC", "exponent": 8}, "order_id": "o-1"}
    assert (Order.of(body).price, Order.of(body).exponent) == (3000, 11)


def test_points_stay_while_an_order_is_in_review() -> None:
    """Paid, then a refund and a contradiction: points as they were when it was last paid."""
    w = generate.Writer(1, "o")
    o = w.order(True)
    generate.ln_settled_then_canceled(w, o)
    stream = Stream(HEADER, tuple(w.lines))
    got = expected(stream)
    assert (got.paid, got.points) == (0, {o.id: o.due // 1000})
    assert set(got.ledger.values()) == {o.due, -o.due}
    assert {account for _, _, account in got.ledger} == {f"clearing:lightning:{o.alias}", "suspense"}


# --- The bundled stream

def test_the_bundled_stream_is_what_the_generator_writes(demo: Stream) -> None:
    assert DEMO.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in generate.generate())


def test_the_bundled_stream_has_what_it_promises(demo: Stream, want: Expected) -> None:
    orders = {line["order"]["order_id"]: line["order"] for line in demo.lines
              if line["do"] == "register" and "expect" not in line}
    assert len(orders) == want.orders >= 300
    assert {o["purpose"] for o in orders.values()} == {"deposit", "invoice", "package", "membership", "course"}
    assert {unit for _, unit, _ in want.ledger} == {"USD/2", "EUR/2", "JPY/0", "KWD/3", "BTC/11"}
    assert 0 < len(want.mails) < len(want.rights) < want.orders
    cases = Counter(line["case"] for line in demo.lines)
    assert all(cases[case.__name__] for case, _ in generate.STRIPE_CASES + generate.LIGHTNING_CASES)
    assert cases["again"] > 100


def test_a_line_waits_only_for_lines_before_it(demo: Stream) -> None:
    for line in demo.lines:
        assert all(n < line["n"] for n in line.get("after", ())), line
        assert "when" not in line or line.get("after"), line


@pytest.mark.parametrize("seed", range(12))
def test_every_legal_order_of_arrival_leads_to_the_same_effects(demo: Stream, want: Expected, seed: int) -> None:
    """What depends on arrival says so by `after`; else the demo would expect what is not sure to come. And a state
    that a line waits for is there once the lines it names are in."""
    walk = Walk(demo)
    for line in legal_order(demo.lines, random.Random(seed)):
        state = line.get("when", {}).get("state")
        if state:
            assert position(walk.orders[line["when"]["order_id"]]).paid == (state == "paid"), line
        walk.apply(line)
    assert walk.expected() == want


def test_without_after_arrival_would_decide(demo: Stream) -> None:
    """The property above can fail."""
    bare = Stream(demo.header, tuple({k: v for k, v in line.items() if k != "after"} for line in demo.lines))
    lines = [line for line in bare.lines if line["do"] in ("register", "event")]
    shuffled = random.Random(1).sample(lines, len(lines))
    assert expected(bare, shuffled) != expected(bare, lines)


# --- The verifier finds what is wrong

def perfect(want: Expected) -> Found:
    totals: Counter[str] = Counter()
    for (_, unit, _), n in want.ledger.items():
        totals[unit] += n
    return Found(sorted(want.rights), [(f"<{o}@x>", min(to)) for o, to in sorted(want.mails.items())],
                 dict(want.points), dict(want.points), dict(want.customers), dict(want.ledger), [], dict(totals))


def judged(want: Expected, tamper: Callable[[Found], None], copies_allowed: int = 0) -> Report:
    found = perfect(want)
    tamper(found)
    return verify.compare(want, found, copies_allowed)


def counts(report: Report) -> dict[str, tuple[int, int]]:
    return {e.name: (e.lost, e.doubled) for e in report.effects if e.lost or e.doubled}


def test_all_as_expected_passes(want: Expected) -> None:
    report = judged(want, lambda found: None)
    assert report.ok and counts(report) == {} and not report.faults
    assert all(e.done == e.expected > 50 for e in report.effects)


def first(rows: dict[Any, int], account: str) -> Any:
    return next(k for k in sorted(rows) if k[2].startswith(account))


def move(rows: dict[Any, int], key: Any, by: int) -> None:
    rows[key] = rows.get(key, 0) + by


def thief(found: Found) -> None:
    found.rights[0] = (found.rights[0][0], "o-thief", *found.rights[0][2:])


def to_suspense(found: Found) -> None:
    key = first(found.ledger, "revenue")
    found.ledger[key[0], key[1], "suspense"] = found.ledger.pop(key)


def twice_booked(found: Found) -> None:
    key = first(found.ledger, "clearing:")
    for k in [k for k in found.ledger if k[0] == key[0]]:
        found.ledger[k] *= 2


@pytest.mark.parametrize(("tamper", "wrong"), [
    (lambda f: f.rights.pop(), {"rights": (1, 0)}),
    (lambda f: f.rights.append(f.rights[0]), {"rights": (0, 1)}),
    (lambda f: f.rights.append(("demo-9999", "c", "course", "i")), {"rights": (0, 1)}),
    (thief, {"rights": (1, 1)}),
    (lambda f: f.mails.pop(), {"mails": (1, 0)}),
    (lambda f: f.mails.append(("<second@x>", f.mails[0][1])), {"mails": (0, 1)}),
    (lambda f: f.mails.append(("<stray@x>", "demo-9999@mail.example")), {"mails": (0, 1)}),
    (lambda f: move(f.points, min(f.points), 1), {"points of orders": (0, 1)}),
    (lambda f: f.points.pop(min(f.points)), {"points of orders": (1, 0)}),
    (lambda f: move(f.customers, min(f.customers), -1), {"points of customers": (1, 0)}),
    (lambda f: move(f.ledger, first(f.ledger, "clearing:"), -1), {"ledger balances": (1, 0)}),
    (lambda f: move(f.ledger, first(f.ledger, "clearing:"), 1), {"ledger balances": (0, 1)}),
    (lambda f: move(f.ledger, first(f.ledger, "revenue"), -1), {"ledger balances": (0, 1)}),
    (lambda f: f.ledger.pop(first(f.ledger, "revenue")), {"ledger balances": (1, 0)}),
    (to_suspense, {"ledger balances": (1, 1)}),
    (lambda f: move(f.ledger, ("demo-9999", "EUR/2", "revenue"), -1), {"ledger balances": (0, 1)}),
])
def test_what_is_lost_or_doubled_is_found(want: Expected, tamper: Callable[[Found], None],
                                          wrong: dict[str, tuple[int, int]]) -> None:
    report = judged(want, tamper)
    assert counts(report) == wrong and not report.ok and report.json()["ok"] is False


def test_a_journal_booked_twice_is_doubled_though_it_balances(want: Expected) -> None:
    report = judged(want, twice_booked)
    assert report.balanced and not report.ok and counts(report)["ledger balances"][1] >= 2


def test_copies_of_a_mail_are_counted_apart(want: Expected) -> None:
    report = judged(want, lambda f: f.mails.append(f.mails[0]))
    assert (report.copies, counts(report), report.ok) == (1, {}, False)
    assert judged(want, lambda f: f.mails.append(f.mails[0]), copies_allowed=1).ok


def test_one_message_id_for_two_orders_is_a_fault(want: Expected) -> None:
    report = judged(want, lambda f: f.mails.__setitem__(0, (f.mails[1][0], f.mails[0][1])))
    assert not report.ok and report.faults


@pytest.mark.parametrize("tamper", [
    lambda f: f.unbalanced.append("journal:demo-0001:1"),
    lambda f: f.totals.__setitem__("EUR/2", 1),
    lambda f: f.held.__setitem__(min(f.held), 0),
])
def test_what_does_not_add_up_is_found(want: Expected, tamper: Callable[[Found], None]) -> None:
    assert not judged(want, tamper).ok


def test_a_fault_of_the_play_fails_it(want: Expected) -> None:
    report = judged(want, lambda f: None)
    assert report.ok and not dataclasses.replace(report, faults=["line 3: 500"]).ok

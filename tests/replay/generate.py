"""Writes a stream of payments: orders a shop registers and what two providers say of them, with all that goes
wrong on the way. `generate.py > streams/demo.ndjson` makes the bundled one; the same seed makes the same bytes.

The first line is the header: ids' prefix, the points rule, accounts with their modes, names of the ledger's
accounts. Every other line is one request, numbered from 1:

  {"n": 7, "case": "refund_full", "do": "event", "provider": "stripe", "alias": "shop", "body": {…}}
  {"n": 8, "do": "register", "order": {…}}   {"n": 9, "do": "cancel", "order_id": …}
  {"n": 10, "do": "references", "order_id": …, "references": […]}   {"n": 11, "do": "again", "of": 7}

  after     lines that must have been answered before this one is sent. Without it a line may be sent at any
            time: whatever depends on arrival says so here (the oracle's test plays legal orders against each other)
  when      fields that GET /v1/orders/ID must show first: {"order_id": …, "state": "paid"}
  expect    the only status that is right; without it any 2xx
  result    the result a 200 must name ("conflict")
  sign      a fault in the signature: "wrong", "stale", "future", "missing", "malformed"
  style     how the body is written: "compact" (none given), "pretty", "sorted"
  raw       a body, as Latin-1 text, that no strict reader can use
  id        the webhook-id of an observation: it derives from the content, so the same content has the same

Times are offsets in seconds to the start of play: {"$at": s} becomes a number, {"$text": s} its text,
{"$iso": s} RFC 3339.
"""

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]

PURPOSES = ("deposit", "invoice", "package", "membership", "course")
STRIPE_UNITS = ("USD/2", "EUR/2", "EUR/2", "JPY/0", "KWD/3")
POINTS = {"USD/2": 100, "EUR/2": 100, "JPY/0": 100, "KWD/3": 1000, "BTC/11": 100000}
ACCOUNTS = {"stripe": {"shop": "live", "shop2": "live", "shop-test": "test"},
            "lightning": {"node1": "live", "node2": "live"}}
LEDGER = {"clearing": "clearing:PROVIDER:ALIAS", "revenue": "revenue", "credit": "customer_credit",
          "suspense": "suspense"}
NODES = {"node1": "03aa-node-of-the-shop", "node2": "03bb-second-node"}


@dataclass
class Order:
    id: str
    customer: str
    purpose: str
    item: str
    unit: str
    minor: int  # the price, in `unit`
    alias: str
    route: str  # how its sessions lead to it: "metadata", "session" (a registered reference) or "both"
    contact: bool
    t: int  # when it begins
    accounts: list[str] = field(default_factory=list)
    reg: int = 0  # its registration's line
    lines: list[int] = field(default_factory=list)  # its events' lines

    @property
    def currency(self) -> str:
        return self.unit.split("/")[0]

    @property
    def exponent(self) -> int:
        return int(self.unit.split("/")[1])

    @property
    def due(self) -> int:
        """The price in the unit the provider counts in."""
        return self.minor * 1000 if self.unit == "BTC/8" else self.minor

    def email(self, which: str = "") -> str:
        return f"{self.id}{which}@mail.example"

    def hash(self, key: str = "1") -> str:
        return hashlib.sha256(f"{self.id} {key}".encode()).hexdigest()


class Writer:
    def __init__(self, seed: int, prefix: str) -> None:
        self.rng, self.prefix = random.Random(seed), prefix
        self.lines: list[Line] = []
        self.case = ""
        self._orders = self._events = 0

    # --- Lines

    def add(self, o: Order | None, /, **line: Any) -> int:
        n = len(self.lines) + 1
        kept = {k: v for k, v in line.items() if v}
        self.lines.append({"n": n, "case": self.case, **kept})
        if o is not None and line["do"] == "event":
            o.lines.append(n)
        return n

    def again(self, of: int, style: str = "") -> None:
        """The same once more; behind the first where that one had to wait."""
        first = self.lines[of - 1]
        self.add(None, do="again", of=of, style=style, after=[of] if first.keys() & {"after", "when"} else None)

    def amount(self, unit: str) -> int:
        r = self.rng
        return {"USD/2": r.randrange(500, 60000), "EUR/2": r.randrange(500, 60000), "JPY/0": r.randrange(300, 90000),
                "KWD/3": r.randrange(100, 9000) * 10, "BTC/11": r.randrange(100_000, 90_000_000),
                "BTC/8": r.randrange(1000, 90_000)}[unit]

    def order(self, lightning: bool) -> Order:
        r = self.rng
        self._orders += 1
        number = self._orders
        unit = r.choice(("BTC/11", "BTC/11", "BTC/8")) if lightning else r.choice(STRIPE_UNITS)
        purpose = PURPOSES[number % len(PURPOSES)]
        alias = r.choice(("node1", "node1", "node2") if lightning else ("shop", "shop", "shop", "shop2"))
        return Order(f"{self.prefix}-{number:04}", f"{self.prefix}-c{r.randrange(120):03}", purpose,
                     f"{purpose}-{r.randrange(40)}", unit, self.amount(unit), alias,
                     r.choice(("metadata", "metadata", "session", "both")), r.random() < 0.8, -r.randrange(600, 7200),
                     [alias])

    # --- The shop

    def body(self, o: Order, keys: str = "1", **more: Any) -> dict[str, Any]:
        """A registration; one reference for each key of a session or invoice."""
        if o.unit.startswith("BTC"):
            refs = [{"account": o.alias, "kind": "payment_hash", "value": o.hash(k)} for k in keys]
        elif o.route == "metadata":
            refs = []
        else:
            refs = [{"account": o.alias, "kind": "session", "value": f"cs_{o.id}_{k}"} for k in keys]
        order = {"order_id": o.id, "customer_id": o.customer, "purpose": o.purpose, "item": o.item,
                 "amount": {"minor": o.minor, "currency": o.currency, "exponent": o.exponent},
                 "policy": "lightning-v1" if o.unit.startswith("BTC") else "stripe-v1", "accounts": o.accounts,
                 "references": refs} | more
        if o.contact and "contact" not in more:
            order["contact"] = {"email": o.email(), "language": "en"}
        return {k: v for k, v in order.items() if v is not None}

    def register(self, o: Order, keys: str = "1", after: list[int] | None = None, expect: int = 0,
                 **more: Any) -> int:
        n = self.add(o, do="register", order=self.body(o, keys, **more), after=after, expect=expect)
        if not expect:
            o.reg = n
        return n

    def cancel(self, o: Order, after: list[int], expect: int = 0, **state: Any) -> int:
        when = {"order_id": o.id} | state if state else None
        return self.add(o, do="cancel", order_id=o.id, after=[o.reg, *after], expect=expect, when=when)

    # --- Stripe

    def event(self, o: Order | None, type: str, object: dict[str, Any], at: int, alias: str = "", id: str = "",
              livemode: bool | None = None, **line: Any) -> int:
        self._events += 1
        alias = alias or (o.alias if o else "shop")
        live = ACCOUNTS["stripe"][alias] == "live" if livemode is None else livemode
        body = {"id": id or f"evt_{self.prefix}_{self._events}", "object": "event", "type": type,
                "created": {"$at": at}, "livemode": live, "api_version": "2026-10-28.endive",
                "data": {"object": object}}
        return self.add(o, do="event", provider="stripe", alias=alias, body=body, **line)

    def session_object(self, o: Order, total: int, key: str = "1", status: str = "paid", currency: str = "",
                       discount: int = 0, payment: str | None = "", named: str | None = None) -> dict[str, Any]:
        named = ("" if o.route == "session" else o.id) if named is None else named
        return {"id": f"cs_{o.id}_{key}", "object": "checkout.session", "mode": "payment", "status": "complete",
                "payment_status": status, "amount_total": total, "currency": currency or o.currency.lower(),
                "payment_intent": f"pi_{o.id}_{key}" if payment == "" else payment, "client_reference_id": None,
                "metadata": {"order_id": named} if named else {}, "total_details": {"amount_discount": discount}}

    def session(self, o: Order, total: int | None = None, key: str = "1", at: int = 0, type: str = "completed",
                noise: bool = True, alias: str = "", **more: Any) -> int:
        """What a checkout says, and around it what its payment_intent and charge say."""
        line = {k: more.pop(k) for k in ("after", "when", "id", "result", "livemode", "sign", "expect") if k in more}
        total = o.due if total is None else total
        at = o.t + at
        object = self.session_object(o, total, key, **more)
        if noise and object["payment_intent"]:
            self.noise(o, object["payment_intent"], f"ch_{o.id}_{key}", object, at, alias)
        return self.event(o, f"checkout.session.{type}", object, at, alias, **line)

    def noise(self, o: Order, intent: str, charge: str, session: dict[str, Any], at: int, alias: str) -> None:
        money = {"amount": session["amount_total"], "currency": session["currency"]}
        metadata = session["metadata"] if self.rng.random() < 0.3 else {}  # rarely copied
        base = {"id": intent, "object": "payment_intent", **money, "metadata": metadata}
        if self.rng.random() < 0.4:
            self.event(o, "payment_intent.created", base | {"status": "requires_payment_method"}, at - 40, alias)
        if session["payment_status"] != "paid":
            self.event(o, "payment_intent.processing", base | {"status": "processing"}, at, alias)
            return
        if self.rng.random() < 0.7:
            self.event(o, "payment_intent.succeeded",
                       base | {"status": "succeeded", "amount_received": money["amount"], "latest_charge": charge},
                       at - 1, alias)
        self.event(o, "charge.succeeded", self.charge_object(charge, intent, money, 0), at - 1, alias)

    @staticmethod
    def charge_object(id: str, intent: str | None, money: dict[str, Any], refunded: int) -> dict[str, Any]:
        return {"id": id, "object": "charge", "payment_intent": intent, **money, "amount_captured": money["amount"],
                "amount_refunded": refunded, "captured": True, "paid": True, "refunded": refunded == money["amount"],
                "metadata": {}}

    def refund(self, o: Order, amount: int, number: str = "1", key: str = "1", at: int = 60, type: str = "created",
               status: str = "succeeded", intent: bool = True, **line: Any) -> int:
        object = {"id": f"re_{o.id}_{number}", "object": "refund", "amount": amount, "charge": f"ch_{o.id}_{key}",
                  "payment_intent": f"pi_{o.id}_{key}" if intent else None, "currency": o.currency.lower(),
                  "status": status, "created": {"$at": o.t + at}}
        return self.event(o, f"refund.{type}", object, o.t + at + (type != "created"), **line)

    def refunded_total(self, o: Order, total: int, key: str = "1", at: int = 60, of: int | None = None,
                       **line: Any) -> int:
        money = {"amount": o.due if of is None else of, "currency": o.currency.lower()}
        object = self.charge_object(f"ch_{o.id}_{key}", f"pi_{o.id}_{key}", money, total)
        return self.event(o, "charge.refunded", object, o.t + at, **line)

    # --- Lightning

    def invoice(self, o: Order, state: str, paid: int | None = None, key: str = "1", at: int = 0, alias: str = "",
                profile: str = "", set_id: str = "", seen: int = 0, **line: Any) -> int:
        """What a watcher saw of an invoice; `seen` sets another watcher's clock apart, not the content."""
        alias = alias or o.alias
        object = {"payment_hash": o.hash(key), "state": state, "value_msat": str(o.due), "add_index": "7",
                  "creation_date": {"$text": o.t - 60}}
        object |= {"set_id": set_id} if set_id else {}
        object |= {"settle_date": {"$text": o.t + at}, "settle_index": "3"} if state == "SETTLED" else {}
        object |= {} if paid is None else {"amt_paid_msat": str(paid)}
        body = {"kind": "invoice", "profile": profile or NODES[alias], "observed_at": {"$iso": o.t + at + 1 + seen},
                "object": object}
        stable = json.dumps([alias, body["profile"], object])
        id = "obs_" + hashlib.sha256(stable.encode()).hexdigest()[:32]
        return self.add(o, do="event", provider="lightning", alias=alias, id=id, body=body, **line)


# --- Cases: what happens to one order. Those that depend on arrival register first and name what must come first.

Case = Callable[[Writer, Order], None]


def shown(o: Order, **fields: Any) -> dict[str, Any]:
    return {"order_id": o.id, **fields}


def paid(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)


def registered_later(w: Writer, o: Order) -> None:
    w.session(o)
    if w.rng.random() < 0.5:
        w.refund(o, o.due // 3)
    w.register(o, after=list(o.lines))


def never_registered(w: Writer, o: Order) -> None:
    w.session(o)
    w.refund(o, o.due)


def unpaid_then_paid(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, status="unpaid")
    w.session(o, at=90, type="async_payment_succeeded", noise=False)


def unpaid_then_failed(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, status="unpaid")
    w.session(o, at=90, type="async_payment_failed", status="unpaid", noise=False)


def failed_then_paid_by_another_session(w: Writer, o: Order) -> None:
    w.register(o, "12")
    w.session(o, status="unpaid")
    w.session(o, at=90, type="async_payment_failed", status="unpaid", noise=False)
    w.session(o, key="2", at=300)


def waived(w: Writer, o: Order) -> None:
    w.register(o, max_discount=o.minor)
    w.session(o, 0, status="no_payment_required", payment=None, discount=o.due)


def waived_without_leave(w: Writer, o: Order) -> None:
    w.register(o, max_discount=o.minor // 2)
    w.session(o, 0, status="no_payment_required", payment=None, discount=o.due)


def discount_allowed(w: Writer, o: Order) -> None:
    most = o.minor // 4
    discount = w.rng.choice((most, most // 2))
    w.register(o, max_discount=most)
    w.session(o, o.due - discount, discount=discount)


def discount_without_leave(w: Writer, o: Order) -> None:
    w.register(o, max_discount=o.minor // 10)
    w.session(o, o.due - o.due // 4, discount=o.due // 4)


def discount_made_up_for(w: Writer, o: Order) -> None:
    """The discount is not allowed, but a second session brings what it took off."""
    w.register(o, "12")
    w.session(o, o.due - o.due // 4, discount=o.due // 4)
    w.session(o, o.due // 4, key="2", at=200)


def expired(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, type="expired", status="unpaid", payment=None)


def expired_then_paid_by_another_session(w: Writer, o: Order) -> None:
    w.register(o, "12")
    w.session(o, type="expired", status="unpaid", payment=None)
    w.session(o, key="2", at=400)


def underpaid(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, o.due - 1 - w.rng.randrange(o.due // 2))


def topped_up(w: Writer, o: Order) -> None:
    w.register(o, "12")
    first = o.due * 3 // 5
    w.session(o, first)
    w.session(o, o.due - first, key="2", at=200)


def topped_up_then_partly_refunded(w: Writer, o: Order) -> None:
    topped_up(w, o)
    w.refund(o, o.due // 5, at=500)


def overpaid(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, o.due + 1 + w.rng.randrange(o.due))


def overpaid_then_partly_refunded(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, o.due + 1000)
    w.refund(o, w.rng.choice((400, 1000, 1300)))


def paid_twice(w: Writer, o: Order) -> None:
    w.register(o, "12")
    w.session(o)
    w.session(o, key="2", at=7)
    if w.rng.random() < 0.5:
        w.refund(o, o.due, key="2", at=800)


def refund_partial_twice(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    one, two = o.due // 5, o.due // 7
    w.refund(o, one, "1", at=60)
    w.refunded_total(o, one, at=60)
    w.refund(o, two, "2", at=120)
    w.refund(o, two, "2", at=120, type="updated")
    w.refunded_total(o, one + two, at=120)


def refund_full(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.refund(o, o.due)
    if w.rng.random() < 0.7:
        w.refunded_total(o, o.due)


def refund_in_the_same_second(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.refund(o, o.due, at=0)


def refund_told_by_the_total_alone(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    for part in (1, 2):
        w.refunded_total(o, o.due // 4 * part, at=60 * part)


def refund_failed(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    part = o.due // 3
    w.refund(o, part)
    w.refunded_total(o, part)
    w.refund(o, part, at=60, type="failed", status="failed")


def refund_failed_beside_one_that_stands(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    part, stands = o.due // 3, o.due // 4
    w.refund(o, part)
    w.refund(o, stands, "2", at=100)
    w.refunded_total(o, part + stands, at=100)
    w.refund(o, part, at=60, type="updated", status="failed")


def refund_pending(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.refund(o, o.due // 2, status="pending")
    if w.rng.random() < 0.5:
        w.refund(o, o.due // 2, type="updated", status=w.rng.choice(("succeeded", "canceled")))


def refund_before_its_payment(w: Writer, o: Order) -> None:
    w.register(o)
    first = [w.refund(o, o.due // 2), w.refunded_total(o, o.due // 2)]
    w.session(o, after=first)


def refund_without_a_payment(w: Writer, o: Order) -> None:
    w.register(o)
    w.refund(o, o.due)


def refund_that_names_the_charge_alone(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.refund(o, o.due // 2, intent=False)


def short_then_refunded(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o, o.due // 2)
    w.refund(o, o.due // 2)


def short_refunded_then_the_rest(w: Writer, o: Order) -> None:
    """30 paid, 30 back, 19 paid: never 49 at any moment. Were the refund to come last, it would look so."""
    _short_and_refunded(w, o, o.due - o.due // 2)


def short_refunded_then_all(w: Writer, o: Order) -> None:
    _short_and_refunded(w, o, o.due)


def _short_and_refunded(w: Writer, o: Order, rest: int) -> None:
    short = o.due // 2
    w.register(o, "12")
    first = w.session(o, short, after=[o.reg])
    back = w.refund(o, short, after=[first], when=shown(o, received=short))
    w.session(o, rest, key="2", at=500, noise=False, after=[back], when=shown(o, refunded=short))


def canceled(w: Writer, o: Order) -> None:
    w.register(o)
    w.cancel(o, [])


def canceled_then_paid(w: Writer, o: Order) -> None:
    w.register(o)
    gone = w.cancel(o, [])
    w.session(o, after=[gone])


def canceled_then_paid_and_refunded(w: Writer, o: Order) -> None:
    canceled_then_paid(w, o)
    w.refund(o, o.due)


def paid_then_canceled(w: Writer, o: Order) -> None:
    w.register(o)
    money = w.session(o)
    w.cancel(o, [money], 409, state="paid")


def conflicting_body(w: Writer, o: Order) -> None:
    """The same id says something else: the first stays."""
    w.register(o)
    id = f"evt_{o.id}_same"
    short = w.rng.random() < 0.5
    first = w.session(o, o.due // 2 if short else o.due, id=id)
    for total in (o.due, o.due // 2) if short else (o.due * 2, 1):
        if total != (o.due // 2 if short else o.due):
            w.session(o, total, id=id, noise=False, after=[first], result="conflict")


def conflicting_registration(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    body = w.body(o)
    for other in ({"customer_id": f"{w.prefix}-thief"}, {"amount": body["amount"] | {"minor": 1}}):
        w.add(o, do="register", order=body | other, after=[o.reg], expect=409)
    w.add(o, do="register", order=body)


def reference_taken(w: Writer, o: Order) -> None:
    """A second order claims a session that is the first one's: it is not there at all."""
    o.route = "session"
    w.register(o)
    w.session(o)
    other = w.order(False)
    other.alias, other.accounts = o.alias, o.accounts
    body = w.body(other) | {"references": w.body(o)["references"]}
    w.add(other, do="register", order=body, after=[o.reg], expect=409)
    w.session(other, named=other.id)


def foreign_currency_first(w: Writer, o: Order) -> None:
    w.register(o, "12")
    foreign = "usd" if o.currency != "USD" else "eur"
    first = w.session(o, currency=foreign, after=[o.reg])
    w.session(o, key="2", at=100, noise=False, after=[first], when=shown(o, state="review"))


def foreign_currency_afterwards(w: Writer, o: Order) -> None:
    w.register(o, "12")
    first = w.session(o, after=[o.reg])
    foreign = "usd" if o.currency != "USD" else "eur"
    w.session(o, currency=foreign, key="2", at=100, noise=False, after=[first], when=shown(o, state="paid"))


def two_amounts_of_one_payment(w: Writer, o: Order) -> None:
    w.register(o)
    first = w.session(o, after=[o.reg])
    other = w.rng.choice((o.due + 100, o.due // 2))
    w.session(o, other, noise=False, after=[first], when=shown(o, state="paid"))


def a_test_mode_event_names_a_live_order(w: Writer, o: Order) -> None:
    o.contact = True
    w.register(o)
    w.session(o, alias="shop-test")
    w.session(o, key="2", livemode=False, noise=False)  # at the live door: not of this mode


def an_account_the_order_does_not_name(w: Writer, o: Order) -> None:
    o.alias, o.accounts, o.route = "shop", ["shop"], "metadata"
    w.register(o)
    w.session(o, alias="shop2")


def two_accounts_pay_one_order(w: Writer, o: Order) -> None:
    o.alias, o.accounts, o.route = "shop", ["shop", "shop2"], "metadata"
    w.register(o)
    w.session(o, o.due // 2)
    w.session(o, o.due - o.due // 2 + 50, key="2", at=60, alias="shop2")


def late(w: Writer, o: Order) -> None:
    w.register(o, expires_at={"$iso": o.t - 900})
    w.session(o)


def never_paid_in_time(w: Writer, o: Order) -> None:
    w.register(o, expires_at={"$iso": o.t})
    w.session(o, status="unpaid", type="completed")


def two_events_of_one_change(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.session(o, noise=False)
    w.refund(o, o.due // 9)
    w.refund(o, o.due // 9)


def two_routes_to_two_orders(w: Writer, o: Order) -> None:
    o.route = "session"
    w.register(o)
    other = w.order(False)
    other.alias, other.accounts = o.alias, o.accounts
    w.register(other)
    w.session(o, named=other.id, noise=False, after=[o.reg, other.reg])


def unreadable(w: Writer, o: Order) -> None:
    """Verified, and no strict reader can use it: nothing may come of it."""
    w.register(o)
    object = w.session_object(o, o.due)
    whole = {"id": f"evt_{o.id}_raw", "object": "event", "type": "checkout.session.completed", "created": 1760000000,
             "livemode": True, "data": {"object": object}}
    text = json.dumps(whole)
    broken = (text.replace(f'"amount_total": {o.due}', f'"amount_total": {o.due}.0'),
              text.replace(f'"amount_total": {o.due}', f'"amount_total": "{o.due}"'),
              text.replace('"livemode": true', '"livemode": false, "livemode": true'),
              text[:-1], "\u00ef\u00bb\u00bf" + text, text.replace("evt_", "evt_\u00ff"), "nothing", "")
    for i in w.rng.sample(range(len(broken)), 4):
        w.add(o, do="event", provider="stripe", alias=o.alias, raw=broken[i] or f" {o.id}")


def forged(w: Writer, o: Order) -> None:
    w.register(o)
    for sign, status in (("wrong", 401), ("stale", 401), ("future", 401), ("missing", 401), ("malformed", 400)):
        w.session(o, noise=False, sign=sign, expect=status)


def forged_beside_the_true_one(w: Writer, o: Order) -> None:
    w.register(o)
    w.session(o)
    w.session(o, o.due * 9, key="2", noise=False, sign="wrong", expect=401)


def contact_comes_later(w: Writer, o: Order) -> None:
    o.contact = False
    w.register(o)
    told = w.register(o, after=[o.reg], contact={"email": o.email(), "language": "de"})
    w.session(o, after=[told])


def contact_replaced(w: Writer, o: Order) -> None:
    o.contact = True
    w.register(o)
    w.register(o, after=[o.reg], contact={"email": o.email("+new"), "language": "en"})
    w.session(o)


def a_visitor_names_an_order(w: Writer, o: Order) -> None:
    """client_reference_id is the visitor's to choose: it opens nobody's order."""
    o.route = "metadata"
    w.register(o)
    w.event(o, "checkout.session.completed",
            w.session_object(o, o.due, named="") | {"client_reference_id": o.id}, o.t)


def another_app_of_the_account(w: Writer, o: Order) -> None:
    w.session(o, named="")
    w.event(o, "invoice.paid", {"id": f"in_{o.id}", "object": "invoice", "amount_paid": o.due}, o.t)


def unknown_types(w: Writer, o: Order) -> None:
    w.register(o)
    for type in ("customer.created", "product.updated", "checkout.session.reopened", "charge.dispute.created"):
        w.event(o, type, {"id": f"x_{o.id}", "object": "x", "metadata": {"order_id": o.id}}, o.t)


def ln_paid(w: Writer, o: Order) -> None:
    w.register(o, profile=NODES[o.alias] if w.rng.random() < 0.5 else None)
    w.invoice(o, "OPEN")
    w.invoice(o, "SETTLED", o.due)


def ln_open_after_settled(w: Writer, o: Order) -> None:
    w.register(o)
    done = w.invoice(o, "SETTLED", o.due)
    w.invoice(o, "OPEN", after=[done])


def ln_seen_by_two_watchers(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED", o.due)
    w.invoice(o, "SETTLED", o.due, seen=17)


def ln_accepted(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "OPEN")
    w.invoice(o, "ACCEPTED", o.due)


def ln_canceled(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "OPEN")
    w.invoice(o, "CANCELED")


def ln_held_then_canceled(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "ACCEPTED", o.due)
    w.invoice(o, "CANCELED", o.due)


def ln_underpaid(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED", o.due - 1)


def ln_overpaid(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED", o.due + 1 + w.rng.randrange(o.due))


def ln_topped_up(w: Writer, o: Order) -> None:
    w.register(o, "12")
    w.invoice(o, "SETTLED", o.due // 3)
    w.invoice(o, "SETTLED", o.due - o.due // 3, key="2", at=50)


def ln_paid_twice(w: Writer, o: Order) -> None:
    w.register(o, "12")
    w.invoice(o, "SETTLED", o.due)
    w.invoice(o, "SETTLED", o.due, key="2", at=50)


def ln_sets_of_one_invoice(w: Writer, o: Order) -> None:
    w.register(o)
    for i in (1, 2):
        w.invoice(o, "SETTLED", o.due, set_id=o.hash(f"set {i}"), at=i)


def ln_settled_then_canceled(w: Writer, o: Order) -> None:
    w.register(o)
    first = w.invoice(o, "SETTLED", o.due, after=[o.reg])
    w.invoice(o, "CANCELED", after=[first], when=shown(o, state="paid"))


def ln_canceled_then_settled(w: Writer, o: Order) -> None:
    w.register(o)
    first = w.invoice(o, "CANCELED", after=[o.reg])
    w.invoice(o, "SETTLED", o.due, after=[first], when=shown(o, state="canceled"))


def ln_amount_missing(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED")


def ln_amount_missing_then_known(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED")
    w.invoice(o, "SETTLED", o.due)


def ln_unknown_state(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "MYSTERY", o.due)


def ln_another_nodes_invoice(w: Writer, o: Order) -> None:
    w.register(o, profile=NODES[o.alias])
    w.invoice(o, "SETTLED", o.due, profile="03cc-not-ours")


def ln_paid_then_another_nodes_invoice(w: Writer, o: Order) -> None:
    w.register(o, "12", profile=NODES[o.alias])
    first = w.invoice(o, "SETTLED", o.due, after=[o.reg])
    w.invoice(o, "SETTLED", o.due, key="2", profile="03cc-not-ours", after=[first], when=shown(o, state="paid"))


def ln_seen_by_an_account_that_may_not(w: Writer, o: Order) -> None:
    o.alias, o.accounts = "node1", ["node1"]
    w.register(o)
    w.invoice(o, "SETTLED", o.due, alias="node2")


def ln_registered_later(w: Writer, o: Order) -> None:
    w.invoice(o, "OPEN")
    w.invoice(o, "SETTLED", o.due)
    w.register(o, after=list(o.lines))


def ln_reference_added_later(w: Writer, o: Order) -> None:
    w.register(o)
    w.invoice(o, "SETTLED", o.due, key="2")
    w.add(o, do="references", order_id=o.id, after=[o.reg],
          references=[{"account": o.alias, "kind": "payment_hash", "value": o.hash("2")}])


def ln_never_registered(w: Writer, o: Order) -> None:
    w.invoice(o, "SETTLED", o.due)


def ln_canceled_by_the_shop_then_settled(w: Writer, o: Order) -> None:
    w.register(o)
    gone = w.cancel(o, [])
    w.invoice(o, "SETTLED", o.due, after=[gone])


# How many orders each case gets in the bundled stream.
STRIPE_CASES: tuple[tuple[Case, int], ...] = (
    (paid, 48), (registered_later, 14), (never_registered, 5), (unpaid_then_paid, 10), (unpaid_then_failed, 4),
    (failed_then_paid_by_another_session, 4), (waived, 5), (waived_without_leave, 3), (discount_allowed, 6),
    (discount_without_leave, 4), (discount_made_up_for, 3), (expired, 4), (expired_then_paid_by_another_session, 3),
    (underpaid, 4), (topped_up, 7), (topped_up_then_partly_refunded, 3), (overpaid, 5),
    (overpaid_then_partly_refunded, 4), (paid_twice, 5), (refund_partial_twice, 8), (refund_full, 6),
    (refund_in_the_same_second, 3), (refund_told_by_the_total_alone, 3), (refund_failed, 4),
    (refund_failed_beside_one_that_stands, 3), (refund_pending, 4), (refund_before_its_payment, 4),
    (refund_without_a_payment, 2), (refund_that_names_the_charge_alone, 3), (short_then_refunded, 3),
    (short_refunded_then_the_rest, 3), (short_refunded_then_all, 3), (canceled, 3), (canceled_then_paid, 4),
    (canceled_then_paid_and_refunded, 2), (paid_then_canceled, 4), (conflicting_body, 5),
    (conflicting_registration, 4), (reference_taken, 3), (foreign_currency_first, 3), (foreign_currency_afterwards, 3),
    (two_amounts_of_one_payment, 4), (a_test_mode_event_names_a_live_order, 4), (an_account_the_order_does_not_name, 3),
    (two_accounts_pay_one_order, 4), (late, 4), (never_paid_in_time, 2), (two_events_of_one_change, 4),
    (two_routes_to_two_orders, 2), (unreadable, 5), (forged, 3), (forged_beside_the_true_one, 4),
    (contact_comes_later, 3), (contact_replaced, 3), (a_visitor_names_an_order, 3), (another_app_of_the_account, 4),
    (unknown_types, 3),
)
LIGHTNING_CASES: tuple[tuple[Case, int], ...] = (
    (ln_paid, 40), (ln_open_after_settled, 8), (ln_seen_by_two_watchers, 5), (ln_accepted, 3), (ln_canceled, 4),
    (ln_held_then_canceled, 3), (ln_underpaid, 4), (ln_overpaid, 6), (ln_topped_up, 5), (ln_paid_twice, 4),
    (ln_sets_of_one_invoice, 3), (ln_settled_then_canceled, 4), (ln_canceled_then_settled, 4), (ln_amount_missing, 3),
    (ln_amount_missing_then_known, 4), (ln_unknown_state, 2), (ln_another_nodes_invoice, 3),
    (ln_paid_then_another_nodes_invoice, 3), (ln_seen_by_an_account_that_may_not, 3), (ln_registered_later, 8),
    (ln_reference_added_later, 4), (ln_never_registered, 3), (ln_canceled_by_the_shop_then_settled, 3),
)


def repeat_some(w: Writer) -> None:
    """Providers deliver at least once, and some write the same event anew."""
    w.case = "again"
    for line in list(w.lines):
        if line["do"] == "event" and "raw" not in line and "expect" not in line and w.rng.random() < 0.12:
            for _ in range(w.rng.choice((1, 1, 1, 2))):
                w.again(line["n"], w.rng.choice(("", "pretty", "sorted")))
        elif line["do"] == "register" and "expect" not in line and w.rng.random() < 0.05:
            w.again(line["n"])


def generate(seed: int = 1, prefix: str = "demo", share: float = 1.0) -> Iterator[str]:
    """The lines of a stream, header first; share 0 gives one order per case."""
    w = Writer(seed, prefix)
    plan = [(case, case.__name__.startswith("ln_")) for case, count in STRIPE_CASES + LIGHTNING_CASES
            for _ in range(max(1, round(count * share)))]
    w.rng.shuffle(plan)
    for case, lightning in plan:
        w.case = case.__name__
        case(w, w.order(lightning))
    repeat_some(w)
    header = {"stream": "payonce", "version": 1, "seed": seed, "prefix": prefix, "points": POINTS,
              "accounts": ACCOUNTS, "ledger": LEDGER, "lines": len(w.lines)}
    for line in (header, *w.lines):
        yield json.dumps(line, separators=(",", ":"), ensure_ascii=False)


if __name__ == "__main__":
    for one in generate(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(one)

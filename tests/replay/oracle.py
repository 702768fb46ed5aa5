"""What must be true once a stream has been played, from its lines alone: the final facts of each order, judged
here a second time in plain Python.

An order's position is a function of its set of facts. Three effects also depend on what it once was: a right
and a mail once it was ever paid, and points, which stay as they are while it is not paid. So the lines are
walked in file order, each seen as soon as what it needs is known; a stream says by `after` and `when` wherever
arrival decides, so every order of arrival that respects them leads to the same effects.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Key = tuple[Any, ...]  # what a line can wait for: ("order", ID), ("ref", …) or ("paid", …)

ZERO_DECIMAL = {"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"}
THREE_DECIMAL = {"BHD", "JOD", "KWD", "OMR", "TND"}
PAID = "paid"


@dataclass(frozen=True)
class Stream:
    header: dict[str, Any]
    lines: tuple[Line, ...]

    @classmethod
    def read(cls, rows: Iterable[str]) -> "Stream":
        header, *lines = (json.loads(row) for row in rows if row.strip())
        assert [line["n"] for line in lines] == list(range(1, len(lines) + 1)), "lines are numbered from 1"
        assert len(lines) == header["lines"], "the stream was cut"
        return cls(header, tuple(lines))

    @classmethod
    def load(cls, path: Path) -> "Stream":
        """ValueError when the file holds no whole stream."""
        with path.open(encoding="utf-8") as f:
            try:
                stream = cls.read(f)
                expected(stream)
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as err:
                raise ValueError(f"no stream of payments: {err or type(err).__name__}") from err
        return stream

    def of(self, line: Line) -> Line:
        """The request a line sends: its own, or the one it repeats."""
        return self.lines[line["of"] - 1] if line["do"] == "again" else line

    def mode(self, provider: str, alias: str) -> str:
        return self.header["accounts"][provider][alias]


# --- Facts and positions

@dataclass(frozen=True)
class Payment:
    """One statement about a payment."""
    key: tuple[str, str, str]  # provider, alias, the payment's own id
    state: str  # "pending", "failed", "expired", "canceled", "paid", "unsupported"
    currency: str
    exponent: int
    at: int
    amount: int | None = None
    discount: int = 0
    waived: bool = False


@dataclass(frozen=True)
class Refund:
    """One statement about a refund, or about all refunds of a charge (`total`, said `at`)."""
    key: tuple[str, str, str]
    id: str  # of a total the charge's; a payment has one charge here
    state: str  # "pending" < "paid" < "failed"
    currency: str
    exponent: int
    at: int
    amount: int
    total: bool = False
    failed_at: int | None = None


REFUND_RANK = {"pending": 1, PAID: 2, "failed": 3}


@dataclass
class Order:
    body: dict[str, Any]
    currency: str
    exponent: int
    price: int
    max_discount: int
    payments: set[Payment] = field(default_factory=set)
    refunds: set[Refund] = field(default_factory=set)
    evidence: set[str] = field(default_factory=set)
    canceled: bool = False
    emails: set[str] = field(default_factory=set)
    ever_paid: bool = False
    points: int = 0

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Order":
        amount = body["amount"]
        exponent = 11 if body["policy"] == "lightning-v1" else stripe_exponent(amount["currency"])
        scale = 10 ** (exponent - amount["exponent"])
        return cls(body, amount["currency"], exponent, amount["minor"] * scale, body.get("max_discount", 0) * scale)

    @property
    def id(self) -> str:
        return self.body["order_id"]

    def ours(self, fact: Payment | Refund) -> bool:
        return fact.currency == self.currency and fact.exponent == self.exponent


@dataclass(frozen=True)
class Position:
    paid: bool
    due: int
    nets: dict[tuple[str, str], int]  # received − refunded by (provider, alias)

    @property
    def net(self) -> int:
        return sum(self.nets.values())


def position(order: Order) -> Position:
    paid = defaultdict(list)
    for statement in order.payments:
        if statement.state == PAID:
            paid[statement.key].append(statement)
    canceled = {p.key for p in order.payments if p.state == "canceled"}
    person = bool(order.evidence) or (order.canceled and bool(paid)) or bool(canceled & paid.keys())
    received: dict[Key, tuple[int, int]] = {}  # when, how much
    for key, statements in paid.items():
        ours = [p for p in statements if order.ours(p)]
        amounts = {p.amount for p in ours if p.amount is not None}
        person |= len(ours) < len(statements) or len(amounts) > 1
        if amounts:
            received[key] = min(p.at for p in ours), min(amounts)
    refunds = [r for r in order.refunds if order.ours(r)]
    person |= any(r.state == PAID and r.key in paid and not order.ours(r) for r in order.refunds)

    discount = max((d for p in order.payments if p.state == PAID and order.ours(p)
                    for d in (p.discount, order.price - sum(a for _, a in received.values()) if p.waived else 0)),
                   default=0)
    due = max(order.price - discount, 0) if discount <= order.max_discount else order.price
    # A refund is never older than its payment, whatever two clocks of a provider say.
    back = {key: [(max(at, since), amount) for at, amount in given_back([r for r in refunds if r.key == key])]
            for key, (since, _) in received.items()}
    reached = over = False
    for moment in sorted({(at, False) for at, _ in received.values()} | {
            (at, True) for each in back.values() for at, _ in each}):
        seen = {key: a for key, (at, a) in received.items() if (at, False) <= moment}
        gone = {key: sum(amount for at, amount in back[key] if (at, True) <= moment) for key in seen}
        net = sum(a - min(a, gone[key]) for key, a in seen.items())
        reached |= net >= due
        if moment[1]:
            over |= any(gone[key] > a and any((at, True) == moment for at, _ in back[key]) for key, a in seen.items())
        elif net >= due:
            over = False
    nets: Counter[tuple[str, str]] = Counter()
    for key, (_, amount) in received.items():
        nets[key[0], key[1]] += amount - min(amount, sum(a for _, a in back[key]))
    return Position(reached and not person and not over, due, dict(nets))


def given_back(refunds: list[Refund]) -> list[tuple[int, int]]:
    """What went back of one payment, and when: what succeeded, and what the last total states beyond all refunds that are
    named until then; of a total that has fallen with some that failed, beyond those that had not."""
    named: dict[str, Refund] = {}
    for r in (r for r in refunds if not r.total):
        if r.id not in named or REFUND_RANK[r.state] > REFUND_RANK[named[r.id].state]:
            named[r.id] = r
    back = [(r.at, r.amount) for r in named.values() if r.state == PAID]
    if totals := [(r.at, r.amount) for r in refunds if r.total]:
        at, total = max(totals)
        known = [r for r in named.values() if r.at <= at]
        every = sum(r.amount for r in known)
        alive = sum(r.amount for r in known if r.failed_at is None or r.failed_at >= at)
        if rest := max(0, total - (every if total >= every else alive)):
            back.append((at, rest))
    return back


# --- Reading what providers say

def stripe_exponent(currency: str) -> int:
    return 0 if currency in ZERO_DECIMAL else 3 if currency in THREE_DECIMAL else 2


@dataclass
class Said:
    """One event, read: where it may belong, what it teaches, what it states."""
    refs: list[tuple[str, str, str]] = field(default_factory=list)  # kind, value, payment ("": not known)
    order_id: str = ""
    payment: Payment | None = None
    refund: Refund | None = None  # key[2] "" until its charge is known
    profile: str = ""
    by_name: bool = False  # no reference is known
    claimed: bool = False  # what names an order without money has told its references' payments so
    done: bool = False  # decided: what it waited for wakes it no more


SESSION_STATES = {("completed", "paid"): (PAID, False), ("completed", "no_payment_required"): (PAID, True),
                  ("completed", "unpaid"): ("pending", False), ("async_payment_succeeded", "paid"): (PAID, False),
                  ("async_payment_failed", "unpaid"): ("failed", False), ("expired", "unpaid"): ("expired", False)}
REFUND_STATES = {"succeeded": PAID, "failed": "failed", "canceled": "failed"}


def read_stripe(alias: str, body: dict[str, Any]) -> Said | None:
    type, o = body["type"], body["data"]["object"]
    at = body["created"]["$at"]
    said = Said(order_id=(o.get("metadata") or {}).get("order_id", ""))
    intent = o.get("payment_intent") or ""
    unit = (o.get("currency", "").upper(), stripe_exponent(o.get("currency", "").upper()))
    if type.startswith("checkout.session."):
        state = SESSION_STATES.get((type.removeprefix("checkout.session."), o.get("payment_status")))
        if state is None:
            return None
        payment = intent or o["id"]
        said.refs = [("session", o["id"], payment)] + ([("payment_intent", intent, payment)] if intent else [])
        said.payment = Payment(("stripe", alias, payment), state[0], *unit, at,
                               o["amount_total"] if state[0] == PAID else None,
                               o["total_details"]["amount_discount"] if state[0] == PAID else 0, state[1])
    elif type.startswith("payment_intent."):
        said.refs = [("payment_intent", o["id"], o["id"])]
        said.refs += [("charge", o["latest_charge"], o["id"])] if o.get("latest_charge") else []
    elif type in ("charge.succeeded", "charge.refunded"):
        said.refs = [("payment_intent", intent, intent), ("charge", o["id"], intent)]
        if type == "charge.refunded":
            total = o["amount_refunded"]
            said.refund = Refund(("stripe", alias, intent), o["id"], PAID, *unit, at, total, True)
    elif type.startswith("refund."):
        said.refs = [("payment_intent", intent, intent)] if intent else []
        said.refs += [("charge", o["charge"], intent)]
        state = "failed" if type == "refund.failed" else REFUND_STATES.get(o["status"], "pending")
        said.refund = Refund(("stripe", alias, intent), o["id"], state, *unit, o["created"]["$at"], o["amount"],
                             failed_at=at if state == "failed" else None)
    else:
        return None
    return said


INVOICE_STATES = {"OPEN": "pending", "ACCEPTED": "pending", "CANCELED": "canceled", "SETTLED": PAID}


def read_lightning(alias: str, body: dict[str, Any]) -> Said:
    o = body["object"]
    settled = o["state"] == "SETTLED"
    amount = int(o["amt_paid_msat"]) if settled and "amt_paid_msat" in o else None
    at = o["settle_date" if settled else "creation_date"]["$text"]
    payment = o["payment_hash"] + (":" + o["set_id"] if "set_id" in o else "")
    return Said(refs=[("payment_hash", o["payment_hash"], "" if "set_id" in o else payment)], profile=body["profile"],
                payment=Payment(("lightning", alias, payment), INVOICE_STATES.get(o["state"], "unsupported"), "BTC", 11,
                                at, amount))


# --- The walk

@dataclass
class Expected:
    rights: set[tuple[str, str, str, str]] = field(default_factory=set)  # order, customer, purpose, item
    mails: dict[str, set[str]] = field(default_factory=dict)  # order → addresses, one of which gets one mail
    points: dict[str, int] = field(default_factory=dict)  # order → points
    customers: dict[str, int] = field(default_factory=dict)  # customer → points
    ledger: dict[tuple[str, str, str], int] = field(default_factory=dict)  # order, unit, account → balance, debit +
    paid: int = 0
    orders: int = 0


class Walk:
    """Applies lines one by one; what a line waits for is a key, as in ("order", "o-1")."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.orders: dict[str, Order] = {}
        self._refs: dict[Key, tuple[str, str]] = {}  # (provider, alias, kind, value) → order, payment
        self._claims: dict[Key, str] = {}  # the order that an event without money named
        self._events: set[Key] = set()
        self._waiting: dict[Key, list[tuple[str, str, Said]]] = defaultdict(list)

    def apply(self, line: Line) -> None:
        line = self.stream.of(line)
        if line.get("expect", 200) >= 400:
            return
        if line["do"] == "register":
            self._register(line["order"])
        elif line["do"] == "references":
            self._refer(self.orders[line["order_id"]], line["references"])
        elif line["do"] == "cancel":
            self.orders[line["order_id"]].canceled = True
        elif "raw" not in line:
            self._event(line)

    def _register(self, body: dict[str, Any]) -> None:
        order = self.orders.setdefault(body["order_id"], Order.of(body))
        if "contact" in body:
            order.emails.add(body["contact"]["email"])
        self._refer(order, body.get("references", []))
        self._wake([("order", order.id)])

    def _refer(self, order: Order, references: list[dict[str, str]]) -> None:
        provider = provider_of(order)
        keys = [("ref", provider, r["account"], r["kind"], r["value"]) for r in references]
        for key in keys:
            self._refs.setdefault(key, (order.id, ""))
        self._wake(keys)

    def _event(self, line: Line) -> None:
        provider, alias, body = line["provider"], line["alias"], line["body"]
        id = (provider, alias, line["id"] if provider == "lightning" else body["id"])
        if provider == "stripe" and body["livemode"] != (self.stream.mode(provider, alias) == "live"):
            return
        if id in self._events:
            return  # the same again, or a conflict: the first stays
        self._events.add(id)
        said = read_stripe(alias, body) if provider == "stripe" else read_lightning(alias, body)
        if said is not None:
            self._decide(provider, alias, said)

    def _routes(self, provider: str, alias: str, said: Said) -> tuple[set[str], bool]:
        """The orders an event's references lead to, or else its name; and whether by another account's reference."""
        found, foreign = set(), False
        for kind, value, _ in said.refs:
            known = self._refs.get(("ref", provider, alias, kind, value))
            if known:
                found.add(known[0])
            elif kind == "payment_hash":
                for other, mode in self.stream.header["accounts"][provider].items():
                    known = self._refs.get(("ref", provider, other, kind, value))
                    if known and mode == self.stream.mode(provider, alias):
                        found.add(known[0])
                        foreign = True
        order = self.orders.get(said.order_id)
        if not found and order and provider_of(order) == provider and alias in order.body["accounts"]:
            said.by_name = True
            found.add(order.id)
        claims = [c for kind, value, _ in said.refs if (c := self._claims.get(("ref", provider, alias, kind, value)))]
        if not found and claims:
            said.by_name = True
            found.add(claims[0])
        return found, foreign

    def _decide(self, provider: str, alias: str, said: Said) -> None:
        said.by_name = False
        found, foreign = self._routes(provider, alias, said)
        if len(found) > 1 or foreign:
            said.done = True
            for id in found:
                self.orders[id].evidence.add("route_conflict" if len(found) > 1 else "foreign_account")
                self._settle(self.orders[id])
            return
        nameless = said.by_name and not said.payment  # without money a name leads nowhere
        if not found or nameless:
            aliases = self.stream.header["accounts"][provider] if provider == "lightning" else [alias]
            keys = [("ref", provider, a, kind, value) for kind, value, _ in said.refs for a in aliases]
            for key in keys if nameless else []:
                self._claims.setdefault(key, next(iter(found)))
            names = [("order", said.order_id)] if said.order_id and not nameless else []
            self._wait(keys + names, provider, alias, said)
            if nameless and not said.claimed:
                said.claimed = True
                self._wake(keys)
            return
        order = self.orders[found.pop()]
        teaching = said.refs if not said.by_name or (said.payment and said.payment.state == PAID) else []
        taught = [("ref", provider, alias, kind, value) for kind, value, _ in teaching]
        for key, (_, _, payment) in zip(taught, teaching, strict=True):
            if not self._refs.get(key, ("", ""))[1]:
                self._refs[key] = order.id, payment
        self._state(order, provider, alias, said)
        self._wake(taught)

    def _state(self, order: Order, provider: str, alias: str, said: Said) -> None:
        if said.profile and order.body.get("profile") and said.profile != order.body["profile"]:
            order.evidence.add("foreign_profile")
        elif said.payment:
            order.payments.add(said.payment)
        elif said.refund:
            refund = said.refund
            intent = refund.key[2] or next(
                (p for kind, value, _ in said.refs
                 if (p := self._refs.get(("ref", provider, alias, kind, value), ("", ""))[1])), "")
            key = (provider, alias, intent)
            if not any(p.key == key and p.state == PAID for p in order.payments):
                refs = [("ref", provider, alias, kind, value) for kind, value, _ in said.refs]
                self._wait([("paid", *key)] if intent else refs, provider, alias, said)
                return
            order.refunds.add(replace(refund, key=key))
        said.done = True
        if not (said.payment or said.refund):
            return
        self._settle(order)
        if said.payment and said.payment.state == PAID:
            self._wake([("paid", *said.payment.key)])

    def _settle(self, order: Order) -> None:
        now = position(order)
        if now.paid:
            order.ever_paid = True
            order.points = points_of(self.stream, order, now)

    def _wait(self, keys: list[Key], provider: str, alias: str, said: Said) -> None:
        for key in keys:
            self._waiting[key].append((provider, alias, said))

    def _wake(self, keys: list[Key]) -> None:
        for key in keys:
            for provider, alias, said in self._waiting.pop(key, []):
                if not said.done:
                    self._decide(provider, alias, said)

    @property
    def waiting(self) -> int:
        """How many events still wait for an order or a payment."""
        return len({id(said) for those in self._waiting.values() for _, _, said in those if not said.done})

    def expected(self) -> Expected:
        out = Expected(orders=len(self.orders))
        for order in self.orders.values():
            if order.ever_paid:
                body = order.body
                out.rights.add((order.id, body["customer_id"], body["purpose"], body["item"]))
                if order.emails:
                    out.mails[order.id] = set(order.emails)
            if order.points:
                customer = order.body["customer_id"]
                out.points[order.id] = order.points
                out.customers[customer] = out.customers.get(customer, 0) + order.points
            now = position(order)
            out.paid += now.paid
            out.ledger |= balances(self.stream, order, now)
        return out


def provider_of(order: Order) -> str:
    return order.body["policy"].removesuffix("-v1")


def unit_of(order: Order) -> str:
    return f"{order.currency}/{order.exponent}"


def points_of(stream: Stream, order: Order, now: Position) -> int:
    per = stream.header["points"].get(unit_of(order))
    if not per or not now.due:
        return 0
    return now.due // per * min(now.net, now.due) // now.due


def balances(stream: Stream, order: Order, now: Position) -> dict[tuple[str, str, str], int]:
    """What lies on each account for an order: debit is positive, and the sum is zero."""
    names = stream.header["ledger"]
    revenue = min(now.net, now.due) if now.paid else 0
    credit = now.net - revenue if now.paid else 0
    rows = {names["clearing"].replace("PROVIDER", provider).replace("ALIAS", alias): net
            for (provider, alias), net in now.nets.items()}
    rows |= {names["revenue"]: -revenue, names["credit"]: -credit, names["suspense"]: revenue + credit - now.net}
    return {(order.id, unit_of(order), account): amount for account, amount in rows.items() if amount}


def expected(stream: Stream, order_of_arrival: Iterable[Line] | None = None) -> Expected:
    walk = Walk(stream)
    for line in stream.lines if order_of_arrival is None else order_of_arrival:
        walk.apply(line)
    return walk.expected()


if __name__ == "__main__":  # what a stream expects, for people
    import sys

    got = expected(Stream.load(Path(sys.argv[1])))
    units = Counter(unit for _, unit, _ in got.ledger)
    print(f"{got.orders} orders registered, {got.paid} paid at the end, {len(got.rights)} rights, "
          f"{len(got.mails)} mails, {sum(got.points.values())} points, {len(got.ledger)} balances {dict(units)}")

"""Compares what a stream expects with what is there: the tables of the four services and the mails that
arrived. Each effect is counted as done, lost (below what it should be) or doubled (above it).

reading (read) and judging (compare) are apart, so that judging can be tested with what must not pass.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from oracle import Expected, Stream
from smtp_sink import Mail

QUERIES = {
    "rights": "SELECT order_id, customer_id, purpose, item FROM access.access_right",
    "points": "SELECT order_id, sum(delta) FROM loyalty.points_entry GROUP BY 1",
    "held": "SELECT order_id, points FROM loyalty.order_points WHERE points <> 0",
    "customers": "SELECT customer_id, points FROM loyalty.customer",
    "ledger": "SELECT j.order_id, l.currency || '/' || l.exponent, l.account, sum(l.amount) FROM ledger.journal j"
              " JOIN ledger.journal_line l USING (journal_id) GROUP BY 1, 2, 3",
    "unbalanced": "SELECT journal_id, sum(amount) FROM ledger.journal_line GROUP BY journal_id, currency, exponent"
                  " HAVING sum(amount) <> 0",
    "totals": "SELECT currency || '/' || exponent, sum(amount) FROM ledger.journal_line GROUP BY 1",
}


@dataclass
class Found:
    rights: list[tuple[str, str, str, str]] = field(default_factory=list)
    mails: list[tuple[str, str]] = field(default_factory=list)  # Message-ID, address: one for each copy that arrived
    points: dict[str, int] = field(default_factory=dict)  # sums of entries
    held: dict[str, int] = field(default_factory=dict)  # what each order's row says
    customers: dict[str, int] = field(default_factory=dict)
    ledger: dict[tuple[str, str, str], int] = field(default_factory=dict)
    unbalanced: list[str] = field(default_factory=list)  # journals that do not sum to zero
    totals: dict[str, int] = field(default_factory=dict)  # by unit, over all journals


def read(conn: Connection[Any], mails: list[Mail], stream: Stream) -> Found:
    """What is there of this stream's orders; a shared database may hold others'."""
    prefix = stream.header["prefix"] + "-"
    rows: dict[str, list[tuple[Any, ...]]] = {k: conn.execute(sql).fetchall() for k, sql in QUERIES.items()}
    ours = {k: [r for r in got if r[0].startswith(prefix)] for k, got in rows.items()}
    return Found(
        rights=[(str(o), str(c), str(p), str(i)) for o, c, p, i in ours["rights"]],
        mails=[(m.message_id, to) for m in mails for to in m.recipients if to.startswith(prefix)],
        points={o: int(n) for o, n in ours["points"]},
        held={o: int(n) for o, n in ours["held"]},
        customers={c: int(n) for c, n in ours["customers"]},
        ledger={(o, unit, account): int(n) for o, unit, account, n in ours["ledger"]},
        unbalanced=[str(j) for j, _ in rows["unbalanced"]],
        totals={unit: int(n) for unit, n in rows["totals"]},
    )


@dataclass
class Effect:
    name: str
    expected: int = 0
    done: int = 0
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)  # which, for people


@dataclass
class Report:
    effects: list[Effect]
    copies: int  # further copies of a mail under its own Message-ID
    copies_allowed: int
    balanced: bool
    faults: list[str]  # anything else that must not be

    @property
    def ok(self) -> bool:
        return (not self.faults and self.balanced and self.copies <= self.copies_allowed
                and not any(e.lost or e.doubled for e in self.effects))

    def table(self) -> str:
        rows = [("effect", "expected", "done", "lost", "doubled")]
        rows += [(e.name, *map(str, (e.expected, e.done, e.lost, e.doubled))) for e in self.effects]
        wide = [max(len(r[i]) for r in rows) for i in range(5)]
        lines = ["  ".join(c.ljust(wide[i]) if i == 0 else c.rjust(wide[i]) for i, c in enumerate(r)) for r in rows]
        lines += [f"mail copies: {self.copies} (allowed: {self.copies_allowed})",
                  f"ledger balanced: {'yes' if self.balanced else 'NO'}"]
        found = [f for e in self.effects for f in e.faults] + self.faults
        return "\n".join(lines + [f"  {f}" for f in found[:40]]
                         + ([f"  … and {len(found) - 40} more"] if len(found) > 40 else []))

    def json(self) -> dict[str, Any]:
        return {"ok": self.ok, "ledger_balanced": self.balanced, "mail_copies": self.copies,
                "mail_copies_allowed": self.copies_allowed, "faults": self.faults,
                "effects": {e.name: {"expected": e.expected, "done": e.done, "lost": e.lost, "doubled": e.doubled,
                                     "faults": e.faults} for e in self.effects}}


def compare(want: Expected, found: Found, copies_allowed: int = 0) -> Report:
    mails, copies, stray = judge_mails(want, found)
    debit = {k: -n if is_credit(k) else n for k, n in want.ledger.items()}
    booked = {k: -n if is_credit(k) else n for k, n in found.ledger.items()}
    effects = [
        judge_set("rights", want.rights, found.rights),
        mails,
        judge_balances("points of orders", want.points, found.points),
        judge_balances("points of customers", want.customers, found.customers),
        judge_balances("ledger balances", debit, booked),
    ]
    faults = stray + [f"points of {o}: entries sum to {found.points.get(o, 0)}, its row says {found.held.get(o, 0)}"
                      for o in sorted(found.points.keys() | found.held.keys())
                      if found.points.get(o, 0) != found.held.get(o, 0)]
    faults += [f"{j} does not sum to zero" for j in found.unbalanced]
    balanced = not found.unbalanced and not any(found.totals.values())
    return Report(effects, copies, copies_allowed, balanced, faults)


def is_credit(key: tuple[str, str, str]) -> bool:
    return not key[2].startswith("clearing:")


def judge_set(name: str, want: set[Any], found: list[Any]) -> Effect:
    """Things that are there once or not at all."""
    out, count = Effect(name, expected=len(want)), Counter(found)
    for one in sorted(want | count.keys()):
        should, n = int(one in want), count[one]
        out.done += min(should, n)
        out.lost += max(should - n, 0)
        out.doubled += max(n - should, 0)
        if n != should:
            out.faults.append(f"{name}: {n} instead of {should}: {one}")
    return out


def judge_balances(name: str, want: dict[Any, int], found: dict[Any, int]) -> Effect:
    """Balances: below what it should be is lost, above it doubled."""
    out = Effect(name, expected=sum(1 for n in want.values() if n))
    for one in sorted(want.keys() | found.keys()):
        should, n = want.get(one, 0), found.get(one, 0)
        out.done += int(n == should != 0)
        out.lost += int(n < should)
        out.doubled += int(n > should)
        if n != should:
            out.faults.append(f"{name}: {n} instead of {should}: {one}")
    return out


def judge_mails(want: Expected, found: Found) -> tuple[Effect, int, list[str]]:
    """One Message-ID for each order that wants a mail; more copies of the same one are counted apart."""
    order_of = {address: order for order, addresses in want.mails.items() for address in addresses}
    orders_of: dict[str, set[str]] = {}  # by Message-ID
    for message_id, address in found.mails:
        orders_of.setdefault(message_id, set()).add(order_of.get(address, address))
    stray = [f"Message-ID {m} was used for {len(to)} orders" for m, to in orders_of.items() if len(to) > 1]
    pairs = {(message_id, order) for message_id, orders in orders_of.items() for order in orders}
    effect = judge_set("mails", set(want.mails), [order for _, order in pairs])
    return effect, len(found.mails) - len(orders_of), stray

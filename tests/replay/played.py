"""What a stream plays, counted from its lines and from the oracle's reading of them, and beside it what came of it:
the answers that the player got, and the states in which ingest holds the orders.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from oracle import PAID, Line, Order, Stream, Walk, position


@dataclass(frozen=True)
class Row:
    n: int
    what: str
    became: str


def table(rows: list[Row]) -> str:
    wide = max(len(r.what) for r in rows)
    return "\n".join(f"{r.n:6}  {r.what.ljust(wide)}  {r.became}" for r in rows)


def counts(words: Iterable[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in Counter(words).most_common()) or "–"


def requests(stream: Stream, answers: dict[int, str], apart: dict[str, int]) -> list[Row]:
    """`answers`: line → the result or status it was answered with; `apart`: how many events are in the log as what."""
    sent = [(line["n"], stream.of(line)) for line in stream.lines]
    events = [(n, of) for n, of in sent if of["do"] == "event"]
    forged = [n for n, of in events if "sign" in of]
    clear = [(n, of) for n, of in events if "sign" not in of and "raw" not in of]
    other = [n for n, of in clear if "result" in of]
    plain = [(n, of) for n, of in clear if "result" not in of]
    again = len(plain) - len({event_key(of) for _, of in plain})
    unreadable = [n for n, of in events if "raw" in of]
    refused = [n for n, of in sent if of["do"] != "event" and of.get("expect", 200) >= 400]

    def answered(lines: Iterable[int]) -> str:
        said = (answers.get(n, "not answered") for n in lines)
        return counts(f"answered {word}" if word.isdigit() else word for word in said)

    told = Counter(answers.get(n) for n, _ in plain)
    recorded = ", ".join(f"{n} {word}" for word, n in sorted(apart.items()))
    return [
        Row(len(plain) - again, "events, signed and readable", f"{told['recorded']} recorded"),
        Row(again, "the same events again", f"{told['duplicate']} duplicate"),
        Row(len(other), "events whose id said something else before", answered(other)),
        Row(len(unreadable), "events that no strict reader can use", answered(unreadable)),
        Row(len(forged), "events forged, stale or not signed", answered(forged)),
        Row(len(refused), "commands of the shop that contradict what is known", answered(refused)),
        Row(sum(apart.values()), "events in ingest's log", recorded),
    ]


def event_key(of: Line) -> tuple[str, str, str]:
    return of["provider"], of["alias"], of["id"] if of["provider"] == "lightning" else of["body"]["id"]


def orders(stream: Stream, states: dict[str, str], undecided: int) -> list[Row]:
    """`states`: order → the state that ingest holds it in; `undecided`: how many events wait there."""
    walk = Walk(stream)
    for line in stream.lines:
        walk.apply(line)
    kinds = {
        "orders registered": list(walk.orders.values()),
        "… with less money than was due": [o for o in walk.orders.values() if 0 < received(o) < position(o).due],
        "… with more": [o for o in walk.orders.values() if received(o) > position(o).due],
        "… with money that came after their time": [o for o in walk.orders.values() if late(o)],
        "… whose money went back, in part or whole": [o for o in walk.orders.values() if
                                                      any(r.state == PAID for r in o.refunds)],
        "… canceled by the shop and paid": [o for o in walk.orders.values() if o.canceled and received(o)],
        "… with money or evidence that contradicts them": [o for o in walk.orders.values() if contradicted(o)],
    }
    rows = [Row(len(of), what, counts(states.get(o.id, "missing") for o in of)) for what, of in kinds.items()]
    return [*rows, Row(walk.waiting, "events of orders that are not registered", f"{undecided} undecided")]


def amounts(order: Order) -> dict[tuple[str, str, str], set[int]]:
    """What is said to have come in, by payment, in the order's own unit."""
    out: dict[tuple[str, str, str], set[int]] = {}
    for p in order.payments:
        if p.state == PAID and order.ours(p) and p.amount is not None:
            out.setdefault(p.key, set()).add(p.amount)
    return out


def received(order: Order) -> int:
    return sum(map(min, amounts(order).values()))


def late(order: Order) -> bool:
    end = order.body.get("expires_at")
    return bool(end) and any(p.state == PAID and p.at > end["$iso"] for p in order.payments)


def contradicted(order: Order) -> bool:
    return (bool(order.evidence) or any(p.state == PAID and not order.ours(p) for p in order.payments)
            or any(len(said) > 1 for said in amounts(order).values()))

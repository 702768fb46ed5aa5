"""What the consumers made of the events, read from their tables, and how to know that they are through."""

from collections.abc import Iterable
from typing import Any

from stack import Stack
from topic import PAYMENTS, Event
from wait import until

TABLES = {
    "ledger": ("order_position", "journal", "journal_line"),
    "loyalty": ("order_points", "points_entry", "customer"),
    "receipts": ("contact", "mail"),
    "access": ("access_right", "conflict"),
}
CONSUMERS = tuple(TABLES)


class Effects:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._query = stack.postgres.query

    def balances(self, order: str) -> dict[str, int]:
        """Each ledger account's balance, those at zero left out; debit is positive."""
        rows = self._query(
            "SELECT account, sum(amount)::bigint FROM ledger.journal_line JOIN ledger.journal USING (journal_id)"
            " WHERE order_id = %s GROUP BY account HAVING sum(amount) <> 0", order)
        return {str(account): int(amount) for account, amount in rows}

    def journals(self, order: str) -> list[int]:
        """The sequences that moved something."""
        return [int(s) for (s,) in self._query(
            "SELECT sequence FROM ledger.journal WHERE order_id = %s ORDER BY sequence", order)]

    def unbalanced(self) -> list[tuple[Any, ...]]:
        """Journals that do not sum to zero per unit, or have no lines: there are none, ever."""
        return self._query(
            "SELECT journal_id FROM ledger.journal LEFT JOIN ledger.journal_line USING (journal_id)"
            " GROUP BY journal_id, currency, exponent HAVING coalesce(sum(amount), 1) <> 0")

    def points(self, order: str) -> int:
        return int(self._query("SELECT coalesce(sum(delta), 0) FROM loyalty.points_entry WHERE order_id = %s",
                               order)[0][0])

    def entries(self, order: str) -> list[tuple[int, int]]:
        """(sequence, points given or taken)."""
        return [(int(s), int(d)) for s, d in self._query(
            "SELECT sequence, delta FROM loyalty.points_entry WHERE order_id = %s ORDER BY sequence", order)]

    def mail(self, order: str) -> tuple[str, int, str | None] | None:
        """State, attempts and last error of the order's mail."""
        rows = self._query("SELECT state, attempts, last_error FROM receipts.mail WHERE order_id = %s", order)
        assert len(rows) <= 1, rows
        return (str(rows[0][0]), int(rows[0][1]), rows[0][2]) if rows else None

    def rights(self, order: str) -> list[tuple[Any, ...]]:
        """(operation key, recipient, state), by generation."""
        return self._query("SELECT operation_key, customer_id, state FROM access.access_right"
                           " WHERE order_id = %s ORDER BY qualification", order)

    def taken(self, consumer: str, events: Iterable[Event]) -> bool:
        """Whether the consumer's inbox holds all of them."""
        ids = [e["event_id"] for e in events]
        return self._query(f"SELECT count(*) FROM {consumer}.inbox WHERE event_id = ANY(%s::uuid[])", ids) == [(len(ids),)]

    def wait_taken(self, events: Iterable[Event], *consumers: str, timeout: float = 120) -> None:
        events = list(events)
        for consumer in consumers:
            until(lambda c=consumer: self.taken(c, events), timeout, f"{consumer} has taken {len(events)} events")

    def wait_drained(self, *consumers: str, topics: tuple[str, ...] = (PAYMENTS,), timeout: float = 120) -> None:
        """Until the groups have committed up to the ends of the topics."""
        kafka = self.stack.kafka
        for consumer in consumers:
            for name in topics:
                until(lambda c=consumer, n=name: kafka.drained(f"payonce-{c}", n), timeout,
                      f"{consumer} has drained {name}")

    def dump(self, inboxes: bool = True) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of the consumers' tables, sorted."""
        names = [f"{c}.{t}" for c, tables in TABLES.items() for t in (*tables, *(["inbox"] if inboxes else []))]
        return {name: sorted(self._query(f"SELECT * FROM {name}"), key=str) for name in names}

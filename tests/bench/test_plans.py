"""How ingest's statements are planned when that matters most: on a new database, whose empty tables make every plan
look free, and whose plans are kept while they grow."""

import re
from collections.abc import Iterator

import pytest

from conftest import Services
from shop import Shop
from stack import Postgres, Stack
from wait import until

SETTINGS = {
    "shared_preload_libraries": "'auto_explain'",
    "auto_explain.log_min_duration": "0",
    "plan_cache_mode": "force_generic_plan",  # the kept plan from the first execution on
}
# The tables that grow, and what a condition must name to be about few of their rows.
GROWING = {"fact": "order_id", "order_ref": "value", "shop_order": r"order_id|expires_at", "provider_event": r"\bid|event_id",
           "undecided": r"event|due_at|woken_at|awaits", "decision": "order_id", "outbox": r"\bid"}
SCAN = re.compile(rf"^\s*(?:->\s+)?(Seq Scan|Index Scan|Index Only Scan)(?: using \w+)? on ({'|'.join(GROWING)})\b")
# How many wait, and how many refunds nobody named: gauges, which walk them by their nature. Each goes by an index of
# its own, and ends at a number.
COUNT = "SELECT (SELECT count(*) FROM (SELECT FROM ingest.undecided WHERE NOT unmatched LIMIT"
COUNTS = (COUNT, "SELECT count(*) FROM (SELECT FROM ingest.shop_order WHERE unexplained > 0 LIMIT")
CLAIM = "WITH oldest AS (SELECT event FROM ingest.undecided"


@pytest.fixture
def explaining(stack: Stack, tag: str) -> Iterator[Postgres]:
    postgres = Postgres(stack.scratch, SETTINGS, name=f"pg-{tag}").start()
    with postgres.connect(dbname="postgres") as conn:
        conn.execute("CREATE DATABASE payonce")
    stack.migrate("ingest", postgres)
    postgres.query("VACUUM (ANALYZE)")
    postgres.log.write_bytes(b"")  # a migration may walk what it changes
    yield postgres
    postgres.stop("immediate")


def walks(log: str) -> set[str]:
    """Scans that read a whole table or a whole index: `Seq Scan`, or an index scan without a condition."""
    lines = log.splitlines()
    found, query = set(), ""
    for at, line in enumerate(lines):
        query = line.strip() if "Query Text:" in line else query
        scan = SCAN.match(line.lstrip("\t"))
        # The first row of an index condition, without a filter, is one look.
        if scan and "Limit" in lines[at - 1] and "Index Cond" in lines[at + 1] and "Filter" not in lines[at + 2]:
            continue
        if scan and not any(c in query for c in COUNTS) and not re.search(f"Index Cond:.*(?:{GROWING[scan[2]]})", lines[at + 1]):
            found.add(f"{scan[0].strip()} in {query[:160]}")
    return found


def plans_of(postgres: Postgres, statement: str) -> list[str]:
    """The plans of a statement that begins so, each from its text to the next one's."""
    log = postgres.log.read_text(errors="replace")
    return [p for p in log.split("Query Text: ")[1:] if p.startswith(statement)]


def drive(shop: Shop, tag: str) -> None:
    """The ways of an event: decided, repeated, waiting for its order, woken."""
    shop.register("a", refs={"session": f"cs_{tag}_a"})
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    shop.send(event, expect="duplicate")
    shop.paid("later")
    shop.register("later")
    shop.wait_state("later", "paid")


def test_no_statement_walks_a_table_that_grows(services: Services, stack: Stack, explaining: Postgres, tag: str) -> None:
    services.start("ingest", env={"PAYONCE_DSN": explaining.dsn("payonce_ingest")})
    drive(Shop(services["ingest"], stack.api_token, tag), tag)
    assert services["ingest"].term() == 0
    log = explaining.log.read_text(errors="replace")
    for statement in ("ingest.fact WHERE", "UPDATE ingest.shop_order", "ingest.order_ref r", "awaits &&",
                      "digest", "FOR UPDATE SKIP LOCKED"):
        assert statement in log, f"not executed: {statement}"
    assert walks(log) == set()


def test_what_waits_is_counted_by_an_index_and_to_an_end(services: Services, stack: Stack, explaining: Postgres,
                                                         tag: str) -> None:
    """FAULTS 34: each 5 s, whatever has piled up of other applications' events."""
    services.start("ingest", env={"PAYONCE_DSN": explaining.dsn("payonce_ingest")})
    shop = Shop(services["ingest"], stack.api_token, tag)
    shop.paid("stranger", order=None)
    until(lambda: shop.ingest.status()["undecided"]["unmatched"] == 1, what="counted")
    assert services["ingest"].term() == 0
    plans = plans_of(explaining, COUNT)
    assert any("WHERE unmatched" in p.splitlines()[0] for p in plans), "all of them are counted"
    for plan in plans:
        assert "Seq Scan" not in plan and "Bitmap" not in plan, plan
        scans = re.findall(r"-> +Index Only Scan using undecided_\w+ on", plan)
        assert len(scans) == len(re.findall("-> +Limit ", plan)) > 0, plan


def test_a_claim_sorts_nothing(services: Services, stack: Stack, explaining: Postgres, tag: str) -> None:
    """FAULTS 35: whatever has piled up behind them."""
    services.start("ingest", env={"PAYONCE_DSN": explaining.dsn("payonce_ingest")})
    drive(Shop(services["ingest"], stack.api_token, tag), tag)
    assert services["ingest"].term() == 0
    plans = plans_of(explaining, CLAIM)
    assert plans
    for plan in plans:
        assert "Sort" not in plan and "Index Scan using undecided_woken" in plan and (
            "Index Scan using undecided_due" in plan), plan

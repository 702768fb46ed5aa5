"""Ingest at its doors: what is recorded, what is refused, and what is decided."""

import hashlib
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import psycopg
import pytest

import accounts
from conftest import Services
from service import call
from shop import NODE, Shop, encode, now
from sign import stripe_header
from stack import ROOT, Postgres, Stack
from wait import until


def recorded(stack: Stack, event_id: str) -> list[tuple]:
    return stack.postgres.query(
        "SELECT provider, account, disposition, problem FROM ingest.provider_event WHERE event_id = %s", event_id)


def position(view: dict) -> tuple:
    return view["state"], view["verdict"], view["reason"], view["received"], view["refunded"]


# --- Recording

def test_p1_an_event_is_stored_before_its_answer_and_keeps_its_raw_bytes(shop, stack) -> None:
    """P1, PROVIDERS fault 1-3: the signature is about bytes; so is the log."""
    event = shop.stripe_event("checkout.session.completed", shop.session("a") | {"note": "₹ नमस्ते"})
    body = json.dumps(event, indent=3, ensure_ascii=False).encode()
    shop.send(body)
    [(raw, digest)] = stack.postgres.query(
        "SELECT raw, raw_sha256 FROM ingest.provider_event WHERE event_id = %s", event["id"])
    assert bytes(raw) == body and bytes(digest) == hashlib.sha256(body).digest()


def test_p2_the_same_again_is_a_duplicate_whatever_its_bytes(shop, stack, events) -> None:
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    shop.send(event, expect="duplicate")
    shop.send(json.dumps(event, indent=2, sort_keys=True).encode(), expect="duplicate")
    assert events(shop.id("a")) == [("qualified", 1)]
    assert len(recorded(stack, event["id"])) == 1


def test_p2_the_same_id_saying_something_else_is_a_conflict_and_the_first_stays(shop, stack, events) -> None:
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    shop.send(event)
    shop.send(event | {"data": {"object": shop.session("a", total=9900)}}, expect="conflict")
    assert position(shop.show("a"))[3] == 4900
    assert events(shop.id("a")) == [("qualified", 1)]
    assert stack.postgres.query("SELECT count(*) FROM ingest.event_conflict WHERE event_id = %s", event["id"]) == [(1,)]
    assert shop.ingest.metric("payonce_ingest_conflicts_total") == 1


def test_p2_fifty_connections_with_one_event_make_one_event_and_one_effect(shop, stack, events) -> None:
    """FAULTS 15, PROVIDERS fault 13: a unique key decides, never a look before the insert."""
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: shop.send(event, expect=None), range(50)))
    assert {a.status for a in answers} == {200}
    assert sorted(a.json()["result"] for a in answers) == ["duplicate"] * 49 + ["recorded"]
    assert len(recorded(stack, event["id"])) == 1 and events(shop.id("a")) == [("qualified", 1)]


def test_p6_three_event_types_of_one_purchase_are_one_payment(shop, events) -> None:
    """FAULTS 24, PROVIDERS fault 15."""
    shop.register("a")
    intent = {"id": f"pi_{shop.tag}_a", "object": "payment_intent", "amount": 4900, "amount_received": 4900,
              "currency": "eur", "status": "succeeded", "latest_charge": f"ch_{shop.tag}_a",
              "metadata": {"order_id": shop.id("a")}}
    shop.send(shop.stripe_event("payment_intent.succeeded", intent))
    shop.send(shop.stripe_event("charge.succeeded", shop.charge("a", 4900, 0)))
    shop.paid("a")
    shop.wait_state("a", "paid", received=4900)
    assert events(shop.id("a")) == [("qualified", 1)]


def test_p6_two_event_ids_for_one_change_emit_one_effect(shop, events) -> None:
    """PROVIDERS a2: Stripe sometimes makes two events of one change."""
    shop.register("a")
    at = now()
    for _ in range(2):
        shop.send(shop.stripe_event("checkout.session.completed", shop.session("a"), created=at))
    assert events(shop.id("a")) == [("qualified", 1)]


@pytest.mark.parametrize(("table", "column"), [
    ("provider_event", "raw"), ("event_conflict", "raw"), ("decision", "verdict"), ("outbox", "body")])
def test_p1_p5_what_was_recorded_and_decided_is_never_edited(stack, table: str, column: str) -> None:
    """Not even by ingest itself."""
    for statement in (f"UPDATE ingest.{table} SET {column} = {column}", f"DELETE FROM ingest.{table}",
                      f"TRUNCATE ingest.{table} CASCADE"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stack.postgres.query(statement, role="payonce_ingest")


def test_p5_a_decision_is_kept_with_its_policy_and_the_facts_it_changed(shop, stack) -> None:
    """FAULTS 32: the whole snapshot with each decision was 248 MB for 120 of them."""
    shop.register("a")
    sends = [shop.stripe_event("checkout.session.completed", shop.session("a", 3000)),
             shop.stripe_event("refund.created", shop.refund("a", "1", 900))]
    for event in sends:
        shop.send(event)
    rows = stack.postgres.query(
        "SELECT e.event_id, policy, policy_version, verdict, reason, emits, state, received, refunded, sequence, facts"
        " FROM ingest.decision d JOIN ingest.provider_event e ON e.id = d.event WHERE order_id = %s ORDER BY sequence",
        shop.id("a"))
    position = ("stripe-v1", 1, "underpaid", "underpaid")
    assert [r[:-1] for r in rows] == [
        (sends[0]["id"], *position, "payment.review_required", "review", 3000, 0, 1),
        (sends[1]["id"], *position, "payment.refunded", "review", 3000, 900, 2)]
    payment = ("payment", f"pi_{shop.tag}_a", "paid", "EUR/2", 3000)
    assert [[(f["kind"], f["object"], f["state"], f["unit"], f["amount"]) for f in r[-1]] for r in rows] == [
        [payment], [("refund", f"re_{shop.tag}_1", "paid", "EUR/2", 900)]]


def snapshots(stack: Stack, order_id: str) -> list[dict[tuple, dict[str, Any]]]:
    """The facts that each decision of an order was drawn from: whole ones as they stand, changes folded."""
    known: dict[tuple, dict[str, Any]] = {}
    made = []
    for facts, facts_are in stack.postgres.query(
            "SELECT facts, facts_are FROM ingest.decision WHERE order_id = %s"
            " ORDER BY made NULLS FIRST, decided_at, decision_id", order_id):
        stated = {tuple(f[k] for k in ("provider", "account", "kind", "object", "unit")): f for f in facts}
        known = stated if facts_are == "all" else known | stated
        made.append(known)
    return made


def test_p3_any_decisions_snapshot_is_its_orders_changes_folded(shop, stack) -> None:
    """FAULTS 32. Among them one that a release of before has written whole."""
    shop.register("a")
    session = shop.session("a", 3000)
    for event in (shop.stripe_event("checkout.session.completed", session | {"payment_status": "unpaid"}),
                  shop.stripe_event("checkout.session.async_payment_succeeded", session),
                  shop.stripe_event("refund.created", shop.refund("a", "1", 900, status="pending"))):
        shop.send(event)
    whole = list(snapshots(stack, shop.id("a"))[-1].values())
    assert [f["kind"] for f in whole] == ["payment", "refund"]
    stack.postgres.query(
        "UPDATE ingest.decision SET facts_are = 'all', facts = %s, made = NULL WHERE order_id = %s AND made ="
        " (SELECT max(made) FROM ingest.decision WHERE order_id = %s)", json.dumps(whole), shop.id("a"), shop.id("a"))
    stack.postgres.query("DELETE FROM ingest.decision WHERE order_id = %s AND made IS NOT NULL", shop.id("a"))
    shop.send(shop.stripe_event("refund.updated", shop.refund("a", "1", 900)))
    shop.send(shop.stripe_event("refund.updated", shop.refund("a", "1", 900)))  # changes nothing
    shop.paid("a", total=1900, session=f"cs_{shop.tag}_2", payment=f"pi_{shop.tag}_2")
    first, second, same, last = snapshots(stack, shop.id("a"))
    refund = ("stripe", "shop", "refund", f"re_{shop.tag}_1", "EUR/2")
    assert [s[refund]["state"] for s in (first, second, same, last)] == ["pending", "paid", "paid", "paid"]
    assert same == second and len(last) == 3
    facts = stack.postgres.query(
        "SELECT provider, account, kind, object, currency || '/' || exponent, state, amount FROM ingest.fact"
        " WHERE order_id = %s", shop.id("a"))
    assert {row[:5]: row[5:] for row in facts} == {k: (f["state"], f["amount"]) for k, f in last.items()}


# --- Bad input

@pytest.mark.parametrize(("case", "status"), [
    ("missing", 401), ("wrong secret", 401), ("stale", 401), ("future", 401), ("two headers", 400),
    ("v0 only", 401), ("other body", 401), ("upper hex", 401),
])
def test_p1_a_bad_signature_is_refused_and_nothing_is_stored(shop, stack, case: str, status: int) -> None:
    """PROVIDERS a1, f1, faults 5, 7, 8 (the grammar row by row: stripe_test.c)."""
    event = shop.stripe_event("checkout.session.completed", shop.session("a"))
    body, secret = encode(event), accounts.secret("shop")
    good = stripe_header(secret, body, now())
    headers = {
        "missing": [], "wrong secret": [stripe_header("whsec_other", body, now())],
        "stale": [stripe_header(secret, body, now() - 86400)], "future": [stripe_header(secret, body, now() + 3600)],
        "two headers": [good, good], "v0 only": [good.replace("v1=", "v0=")],
        "other body": [stripe_header(secret, body + b" ", now())],
        "upper hex": [good.split("v1=")[0] + "v1=" + good.split("v1=")[1].upper()],
    }[case]
    conn = http.client.HTTPConnection("127.0.0.1", shop.ingest.port("http"), timeout=60)
    conn.putrequest("POST", "/webhooks/stripe/shop")
    conn.putheader("Content-Length", str(len(body)))
    for value in headers:
        conn.putheader("Stripe-Signature", value)
    conn.endheaders(body)
    got = conn.getresponse()
    assert (got.status, recorded(stack, event["id"])) == (status, [])
    conn.close()


def test_p1_too_large_is_413_and_sixty_kilobytes_are_fine(shop) -> None:
    """PROVIDERS faults 9 and 10."""
    event = shop.stripe_event("checkout.session.completed", shop.session("a") | {"note": "x" * 60000})
    shop.send(event)
    body = encode(shop.stripe_event("checkout.session.completed", {"note": "x" * (1 << 20)}))
    got = shop.post("/webhooks/stripe/shop", body, {"Stripe-Signature": stripe_header("whsec_demo1", body, now())})
    assert got.status == 413


@pytest.mark.parametrize("body", [b'{"id":"evt_%s","id":"evt_2"}', b"\xef\xbb\xbf{}", b'{"id":"evt_\xff"}', b"[1]",
                                  b'{"id":"evt_%s","created":1e400}', b"nothing"])
def test_p1_verified_but_unreadable_is_kept_apart_and_answered_200(shop, stack, body: bytes) -> None:
    """PROVIDERS f1, f3, fault 63."""
    body = body.replace(b"%s", shop.tag.encode()) + b" " * int(shop.tag[-2:], 16)
    got = shop.send(body, expect=None)
    assert got.status == 200
    rows = stack.postgres.query(
        "SELECT disposition FROM ingest.provider_event WHERE raw_sha256 = %s", hashlib.sha256(body).digest())
    assert rows == [("quarantined",)]
    assert shop.ingest.metric("payonce_ingest_apart_total", disposition="quarantined") >= 1


def test_p1_what_nobody_reads_may_say_anything_that_json_can(shop, events) -> None:
    """FAULTS 31: a NUL, or a key twice, in a member that is not read kept a payment from its order."""
    shop.register("a")
    event = encode(shop.stripe_event("checkout.session.completed", shop.session("a")))
    odd = b'{"x":1,"x":"\\u0000","y\\u0000":"\\ud800","z":[-0,1e400,' + b"[" * 5000 + b"]" * 5000 + b"],"
    shop.send(odd + event[1:])
    assert shop.show("a")["state"] == "paid" and events(shop.id("a")) == [("qualified", 1)]


def test_p17_a_test_event_at_the_live_door_is_kept_apart(shop, stack, events) -> None:
    """PROVIDERS fault 32."""
    shop.register("a")
    event = shop.stripe_event("checkout.session.completed", shop.session("a"), livemode=False)
    shop.send(event)
    assert recorded(stack, "foreign:" + event["id"])[0][2] == "foreign"
    assert shop.show("a")["state"] == "open" and events(shop.id("a")) == []


def test_p17_a_connected_accounts_event_is_foreign_where_no_id_is_configured(shop, stack, events) -> None:
    """FAULTS 29: it paid our order, for there was nothing to compare its account with."""
    shop.register("a", accounts=["shop-test"], refs={"session": f"cs_{shop.tag}_a"})
    event = shop.stripe_event("checkout.session.completed", shop.session("a"), livemode=False, account="acct_stranger")
    shop.send(event, alias="shop-test")
    assert recorded(stack, "foreign:" + event["id"]) == [("stripe", "shop-test", "foreign", "account_unset")]
    assert shop.show("a")["state"] == "open" and events(shop.id("a")) == []


def test_p17_a_test_mode_event_naming_a_live_order_moves_nothing(shop, stack, events) -> None:
    shop.register("a", refs={"session": f"cs_{shop.tag}_a"})
    event = shop.stripe_event("checkout.session.completed", shop.session("a"), livemode=False)
    shop.send(event, alias="shop-test")
    assert shop.show("a")["state"] == "open" and events(shop.id("a")) == []
    [(reason,)] = stack.postgres.query(
        "SELECT u.reason FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event WHERE e.event_id = %s",
        event["id"])
    assert reason == "order_unknown"


def test_p17_an_account_the_order_does_not_name_moves_nothing(shop, events) -> None:
    shop.register("a")
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("a")), alias="shop2")
    assert shop.show("a")["state"] == "open" and events(shop.id("a")) == []


def test_p17_a_payment_hash_seen_by_another_account_is_inconsistent(shop, events) -> None:
    shop.register("a", 1500, "BTC/11", refs={"payment_hash": shop.hash("a")})
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500), alias="node2")
    assert position(shop.show("a")) == ("review", "inconsistent", "foreign_account", 0, 0)


def test_p17_a_payment_hash_at_another_account_of_its_order_is_called_so(shop) -> None:
    """FAULTS 58: node2 may pay this order; the invoice is registered at node1 all the same."""
    shop.register("a", 1500, "BTC/11", accounts=["node1", "node2"], refs={"payment_hash": shop.hash("a")})
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500), alias="node2")
    assert position(shop.show("a")) == ("review", "inconsistent", "registered_elsewhere", 0, 0)


def test_p17_a_live_orders_payment_hash_at_a_test_node_moves_nothing(shop, events) -> None:
    """The other mode does not even find it: no review, as another live account's would be."""
    shop.register("a", 1500, "BTC/11", refs={"payment_hash": shop.hash("a")})
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500), alias="node-test")
    assert shop.show("a")["state"] == "open" and events(shop.id("a")) == []


@pytest.fixture
def forgetful(stack: Stack) -> Iterator[Callable[[], None]]:
    """Has the database forget who the accounts are, now and afterwards, so that a name may turn its mode."""
    def forget() -> None:
        stack.postgres.query("TRUNCATE ingest.account")
    yield forget
    forget()


def test_p17_a_live_order_stays_out_of_reach_when_its_name_turns_to_test(services, stack, tag, tmp_path, events,
                                                                         forgetful) -> None:
    """Should a name change its mode all the same: test events find no order of its former life, by no route."""
    services.start("ingest")
    shop = Shop(services["ingest"], stack.api_token, tag)
    shop.register("a")
    shop.register("b", refs={"session": f"cs_{tag}_b"})
    services["ingest"].term()
    tmp_path.chmod(0o755)
    forgetful()
    turned = tuple(replace(a, mode="test") for a in accounts.DEFAULT if a.alias == "shop")
    services.start("ingest", label="turned", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, turned))})
    shop = Shop(services["turned"], stack.api_token, tag, 1000)
    for name, order in (("a", ""), ("b", None)):
        session = shop.session(name, order=order)
        shop.send(shop.stripe_event("checkout.session.completed", session, livemode=False))
        assert shop.show(name)["state"] == "open" and events(shop.id(name)) == [], name
    # FAULTS 40: a session of its former life, named by an order of today. The reference is not to be had, and it must
    # not be tried for ever.
    shop.register("c")
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("b", order=shop.id("c")), livemode=False))
    shop.wait_state("c", "paid")
    assert shop.show("b")["state"] == "open"


def test_p10_client_reference_id_names_an_order_only_where_the_account_allows_it(services, stack, tag, tmp_path) -> None:
    """A visitor can set it."""
    tmp_path.chmod(0o755)
    allowed = tuple(replace(a, client_reference_id=a.alias == "shop2") for a in accounts.DEFAULT)
    services.start("ingest", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, allowed))})
    shop = Shop(services["ingest"], stack.api_token, tag)
    for alias, state in (("shop", "open"), ("shop2", "paid")):
        for name in (alias, f"{alias}-late"):
            session = shop.session(name, order=None) | {"client_reference_id": shop.id(name)}
            send = shop.stripe_event("checkout.session.completed", session)
            if name == alias:
                shop.register(name, accounts=[alias])
            shop.send(send, alias=alias)
            if name != alias:
                shop.register(name, accounts=[alias])
            shop.wait_state(name, state)
    assert shop.show("shop-late")["state"] == "open"


def test_p12_unknown_types_are_stored_and_answered_200(shop, stack) -> None:
    event = shop.stripe_event("customer.created", {"id": "cus_1", "object": "customer"})
    shop.send(event)
    assert recorded(stack, event["id"])[0][2] == "ignored"


def test_unknown_accounts_and_paths_are_404_and_methods_405(shop) -> None:
    assert shop.send(shop.stripe_event("x", {}), alias="shop", expect=None).status == 200
    body = b"{}"
    assert shop.post("/webhooks/stripe/nobody", body, {}).status == 404
    assert shop.post("/observations/stripe/shop", body, {}).status == 404
    assert shop.post("/nowhere", body, {}).status == 404
    assert call("GET", shop.ingest.url("/webhooks/stripe/shop")).status == 405


def test_p1_without_its_database_ingest_is_ready_and_answers_503(services: Services, stack: Stack, tag: str) -> None:
    """PROVIDERS fault 18; readiness never depends on what all replicas share."""
    own = Postgres(stack.scratch, name=f"pg-{tag}").start()
    try:
        with own.connect(dbname="postgres") as conn:
            conn.execute("CREATE DATABASE payonce")
        stack.migrate("ingest", own)
        services.start("ingest", env={"PAYONCE_DSN": own.dsn("payonce_ingest")})
        shop = Shop(services["ingest"], stack.api_token, tag)
        shop.register("a")
        own.stop()
        event = shop.stripe_event("checkout.session.completed", shop.session("a"))
        got = shop.send(event, expect=None)
        assert got.status == 503 and got.headers["retry-after"]
        assert shop.ingest.admin_get("/readyz").status == 200 and shop.ingest.admin_get("/healthz").status == 200
        own.start()
        until(lambda: shop.send(event, expect=None).status == 200, what="ingest takes events again")
        shop.wait_state("a", "paid")
    finally:
        own.stop("immediate")


@pytest.mark.parametrize(("name", "value"), [
    ("PAYONCE_ACCOUNTS_FILE", "/nonexistent"), ("PAYONCE_WRITERS", "0"), ("PAYONCE_API_TOKEN_FILE", "/nonexistent"),
    ("PAYONCE_BODY_LIMIT", "many"),
])
def test_an_unusable_setting_refuses_to_start_and_is_named(stack, tag, name: str, value: str) -> None:
    one = stack.service("ingest", {name: value}, tag)
    one.start()
    until(lambda: not one.alive, what="ingest refuses to start")
    assert one.exit_code == 2
    assert name.removesuffix("_FILE") in one.tail()


def test_a_short_token_refuses_to_start(stack, tag, tmp_path) -> None:
    (tmp_path / "token").write_text("short\n")
    one = stack.service("ingest", {"PAYONCE_API_TOKEN_FILE": str(tmp_path / "token")}, tag)
    one.start()
    until(lambda: not one.alive, what="ingest refuses to start")
    assert one.exit_code == 2 and "API_TOKEN" in one.tail()


def test_p1_a_database_that_may_forget_commits_refuses_to_start(stack, tag) -> None:
    """A commit that can be taken back is no promise."""
    stack.postgres.query("ALTER ROLE payonce_ingest SET synchronous_commit = off")
    try:
        one = stack.service("ingest", {}, tag)
        one.start()
        until(lambda: not one.alive, what="ingest refuses to start")
    finally:
        stack.postgres.query("ALTER ROLE payonce_ingest RESET synchronous_commit")
    assert one.exit_code == 2 and "synchronous_commit" in one.tail()


def test_p1_an_empty_secret_refuses_to_start(stack, tag, tmp_path) -> None:
    """PROVIDERS fault 5: an empty secret lets anyone sign."""
    file = accounts.write(tmp_path, (accounts.Account("stripe", "shop", "live", ("",)),))
    tmp_path.chmod(0o755)
    one = stack.service("ingest", {"PAYONCE_ACCOUNTS_FILE": str(file)}, tag)
    one.start()
    until(lambda: not one.alive, what="ingest refuses to start")
    assert one.exit_code == 2 and "secret" in one.tail()


# --- Undecided

def test_p4_an_event_of_an_unknown_order_waits_and_is_applied_when_it_is_registered(shop, events) -> None:
    """PROVIDERS fault 22."""
    shop.paid("a")
    shop.paid("b", order=None)
    shop.register("a")
    shop.register("b", refs={"session": f"cs_{shop.tag}_b"})
    shop.wait_state("a", "paid")
    shop.wait_state("b", "paid")
    assert events(shop.id("a")) == events(shop.id("b")) == [("qualified", 1)]


def test_p4_a_refund_before_its_payment_waits_for_it(shop, events) -> None:
    """PROVIDERS faults 20, 23, 37."""
    shop.register("a")
    paid_at = now()
    shop.send(shop.stripe_event("refund.created", shop.refund("a", "1", 900, created=paid_at + 1), created=paid_at + 1))
    shop.send(shop.stripe_event("charge.refunded", shop.charge("a", 4900, 900), created=paid_at + 1))
    assert shop.show("a")["refunded"] == 0
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("a"), created=paid_at))
    shop.wait_state("a", "paid", received=4900, refunded=900)
    assert events(shop.id("a")) == [("qualified", 1), ("refunded", 2)]


def test_p4_an_event_of_another_application_waits_and_answers_200(shop, stack) -> None:
    """PROVIDERS fault 30: no endless retries; visible as unmatched."""
    shop.paid("other", order=None)
    until(lambda: (shop.ingest.status()["undecided"]["unmatched"] or 0) >= 1, what="the page shows it")  # null: not counted
    until(lambda: shop.ingest.metric("payonce_ingest_unmatched_events") >= 1, what="counted")
    assert stack.postgres.query(
        "SELECT count(*) FROM ingest.undecided u JOIN ingest.provider_event e ON e.id = u.event"
        " WHERE e.event_id LIKE %s", f"evt_{shop.tag}%") == [(1,)]


# --- Deciding

def test_p7_unpaid_then_paid_is_pending_then_qualified(shop, events) -> None:
    """PROVIDERS faults 24, 25."""
    shop.register("a")
    shop.send(shop.stripe_event("checkout.session.completed", shop.session("a", status="unpaid")))
    assert position(shop.show("a"))[:2] == ("open", "pending")
    shop.send(shop.stripe_event("checkout.session.async_payment_succeeded", shop.session("a")))
    assert events(shop.id("a")) == [("pending", 1), ("qualified", 2)]


def test_p7_a_stale_weaker_fact_never_lowers_a_stronger_one(shop, events) -> None:
    shop.register("a", 1500, "BTC/11", refs={"payment_hash": shop.hash("a")})
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500))
    shop.observe(shop.invoice("a", "OPEN", 1500))
    assert position(shop.show("a")) == ("paid", "qualified", "", 1500, 0)
    assert events(shop.id("a")) == [("qualified", 1)]


def test_p8_settled_and_canceled_is_a_contradiction(shop, events) -> None:
    for name, order in (("a", ["SETTLED", "CANCELED"]), ("b", ["CANCELED", "SETTLED"])):
        shop.register(name, 1500, "BTC/11", refs={"payment_hash": shop.hash(name)})
        for state in order:
            shop.observe(shop.invoice(name, state, 1500, 1500))
        assert position(shop.show(name)) == ("review", "inconsistent", "contradiction", 1500, 0)


@pytest.mark.parametrize(("state", "paid", "expect"), [
    ("SETTLED", None, ("review", "inconsistent", "amount_missing", 0, 0)),
    ("SETTLED", 1499, ("review", "underpaid", "underpaid", 1499, 0)),
    ("SETTLED", 1500, ("paid", "qualified", "", 1500, 0)),
    ("SETTLED", 1999, ("paid", "qualified", "", 1999, 0)),
    ("CANCELED", 1500, ("canceled", "canceled", "canceled", 0, 0)),
    ("OPEN", None, ("open", "pending", "", 0, 0)),
    ("ACCEPTED", 1500, ("open", "pending", "", 0, 0)),
    ("MYSTERY", 1500, ("open", "unsupported", "", 0, 0)),
])
def test_p11_the_table_of_lightning(shop, state: str, paid: int | None, expect: tuple) -> None:
    shop.register("a", 1500, "BTC/11", refs={"payment_hash": shop.hash("a")}, profile=NODE)
    shop.observe(shop.invoice("a", state, 1500, paid))
    view = shop.show("a")
    assert position(view) == expect
    assert view["over"] == (view["received"] > 1500)


def test_p10_another_nodes_invoice_is_inconsistent(shop) -> None:
    shop.register("a", 1500, "BTC/11", refs={"payment_hash": shop.hash("a")}, profile=NODE)
    shop.observe(shop.invoice("a", "SETTLED", 1500, 1500, profile="another-node"))
    assert position(shop.show("a")) == ("review", "inconsistent", "foreign_profile", 0, 0)


def test_p9_another_currency_is_inconsistent_and_counts_nothing(shop) -> None:
    """PROVIDERS fault 41."""
    shop.register("a")
    shop.paid("a", currency="vnd")
    assert position(shop.show("a")) == ("review", "inconsistent", "foreign_currency", 0, 0)


def test_p9_yen_are_not_cents(shop) -> None:
    """PROVIDERS fault 40."""
    shop.register("a", 500, "JPY/0")
    shop.paid("a", 500, currency="jpy")
    assert position(shop.show("a")) == ("paid", "qualified", "", 500, 0)


def test_p15_a_waived_payment_counts_by_the_discount_rule(shop) -> None:
    """PROVIDERS fault 26: payment_intent is null."""
    for name, allowed, expect in (("a", 4900, ("paid", "qualified", "")),
                                  ("b", 0, ("review", "underpaid", "discount_not_allowed"))):
        shop.register(name, max_discount=allowed)
        session = shop.session(name, 0, status="no_payment_required", payment=None, discount=4900)
        shop.send(shop.stripe_event("checkout.session.completed", session))
        assert position(shop.show(name))[:3] == expect


def test_p15_two_partial_refunds_are_twenty_and_still_partial(shop, events) -> None:
    """FAULTS 25, PROVIDERS fault 35: cumulative amounts and refund ids of the same money count once."""
    shop.register("a")
    shop.paid("a")
    at = now()
    for n, total in ((1, 10), (2, 20)):
        shop.send(shop.stripe_event("charge.refunded", shop.charge("a", 4900, total), created=at))
        shop.send(shop.stripe_event("refund.created", shop.refund("a", str(n), 10, created=at)))
    assert position(shop.show("a")) == ("paid", "qualified", "", 4900, 20)
    assert events(shop.id("a")) == [("qualified", 1), ("refunded", 2), ("refunded", 3)]


@pytest.mark.parametrize("refund_first", [False, True])
def test_p7_payment_and_refund_of_one_second_in_both_orders(shop, refund_first: bool) -> None:
    """FAULTS 22."""
    shop.register("a")
    at = now()
    sends = [lambda: shop.send(shop.stripe_event("checkout.session.completed", shop.session("a"), created=at)),
             lambda: shop.send(shop.stripe_event("refund.created", shop.refund("a", "1", 4900, created=at), created=at))]
    for send in reversed(sends) if refund_first else sends:
        send()
    shop.wait_state("a", "paid", received=4900, refunded=4900)


def test_p11_a_payment_after_the_shops_cancel_goes_to_review(shop, events) -> None:
    shop.register("a")
    assert shop.cancel("a").status == 200 and shop.cancel("a").status == 200
    shop.paid("a")
    assert position(shop.show("a")) == ("review", "inconsistent", "paid_after_cancel", 4900, 0)
    assert events(shop.id("a")) == [("canceled", 1), ("review_required", 2)]


def test_p11_cancel_after_paid_is_409(shop) -> None:
    shop.register("a")
    shop.paid("a")
    got = shop.cancel("a")
    assert (got.status, got.json()["error"]["code"]) == (409, "paid")


def test_p11_an_expired_order_is_canceled_by_the_sweep_and_money_after_it_counts_late(shop, stack, events) -> None:
    shop.register("a", expires_at="2026-01-01T00:00:00Z")
    shop.wait_state("a", "canceled", reason="expired")
    assert stack.postgres.query("SELECT expiry_swept FROM ingest.shop_order WHERE order_id = %s", shop.id("a")) == [
        (True,)], "or it would stand in the way of later ones for ever"
    shop.paid("a")
    view = shop.show("a")
    assert position(view)[:2] == ("paid", "qualified") and view["late"]
    assert events(shop.id("a")) == [("canceled", 1), ("qualified", 2)]


@pytest.mark.parametrize("failed_first", [True, False])
def test_p11_a_clock_that_ran_out_ends_an_order_whose_last_attempt_failed(shop, events, failed_first: bool) -> None:
    """FAULTS 36: it stayed open for ever."""
    failed = shop.stripe_event("checkout.session.async_payment_failed", shop.session("a", status="unpaid"))
    if failed_first:
        soon = datetime.fromtimestamp(now() + 3, UTC).isoformat()
        shop.register("a", expires_at=soon)
        shop.send(failed)
    else:
        shop.register("a", expires_at="2026-01-01T00:00:00Z")
        shop.wait_state("a", "canceled", reason="expired")
        shop.send(failed)
    shop.wait_state("a", "canceled", reason="expired")
    assert [type for type, _ in events(shop.id("a"))] == ["failed"] * failed_first + ["canceled"]


def test_p17_two_references_to_two_orders_make_both_inconsistent(shop) -> None:
    shop.register("a", refs={"session": f"cs_{shop.tag}_a"})
    shop.register("b", refs={"payment_intent": f"pi_{shop.tag}_a"})
    shop.paid("a", order=None)
    for name in "ab":
        assert position(shop.show(name)) == ("review", "inconsistent", "route_conflict", 0, 0)


def evidence(stack: Stack, order_id: str) -> list[tuple]:
    """What is kept against an order, or beside it."""
    return stack.postgres.query("SELECT object FROM ingest.fact WHERE order_id = %s AND kind = 'mismatch'", order_id)


def test_p17_money_is_its_references_orders_whatever_its_metadata_names(shop, stack, events) -> None:
    """FAULTS 37: both went to review, which only a person ends."""
    shop.register("a", refs={"session": f"cs_{shop.tag}_a"})
    shop.register("b")
    shop.paid("a", order=shop.id("b"))
    assert position(shop.show("a")) == ("paid", "qualified", "", 4900, 0)
    assert position(shop.show("b")) == ("open", "", "", 0, 0)
    assert events(shop.id("b")) == [] and evidence(stack, shop.id("b")) == [("named_elsewhere",)]


@pytest.mark.parametrize("registered", [True, False])
def test_p7_an_event_without_money_that_names_another_order_is_evidence_in_any_order(
        shop, stack, events, registered: bool) -> None:
    """FAULTS 37: an intent, a charge and a refund that name b, around the session that pays a."""
    made = []
    for n, sends in enumerate(permutations(range(4))):
        a, b = f"a{n}", f"b{n}"
        shop.register(a, refs={"session": f"cs_{shop.tag}_{a}"} if registered else {})
        shop.register(b)
        other = {"metadata": {"order_id": shop.id(b)}}
        refund = shop.refund(a, f"{n}", 10) | {"payment_intent": None} | other
        said = [shop.stripe_event("checkout.session.completed", shop.session(a)),
                shop.stripe_event("payment_intent.succeeded", {"id": f"pi_{shop.tag}_{a}", "latest_charge": None} | other),
                shop.stripe_event("charge.succeeded", shop.charge(a, 4900, 0) | other),
                shop.stripe_event("refund.created", refund)]
        for i in sends:
            shop.send(said[i])
        made.append((a, b))
    for a, b in made:
        shop.wait_state(a, "paid", verdict="qualified", received=4900, refunded=10)
        until(lambda b=b: evidence(stack, shop.id(b)) == [("named_elsewhere",)], what=f"evidence beside {b}")
        assert position(shop.show(b)) == ("open", "", "", 0, 0) and events(shop.id(b)) == []
        assert events(shop.id(a)) == [("qualified", 1), ("refunded", 2)]
        assert evidence(stack, shop.id(a)) == []


def test_p10_a_visitors_reference_never_stands_against_the_shops(services, stack, tag, tmp_path) -> None:
    """FAULTS 37: metadata is the shop server's word, client_reference_id a visitor's."""
    tmp_path.chmod(0o755)
    allowed = tuple(replace(a, client_reference_id=a.alias == "shop") for a in accounts.DEFAULT)
    services.start("ingest", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, allowed))})
    shop = Shop(services["ingest"], stack.api_token, tag)
    for name in "ab":
        shop.register(name)
    session = shop.session("a") | {"client_reference_id": shop.id("b")}
    shop.send(shop.stripe_event("checkout.session.completed", session))
    assert position(shop.show("a")) == ("paid", "qualified", "", 4900, 0)
    assert position(shop.show("b")) == ("open", "", "", 0, 0)
    assert evidence(stack, shop.id("b")) == [("named_elsewhere",)]


# --- Orders API

def test_orders_the_same_again_is_200_and_other_content_is_409(shop) -> None:
    first = shop.register("a")
    assert shop.register("a", expect=200) == first
    assert shop.register("a", contact="ann@example.org", expect=200)["order_id"] == shop.id("a")
    got = shop.api("POST", "/v1/orders", shop.order("a", 100))
    assert (got.status, got.json()["error"]["code"]) == (409, "order_differs")


def first_rendering(order: dict) -> bytes:
    """The digest by which releases before content_version 2 knew a registration."""
    amount = order["amount"]
    texts = [order[k] for k in ("order_id", "customer_id", "purpose", "item", "policy")] + [""]
    lists = order["accounts"] + [r[k] for r in order["references"] for k in ("kind", "value", "account")]
    numbers = f"{amount['minor']} {amount['currency']}/{amount['exponent']} 0 1 0;"
    return hashlib.sha256("".join(f"{len(t)}:{t}" for t in texts).encode() + numbers.encode() +
                          "".join(f"{len(t)}:{t}" for t in lists).encode()).digest()


def test_orders_registered_by_an_older_release_are_still_the_same_again(shop, stack) -> None:
    """FAULTS 40: a digest is compared under the version that made it."""
    refs = {"session": f"cs_{shop.tag}_a"}
    shop.register("a", refs=refs)
    versions = stack.postgres.query("SELECT content_version FROM ingest.shop_order WHERE order_id = %s", shop.id("a"))
    assert versions == [(2,)]
    stack.postgres.query("UPDATE ingest.shop_order SET content = %s, content_version = DEFAULT WHERE order_id = %s",
                         first_rendering(shop.order("a", refs=refs)), shop.id("a"))
    shop.register("a", refs=refs, expect=200)
    got = shop.api("POST", "/v1/orders", shop.order("a", 100, refs=refs))
    assert (got.status, got.json()["error"]["code"]) == (409, "order_differs")


def test_orders_registered_by_a_later_release_are_asked_for_again(shop, stack) -> None:
    """FAULTS 40: a digest that this release cannot make is not compared: neither the same nor another order."""
    shop.register("a")
    stack.postgres.query("UPDATE ingest.shop_order SET content_version = 99 WHERE order_id = %s", shop.id("a"))
    for body in (shop.order("a"), shop.order("a", 100)):
        got = shop.api("POST", "/v1/orders", body)
        assert got.status == 503 and int(got.headers["retry-after"]) >= 1, got
    assert shop.show("a")["price"] == 4900
    stack.postgres.query("UPDATE ingest.shop_order SET content_version = 2 WHERE order_id = %s", shop.id("a"))
    shop.register("a", expect=200)


def test_p11_an_order_that_an_older_release_left_open_for_ever_is_ended(shop, stack, events) -> None:
    """FAULTS 36: the migration has it decided once more."""
    for name in ("a", "b"):
        shop.register(name, expires_at="2026-01-01T00:00:00Z" if name == "a" else None)
        failed = shop.session(name, status="unpaid")
        shop.send(shop.stripe_event("checkout.session.async_payment_failed", failed))
    shop.wait_state("a", "canceled", reason="expired")
    ids = [shop.id("a"), shop.id("b")]
    stack.postgres.query("UPDATE ingest.shop_order SET state = 'open', verdict = 'failed', reason = ''"
                         " WHERE order_id = ANY(%s)", ids)
    migration = (ROOT / "services/ingest/migrations/0002_clocks_and_content.sql").read_text()
    stack.postgres.query(migration[migration.index("INSERT"):])
    due = stack.postgres.query(
        "UPDATE ingest.undecided u SET due_at = now() FROM ingest.decision d WHERE d.event = u.event"
        " AND d.order_id = ANY(%s) RETURNING d.order_id", ids)
    assert {id for (id,) in due} == {shop.id("a")}
    shop.wait_state("a", "canceled", reason="expired")
    assert shop.show("b")["verdict"] == "failed", "it has no clock"


def test_p17_a_reference_belongs_to_one_order_for_ever(shop) -> None:
    shop.register("a", refs={"session": f"cs_{shop.tag}"})
    got = shop.api("POST", "/v1/orders", shop.order("b", refs={"session": f"cs_{shop.tag}"}))
    assert (got.status, got.json()["error"]["code"]) == (409, "reference_taken")
    assert shop.api("GET", f"/v1/orders/{shop.id('b')}").status == 404


def test_orders_references_can_be_added_and_wake_what_waits(shop) -> None:
    shop.register("a")
    shop.paid("a", order=None)
    ref = {"references": [{"account": "shop", "kind": "session", "value": f"cs_{shop.tag}_a"}]}
    for _ in range(2):
        assert shop.api("POST", f"/v1/orders/{shop.id('a')}/references", ref).status == 200
    shop.wait_state("a", "paid")


def test_orders_need_the_token(shop) -> None:
    assert call("GET", shop.ingest.url(f"/v1/orders/{shop.id('a')}")).status == 401
    assert call("GET", shop.ingest.url(f"/v1/orders/{shop.id('a')}"), headers={"Authorization": "Bearer x"}).status == 401


@pytest.mark.parametrize("change", [
    {"amount": {"minor": 49.5, "currency": "EUR", "exponent": 2}}, {"amount": {"minor": 1, "currency": "EUR", "exponent": 3}},
    {"amount": {"minor": -1, "currency": "EUR", "exponent": 2}}, {"accounts": []}, {"accounts": ["shop", "shop-test"]},
    {"accounts": ["nobody"]}, {"purpose": "gift"}, {"policy": "cash-v1"}, {"max_discount": 5000}, {"max_discont": 1},
    {"contact": {"email": "a@b\r\nBcc: c@d"}}, {"contact": "ann@example.org"}, {"order_id": "a b"}, {"references": {}},
    {"expires_at": "tomorrow"}, {"references": [{"account": "shop2", "kind": "session", "value": "cs_1"}]},
])
def test_orders_a_bad_order_is_400_and_nothing_is_stored(shop, change: dict) -> None:
    got = shop.api("POST", "/v1/orders", shop.order("a") | change)
    assert (got.status, got.json()["error"]["code"]) == (400, "invalid"), got.body
    assert shop.api("GET", f"/v1/orders/{shop.id('a')}").status == 404


def test_p9_a_price_in_satoshi_is_kept_in_msat(shop) -> None:
    """PROVIDERS fault 47."""
    view = shop.register("a", 2, "BTC/8")
    assert (view["price"], view["exponent"]) == (2000, 11)

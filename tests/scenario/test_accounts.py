"""Accounts: a name for ever, one id and mode, several paths (docs/accounts.md)."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import accounts
from accounts import Account
from conftest import Services
from service import Service
from shop import Shop, encode, now
from sign import stripe_header
from stack import Stack
from wait import until

Start = Callable[..., Shop]


@pytest.fixture
def start(services: Services, stack: Stack, tag: str, tmp_path: Path) -> Start:
    """An ingest with these accounts alone, after the one before has ended."""
    tmp_path.chmod(0o755)

    def begin(*listed: Account) -> Shop:
        for one in services:
            assert one.term() == 0
        number = len(list(services))
        file = accounts.write(tmp_path / str(number), listed)
        one = services.start("ingest", env={"PAYONCE_ACCOUNTS_FILE": str(file)}, label=f"ingest{number}")
        return Shop(one, stack.api_token, tag, 1000 * number)

    return begin


def refused(stack: Stack, folder: Path, *listed: Account) -> str:
    """What it says, which does not start with these accounts."""
    folder.parent.chmod(0o755)
    one = stack.service("ingest", {"PAYONCE_ACCOUNTS_FILE": str(accounts.write(folder, listed))}, folder.name)
    one.start()
    try:
        until(lambda: not one.alive, what="ingest refuses to start")
    finally:
        one.term()
    assert one.exit_code == 2, one.tail()
    return one.tail(3)


def known(stack: Stack, tag: str) -> list[tuple]:
    return stack.postgres.query("SELECT name, id, mode FROM ingest.account WHERE provider = 'stripe'"
                                " AND starts_with(name, %s) ORDER BY name", tag)


def completed(shop: Shop, name: str) -> dict:
    return shop.stripe_event("checkout.session.completed", shop.session(name))


# --- What an operator does (docs/accounts.md)

def test_p2_moving_an_endpoint_loses_and_doubles_nothing(start: Start, stack: Stack, tag: str) -> None:
    """FAULTS 28: a second account of the same endpoint counted one payment twice, and one session paid two orders."""
    old, new = f"{tag}.old", f"{tag}.new"
    shop = start(Account("stripe", old, "live", ("whsec_old",), f"acct_{tag}"))
    refs = {"session": f"cs_{tag}_a"}
    shop.register("a", accounts=[old], refs=refs)

    shop = start(Account("stripe", old, "live", ("whsec_old", "whsec_new"), f"acct_{tag}", name=old, aliases=(old, new)))
    event = completed(shop, "a")
    shop.send(event, alias=old, secret="whsec_old")
    shop.send(event, alias=new, secret="whsec_new", expect="duplicate")
    again = completed(shop, "a")  # of the same payment, with another id
    shop.send(again, alias=new, secret="whsec_new")
    assert shop.wait_state("a", "paid", over=False)["received"] == 4900
    second = shop.api("POST", "/v1/orders", shop.order("b", accounts=[old], refs=refs))
    assert (second.status, second.json()["error"]["code"]) == (409, "reference_taken")
    by_path = shop.api("POST", "/v1/orders", shop.order("b", accounts=[new]))
    assert by_path.status == 400 and b"name" in by_path.body, "an order names accounts, not paths"

    shop = start(Account("stripe", new, "live", ("whsec_new",), f"acct_{tag}", name=old, aliases=(new,)))
    refund = shop.refund("a", "1", 900)
    shop.send(shop.stripe_event("refund.created", refund), alias=new, secret="whsec_new")
    shop.wait_state("a", "paid", received=4900, refunded=900)
    gone = shop.send(completed(shop, "a"), alias=old, secret="whsec_new", expect=None)
    assert (gone.status, gone.json()["error"]["code"]) == (404, "unknown_account")
    assert stack.postgres.query("SELECT DISTINCT account FROM ingest.provider_event WHERE starts_with(account, %s)",
                                tag) == [(old,)]


def test_p1_rolling_a_secret(start: Start, tag: str) -> None:
    def answers(shop: Shop) -> list[int]:
        return [shop.send(completed(shop, "a"), alias=tag, secret=secret, expect=None).status
                for secret in ("whsec_1", "whsec_2")]

    assert answers(start(Account("stripe", tag, "live", ("whsec_1",)))) == [200, 401]
    assert answers(start(Account("stripe", tag, "live", ("whsec_1", "whsec_2")))) == [200, 200]
    last = start(Account("stripe", tag, "live", ("whsec_2",)))
    assert answers(last) == [401, 200]
    [told] = last.ingest.log_lines("request refused")
    assert (told["code"], told["account"], told["alias"]) == ("signature_wrong", tag, tag)


def test_p4_renaming_an_alias_leaves_nothing_behind(start: Start, tag: str) -> None:
    """What came by the old path, and waits, is its account's under any alias."""
    shop = start(Account("stripe", tag, "live", ("whsec_1",)))
    shop.send(completed(shop, "a"), alias=tag, secret="whsec_1")
    shop = start(Account("stripe", "x", "live", ("whsec_1",), name=tag, aliases=(f"{tag}.better",)))
    shop.register("a", accounts=[tag])
    shop.wait_state("a", "paid", received=4900)


# --- What a file may not say

ONE = Account("stripe", "one", "live", ("whsec_1",), "acct_1")


@pytest.mark.parametrize(("second", "words"), [
    (Account("stripe", "two", "live", ("whsec_2",)), "both need the provider's id"),
    (Account("stripe", "two", "live", ("whsec_2",), "acct_1"), "one account, one entry"),
    (Account("stripe", "one", "test", ("whsec_2",)), "that of one, too"),
    (Account("stripe", "two", "test", ("whsec_2",), name="two", aliases=("two", "one")), "that of one, too"),
    (Account("stripe", "x", "test", ("whsec_2",), name="one", aliases=("two",)), "that of one, too"),
    (Account("stripe", "x", "test", ("whsec_2",), name="two", aliases=("two", "two")), "there twice"),
    (Account("stripe", "x", "test", ("whsec_2",), name="two", aliases=("a b",)), "printable ASCII"),
    (Account("stripe", "x", "test", ("whsec_2",), name="t:wo", aliases=("two",)), "printable ASCII"),
])
def test_p17_two_entries_are_two_accounts(programs: Path, tmp_path: Path, second: Account, words: str) -> None:
    """FAULTS 28: two aliases of one account were accepted as two accounts."""
    said = check(programs, accounts.write(tmp_path, (ONE, second)))
    assert "entry 2" in said and words in said, said


def test_p17_a_live_and_a_test_account_may_share_an_id(programs: Path, tmp_path: Path) -> None:
    """Stripe's two modes of one account do."""
    assert check(programs, accounts.write(tmp_path, (ONE, Account("stripe", "t", "test", ("whsec_2",), "acct_1")))) == ""


@pytest.mark.parametrize("entry", [{}, {"name": "a", "alias": "a"}, {"alias": "a", "aliases": ["a"]}, {"aliases": ["a"]},
                                   {"name": "a", "aliases": []}, {"name": "a", "aliases": "a"},
                                   {"name": "a", "aliases": [1]}, {"name": "a", "aliases": None}])
def test_p17_an_entry_says_in_one_way_who_it_is(programs: Path, tmp_path: Path, entry: dict) -> None:
    file = accounts.write(tmp_path, (ONE,))
    row = json.loads(file.read_text())["accounts"][0]
    del row["alias"]
    file.write_text(json.dumps({"accounts": [row | entry]}))
    assert "entry 1" in check(programs, file)


def check(programs: Path, file: Path) -> str:
    """What check-config says against the file; "" when it is fine."""
    token = file.parent / "token"
    token.write_text("a token of the orders API\n")
    env = {"PAYONCE_DSN": "postgresql://me@127.0.0.1:1/payonce", "PAYONCE_API_TOKEN_FILE": str(token),
           "PAYONCE_ACCOUNTS_FILE": str(file)}
    got = subprocess.run([programs / "payonce-ingest", "check-config"], env=env, capture_output=True, text=True, timeout=60)
    assert got.returncode in (0, 2), got
    return got.stderr if got.returncode else ""


# --- What the database remembers

def test_p17_a_name_is_one_account_for_ever(start: Start, stack: Stack, tag: str, tmp_path: Path) -> None:
    """FAULTS 28: another id or mode under a name is another account under the rows of the first."""
    a, b, c = f"{tag}.a", f"{tag}.b", f"{tag}.c"
    shop = start(Account("stripe", a, "live", ("whsec_1",)))
    shop.send(completed(shop, "a"), alias=a, secret="whsec_1")
    assert known(stack, tag) == [(a, None, "live")]
    start(Account("stripe", a, "live", ("whsec_1",), f"acct_{tag}"))
    before = known(stack, tag)
    assert before == [(a, f"acct_{tag}", "live")], "no id → id is allowed once"

    fresh = Account("stripe", b, "test", ("whsec_1",), "acct_b")
    for i, (one, words) in enumerate((
            (Account("stripe", a, "live", ("whsec_1",), f"acct_{tag}_2"), f"keeps its id, which is acct_{tag}"),
            (Account("stripe", a, "live", ("whsec_1",)), f"keeps its id, which is acct_{tag}"),
            (Account("stripe", a, "test", ("whsec_1",), f"acct_{tag}"), "keeps its mode, which is live"),
            (Account("stripe", c, "live", ("whsec_1",), f"acct_{tag}"), f"that of account {a}"),
            (Account("stripe", c, "live", ("whsec_1",), "acct_c", name=c, aliases=(c, a)), f"name its alias {a}"))):
        said = refused(stack, tmp_path / f"{tag}-{i}", fresh, one)
        assert "entry 2" in said and words in said, said
        assert known(stack, tag) == before, "what is refused leaves nothing behind"
    start(fresh, Account("stripe", a, "live", ("whsec_1",), f"acct_{tag}"))
    assert known(stack, tag) == [*before, (b, "acct_b", "test")]


def test_p17_a_name_of_rows_from_before_is_no_alias(start: Start, stack: Stack, tag: str, tmp_path: Path) -> None:
    """Rows of releases that kept no accounts say whose they are as well."""
    shop = start(Account("stripe", tag, "live", ("whsec_1",)))
    shop.send(completed(shop, "a"), alias=tag, secret="whsec_1")
    stack.postgres.query("DELETE FROM ingest.account WHERE name = %s", tag)
    said = refused(stack, tmp_path / tag, Account("stripe", "x", "live", ("whsec_1",), name=f"{tag}.x", aliases=(tag,)))
    assert f"name its alias {tag}" in said, said


def beginning(stack: Stack, tmp_path: Path, *listed: Account) -> Service:
    tmp_path.chmod(0o755)
    label = f"{tmp_path.name}-{len(list(tmp_path.iterdir()))}"
    file = accounts.write(tmp_path / label, listed)
    return stack.service("ingest", {"PAYONCE_ACCOUNTS_FILE": str(file)}, label).start()


def test_p17_nothing_is_recorded_before_the_accounts_are_known_to_be_the_same(stack: Stack, tag: str,
                                                                              tmp_path: Path) -> None:
    """A twin that starts at the same time has written the name with another id, and not yet committed."""
    one = Account("stripe", tag, "live", ("whsec_1",), f"acct_{tag}_1")
    with stack.postgres.connect() as twin:
        twin.execute("BEGIN")
        twin.execute("INSERT INTO ingest.account (provider, name, id, mode) VALUES ('stripe', %s, %s, 'live')",
                     (tag, f"acct_{tag}_2"))
        ingest = beginning(stack, tmp_path, one)
        try:
            shop = Shop(ingest, stack.api_token, tag)
            body = encode(completed(shop, "a"))
            got = shop.post(f"/webhooks/stripe/{tag}", body, {"Stripe-Signature": stripe_header("whsec_1", body, now())})
            assert got.status == 503 and int(got.headers["retry-after"]) >= 1, got
            assert shop.api("POST", "/v1/orders", shop.order("a", accounts=[tag])).status == 503
            twin.execute("COMMIT")
            until(lambda: not ingest.alive, what="ingest refuses to start")
        finally:
            ingest.term()
    assert ingest.exit_code == 2 and "keeps its id" in ingest.tail(3), ingest.tail()
    assert stack.postgres.query("SELECT 1 FROM ingest.provider_event WHERE account = %s", tag) == []


def test_p17_programs_that_start_at_once_agree(stack: Stack, tag: str, tmp_path: Path) -> None:
    """Two ids for one new name, from six programs: one id is written, and its programs alone go on."""
    programs = [(id, beginning(stack, tmp_path, Account("stripe", tag, "live", ("whsec_1",), id)))
                for _ in range(3) for id in (f"acct_{tag}_1", f"acct_{tag}_2")]

    def settled() -> bool:
        return all(not one.alive or ("admin" in one._ports() and one.admin_get("/readyz").status == 200)
                   for _, one in programs)

    try:
        until(settled, what="all have started, or refused to")
        [(_, written, _)] = known(stack, tag)
        assert {id for id, one in programs if one.alive} == {written}
        assert {one.exit_code for id, one in programs if id != written} == {2}
    finally:
        for _, one in programs:
            one.term()

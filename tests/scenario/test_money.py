"""What an order's money amounts to, where it takes several events to say it: each is decided from
what was stored of those before."""

from shop import Shop
from wait import until

COMPLETED, REFUNDED = "checkout.session.completed", "charge.refunded"
AT = 1_760_000_000


def money(view: dict) -> tuple:
    names = ("state", "reason", "due", "received", "refunded", "tax", "shipping")
    return tuple(view[name] for name in names)


def pay(shop: Shop, name: str, at: int = AT, **more) -> None:
    """`tax` and `shipping` as the session details them; any other member as it is."""
    details = {f"amount_{kind}": more.pop(kind, 0) for kind in ("discount", "tax", "shipping")}
    session = shop.session(name, more.pop("total", 4900), order=shop.id(more.pop("order", name)))
    shop.send(shop.stripe_event(COMPLETED, session | {"total_details": details} | more, created=at))


def refund(shop: Shop, name: str, which: str, amount: int, at: int, status: str = "succeeded",
           said: int = 0, **more) -> None:
    object = shop.refund(name, which, amount, status, created=at) | more
    shop.send(shop.stripe_event("refund.updated", object, created=said or at))


def total(shop: Shop, name: str, amount: int, at: int, **more) -> None:
    shop.send(shop.stripe_event(REFUNDED, shop.charge(name, 4900, amount) | more, created=at))


def test_tax_above_the_price_is_due_once(shop) -> None:
    """FAULTS 54: exclusive, inclusive, in the shop's price, shipping with a coupon; paid twice,
    partly refunded."""
    shop.register("a")
    pay(shop, "a", total=5831, tax=931)
    assert money(shop.show("a")) == ("paid", "", 5831, 5831, 0, 931, 0)
    pay(shop, "a2", order="a", total=5831, tax=931)
    assert money(shop.show("a")) == ("paid", "", 5831, 11662, 0, 931, 0)
    assert shop.show("a")["over"]
    refund(shop, "a", "1", 5000, AT + 9)
    assert money(shop.show("a")) == ("paid", "", 5831, 11662, 5000, 931, 0)
    for name, price in (("b", 4900), ("c", 5831)):
        shop.register(name, price)
        pay(shop, name, total=price, tax=931)
        assert money(shop.show(name)) == ("paid", "", price, price, 0, 0, 0)
    shop.register("d", max_discount=4900)
    pay(shop, "d", total=500, discount=4900, shipping=500)
    assert money(shop.show("d")) == ("paid", "", 500, 500, 0, 0, 500)


def test_a_session_in_the_buyers_currency_counts_in_ours(shop) -> None:
    """FAULTS 53: the shape of an API before 2025-03-31, and the one since; a refund in the buyer's
    counts 0."""
    shop.register("a")
    pay(shop, "a", total=5303, currency="usd", currency_conversion={
        "amount_subtotal": 4900, "amount_total": 4900, "fx_rate": "1.0823",
        "source_currency": "eur"})
    assert money(shop.show("a")) == ("paid", "", 4900, 4900, 0, 0, 0)
    refund(shop, "a", "1", 541, AT + 9, currency="usd")
    assert money(shop.show("a")) == ("review", "foreign_currency", 4900, 4900, 0, 0, 0)
    shop.register("b")
    seen = {"presentment_details": {"presentment_amount": 5303, "presentment_currency": "usd"}}
    pay(shop, "b", **seen)
    refund(shop, "b", "2", 500, AT + 9, **seen)
    assert money(shop.show("b")) == ("paid", "", 4900, 4900, 500, 0, 0)


def test_a_total_explains_refunds_that_failed_before_it(shop) -> None:
    """FAULTS 25: what failed, and when, is kept until a total is stated, which may fall or not."""
    for name, stated in (("a", 1500), ("b", 1000)):
        shop.register(name)
        pay(shop, name)
        refund(shop, name, name + "1", 1000, AT + 10)
        refund(shop, name, name + "2", 500, AT + 11)
        assert shop.show(name)["refunded"] == 1500
        refund(shop, name, name + "2", 500, AT + 11, "failed", said=AT + 20)
        assert shop.show(name)["refunded"] == 1000
        total(shop, name, stated, AT + 30)
        assert money(shop.show(name)) == ("paid", "", 4900, 4900, 1000, 0, 0)
    total(shop, "b", 1200, AT + 40)  # one that nobody has named
    assert shop.show("b")["refunded"] == 1200


def test_totals_of_before_are_read_and_what_they_leave_open_is_counted(shop, stack) -> None:
    """FAULTS 25: a fact per statement, "CHARGE:CUMULATIVE", is what a program of before writes."""
    shop.register("a")
    pay(shop, "a")
    for amount, at in ((400, AT + 10), (900, AT + 20)):
        stack.postgres.query(
            "INSERT INTO ingest.fact (order_id, provider, account, kind, object, currency,"
            " exponent, payment, state, rank, canceled_seen, waived, amount, amount_most,"
            " discount, at) VALUES (%s, 'stripe', 'shop', 'refund_total', %s, 'EUR', 2, %s, 'paid',"
            " 0, false, false, %s, %s, 0, to_timestamp(%s)) RETURNING 1",
            shop.id("a"), f"ch_{shop.tag}_a:{amount}", f"pi_{shop.tag}_a", amount, amount, at)
    refund(shop, "a", "1", 400, AT + 10)
    assert shop.show("a")["refunded"] == 900
    until(lambda: shop.ingest.metric("payonce_ingest_unexplained_refund_orders") >= 1,
          what="500 are named by nobody")
    total(shop, "a", 1100, AT + 30)
    assert shop.show("a")["refunded"] == 1100
    refund(shop, "a", "2", 500, AT + 20)
    refund(shop, "a", "3", 200, AT + 30)
    assert shop.show("a")["refunded"] == 1100
    assert stack.postgres.query("SELECT unexplained FROM ingest.shop_order WHERE order_id = %s",
                                shop.id("a")) == [(0,)]


def test_more_refunded_than_came_is_told_and_money_ends_it(shop, events) -> None:
    shop.register("a")
    pay(shop, "a")
    refund(shop, "a", "1", 4900, AT + 10)
    refund(shop, "a", "2", 100, AT + 11)
    assert money(shop.show("a")) == ("review", "over_refunded", 4900, 4900, 4900, 0, 0)
    refund(shop, "a", "2", 100, AT + 11, "failed", said=AT + 20)
    assert money(shop.show("a")) == ("paid", "", 4900, 4900, 4900, 0, 0)
    total(shop, "a", 5000, AT + 12)  # it had not failed then
    assert money(shop.show("a")) == ("paid", "", 4900, 4900, 4900, 0, 0)
    refund(shop, "a", "3", 1, AT + 30)
    assert shop.show("a")["reason"] == "over_refunded"
    pay(shop, "a2", at=AT + 40, order="a")
    assert money(shop.show("a")) == ("paid", "", 4900, 9800, 4900, 0, 0)
    assert [t for t, _ in events(shop.id("a"))] == [
        "qualified", "refunded", "review_required", "qualified", "review_required", "qualified"]

"""Words about one payment, in every order of arrival, through the door (routes.h)."""

from dataclasses import replace
from itertools import permutations

import accounts
import pytest
from shop import Shop
from wait import until


def intent(shop: Shop, payment: str, order: str) -> dict:
    return {"id": f"pi_{shop.tag}_{payment}", "latest_charge": None, "metadata": {"order_id": shop.id(order)}}


@pytest.mark.parametrize("words", ["two of the shop's", "a visitor's"])
def test_p7_words_that_differ_put_both_orders_into_review_whichever_came_first(
        services, stack, tag, tmp_path, words: str) -> None:
    """One order had the money silently: the first one claimed, or the one that the visitor had set."""
    tmp_path.chmod(0o755)
    allowed = tuple(replace(a, client_reference_id=a.alias == "shop") for a in accounts.DEFAULT)
    services.start("ingest", env={"PAYONCE_ACCOUNTS_FILE": str(accounts.write(tmp_path, allowed))})
    shop = Shop(services["ingest"], stack.api_token, tag)
    visitor = words == "a visitor's"
    made = []
    for n, sends in enumerate(permutations(range(3))):
        a, b = f"a{n}", f"b{n}"
        shop.register(a)
        shop.register(b)
        session = shop.session(a) | {"metadata": {}, "client_reference_id": shop.id(b) if visitor else None}
        said = [shop.stripe_event("checkout.session.completed", session),
                shop.stripe_event("payment_intent.created", intent(shop, a, a)),
                shop.stripe_event("payment_intent.succeeded", intent(shop, a, a if visitor else b))]
        for i in sends:
            shop.send(said[i])
        made += [a, b]
    for name in made:
        order = shop.wait_state(name, "review", verdict="inconsistent", reason="route_conflict")
        assert (order["received"], order["refunded"]) == (0, 0)
    until(lambda: not stack.postgres.query(
        "SELECT event FROM ingest.undecided JOIN ingest.provider_event e ON e.id = event WHERE e.event_id LIKE %s",
        f"evt_{tag}_%"), what="nothing waits")

"""A shop and its providers, seen from ingest's doors: registers orders, sends signed events, and looks at
what the API shows. Every id begins with the test's own tag."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import accounts
from service import Answer, Service, call
from sign import standard_webhook_headers, stripe_header
from wait import until

NODE = "node-profile-1"
# How long ingest waits before it tells the caller to come again: for its own answer (what was sent may be stored all
# the same), and for a lock.
LATE, LOCKED = {"late": 2.0}, {"unavailable": 0.25}


def now() -> int:
    return int(time.time())


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def in_time(ask: Callable[[], Answer], waits: dict[str, float] = LATE) -> tuple[Answer, bool]:
    """The answer, and whether it is to a repeat: on a slow machine these waits may be over, so it is asked again, as
    shops and providers do. Giving up earlier is a fault."""
    repeats = 0

    def asked() -> tuple[Answer, bool] | None:
        nonlocal repeats
        began = time.monotonic()
        got = ask()
        code = got.json()["error"]["code"] if got.status == 503 else ""
        if code not in waits:
            return got, repeats > 0
        if (took := time.monotonic() - began) < waits[code]:
            raise RuntimeError(f"{code} after {took:.3f} s: {got.body!r}")
        repeats += 1
        return None

    return until(asked, what="an answer in time")


@dataclass
class Shop:
    ingest: Service
    token: str
    tag: str
    _last: int = 0

    def id(self, name: str) -> str:
        return f"{self.tag}-{name}"

    # --- Orders

    def api(self, method: str, path: str, body: Any = None) -> Answer:
        return call(method, self.ingest.url(path), None if body is None else encode(body),
                    {"Authorization": f"Bearer {self.token}"})

    def order(self, name: str, minor: int = 4900, unit: str = "EUR/2", **more: Any) -> dict[str, Any]:
        """The body of a registration; `refs` is {kind: value} at the first account."""
        currency, exponent = unit.split("/")
        lightning = currency == "BTC"
        accounts_ = more.pop("accounts", ["node1" if lightning else "shop"])
        refs = more.pop("refs", {})
        contact = more.pop("contact", None)
        body = {
            "order_id": self.id(name), "customer_id": self.id("c-" + name), "purpose": "course",
            "item": "course-42", "amount": {"minor": minor, "currency": currency, "exponent": int(exponent)},
            "policy": "lightning-v1" if lightning else "stripe-v1", "accounts": accounts_,
            "references": [{"account": accounts_[0], "kind": k, "value": v} for k, v in refs.items()],
        } | more
        return body | ({"contact": {"email": contact, "language": "en"}} if contact else {})

    def register(self, name: str, minor: int = 4900, unit: str = "EUR/2", expect: int = 201,
                 **more: Any) -> dict[str, Any]:
        body = self.order(name, minor, unit, **more)
        # A worker may be at an event that waits for this very order.
        got, again = in_time(lambda: self.api("POST", "/v1/orders", body), LATE | LOCKED)
        assert got.status == expect or (again and got.status == 200), (got.status, got.body)
        return got.json()

    def show(self, name: str) -> dict[str, Any]:
        got, _ = in_time(lambda: self.api("GET", f"/v1/orders/{self.id(name)}"))
        assert got.status == 200, (got.status, got.body)
        return got.json()

    def cancel(self, name: str) -> Answer:
        return in_time(lambda: self.api("POST", f"/v1/orders/{self.id(name)}/cancel"))[0]

    def wait_state(self, name: str, state: str, **fields: Any) -> dict[str, Any]:
        def there() -> dict[str, Any]:
            view = self.show(name)
            assert {k: view[k] for k in fields} | {"state": view["state"]} == fields | {"state": state}
            return view
        return until(there, what=f"order {name} is {state}")

    # --- Stripe

    def stripe_event(self, type: str, object: dict[str, Any], id: str = "", created: int = 0,
                     livemode: bool = True, **more: Any) -> dict[str, Any]:
        self._last += 1
        return {"id": id or f"evt_{self.tag}_{self._last}", "object": "event", "type": type,
                "created": created or now(), "livemode": livemode, "api_version": "2026-10-28.endive",
                "data": {"object": object}} | more

    def session(self, name: str, total: int = 4900, currency: str = "eur", status: str = "paid",
                payment: str | None = "", order: str | None = "", session: str = "",
                discount: int = 0) -> dict[str, Any]:
        """A checkout.session object; payment "" = an id of its own, order "" = this order in the metadata."""
        return {
            "id": session or f"cs_{self.tag}_{name}", "object": "checkout.session", "mode": "payment",
            "payment_status": status, "status": "complete", "amount_total": total, "currency": currency,
            "payment_intent": f"pi_{self.tag}_{name}" if payment == "" else payment,
            "client_reference_id": None,
            "metadata": {} if order is None else {"order_id": order or self.id(name)},
            "total_details": {"amount_discount": discount},
        }

    def refund(self, name: str, refund: str, amount: int, status: str = "succeeded", currency: str = "eur",
               created: int = 0) -> dict[str, Any]:
        return {"id": f"re_{self.tag}_{refund}", "object": "refund", "amount": amount, "currency": currency,
                "charge": f"ch_{self.tag}_{name}", "payment_intent": f"pi_{self.tag}_{name}", "status": status,
                "created": created or now()}

    def charge(self, name: str, amount: int, refunded: int, currency: str = "eur") -> dict[str, Any]:
        return {"id": f"ch_{self.tag}_{name}", "object": "charge", "amount": amount, "amount_captured": amount,
                "amount_refunded": refunded, "refunded": refunded == amount, "captured": True, "paid": True,
                "currency": currency, "payment_intent": f"pi_{self.tag}_{name}", "created": now()}

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        return call("POST", self.ingest.url(path), body, headers)

    def send(self, event: dict[str, Any] | bytes, alias: str = "shop", expect: str | None = "recorded",
             t: int = 0, secret: str = "") -> Answer:
        """Signs and sends; `expect` is the result that must come with 200, None: the caller looks."""
        body = event if isinstance(event, bytes) else encode(event)
        return self._sent(lambda: self.post(f"/webhooks/stripe/{alias}", body, {
            "Stripe-Signature": stripe_header(secret or accounts.secret(alias), body, t or now())}), expect)

    def _sent(self, send: Callable[[], Answer], expect: str | None) -> Answer:
        if expect is None:
            return send()
        got, again = in_time(send)
        fine = {expect, "duplicate"} if again else {expect}
        assert got.status == 200 and got.json().get("result") in fine, (got.status, got.body)
        return got

    def paid(self, name: str, total: int = 4900, **more: Any) -> None:
        self.send(self.stripe_event("checkout.session.completed", self.session(name, total, **more)))

    # --- Lightning

    def hash(self, name: str) -> str:
        return hashlib.sha256(self.id(name).encode()).hexdigest()

    def invoice(self, name: str, state: str, value: int, paid: int | None = None, **more: Any) -> dict[str, Any]:
        at = now()
        settled = {"settle_date": str(at), "settle_index": "3"} if state == "SETTLED" else {}
        amount = {} if paid is None else {"amt_paid_msat": str(paid)}
        return {"kind": "invoice", "profile": more.pop("profile", NODE),
                "observed_at": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
                "object": {"payment_hash": self.hash(name), "state": state, "value_msat": str(value),
                           "add_index": "7", "creation_date": str(at - 60)} | settled | amount | more}

    def observe(self, observation: dict[str, Any], alias: str = "node1", id: str = "",
                expect: str | None = "recorded") -> Answer:
        node = accounts.id_of("lightning", alias)
        body = encode({"node": node} | observation if node else observation)
        stable = encode(observation["object"]) + alias.encode()
        id = id or "obs_" + hashlib.sha256(stable).hexdigest()[:40]
        return self._sent(lambda: self.post(f"/observations/lightning/{alias}", body, standard_webhook_headers(
            accounts.secret(alias), id, now(), body)), expect)

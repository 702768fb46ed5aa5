"""Signatures as the providers make them. `body` is the raw bytes that go over the wire."""

import base64
import hashlib
import hmac


def stripe_header(secret: str, body: bytes, t: int) -> str:
    """Value of Stripe-Signature; the key is the whole secret text, `whsec_` included."""
    mac = hmac.new(secret.encode(), f"{t}.".encode() + body, hashlib.sha256)
    return f"t={t},v1={mac.hexdigest()}"


def standard_webhook_headers(secret: str, id: str, ts: int, body: bytes) -> dict[str, str]:
    """Headers of the Standard Webhooks scheme; the key is the base64 after `whsec_`."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{id}.{ts}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(ts),
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }

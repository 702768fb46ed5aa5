"""Connections to ingest as a whole program: strangers who hold them, balancers who keep them, nobody at all."""

import http.client
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service import Service
from shop import Shop
from wait import until

STRANGER = b"GET /nowhere HTTP/1.1\r\nHost: shop.example\r\n\r\n"


@contextmanager
def crowd(ingest: Service, n: int) -> Iterator[list[socket.socket]]:
    """That many connections, of which some may still wait to be accepted."""
    at = ("127.0.0.1", ingest.port())
    sockets = [socket.create_connection(at) for _ in range(n)]
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


def ask_again(ingest: Service, sockets: list[socket.socket]) -> None:
    """Each asks once more; who was sent away comes back."""
    for i, one in enumerate(sockets):
        try:
            one.setblocking(False)
            while one.recv(65536):
                pass
            raise ConnectionError("sent away")
        except BlockingIOError:
            pass
        except ConnectionError:
            one.close()
            sockets[i] = one = socket.create_connection(("127.0.0.1", ingest.port()))
        try:
            one.sendall(STRANGER)
        except ConnectionError:
            pass  # it comes back the next time


def test_strangers_at_the_limit_do_not_keep_webhooks_out(services, stack, tag) -> None:
    """FAULTS 27: more connections than there is room for, each asking for a 404 again and again."""
    ingest = services.start("ingest", env={"PAYONCE_CONNECTIONS": "64"})
    shop = Shop(ingest, stack.api_token, tag)
    shop.register("a")
    with crowd(ingest, 90) as sockets:
        for _ in range(3):
            ask_again(ingest, sockets)
            time.sleep(0.3)  # the strangers' pace
        began = time.monotonic()
        shop.send(shop.stripe_event("checkout.session.completed", shop.session("a")))
        took = time.monotonic() - began
        ask_again(ingest, sockets)
    assert took < 15, "the row's own measure was no answer in 25 s"
    shop.wait_state("a", "paid")


def test_an_idle_connection_is_served_after_the_time_a_request_has(services, stack, tag) -> None:
    """FAULTS 67: longer than the 10 s of a request that has begun, as balancers keep theirs."""
    ingest = services.start("ingest")
    shop = Shop(ingest, stack.api_token, tag)
    shop.register("a")
    token = {"Authorization": f"Bearer {stack.api_token}"}
    conn = http.client.HTTPConnection("127.0.0.1", ingest.port(), timeout=60)
    conn.request("GET", f"/v1/orders/{shop.id('a')}", headers=token)
    conn.getresponse().read()
    sock = conn.sock
    time.sleep(12)  # the idle time itself is what is tested
    conn.request("GET", f"/v1/orders/{shop.id('a')}", headers=token)
    got = conn.getresponse()
    assert (got.status, conn.sock) == (200, sock), "on the same connection"
    got.read()
    conn.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_idle_connections_cost_no_cpu(services, stack, tag) -> None:
    """FAULTS 26: loops of our own that wait. A loop that turns without end would use all of the time."""
    ingest = services.start("ingest")
    shop = Shop(ingest, stack.api_token, tag)
    shop.register("a")
    request = (f"GET /v1/orders/{shop.id('a')} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.api_token}"
               "\r\n\r\n").encode()
    with crowd(ingest, 500) as sockets, selectors.DefaultSelector() as answered:
        for one in sockets:
            answered.register(one, selectors.EVENT_READ)
            one.sendall(request)
        until(lambda: len(answered.select(0)) == len(sockets), what="all are answered")
        before, began = cpu_seconds(ingest.pid), time.monotonic()
        time.sleep(5)  # the idling itself is what is measured
        share = (cpu_seconds(ingest.pid) - before) / (time.monotonic() - began)
    assert share < 0.15, f"{share:.1%} of a core"

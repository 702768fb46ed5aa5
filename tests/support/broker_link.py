"""A link to Kafka that can spoil the answer to a produce request: bytes are passed on frame by frame, the broker's
address in its answers replaced by ours; the broker has stored the records when the client is told something else."""

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

PRODUCE = 0


class BrokerLink:
    """`with BrokerLink(kafka.port) as link:` serves at link.brokers."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.brokers = f"127.0.0.1:{self.port}"
        self._lock = threading.Lock()
        self._spoil: list[int] = []
        self.spoiled = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "BrokerLink":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not end an accept() in progress
        self._listener.close()

    def spoil(self, *codes: int) -> None:
        """The next produce answers carry these error codes instead of success; 0: the connection ends instead."""
        with self._lock:
            self._spoil += codes

    def next_code(self) -> int | None:
        with self._lock:
            if not self._spoil:
                return None
            self.spoiled += 1
            return self._spoil.pop(0)

    def address(self, answer: bytes) -> bytes:
        """The answer with our port where it names the broker's."""
        host = b"127.0.0.1"
        return answer.replace(host + struct.pack(">i", self._to), host + struct.pack(">i", self.port))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # nobody listens just now
                    client.close()
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.up, daemon=True).start()
                threading.Thread(target=pair.down, daemon=True).start()


class _Pair:
    def __init__(self, link: BrokerLink, client: socket.socket, server: socket.socket) -> None:
        self._link, self._client, self._server = link, client, server
        self._asked: dict[int, tuple[int, int]] = {}  # by correlation id: what, in which version

    def up(self) -> None:
        with suppress(OSError):
            while frame := _frame(self._client):
                key, version, id = struct.unpack_from(">hhi", frame, 4)
                self._asked[id] = key, version
                self._server.sendall(frame)
        self._close()

    def down(self) -> None:
        with suppress(OSError):
            while frame := _frame(self._server):
                [id] = struct.unpack_from(">i", frame, 4)
                key, version = self._asked.pop(id)
                if key == PRODUCE and (code := self._link.next_code()) is not None:
                    if code == 0:
                        break
                    frame = _spoiled(frame, version, code)
                self._client.sendall(self._link.address(frame))
        self._close()

    def _close(self) -> None:
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _frame(from_: socket.socket) -> bytes:
    """Length and content; empty at the end."""
    head = _exactly(from_, 4)
    if not head:
        return b""
    return head + _exactly(from_, struct.unpack(">i", head)[0])


def _exactly(from_: socket.socket, n: int) -> bytes:
    out = b""
    while len(out) < n:
        more = from_.recv(n - len(out))
        if not more:
            return b""
        out += more
    return out


def _spoiled(frame: bytes, version: int, code: int) -> bytes:
    """A produce answer for one partition, with this error code."""
    assert version < 9, "an answer of another shape"
    topics, length = struct.unpack_from(">ih", frame, 8)
    partitions, _, was = struct.unpack_from(">iih", frame, 14 + length)
    assert (topics, partitions, was) == (1, 1, 0)
    at = 14 + length + 8
    return frame[:at] + struct.pack(">h", code) + frame[at + 2:]

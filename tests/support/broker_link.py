"""A link to Kafka that can spoil the answer to a produce request: bytes are passed on frame by frame, the broker's
address in its answers replaced by ours; the broker has stored the records when the client is told something else."""

import socket
import struct

from link import Link, Pair

PRODUCE, METADATA = 0, 3
UNKNOWN_TOPIC = 3


class BrokerLink(Link):
    """`with BrokerLink(kafka.port) as link:` serves at link.brokers."""

    def __init__(self, port: int) -> None:
        self._spoil: list[int] = []
        self.spoiled = 0
        self.hides = False  # while true the broker knows no topic
        self.hidden = 0
        super().__init__(port)

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def spoil(self, *codes: int) -> None:
        """The next produce answers carry these error codes instead of success; 0: the connection ends instead."""
        with self.lock:
            self._spoil += codes

    def next_code(self) -> int | None:
        with self.lock:
            if not self._spoil:
                return None
            self.spoiled += 1
            return self._spoil.pop(0)

    def address(self, answer: bytes) -> bytes:
        """The answer with our port where it names the broker's."""
        host = b"127.0.0.1"
        return answer.replace(host + struct.pack(">i", self.to), host + struct.pack(">i", self.port))

    def pair(self, client: socket.socket, server: socket.socket) -> Pair:
        return _Connection(self, client, server)


class _Connection(Pair):
    def __init__(self, link: BrokerLink, client: socket.socket, server: socket.socket) -> None:
        super().__init__(client, server)
        self._link = link
        self._asked: dict[int, tuple[int, int]] = {}  # by correlation id: what, in which version

    def up(self) -> None:
        while frame := _frame(self.client):
            key, version, id = struct.unpack_from(">hhi", frame, 4)
            self._asked[id] = key, version
            self.server.sendall(frame)

    def down(self) -> None:
        while frame := _frame(self.server):
            [id] = struct.unpack_from(">i", frame, 4)
            key, version = self._asked.pop(id)
            if key == PRODUCE and (code := self._link.next_code()) is not None:
                if code == 0:
                    break
                frame = _spoiled(frame, version, code)
            if key == METADATA and self._link.hides:
                frame = _without_topics(frame, version)
                self._link.hidden += 1
            self.client.sendall(self._link.address(frame))


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


def _without_topics(frame: bytes, version: int) -> bytes:
    """A metadata answer in which every topic asked for is unknown."""
    assert 1 <= version < 9, "an answer of another shape"
    at = 8

    def number(form: str) -> int:
        nonlocal at
        [value] = struct.unpack_from(form, frame, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> bytes:
        nonlocal at
        begin, length = at, number(">h")
        at += max(length, 0)
        return frame[begin:at]

    if version >= 3:
        number(">i")
    for _ in range(number(">i")):
        number(">i"), text(), number(">i"), text()
    if version >= 2:
        text()
    number(">i")
    head, topics = frame[4:at], []
    for _ in range(number(">i")):
        number(">h")
        topics.append(text())
        number(">b")
        for _ in range(number(">i")):
            number(">h"), number(">i"), number(">i")
            if version >= 7:
                number(">i")
            for _ in range(2 + (version >= 5)):
                at += 4 * number(">i")
    body = b"".join(struct.pack(">h", UNKNOWN_TOPIC) + name + b"\0" + struct.pack(">i", 0) for name in topics)
    out = head + struct.pack(">i", len(topics)) + body
    return struct.pack(">i", len(out)) + out

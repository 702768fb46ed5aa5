"""A link between a program and its server, and its end for PostgreSQL that can lose the reply to a COMMIT."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

COMMIT_SENT = b"po_commit"  # the name of the prepared statement: only a COMMIT executes it
COMMITTED = b"COMMIT\x00"  # the tag of its completion


class Link:
    """`with Link(server's port) as link:` serves at link.port. What a connection does to the bytes is its pair's."""

    def __init__(self, port: int) -> None:
        self.to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not end an accept() in progress
        self._listener.close()

    def cut(self) -> None:
        """Every connection ends, also one that is just being made, and none is made again."""
        self.__exit__(None, None, None)
        with self.lock:
            self._cut = True
            for pair in self._pairs:
                pair.end()

    def pair(self, client: socket.socket, server: socket.socket) -> "Pair":
        raise NotImplementedError

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.to))
                except OSError:  # nobody listens just now
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = self.pair(client, server)
                with self.lock:
                    self._pairs.append(pair)
                    if self._cut:
                        pair.end()
                for way in (pair.up, pair.down):
                    threading.Thread(target=pair.run, args=(way,), daemon=True).start()


class Pair:
    """A client and its server: a thread for each way, and the first to end closes both."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server

    def up(self) -> None:
        raise NotImplementedError

    def down(self) -> None:
        raise NotImplementedError

    def run(self, way: Callable[[], None]) -> None:
        with suppress(OSError):
            way()
        self.end()
        self.client.close()
        self.server.close()

    def end(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class PostgresLink(Link):
    """Passes bytes on as they come, until a COMMIT was sent while its reply is to be lost: the server commits, its answer
    is thrown away, and the client's side closes."""

    def __init__(self, port: int) -> None:
        self.lose = 0  # replies to COMMIT that are still to be lost …
        self.only = b""  # … in sessions that have sent these bytes: others commit meanwhile, too
        self.lost = 0
        super().__init__(port)

    def dsn(self, role: str, dbname: str = "payonce") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{dbname}?sslmode=disable&gssencmode=disable"

    def takes(self) -> bool:
        """Whether the reply to this COMMIT is one of those to be lost."""
        with self.lock:
            if not self.lose:
                return False
            self.lose -= 1
            return True

    def pair(self, client: socket.socket, server: socket.socket) -> Pair:
        return _Session(self, client, server)


class _Session(Pair):
    def __init__(self, link: PostgresLink, client: socket.socket, server: socket.socket) -> None:
        super().__init__(client, server)
        self._link = link
        self._losing = self._marked = False

    def up(self) -> None:
        while data := self.client.recv(1 << 16):
            self._marked = self._marked or self._link.only in data
            if COMMIT_SENT in data and self._marked and self._link.takes():
                self._losing = True
            self.server.sendall(data)

    def down(self) -> None:
        seen = b""
        while data := self.server.recv(1 << 16):
            if not self._losing:
                self.client.sendall(data)
                continue
            seen += data
            if COMMITTED in seen:
                self._link.lost += 1
                break

"""A link to PostgreSQL that can lose the reply to a COMMIT: bytes are passed on as they come, until a COMMIT was sent
while the link is set to lose its reply; the server commits, its answer is thrown away, and the client's side closes."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

COMMIT_SENT = b"po_commit"  # the name of the prepared statement: only a COMMIT executes it
COMMITTED = b"COMMIT\x00"  # the tag of its completion


class Link:
    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lose = 0  # replies to COMMIT that are still to be lost …
        self.only = b""  # … in sessions that have sent these bytes: others commit meanwhile, too
        self.lost = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not end an accept() in progress
        self._listener.close()

    def dsn(self, role: str, dbname: str = "payonce") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{dbname}?sslmode=disable&gssencmode=disable"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # nobody listens just now
                    client.close()
                    continue
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.up, daemon=True).start()
                threading.Thread(target=pair.down, daemon=True).start()

    def takes(self) -> bool:
        """Whether the reply to this COMMIT is one of those to be lost."""
        with self._lock:
            if not self.lose:
                return False
            self.lose -= 1
            return True


class _Pair:
    def __init__(self, link: Link, client: socket.socket, server: socket.socket) -> None:
        self._link, self._client, self._server = link, client, server
        self._losing = self._marked = False

    def up(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 16):
                self._marked = self._marked or self._link.only in data
                if COMMIT_SENT in data and self._marked and self._link.takes():
                    self._losing = True
                self._server.sendall(data)
        self._close()

    def down(self) -> None:
        seen = b""
        with suppress(OSError):
            while data := self._server.recv(1 << 16):
                if not self._losing:
                    self._client.sendall(data)
                    continue
                seen += data
                if COMMITTED in seen:
                    self._link.lost += 1
                    break
        self._close()

    def _close(self) -> None:
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

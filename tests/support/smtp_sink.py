"""An SMTP server in a thread that keeps what it took, counts by Message-ID and can misbehave on request.

A mail counts as taken once its DATA arrived and we meant to keep it, whether or not the sender was told:
that is what "delivery in doubt" means (behaviour `drop`).
"""

import asyncio
import email
import email.policy
import re
import ssl
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from process import free_port, release_port


@dataclass(frozen=True)
class Mail:
    message_id: str
    recipients: tuple[str, ...]
    content: bytes


def readable(content: bytes) -> str:
    """The mail as a person sees it: headers and text, decoded."""
    mail = email.message_from_bytes(content, policy=email.policy.default)
    text = mail.get_body(("plain",))
    return "".join(f"{k}: {v}\n" for k, v in mail.items()) + "\n" + (text.get_content() if text else "")


class SmtpSink:
    """`with SmtpSink() as sink:` serves at sink.url until the block ends; each mail becomes a text file in `folder`;
    with a TLS context it offers STARTTLS and takes no mail without."""

    def __init__(self, folder: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._mails: list[Mail] = []
        self._how, self._reply = "accept", ""
        self._left: int | None = None
        self._held: list[str] = []
        self._changed = asyncio.Event()
        self.port = free_port()
        # Without a name to greet with, the server asks the resolver for the machine's own on each connection.
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port, ready_timeout=90,
                                      server_hostname="sink.example", tls_context=tls,
                                      require_starttls=tls is not None)

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def start(self) -> "SmtpSink":
        self._controller.start()
        return self

    def stop(self) -> None:
        self.accept()
        self._controller.stop()
        release_port(self.port)

    def __enter__(self) -> "SmtpSink":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    # What the next mails meet: for ever, or `times` mails and then accepted again.

    def accept(self) -> None:
        self._behave("accept", "", None)

    def refuse(self, reply: str = "451 4.3.0 try again later", times: int | None = None) -> None:
        """Answers DATA with `reply` and keeps nothing: 4xx try again, 5xx never."""
        self._behave("refuse", reply, times)

    def refuse_recipient(self, reply: str = "550 5.1.1 no such user", times: int | None = None) -> None:
        self._behave("refuse_recipient", reply, times)

    def drop(self, times: int | None = None) -> None:
        """Takes the mail, then cuts the connection before the reply: delivery in doubt."""
        self._behave("drop", "", times)

    def take(self, reply: str, times: int | None = None) -> None:
        """Keeps the mail and answers `reply` to it."""
        self._behave("take", reply, times)

    def mute_quit(self) -> None:
        """Takes mails, and stays silent after QUIT until the behaviour is set anew."""
        self._behave("mute_quit", "", None)

    def hang(self, reply: str = "451 4.3.0 try again later", times: int | None = None) -> None:
        """Reads the mail and stays silent until the behaviour is set anew; then it is refused with `reply`, or with none
        the connection is cut."""
        self._behave("hang", reply, times)

    # What arrived.

    @property
    def held(self) -> list[str]:
        """The recipients of mails that hang at this moment."""
        with self._lock:
            return list(self._held)

    @property
    def mails(self) -> list[Mail]:
        with self._lock:
            return list(self._mails)

    def copies(self) -> Counter[str]:
        """How often each Message-ID was taken."""
        return Counter(m.message_id for m in self.mails)

    def to(self, address: str) -> list[Mail]:
        return [m for m in self.mails if address in m.recipients]

    # aiosmtpd's side, on its own thread.

    def _behave(self, how: str, reply: str, times: int | None) -> None:
        with self._lock:
            self._how, self._reply, self._left = how, reply, times
        if self._controller.loop.is_running():
            self._controller.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _next(self, *hows: str) -> tuple[str, str]:
        """The behaviour this mail meets, if it is one of `hows`; used up once asked."""
        with self._lock:
            if self._how not in hows:
                return "accept", ""
            how = self._how, self._reply
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self._how = "accept"
            return how

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str,
                          options: list[Any]) -> str:
        how, reply = self._next("refuse_recipient")
        if how != "accept":
            return reply
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        how, reply = self._next("refuse", "drop", "hang", "take")
        if how == "refuse":
            return reply
        if how == "hang":
            changed = self._changed
            with self._lock:
                self._held += envelope.rcpt_tos
            try:
                await changed.wait()
            finally:
                with self._lock:
                    for address in envelope.rcpt_tos:
                        self._held.remove(address)
            if not reply and isinstance(server.transport, asyncio.WriteTransport):
                server.transport.abort()
            return reply
        content = envelope.original_content or b""
        head = email.message_from_bytes(content)
        with self._lock:
            self._mails.append(Mail(head.get("Message-ID", ""), tuple(envelope.rcpt_tos), content))
            if self.folder:
                to = re.sub(r"[^\w.@+-]", "_", ",".join(envelope.rcpt_tos))
                (self.folder / f"{len(self._mails):04}-{to}.txt").write_text(readable(content), encoding="utf-8")
        if how == "drop" and isinstance(server.transport, asyncio.WriteTransport):
            server.transport.abort()
        return reply if how == "take" else "250 OK"

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        changed = self._changed
        if self._next("mute_quit")[0] == "mute_quit":
            await changed.wait()
        return "221 Bye"

"""The load tool over connections that end: a close that met nothing, or only a request, is not a fault of the server."""

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"status":"recorded"}'


def take_request(conn: socket.socket) -> bool:
    got = b""
    while b"\r\n\r\n" not in got:
        if not (piece := conn.recv(4096)):
            return False
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")).split(b":")[1])
    while len(body) < length:
        body += conn.recv(4096)
    return True


@contextmanager
def server(answers: int, reads_one_more: bool) -> Iterator[int]:
    """Closes each connection after so many answers: at once, or when one more request has come."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with conn:
                for _ in range(answers):
                    if not take_request(conn):
                        return
                    conn.sendall(ANSWER)
                if reads_one_more:
                    take_request(conn)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def load(programs: Path, port: int, template: Path, count: int) -> dict[str, int]:
    template.write_text('{"id":"evt_@@@@@@@@@@"}')
    ran = subprocess.run([programs / "bench-load", f"--port={port}", "--secret=s", f"--template={template}",
                          f"--count={count}", "--connections=1"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    got: dict[str, int] = json.loads(ran.stdout)
    return got


def test_a_connection_that_was_closed_is_opened_again(programs: Path, tmp_path: Path) -> None:
    """FAULTS 67. Whether the close is seen before the next request goes out is chance; either way nothing is lost."""
    with server(answers=3, reads_one_more=False) as port:
        got = load(programs, port, tmp_path / "event", 9)
    assert (got["recorded"], got["cut"]) == (9, 0)
    assert got["reopened"] == 2


def test_a_request_cut_before_any_answer_is_repeated_once(programs: Path, tmp_path: Path) -> None:
    """FAULTS 67: the close met the request."""
    with server(answers=3, reads_one_more=True) as port:
        got = load(programs, port, tmp_path / "event", 9)
    assert (got["recorded"], got["cut"], got["repeated"]) == (9, 0, 2)


def test_a_request_cut_on_a_new_connection_is_no_idle_close(programs: Path, tmp_path: Path) -> None:
    with server(answers=0, reads_one_more=True) as port:
        template = tmp_path / "event"
        template.write_text('{"id":"evt_@@@@@@@@@@"}')
        ran = subprocess.run([programs / "bench-load", f"--port={port}", "--secret=s", f"--template={template}",
                              "--count=1", "--connections=1", "--seconds=1"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "answers are missing" in ran.stderr

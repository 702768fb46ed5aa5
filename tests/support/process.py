"""Child processes that cannot outlive us, and free loopback ports.

Every child is started through setpriv with a parent-death signal, so it dies even when we are killed with
SIGKILL. The kernel sends that signal when the *thread* that forked ends, hence the one launcher thread that
lives as long as the process. Children get a session of their own: Ctrl-C reaches us alone, and we end them
in order. They are ended by pid, never by name.
"""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# SIGTERM ends us as Ctrl-C does, by an exception, so that `with` blocks and fixtures tidy up.
if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, signal.default_int_handler)

_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")


def start(
    argv: Sequence[str | Path],
    log: Path,
    env: dict[str, str] | None = None,
    user: str | None = None,
    death: str = "KILL",
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Starts argv with output appended to `log`; `env` is added to ours, of which no setting of payonce is passed
    on; `user` needs root."""
    wrap = ["setpriv", f"--pdeathsig={death}"]
    if user:
        wrap += [f"--reuid={user}", f"--regid={user}", "--init-groups"]
    with log.open("ab") as out:
        return _launcher.submit(
            subprocess.Popen,
            [*wrap, "--", *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("PAYONCE_")} | (env or {}),
            cwd=cwd,
            start_new_session=True,
        ).result()


def finish(proc: subprocess.Popen[bytes], log: Path, what: str, timeout: float = 180) -> None:
    """Waits for a program that should end well."""
    if proc.wait(timeout) != 0:
        raise RuntimeError(f"{what}: exit {proc.returncode}\n{tail(log)}")


def end(proc: subprocess.Popen[bytes] | None, sig: signal.Signals, timeout: float = 30) -> int | None:
    """Sends `sig` and waits; SIGKILL when that does not help in time. Returns the exit code."""
    if proc is None:
        return None
    if proc.poll() is None:
        proc.send_signal(sig)
        try:
            proc.wait(timeout)
        except subprocess.TimeoutExpired:
            proc.kill()
            proc.wait()
    return proc.returncode


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def state(pid: int) -> str:
    """The kernel's letter for it (proc(5): T stopped, Z zombie, …); Z when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def gone(pid: int) -> bool:
    """Whether nothing runs under this pid; a zombie that its parent has yet to reap counts as gone."""
    return state(pid) == "Z"


def tail(log: Path, lines: int = 40) -> str:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return f"({log} is missing)"
    return "\n".join(text.splitlines()[-lines:])


_taken: dict[int, socket.socket] = {}  # free_port()'s, for as long as we live


def free_port() -> int:
    """A loopback port below the ephemeral range: while its server is down, no outgoing connection takes it,
    and a client that keeps trying to connect cannot end up connected to itself. UDP's port of the same number
    says that it is taken, to this process and all others that ask here, also while nobody listens."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    span = (20000, low - 1) if low > 21000 else (61001, 65535)
    while True:
        port = random.SystemRandom().randint(*span)
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _taken[port] = mark
        return port


def release_port(port: int) -> None:
    """Whoever asks for a port may have this one again."""
    _taken.pop(port).close()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

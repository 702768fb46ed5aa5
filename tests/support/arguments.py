"""What people write after ./dev demo and ./dev bench: a fault of it is one line and exit code 2, before anything
starts, and a place to write to is tried then too."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _told(read: Callable[[str], T]) -> Callable[[str], T]:
    """An argument that read() cannot take is told with its reason."""

    def of(text: str) -> T:
        try:
            return read(text)
        except OSError as err:
            raise argparse.ArgumentTypeError(f"{text}: {err.strerror}") from err

    return of


def at_least(least: int) -> Callable[[str], int]:
    def of(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
        return int(text)

    return of


@_told
def file_to_write(text: str) -> Path:
    path = Path(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("a").close()
    return path


@_told
def folder_to_fill(text: str) -> Path:
    path = Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


def file_of(read: Callable[[Path], Any]) -> Callable[[str], Path]:
    """A file that read() takes; what it raises about the content is ValueError."""

    @_told
    def of(text: str) -> Path:
        try:
            read(Path(text))
        except ValueError as err:
            raise argparse.ArgumentTypeError(f"{text}: {err}") from err
        return Path(text)

    return of

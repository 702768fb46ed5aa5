"""Waiting for a condition, never for a time: until() asks again and again and gives up at a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(fn: Callable[[], T], timeout: float = 90.0, what: str = "", every: float | None = None) -> T:
    """Calls fn until it returns something true and returns that. An AssertionError inside fn counts as
    "not yet"; at the deadline it is raised as it is, else TimeoutError naming `what` and the last value.
    The deadline is for faults alone and therefore long; what must be quick is measured and asserted. It
    asks ever more seldom, unless told how often: for what is there but for a moment."""
    deadline = time.monotonic() + timeout
    pause = 0.02 if every is None else every
    while True:
        fault: AssertionError | None = None
        value = None
        try:
            value = fn()
        except AssertionError as err:
            fault = err
        if fault is None and value:
            return value
        if time.monotonic() >= deadline:
            if fault is not None:
                raise fault
            name = what or getattr(fn, "__name__", "condition")
            raise TimeoutError(f"{name}: not within {timeout:g} s (last value: {value!r})")
        time.sleep(pause)
        if every is None:
            pause = min(pause * 1.3, 0.25)

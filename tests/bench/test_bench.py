"""The bench in small: its proofs hold, and every figure that has a limit is set against it. How fast anything is on
this machine now is nobody's promise, so no time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).with_name("bench.py")


def bench(programs: Path, out: Path, *args: str) -> tuple[str, list[dict[str, Any]]]:
    """What it printed, and its results; its own proofs have held."""
    ran = subprocess.run([sys.executable, BENCH, "--short", "--json", out, *args], capture_output=True, text=True,
                         timeout=280,
                         env={**os.environ, "PAYONCE_BIN": str(programs), "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    got = json.loads(out.read_text())
    assert got["faults"] == []
    return ran.stdout, got["results"]


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_under_load(programs: Path, tmp_path: Path) -> None:
    """Throughput and verify. P1, P2, P3, P18: events stored, decided and published once each."""
    printed, results = bench(programs, tmp_path / "bench.json")
    ratios = {(one["name"], one["limit"]): one["ratio"] for one in results if "limit" in one}
    assert len(ratios) == 4 and all(r > 0 for r in ratios.values()), ratios
    assert all(name in printed and limit in printed for name, limit in ratios)


@pytest.mark.timeout(300)
def test_whatever_number_of_connections_is_ready_at_once_nobody_is_held_up(programs: Path, tmp_path: Path) -> None:
    """FAULTS 26: 2 × 128, 4 × 128 and 1,000 keep-alive connections; none is cut."""
    _, results = bench(programs, tmp_path / "bench.json", "connections")
    assert len(results) == 9

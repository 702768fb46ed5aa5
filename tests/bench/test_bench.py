"""The bench in small: its proofs hold, and every figure that has a limit is set against it. How fast anything is on
this machine now is nobody's promise, so no time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("bench.py")


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_under_load(programs: Path, tmp_path: Path) -> None:
    """Throughput and verify. P1, P2, P3, P18: events stored, decided and published once each."""
    out = tmp_path / "bench.json"
    ran = subprocess.run([sys.executable, BENCH, "--short", "--json", out], capture_output=True, text=True,
                         timeout=280,
                         env={**os.environ, "PAYONCE_BIN": str(programs), "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    got = json.loads(out.read_text())
    assert got["faults"] == []
    ratios = {(one["name"], one["limit"]): one["ratio"] for one in got["results"] if "limit" in one}
    assert len(ratios) == 4 and all(r > 0 for r in ratios.values()), ratios
    assert all(name in ran.stdout and limit in ran.stdout for name, limit in ratios)

"""The pages that programs print of themselves. `pages.py BIN` writes them; a test compares them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = sorted(main.parent.name for main in ROOT.glob("services/*/main.c"))


def _print(programs: Path, service: str, what: str) -> str:
    done = subprocess.run([programs / f"payonce-{service}", what], capture_output=True, text=True, check=True, env={})
    return done.stdout.strip() + "\n"


def _collected(programs: Path, title: str, about: str, what: str) -> str:
    parts = [_print(programs, s, what) for s in SERVICES]
    return f"# {title}\n\n{about}\n\n" + "\n".join(parts)


def pages(programs: Path) -> dict[str, str]:
    """File name in docs/ → text, as the programs say it."""
    return {
        "settings.md": _collected(
            programs, "Settings", "From the environment; secrets from the files that `…_FILE` names. Printed by"
            " `payonce-NAME print-settings`; an unusable value refuses to start and is named, and so is a `PAYONCE_…`"
            " name that no program here knows. One environment may hold the settings of several programs, and the"
            " variables of Kubernetes' services (`PAYONCE_INGEST_SERVICE_HOST` and what goes with it).\n\n"
            "`print-config` shows the settings in force. Of a connection string, a URL and the Kafka file it shows what"
            " is known to be no secret; all else is `***`.", "print-settings"),
        "metrics.md": _collected(
            programs, "Metrics", "At `/metrics` of each program's admin listener. Printed by"
            " `payonce-NAME print-metrics`.", "print-metrics"),
        "states.md": _print(programs, "ingest", "print-states"),
    }


if __name__ == "__main__":
    for name, text in pages(Path(sys.argv[1])).items():
        (ROOT / "docs" / name).write_text(text)

"""Rules of the tree that no compiler checks: who may include whom, and no names of this machine."""

import os
import re
import sys
from pathlib import Path

import tree
from tree import ROOT

# Inside common/ a folder may include itself, base/ and the folders named before it.
LAYERS = ("base", "metrics", "log", "config", "life", "json", "pg", "kafka", "avro", "http", "event",
          "outbox", "work", "service", "consumer")
# Rooms of a service that are pure, and what of common/ they may include: no database, network or broker.
PURE = {"services/ingest/providers": ("base", "json"), "services/ingest/decision": ("base",)}
GENERATED = re.compile(r"\w+_(files|names)\.h")
# A provider's name stands in its own room alone, whatever the language; beside it only in what is history, or a test.
PROVIDERS = ROOT / "services/ingest/providers"
APPLIED = ("services/ingest/migrations/0001_init.sql",)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MACHINE = re.compile(r"(?<![\w.$/}-])/(?:home|root|Users)/\w")


def include_fault(file: Path, target: str) -> str | None:
    """Why `file` may not include "target", or None."""
    area, folder = file.relative_to(ROOT).parts[:2]
    if file.name.endswith("_test.c") and target.startswith("../../tests/support/"):
        return None
    if ".." in Path(target).parts:
        return "names a file relative to its parent folder"
    if (ROOT / area / folder / target).exists() or GENERATED.fullmatch(target):
        return None
    if not (ROOT / "common" / target).exists():
        return f"is neither in common/ nor in {area}/{folder}/"
    layer = Path(target).parts[0]
    if layer not in LAYERS:
        return f"common/{layer} has no place among the layers"
    room = PURE.get(file.parent.relative_to(ROOT).as_posix())
    if room and layer not in room and not file.name.endswith("_test.c"):
        return f"{file.parent.name}/ is pure: of common/ it may include {' and '.join(room)}"
    if area == "common" and LAYERS.index(layer) > LAYERS.index(folder):
        return f"common/{folder} stands below common/{layer}"
    return None


def provider_names() -> list[str]:
    return re.findall(r"^    _\((\w+)\)", (PROVIDERS / "providers.c").read_text(), re.M)


def named_providers() -> list[str]:
    """A provider is one file and one line, so no other source names one."""
    names = re.compile(rf"(?<![a-z])({'|'.join(provider_names())})(?![a-z])", re.I)
    found = []
    for area in ("common", "services"):
        for file in sorted(f for f in (ROOT / area).rglob("*") if f.suffix in (".c", ".h", ".sql")):
            name = file.relative_to(ROOT).as_posix()
            if PROVIDERS in file.parents or name in APPLIED or file.name.endswith("_test.c"):
                continue
            lines = enumerate(file.read_text().splitlines(), 1)
            found += [f"{name}:{n}: names a provider" for n, line in lines if names.search(line)]
    return found


def faults() -> list[str]:
    found = named_providers()
    for area in ("common", "services"):
        for file in sorted((ROOT / area).glob("*/**/*.[ch]")):
            name = file.relative_to(ROOT)
            if area == "common" and name.parts[1] not in LAYERS:
                found.append(f"{name}: common/{name.parts[1]} has no place among the layers")
                continue
            for target in INCLUDE.findall(file.read_text()):
                why = include_fault(file, target)
                if why:
                    found.append(f'{name}: include "{target}": {why}')
    here = [f"{place}/" for place in (ROOT, Path(os.path.expanduser("~"))) if len(place.parts) > 2]
    for entry in tree.files():
        try:
            text = (ROOT / entry).read_text()
        except (UnicodeDecodeError, OSError):
            continue
        if MACHINE.search(text) or any(place in text for place in here):
            found.append(f"{entry}: names a path of one machine")
    return found


if __name__ == "__main__":
    wrong = faults()
    print("\n".join(wrong) or "include rules and paths: fine")
    sys.exit(bool(wrong))

"""The files of this tree, as git would list them but without git: a tarball has no .git, a bare machine no program
of that name. `tree.py` prints them, each ended by a NUL."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ignored(root: Path) -> set[str]:
    """What .gitignore says, which names folders alone: "/build/" at the root, "__pycache__/" anywhere."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").split()
    assert all(line.endswith("/") and not set("*?[!#") & set(line) for line in lines), lines
    return set(lines)


def files(root: Path = ROOT) -> list[Path]:
    """Relative to root, sorted; a file that is not committed yet belongs to the tree too."""
    out, skipped = [], ignored(root)
    for folder, folders, names in os.walk(root):
        at = Path(folder).relative_to(root)
        folders[:] = [d for d in folders if d != ".git" and not {f"{d}/", f"/{at / d}/"} & skipped]
        out += [at / name for name in names if name != ".git"]
    return sorted(out)


if __name__ == "__main__":
    sys.stdout.buffer.write(b"".join(os.fsencode(file) + b"\0" for file in files()))

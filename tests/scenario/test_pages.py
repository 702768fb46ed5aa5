"""docs/{settings,metrics,states}.md are what the programs print; `./dev docs` writes them."""

from pathlib import Path

import pytest

import pages


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "states.md"])
def test_the_page_is_what_the_programs_print(programs: Path, name: str) -> None:
    written = (pages.ROOT / "docs" / name).read_text()
    assert written == pages.pages(programs)[name], "run ./dev docs"

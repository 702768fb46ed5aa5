"""The provider of docs/adding-a-provider.md: its blocks and its one line are all there is to a provider, and an order is
paid through it."""

import copy
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Services
from smtp_sink import SmtpSink
from stack import ROOT, Stack
from test_new_consumer import files, must, run, tree

__all__ = ["tree"]  # a fixture
BLOCK = re.compile(r"^\*\*`([\w/.]+)`\*\*.*?^```\w+\n(.*?)^```$", re.M | re.S)
LIST = re.compile(r"^#define EACH\(_\).*?\n\n", re.M | re.S)


@pytest.fixture
def written(tree: Path) -> Path:
    """The tree with what the page shows, built and tested."""
    page = (ROOT / "docs/adding-a-provider.md").read_text()
    blocks = dict(BLOCK.findall(page))
    assert set(blocks) == {"services/ingest/providers/acme.c", "services/ingest/providers/acme_test.c",
                           "tests/scenario/test_acme.py"}
    before = files(tree)
    for name, text in blocks.items():
        (tree / name).write_text(text)
    assert before.keys().isdisjoint(blocks)
    providers = tree / "services/ingest/providers/providers.c"
    [lines] = re.findall(r"^#define EACH.*?(?=^```)", page, re.M | re.S)
    text, count = LIST.subn(lambda _: lines + "\n", providers.read_text())
    assert count == 1
    was, now = (LIST.findall(t)[0].replace("\\", "").split() for t in (providers.read_text(), text))
    assert now == [*was, "_(acme)"], "the page adds one line to those that are there"
    providers.write_text(text)
    must("python3", tree / "tests/support/lint.py")
    must("cmake", "-S", tree, "-B", tree / "build", "-G", "Ninja", "-DCMAKE_C_FLAGS=-O0 -Werror")
    must("cmake", "--build", tree / "build", "--target", "payonce-ingest", "ingest_providers_acme_test")
    must("ctest", "--test-dir", tree / "build", "--no-tests=error", "-R", "^ingest_providers_acme_test$")
    return tree


@pytest.fixture
def its_services(stack: Stack, sink: SmtpSink, written: Path) -> Iterator[Services]:
    beside = copy.copy(stack)
    beside.programs = written / "build/bin"
    with Services(beside, sink) as services:
        yield services


def test_p5_the_provider_of_the_page_pays_an_order(stack: Stack, written: Path, its_services: Services, tag: str,
                                                   tmp_path: Path) -> None:
    states = run(written / "build/bin/payonce-ingest", "print-states").stdout
    assert "## acme-v1 (version 1)" in states and "| `payment` | `captured` | paid | 3 |" in states
    spec = importlib.util.spec_from_file_location("its_test", written / "tests/scenario/test_acme.py")
    assert spec is not None and spec.loader is not None
    its_test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(its_test)
    its_test.test_a_captured_payment_pays_once(its_services, stack, tag, tmp_path)

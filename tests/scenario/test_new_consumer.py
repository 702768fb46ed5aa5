"""./dev new-consumer: the consumer of docs/adding-a-consumer.md under another name builds without a warning, counts
each order once, and needs no edit of another file."""

import copy
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import tree as repository
from conftest import Services
from smtp_sink import SmtpSink
from stack import ROOT, Stack


def run(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def must(*argv: str | Path, cwd: Path | None = None) -> None:
    done = run(*argv, cwd=cwd)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def tree() -> Iterator[Path]:
    """The files of this repository, in a folder of their own, where programs can be run: /tmp may not let them."""
    with TemporaryDirectory(dir=ROOT / "build") as folder:
        for name in repository.files():
            copy_to = Path(folder, name)
            copy_to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy_to)
        yield Path(folder)


def files(tree: Path) -> dict[str, bytes]:
    return {str(f.relative_to(tree)): f.read_bytes() for f in tree.rglob("*") if f.is_file()}


@pytest.mark.parametrize("name", ["", "Visits", "9lives", "two-words", "../up", "a" * 21, "order", "ledger"])
def test_an_unusable_name_is_refused_and_nothing_written(tree: Path, name: str) -> None:
    before = files(tree)
    done = run("./dev", "new-consumer", name, cwd=tree)
    assert done.returncode == 1 and done.stdout.startswith("dev: "), done.stdout
    assert files(tree) == before


@pytest.fixture
def consumer(tree: Path, tag: str) -> str:
    """Its name. It is written, built and tested."""
    before = files(tree)
    must("./dev", "new-consumer", tag, cwd=tree)
    after = files(tree)
    assert {name: after.get(name) for name in before} == before, "other files are as they were"
    assert all(tag in name and b"visits" not in after[name] for name in after.keys() - before.keys())
    must("cmake", "-S", tree, "-B", tree / "build", "-G", "Ninja", "-DCMAKE_C_FLAGS=-O0 -Werror")
    must("cmake", "--build", tree / "build", "--target", f"payonce-{tag}", f"{tag}_rule_test")
    must("ctest", "--test-dir", tree / "build", "--no-tests=error", "-R", f"^{tag}_rule_test$")
    return tag


@pytest.fixture
def its_services(stack: Stack, sink: SmtpSink, tree: Path, consumer: str) -> Iterator[Services]:
    """What its own test calls `services`."""
    beside = copy.copy(stack)
    beside.programs = tree / "build/bin"
    beside.migrate(consumer)
    services = Services(beside, sink)
    try:
        yield services
    finally:
        faults = services.end()
        stack.postgres.query(f"DROP SCHEMA {consumer} CASCADE")
        stack.postgres.query(f"DROP ROLE payonce_{consumer}")
    assert faults == []


def test_p19_the_consumer_of_the_page_counts_each_order_once(stack: Stack, tree: Path, consumer: str,
                                                             its_services: Services) -> None:
    spec = importlib.util.spec_from_file_location("its_test", tree / f"tests/scenario/test_{consumer}.py")
    assert spec is not None and spec.loader is not None
    its_test = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(its_test)
    its_test.test_a_paid_order_counts_once(its_services, stack, consumer)

"""The timer through mypyc: the sources that pyproject.toml names are compiled into a copy of the tree, and the tests of
the wheel and of the timers on it are run there."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.programs import needs_programs

ROOT = Path(__file__).parents[2]
COMPILED_TESTS = (
    "test_exactness.py",
    "test_wheel.py",
    "test_threaded.py",
    "test_wheel_clock.py",
    "test_schemes_exactness.py",
    "test_purgatory.py",
    "test_purgatory_threads.py",
    "test_purgatory_turns.py",
    "test_sharded_watchers.py",
    "test_watchers.py",
    "test_limits.py",
)
LIMIT_S = 170
SAID = 4_000
"""How many characters of what a command said tell why it failed."""
PLANTED = """
from controller.labs.virtual_timer import VirtualTimer
from tests.timer.model import Advance, History, Model, Start, run_history
from tests.timer.test_exactness import OnVirtualTimer
history = History([Start(1, 10), Start(2, 30), Advance(100)])
for timer, limit_ms in ((VirtualTimer(), 20), (VirtualTimer(), 40)):
    timer._lowest.limit_ms = limit_ms
    print(run_history(OnVirtualTimer(timer), history) == run_history(Model(), history))
"""
SAYS_WHICH = "from controller.timer import COMPILED, wheel; print(COMPILED, wheel.__file__)"


def build_hook() -> dict[str, Any]:
    """Of the build that docs/timer-figures.md tells of."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook: dict[str, Any] = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    assert hook["enable-by-default"] is False, "pip install . builds pure Python"
    return hook


def sources() -> list[str]:
    named: list[str] = build_hook()["include"]
    return named


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def foreign_to(paths: Iterable[Path]) -> set[str]:
    """The packages of others that these files import, or files of ours that these do, on and on: a compiler reads all
    of them."""
    seen: set[Path] = set()
    left, foreign = list(paths), set[str]()
    while left:
        path = left.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        left += [folder / "__init__.py" for folder in path.parents if ROOT in folder.parents]
        for module in imported(path):
            first = module.partition(".")[0]
            if first in ("controller", "statemachines"):
                place = ROOT / module.replace(".", "/")
                left += [place.with_suffix(".py"), place / "__init__.py"]
            elif first not in sys.stdlib_module_names:
                foreign.add(first)
    return foreign


def run(tree: Path, *words: str) -> str:
    """The command's output, in `tree` and from its sources; AssertionError with all it said, if it fails."""
    environment = os.environ | {"PYTHONPATH": str(tree), "MYPYC_OPT_LEVEL": "0", "MYPYC_DEBUG_LEVEL": "0"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-SAID:]}\n{done.stderr[-SAID:]}"
    return done.stdout


@contextmanager
def compiled(copy: Path) -> Iterator[Path]:
    """The tree with the compiled timer; not optimized, for what is wanted of it here is to be exact."""
    skip = shutil.ignore_patterns("__pycache__", "data", "*.so")
    for folder in ("controller", "statemachines", "tests/timer"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=skip)
    for file in ("__init__.py", "conftest.py", "programs.py", "sync_points.py"):
        shutil.copy(ROOT / "tests" / file, copy / "tests")
    run(copy, "-m", "mypyc", *sources())
    shutil.copy(ROOT / "pyproject.toml", copy)  # for pytest; setuptools, which mypyc calls, wants another
    yield copy
    shutil.rmtree(copy)


def test_the_sources_are_pure_where_nothing_was_compiled() -> None:
    which, file = run(ROOT, "-c", SAYS_WHICH).split()
    assert (which, Path(file).suffix) == ("False", ".py")


def test_the_build_is_given_what_its_compiler_reads() -> None:
    """`pip install` builds in an environment of its own, which holds what the hook names and nothing else. What mypyc's
    runtime has, `mypy_extensions`, comes with mypy."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = foreign_to(ROOT / source for source in sources()) - {"mypy_extensions"}
    named = [each for each in project["dependencies"] if re.split(r"[<>=]", each)[0] in wanted]
    assert {re.split(r"[<>=]", each)[0] for each in named} == wanted == {"loguru"}
    assert set(named) <= set(build_hook()["dependencies"])


@needs_programs
@pytest.mark.timeout(3 * LIMIT_S)
def test_the_compiled_timer_passes_the_same_tests_and_a_fault_in_it_is_caught(tmp_path: Path) -> None:
    """One test, since tests are dealt over processes and each would compile a tree of its own."""
    with compiled(tmp_path) as tree:
        which, file = run(tree, "-c", SAYS_WHICH).split()
        assert (which, Path(file).suffix) == ("True", ".so")
        assert Path(file).is_relative_to(tree)
        # A wheel of 20 ticks that takes what is due in 30 puts it where what is due in 10 is.
        assert run(tree, "-c", PLANTED).split() == ["True", "False"]
        tests = [f"tests/timer/{name}" for name in COMPILED_TESTS]
        said = run(tree, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *tests)
        assert " passed" in said

"""Which tests run which blocks of the code: a probe at the head of each block of a function, and what it found.

A block is a function's body or the body of a branch, a loop, a handler. `python -m tests.mutation` runs the tests once
with the probes in (`-p tests.mutation.blocks`), and writes the map that later chooses the tests of a mutant. A probe
sets one byte: the tests take about as long as without.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HITS = "__mutation_hits__"
MAP, PATHS, MUTANT = "MUTATION_MAP", "MUTATION_PATHS", "MUTATION_MUTANT"
"""Environment: where the map goes; what is looked at, separated by colons; the mutant that is put in at import."""


def sources(paths: Sequence[str], root: Path = ROOT) -> list[str]:
    """The Python files of these folders and files, as paths from the root."""
    found: list[Path] = []
    for path in paths:
        there = root / path
        if not there.exists():
            raise ValueError(f"{path}: no such file or folder in {root}")
        found += sorted(there.rglob("*.py")) if there.is_dir() else [there]
    return [str(path.relative_to(root)) for path in found]


def bodies(tree: ast.AST, within: bool = False) -> Iterator[list[ast.stmt]]:
    """The statements of each block inside functions."""
    for node in ast.iter_child_nodes(tree):
        inside = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if inside:
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(node, ast.ClassDef) or not isinstance(body, list):
                    continue
                if body and isinstance(body[0], ast.stmt):
                    yield body
        yield from bodies(node, inside)


def block_of(tree: ast.AST, line: int) -> int | None:
    """The first line of the smallest block around a line; None outside of functions."""
    around = [body[0].lineno for body in bodies(tree) if body[0].lineno <= line <= (body[-1].end_lineno or 0)]
    return max(around, default=None)


def probed(source: str) -> tuple[ast.Module, list[int]]:
    """The source with its probes, and the first line of the block of each."""
    tree = ast.parse(source)
    lines: list[int] = []
    for body in list(bodies(tree)):
        first = body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        probe = ast.parse(f"{HITS}[{len(lines)}] = 1").body[0]
        for node in ast.walk(probe):
            ast.copy_location(node, first)
        lines.append(first.lineno)
        body.insert(1 if documented else 0, probe)
    return ast.fix_missing_locations(tree), lines


class Substitute(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the project's modules of these paths from other trees than their files'. `hits` by path."""

    def __init__(self, root: Path, paths: Sequence[str], mutant: tuple[str, int] | None = None) -> None:
        self._root = root
        self._modules = {self._name(path): path for path in paths}
        self._mutant = mutant
        self.hits: dict[str, tuple[bytearray, list[int]]] = {}

    @staticmethod
    def _name(path: str) -> str:
        return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._modules:
            return None
        file = self._root / self._modules[fullname]
        package = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(fullname, file, loader=self, submodule_search_locations=package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def get_source(self, fullname: str) -> str:
        return (self._root / self._modules[fullname]).read_text(encoding="utf-8")

    def exec_module(self, module: ModuleType) -> None:
        path = self._modules[module.__name__]
        source = self.get_source(module.__name__)
        if self._mutant is None:
            tree, lines = probed(source)
            hits = bytearray(len(lines))
            self.hits[path] = (hits, lines)
            module.__dict__[HITS] = hits
        else:
            from tests.mutation.operators import mutated

            tree = mutated(source, self._mutant[1])
        exec(compile(tree, str(self._root / path), "exec"), module.__dict__)


class Recorder:
    """CPU seconds and blocks of each test that passes, and the blocks that run at import or collection."""

    def __init__(self, substitute: Substitute, to: Path) -> None:
        self._substitute = substitute
        self._to = to
        self._tests: dict[str, dict[str, Any]] = {}
        self._failed: list[str] = []
        self._at_import: dict[str, list[int]] = {}

    def pytest_collection_finish(self) -> None:
        self._at_import = self._found()

    def _found(self) -> dict[str, list[int]]:
        return {
            path: [line for line, hit in zip(lines, hits, strict=True) if hit]
            for path, (hits, lines) in self._substitute.hits.items()
            if any(hits)
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for hits, _ in self._substitute.hits.values():
            hits[:] = bytes(len(hits))
        began_s = time.process_time()
        result = yield
        cpu_s = time.process_time() - began_s
        self._tests[item.nodeid] = {"cpu_s": round(cpu_s, 4), "blocks": self._found()}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for name in self._failed:
            self._tests.pop(name, None)
        found = {"tests": self._tests, "at_import": self._at_import, "left_out": sorted(set(self._failed))}
        self._to.write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: with probes, or with one mutant, before the modules are imported for the first time."""
    paths = os.environ[PATHS].split(":")
    mutant = os.environ.get(MUTANT)
    if mutant:
        path, _, number = mutant.rpartition("#")
        substitute = Substitute(ROOT, [path], (path, int(number)))
    else:
        substitute = Substitute(ROOT, sources(paths))
        config.pluginmanager.register(Recorder(substitute, Path(os.environ[MAP])))
    sys.meta_path.insert(0, substitute)

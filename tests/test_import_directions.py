"""Which room may import which, read from every import statement of the tree: lines run downhill, and no module
imports itself by a detour. What the checks catch is shown on trees with a wrong import planted in them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.syntax import statements

ROOT = Path(__file__).parents[1]

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    room: frozenset(below.split())
    for room, below in {
        "leaf": "",
        "statemachines": "",
        "zookeeper": "",
        "protocol": "",
        "timer": "statemachines",
        "labs": "statemachines timer",
        "storage": "statemachines",
        "machine": "statemachines storage",
        "core": "statemachines timer zookeeper protocol",
        "broker": "statemachines timer zookeeper protocol core storage",
        "hosts": "statemachines timer zookeeper protocol core storage broker",
        "scenarios": "statemachines timer zookeeper protocol core storage broker",
        "report": "scenarios",
        "simulator": "statemachines timer zookeeper protocol core storage machine broker scenarios report",
        "chaos": "statemachines timer zookeeper protocol core storage broker scenarios report hosts",
        "pipeline": "statemachines timer zookeeper protocol core storage broker scenarios report hosts simulator chaos",
        "testing": "statemachines timer zookeeper protocol core storage machine broker scenarios report hosts "
        "simulator chaos",
        "cli": "statemachines timer zookeeper protocol core storage broker scenarios report hosts simulator chaos "
        "pipeline testing",
    }.items()
}
"""A room may also import itself and, `statemachines` apart, the leaves."""

LEAVES = frozenset(
    [
        "controller",
        "controller.clock",
        "controller.sync_points",
        "controller.few",
        "controller.lazy_names",
        "controller.system",
    ]
    + ["controller.backoff", "controller.distinguished_names", "controller.log"]
    + ["controller.trace", "controller.trace_records"]
)

# statemachines decides and does nothing else: of the standard library it may have what can't reach the world.
PURE = frozenset(
    [
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "operator",
    ]
    + ["types", "typing", "xml.sax.saxutils", "numpy", "transitions"]
)
WRITES_FILES = frozenset({"statemachines.diagrams"})
"""The command that draws the pictures of docs/; nothing may import it."""

HOSTLESS = frozenset({"core", "broker"})
HOST_MODULES = frozenset({"asyncio", "threading", "time", "socket", "random", "os", "kazoo"})
# What a hostless room imports may draw a Random that it was handed; nothing of it may reach the machine.
HOST_MODULES_BEHIND = HOST_MODULES - {"random"} | {"subprocess", "selectors", "multiprocessing"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. `typing_only`: seen by the type checker and never run."""

    source: str
    target: str
    where: str
    typing_only: bool

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]


def imports_of(root: Path) -> list[Import]:
    """Every import under `controller/` and `statemachines/`, wherever in its file it stands."""
    files = {
        _module(path.relative_to(root)): path
        for top in ("controller", "statemachines")
        for path in sorted((root / top).rglob("*.py"))
    }
    found = []
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [*statements(tree)]
        typing_only = {id(inner) for outer in nodes if _is_typing_block(outer) for inner in ast.walk(outer)}
        is_package = path.name == "__init__.py"
        for node in nodes:
            for target in _targets(node, module, is_package, files):
                line = getattr(node, "lineno", 0)
                found.append(Import(module, target, f"{path.relative_to(root)}:{line}", id(node) in typing_only))
    return found


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(node: ast.AST, module: str, is_package: bool, files: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = module.split(".")[: None if is_package and node.level == 1 else (is_package - node.level)]
            base = ".".join([*above, base] if base else above)
        for alias in node.names:
            # `from package import module` depends on the module; any other name is the package's own.
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base


def room_of(module: str) -> str | None:
    """The room of a module of ours, None for everybody else's. KeyError for a room that nobody has named."""
    parts = module.split(".")
    if parts[0] == "statemachines":
        return "statemachines"
    if parts[0] != "controller":
        return None
    if module in LEAVES:
        return "leaf"
    if parts[1] not in MAY_IMPORT:
        raise KeyError(f"{module}: a room that no rule knows")
    return parts[1]


def wrong_directions(imports: list[Import]) -> list[str]:
    wrong = []
    for one in imports:
        source, target = room_of(one.source), room_of(one.target)
        if source is None or target in (None, source) or (target == "leaf" and source != "statemachines"):
            continue
        if target not in MAY_IMPORT[source]:
            wrong.append(f"{one.where}: {source} may not import {target} ({one.target})")
    return wrong


def impure_state_machines(imports: list[Import]) -> list[str]:
    wrong = []
    for one in imports:
        if one.target in WRITES_FILES:
            wrong.append(f"{one.where}: nothing may import {one.target}")
        if room_of(one.source) != "statemachines" or room_of(one.target) is not None or one.source in WRITES_FILES:
            continue
        if one.target not in PURE and one.package not in PURE:
            wrong.append(f"{one.where}: statemachines may not import {one.target}")
    return wrong


def hosts_below_the_hosts(imports: list[Import]) -> list[str]:
    """What core and broker import of a thread, a socket, a clock: themselves, or behind what they import of ours."""
    wrong = [
        f"{one.where}: {room_of(one.source)} may not import {one.target}"
        for one in imports
        if room_of(one.source) in HOSTLESS and one.package in HOST_MODULES
    ]
    edges = _edges(imports)
    reached = [module for module in edges if room_of(module) in HOSTLESS]
    for module in reached:  # grows as it goes
        reached.extend(sorted(edges.get(module, set()) - set(reached)))
    wrong += [
        f"{one.where}: {one.source}, which core or broker is built on, imports {one.target}"
        for one in imports
        if one.source in reached and room_of(one.source) not in HOSTLESS and one.package in HOST_MODULES_BEHIND
    ]
    return wrong


def _edges(imports: list[Import]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for one in imports:
        if not one.typing_only and room_of(one.target) is not None:
            edges.setdefault(one.source, set()).add(one.target)
    return edges


def cycles(imports: list[Import]) -> list[str]:
    """Modules that import themselves by way of others, each cycle once; an import inside a function counts."""
    edges = _edges(imports)
    found: set[tuple[str, ...]] = set()
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            cycle = path[path.index(module) :]
            first = cycle.index(min(cycle))
            found.add((*cycle[first:], *cycle[:first]))
        elif module not in finished:
            for target in sorted(edges.get(module, ())):
                visit(target, [*path, module])
            finished.add(module)

    for module in sorted(edges):
        visit(module, [])
    return [" -> ".join((*cycle, cycle[0])) for cycle in sorted(found)]


CHECKS = (wrong_directions, impure_state_machines, hosts_below_the_hosts, cycles)


def violations(root: Path) -> list[str]:
    imports = imports_of(root)
    return [line for check in CHECKS for line in check(imports)]


@pytest.fixture(scope="module")
def our_imports() -> list[Import]:
    return imports_of(ROOT)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_imports_run_downhill(check: Callable[[list[Import]], list[str]], our_imports: list[Import]) -> None:
    assert len(our_imports) > 100
    assert check(our_imports) == []


SOUND = {
    "controller/clock.py": "import heapq",
    "controller/few.py": "from controller.clock import Future",
    "controller/core/events.py": "from controller import clock\nfrom controller.protocol import Frame\nimport timeless",
    "controller/core/channels.py": "from . import events\nfrom .events import Event",
    "controller/protocol/__init__.py": "from controller.protocol.frame import Frame",
    "controller/protocol/frame.py": "import struct",
    "controller/broker/node.py": "from controller.core.events import Event\nimport controller.storage.log",
    "controller/hosts/server.py": "import asyncio\nfrom controller.broker.node import Node",
    "controller/scenarios/runner.py": "from controller.trace import Event",
    "controller/cli/chaos.py": "from controller.chaos.run import run",
    "controller/labs/schemes.py": "from controller.timer.wheel import TimingWheel",
    "statemachines/tables.py": "import numpy as np\nfrom transitions import Machine\nfrom enum import IntEnum",
    "statemachines/diagrams.py": "from pathlib import Path\nfrom statemachines import tables",
}


def planted(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_a_sound_tree_is_left_alone(tmp_path: Path) -> None:
    assert violations(planted(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("statemachines/x.py", "from controller.core import events", "statemachines may not import core"),
        ("statemachines/x.py", "from controller.clock import Clock", "statemachines may not import leaf"),
        ("statemachines/x.py", "import logging", "statemachines may not import logging"),
        ("statemachines/x.py", "import os.path", "statemachines may not import os.path"),
        ("statemachines/x.py", "import loguru", "statemachines may not import loguru"),
        ("statemachines/x.py", "from statemachines.diagrams import main", "nothing may import statemachines.diagrams"),
        ("controller/clock.py", "from controller.core.events import Event", "leaf may not import core"),
        ("controller/zookeeper/x.py", "import controller.protocol.frame", "zookeeper may not import protocol"),
        ("controller/protocol/x.py", "from statemachines import tables", "protocol may not import statemachines"),
        ("controller/core/x.py", "from controller.broker.node import Node", "core may not import broker"),
        ("controller/core/x.py", "def f():\n    from ..hosts import server", "x.py:2: core may not import hosts"),
        ("controller/core/x.py", "from time import monotonic", "core may not import time"),
        ("controller/broker/x.py", "from controller.labs import schemes", "broker may not import labs"),
        ("controller/timer/x.py", "from controller.labs import schemes", "timer may not import labs"),
        ("controller/cli/x.py", "from controller.labs import schemes", "cli may not import labs"),
        ("controller/broker/x.py", "import kazoo.client", "broker may not import kazoo.client"),
        ("controller/protocol/frame.py", "import socket", "which core or broker is built on, imports socket"),
        ("controller/hosts/x.py", "from controller.scenarios import runner", "hosts may not import scenarios"),
        ("controller/scenarios/x.py", "from controller.hosts import server", "scenarios may not import hosts"),
        ("controller/simulator/x.py", "from controller.hosts import server", "simulator may not import hosts"),
        ("controller/simulator/x.py", "from controller.chaos import run", "simulator may not import chaos"),
        ("controller/chaos/x.py", "import controller.simulator.run", "chaos may not import simulator"),
        ("controller/simulator/x.py", "import controller.testing", "simulator may not import testing"),
        ("controller/chaos/x.py", "if TYPE_CHECKING:\n    import controller.cli.main", "chaos may not import cli"),
        (
            "controller/clock.py",
            "import controller.few",
            "controller.clock -> controller.few -> controller.clock",
        ),
        (
            "controller/protocol/frame.py",
            "def f():\n    from controller.protocol import Frame",
            "controller.protocol -> controller.protocol.frame -> controller.protocol",
        ),
    ],
)
def test_a_wrong_import_is_caught(tmp_path: Path, name: str, text: str, message: str) -> None:
    found = violations(planted(tmp_path, {**SOUND, name: text}))
    assert any(message in line for line in found), found


def test_a_room_that_no_rule_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"controller\.attic"):
        violations(planted(tmp_path, {**SOUND, "controller/attic/x.py": "import json"}))

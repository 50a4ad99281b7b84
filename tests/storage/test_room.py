"""What the room may reach for: the broker's core and a simulator import it; neither may have a machine behind it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[2] / "controller" / "storage"
REAL_DISK = ("controller.storage.disk_files", "controller.storage.device_pools")
SYSTEM = "controller.system"
MACHINE = {"os", "fcntl", "time", "random", "threading", "asyncio", "socket", "pathlib", "tempfile", "shutil"}


def reached(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name for name in found if name.partition(".")[0] in MACHINE or name in (*REAL_DISK, SYSTEM)}


def test_only_the_real_disk_imports_the_machine() -> None:
    files = {path.name: reached(path.read_text(encoding="utf-8")) for path in ROOM.glob("*.py")}
    assert len(files) > 10
    assert files.pop("disk_files.py") == {
        SYSTEM,
        "controller.storage.device_pools",
        "os",
        "shutil",
        "threading",
        "time",
    }
    assert files.pop("device_pools.py") == {"threading", "time"}
    assert {name: modules for name, modules in files.items() if modules} == {}


@pytest.mark.parametrize("line", ["import os.path", "from time import time", "import controller.storage.disk_files"])
def test_a_reach_for_the_machine_is_seen(line: str) -> None:
    assert reached(f"def f():\n    {line}\n")

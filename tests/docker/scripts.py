"""The scripts of docker/ as modules: they are copied into an image one by one and are part of no package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "docker"


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docker_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

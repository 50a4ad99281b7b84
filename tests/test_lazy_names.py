"""Names that are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MODULE = """
from typing import TYPE_CHECKING

from controller.lazy_names import lazy_names
from fractions import Fraction as Fraction
from decimal import Decimal

if TYPE_CHECKING:
    from colorsys import hls_to_rgb as hls_to_rgb
    from colorsys import hsv_to_rgb as renamed
    from this import s
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""
PROGRAM = """
import sys
import lazy
assert dir(lazy) == lazy.__all__ == ["Fraction", "hls_to_rgb"], lazy.__all__
assert "colorsys" not in sys.modules
assert lazy.hls_to_rgb(0, 0, 0) == (0, 0, 0) and lazy.Fraction(1, 2) and "colorsys" in sys.modules
from lazy import *
for name in ("renamed", "s", "other"):
    try:
        getattr(lazy, name)
    except AttributeError as error:
        assert str(error) == f"module 'lazy' has no attribute {name!r}"
    else:
        raise AssertionError(name)
assert not {"this", "ast"} & set(sys.modules)
"""
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("zipped", [False, True])
def test_names_are_those_of_the_imports_as_themselves(tmp_path: Path, zipped: bool) -> None:
    place = tmp_path
    if zipped:
        place = tmp_path / "lazy.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("lazy.py", MODULE)
    else:
        (place / "lazy.py").write_text(MODULE)
    program = f"import sys\nsys.path[:0] = [{str(place)!r}, {str(ROOT)!r}]\n{PROGRAM}"
    subprocess.run([sys.executable, "-S", "-c", program], check=True, timeout=60)


def test_a_module_without_its_source_says_so(tmp_path: Path) -> None:
    program = (
        f"import compileall, sys\nsys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        f"compileall.compile_dir({str(tmp_path)!r}, quiet=1, legacy=True)\n"
        f"import os\nos.remove({str(tmp_path / 'lazy.py')!r})\nimport lazy\n"
    )
    (tmp_path / "lazy.py").write_text(MODULE)
    result = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert "ImportError: lazy: its source must be installed" in result.stderr


def test_a_loader_that_does_not_give_the_source_is_enough(tmp_path: Path) -> None:
    """pytest loads the packages of its plugins by such a loader."""
    (tmp_path / "lazy.py").write_text(MODULE)
    program = f"""
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
sys.path.insert(0, {str(ROOT)!r})

class Rewriting:
    def create_module(self, spec): return None
    def exec_module(self, module):
        with open({str(tmp_path / "lazy.py")!r}) as source:
            exec(source.read(), vars(module))

spec = ModuleSpec("lazy", Rewriting(), origin={str(tmp_path / "lazy.py")!r})
spec.has_location = True
sys.modules["lazy"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
assert module.__all__ == ["Fraction", "hls_to_rgb"]
"""
    subprocess.run([sys.executable, "-S", "-c", program], check=True, timeout=60)

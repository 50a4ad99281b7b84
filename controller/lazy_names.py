"""Public names of a module that are loaded when they are used, each named once.

    if TYPE_CHECKING:
        from controller.testing.cluster import Kafka as Kafka
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__)

The imports under `if TYPE_CHECKING:` are both the declaration for type checkers and IDEs, and the table of what is
loaded when. `as` with the same name says that the name is public (PEP 484). A name that is imported so outside the
block is public too, and is loaded with the module; `controller.protocol` and
`controller.storage` have such names alone, and take `__all__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_ONLY_AST = 0x400
"""`ast.PyCF_ONLY_AST`, without the import of `ast`."""


def lazy_names(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a module, from the imports in its source.

    Raises:
        ImportError: the source of the module is not installed.
    """
    public = _imported(module, _source(module))

    def load(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(public[name]), name)

    names = sorted(public)
    return load, lambda: names, names


def _source(module: str) -> str:
    """The source that the module was loaded from. A loader may not know it, as pytest's, which rewrites assertions."""
    spec = sys.modules[module].__spec__
    get_source = getattr(spec and spec.loader, "get_source", None)
    source = None if get_source is None else get_source(module)
    if source is None and spec is not None and spec.has_location and str(spec.origin).endswith(".py"):
        with open(str(spec.origin), encoding="utf-8") as file:
            source = file.read()
    if source is None:
        raise ImportError(f"{module}: its source must be installed: the names that it loads are read from there")
    return str(source)


def _imported(module: str, source: str) -> dict[str, str]:
    """Return each public name with the module that it is imported from."""
    tree: Any = compile(source, module, "exec", _ONLY_AST)
    statements = list(tree.body)
    for block in tree.body:
        if type(block).__name__ == "If" and getattr(block.test, "id", None) == "TYPE_CHECKING":
            statements += block.body
    return {
        name.name: one.module
        for one in statements
        if type(one).__name__ == "ImportFrom"
        for name in one.names
        if name.asname == name.name
    }

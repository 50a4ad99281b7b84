"""Generate the API reference from docstrings: `python docs/reference.py build/reference`.

Documents the modules of `PUBLIC` with pdoc (extra `docs`). Every warning of pdoc is an error: a module that cannot be
imported, an annotation that cannot be resolved, a name of `__all__` that does not exist.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from pathlib import Path
from types import FunctionType

PUBLIC = (
    "camerlengo",
    "controller.clock",
    "controller.core.event_loop",
    "controller.core.leadership",
    "controller.core.channels",
    "controller.hosts.event_thread",
    "controller.hosts.local_cluster",
    "controller.protocol",
    "controller.simulator",
    "controller.simulator.simpy_bridge",
    "controller.storage",
    "controller.testing",
    "controller.timer",
    "controller.timer.purgatory",
    "controller.trace",
    "controller.zookeeper",
    "controller.zookeeper.operations",
    "statemachines",
    "statemachines.leader_election",
    "statemachines.leader_election_columns",
    "statemachines.machine",
)
"""The modules that other programs may import. README.md and the pages of docs/ use no others in their examples."""


def import_all() -> None:
    """Import every public module, and what it defers to its first use (module `__getattr__`), which pdoc does not do.

    Raises:
        ImportError, AttributeError: a module, or a name in its `__all__`, does not exist.
    """
    modules = [importlib.import_module(name) for name in PUBLIC]
    for module in modules:
        for attribute in getattr(module, "__all__", ()):
            setattr(module, attribute, getattr(module, attribute))
    for value in [value for module in modules for value in vars(module).values() if isinstance(value, type)]:
        for made in (vars(value).get("__init__"), vars(value).get("__new__")):
            made = getattr(made, "__func__", made)
            if (
                isinstance(made, FunctionType) and made.__module__ not in sys.modules
            ):  # generated; its annotations need a module
                made.__module__ = value.__module__


def write(folder: Path) -> list[str]:
    """Write one HTML page per public module, and an index, to `folder`. Return pdoc's warnings, each once."""
    import pdoc

    import_all()
    packages = [name for name in PUBLIC if hasattr(sys.modules[name], "__path__")]
    no_others = f"!(?!({'|'.join(map(re.escape, packages))})$)"  # a package would bring all of its modules
    pdoc.render.configure(docformat="google", footer_text="camerlengo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pdoc.pdoc(*packages, no_others, *[name for name in PUBLIC if name not in packages], output_directory=folder)
    return list(dict.fromkeys(str(warning.message).strip() for warning in caught))


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/reference.py FOLDER")
    found = write(Path(sys.argv[1]))
    print(*found, f"{len(PUBLIC)} modules, {len(found)} warnings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

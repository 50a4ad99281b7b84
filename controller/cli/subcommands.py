"""Subcommands whose modules are imported when they are chosen, and not for the list that `--help` shows."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """A parser that imports `module` and lets its `configure(parser)` add arguments before it first parses words."""

    def __init__(self, *, module: str | None = None, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._module = module

    def configure(self) -> None:
        """Import the module and let it add its arguments, once."""
        if self._module is not None:
            module, self._module = self._module, None
            importlib.import_module(module).configure(self)

    def parse_known_args(  # type: ignore[override]  # the stubs have overloads for kinds of namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self.configure()
        return super().parse_known_args(args, namespace)


def add_subcommands(
    parser: argparse.ArgumentParser, dest: str, metavar: str, commands: Mapping[str, str], package: str
) -> None:
    """Add a subcommand for each name in `commands`, which maps it to its line of help. Its module is
    in `package`, with `_` for `-`."""
    subparsers = parser.add_subparsers(dest=dest, metavar=metavar, required=True, parser_class=CommandParser)
    for name, line in commands.items():
        subparsers.add_parser(name, help=line, module=f"{package}.{name.replace('-', '_')}")

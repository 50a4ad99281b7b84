"""Every parser of the command line, and every option of each: what tables over all commands are made from."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from controller.cli.main import COMMANDS

POSITIONALS = {
    "analyze": ["."],
    "campaign": ["swarm", "--seeds", "1..2", "--report", "out"],
    "chaos": ["broker-kill"],
    "simulate": ["broker-kill"],
}
"""What a command can't be called without."""


def parsers() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield each command with its parser, a benchmark as ("bench", its name)."""
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"camerlengo {name}")
        importlib.import_module(f"controller.cli.{name}").configure(parser)
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below:
            yield (name,), parser
        for action in below:
            for each in action.choices.values():
                each.configure()
            yield from (((name, inner), each) for inner, each in action.choices.items())


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options that take a value, and the positional arguments."""
    for action in parser._actions:
        if action.nargs != 0 and not isinstance(action, argparse._SubParsersAction):
            yield action

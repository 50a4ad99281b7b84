"""The command line: one file a command, imported only when that command is asked for.

Each command's module has `HELP`, `configure(parser)` and `run(arguments) -> int` (the exit status).
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from loguru import logger

COMMANDS = (
    "zookeeper",
    "broker",
    "cluster",
    "state",
    "explain",
    "pause",
    "whatif",
    "analyze",
    "chaos",
    "simulate",
    "campaign",
    "bench",
)

USAGE_ERROR = 2
INTERRUPTED = 130


class UsageError(Exception):
    """Input that a command can't accept; the message names it and says what was expected."""


class _Version(argparse.Action):
    """Looked up when it is asked for, and at no other start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        print(f"{parser.prog} {version('camerlengo')} ({python})")
        parser.exit()


def log_to_stderr(level: str) -> None:
    """What the library logs, from `level` on. A command that is a server asks for more than this file does."""
    logger.remove()
    logger.add(sys.stderr, level=level)
    logger.enable("controller")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="camerlengo", description="Kafka's ZooKeeper control plane: run it, break it, simulate it."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="tells this program's version and Python's")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in words if not word.startswith("-")), None)
    for name in COMMANDS:
        # Help for all needs every module; a command needs its own only.
        module = importlib.import_module(f"controller.cli.{name}") if wanted in (None, name) else None
        command = commands.add_parser(name, help=module.HELP if module else None)
        if module is not None:
            module.configure(command)
    arguments = parser.parse_args(words)
    log_to_stderr("WARNING")
    module = importlib.import_module(f"controller.cli.{arguments.command}")
    try:
        status: int = module.run(arguments)
    except UsageError as error:
        print(f"camerlengo {arguments.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return status

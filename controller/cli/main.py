"""The command line: one file a command, imported only when that command is asked for.

Each command's module has `configure(parser)` and `run(arguments) -> int` (the exit status). It may have
`needs(arguments)`: what the command needs beyond the default installation, checked before `run` (see `requirements`).
It may have `ON_SIGTERM`: the exit status after SIGTERM, if that is how it ends in order (143 otherwise).

`main` without arguments is the program: it handles signals (see `interrupts`). It does so first, so this module imports
everything else later.
"""

from __future__ import annotations

import sys

from controller.cli import interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import ModuleType

COMMANDS = {  # with the line that --help shows
    "zookeeper": "run a ZooKeeper on loopback until Ctrl-C",
    "broker": "run one broker, with Kafka's settings",
    "cluster": "run a ZooKeeper and brokers on loopback until Ctrl-C",
    "stop": "shut brokers down in order, wait for them, and report the outcome",
    "state": "show the state of a cluster, read from its ZooKeeper",
    "explain": "explain the state of a partition, topic or broker",
    "pause": "pause the controller: it elects leaders after failures, and makes no optional moves",
    "whatif": "show the impact of losing brokers of a cluster",
    "analyze": "analyze a cluster's history from traces and real brokers' logs",
    "list": "list the built-in scenarios",
    "chaos": "run a scenario on real processes, with a verdict",
    "simulate": "run a scenario in a deterministic simulation, in virtual time and in memory",
    "campaign": "run many seeds of a scenario on Spark, and compare settings",
    "bench": "run a benchmark of a part of this library, with alternatives for comparison",
    "lab": "run an experiment on a published design, on models and on real devices",
}

USAGE_ERROR = 2
COULD_NOT_RUN = 3
INTERRUPTED = 130


class UsageError(Exception):
    """Invalid input of a command. The message names the input and what was expected."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. With `argv` None this is the program: words are sys.argv's, and
    the process handles signals and leaves no process behind."""
    if argv is not None:
        return _run(list(argv))
    interrupts.install()
    try:
        status = _run(sys.argv[1:])
    except BaseException:
        number = interrupts.received()
        if number is None:
            interrupts.kill_descendants()
            raise
        interrupts.end(interrupts.status_of(number))
    if interrupts.received() is not None:
        interrupts.end(status)
    interrupts.kill_descendants()
    return status


def log_to_stderr(level: str) -> None:
    """Log what the library logs, from `level` on. A command that is a server lowers the level itself."""
    from controller.log import logger

    logger.remove()
    logger.add(sys.stderr, level=level)
    logger.enable("controller")


def _run(words: list[str]) -> int:
    module, arguments = _parsed(words)
    log_to_stderr("WARNING")
    try:
        with interrupts.unwinding():
            missing = _missing(module, arguments)
            if missing is not None:
                print(f"camerlengo {arguments.command}: {missing}", file=sys.stderr)
                return COULD_NOT_RUN
            status: int = module.run(arguments)
    except UsageError as error:
        print(f"camerlengo {arguments.command}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        number = interrupts.received()
        if number is None:
            return INTERRUPTED
        usual = interrupts.status_of(number)
        return getattr(module, "ON_SIGTERM", usual) if usual != INTERRUPTED else usual
    return status


def _missing(module: ModuleType, arguments: argparse.Namespace) -> str | None:
    """Return one line that names the command's missing requirements, or None if all are installed."""
    needs = getattr(module, "needs", None)
    if needs is None:
        return None
    from controller.cli.requirements import missing

    return missing(needs(arguments))


def _parsed(words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    import argparse
    import importlib

    from controller.cli.subcommands import add_subcommands

    parser = argparse.ArgumentParser(
        prog="camerlengo", description="Kafka's ZooKeeper control plane: run it, break it, simulate it."
    )
    parser.add_argument("--version", action="store_true", help="show version and exit")
    command = next((word for word in words if not word.startswith("-")), None)
    if command is None and "--version" in words:
        print(f"{parser.prog} {_version()}")
        parser.exit()
    if command is not None and command not in COMMANDS:
        from controller.scenarios.files import near_miss

        parser.error(
            f"unknown command {command!r}{near_miss(command, COMMANDS)}; expected one of {', '.join(COMMANDS)}"
        )
    add_subcommands(parser, "command", "COMMAND", COMMANDS, package=__package__)
    arguments = parser.parse_args(words)
    return importlib.import_module(f"{__package__}.{arguments.command}"), arguments


def _version() -> str:
    import platform
    from importlib.metadata import version

    return f"{version('camerlengo')} ({platform.python_implementation()} {platform.python_version()})"

"""The options `--zookeeper` and `--zookeeper-jars` of the commands that start a ZooKeeper; `--zookeeper` and
`--zookeeper-config` of those that read one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from controller.broker.settings import BadSettings, parse_properties
from controller.cli.main import UsageError
from controller.cli.requirements import Need, zookeeper_server
from controller.cli.running import the_running
from controller.zookeeper.embedded import KINDS, ZooKeeperKind, kind_for

if TYPE_CHECKING:  # what serves TLS is not needed to parse options
    from controller.clock import Clock
    from controller.zookeeper.kazoo_connection import KazooConnection

_SESSION_TIMEOUT_MS = 18_000


def add_zookeeper_options(parser: argparse.ArgumentParser, default: ZooKeeperKind | None = None) -> None:
    """Add the options. Without `default`, the kind is chosen by `kind_for`."""
    chosen = default or "python; java where three servers or --zookeeper-jars need it"
    parser.add_argument(
        "--zookeeper",
        choices=KINDS,
        default=default,
        help=f"the ZooKeeper to start: the server in Python, or Apache ZooKeeper, which needs Java ({chosen})",
    )
    parser.add_argument(
        "--zookeeper-jars",
        metavar="DIR",
        type=Path,
        help="directory of Apache ZooKeeper's jars (default: PySpark's); implies --zookeeper=java",
    )


def zookeeper_kind(arguments: argparse.Namespace, servers: int) -> ZooKeeperKind:
    """Return the kind of ZooKeeper that a command starts. Raises UsageError for options that exclude each other."""
    try:
        return kind_for(arguments.zookeeper, servers=servers, jars=arguments.zookeeper_jars)
    except ValueError as error:
        raise UsageError(str(error)) from error


def zookeeper_needs(arguments: argparse.Namespace, servers: int = 1) -> tuple[Need, ...]:
    """Return what the ZooKeeper of a command needs: the server in Python needs nothing."""
    return zookeeper_server(arguments.zookeeper_jars) if zookeeper_kind(arguments, servers) == "java" else ()


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for how ZooKeeper is reached."""
    parser.add_argument(
        "--zookeeper-config",
        metavar="FILE",
        type=Path,
        help="how to reach ZooKeeper: a file with a broker's settings zookeeper.ssl.* and camerlengo.zookeeper.sasl or"
        " .digest, such as its server.properties (default: as the running `camerlengo cluster` does)",
    )


class NoEvents:
    """An event queue that must stay empty: no watch is set, and session events are not requested."""

    def put(self, event: object) -> None:
        raise AssertionError(f"unexpected event: {event!r}")


def connection_for(arguments: argparse.Namespace, clock: Clock, otherwise: str) -> KazooConnection:
    """Return a connection to the ZooKeeper of the options, which is not started; `arguments.zookeeper` is where.
    UsageError, naming the options that say it `otherwise`."""
    from controller.hosts.tls import BadCertificates
    from controller.hosts.zookeeper_access import connection_to

    config = arguments.zookeeper_config
    if arguments.zookeeper is None:
        running = the_running(otherwise)
        arguments.zookeeper, config = running.zookeeper_connect, config or running.zookeeper_config
    given = {} if config is None else _settings(config)
    try:
        return connection_to(arguments.zookeeper, clock, _SESSION_TIMEOUT_MS, given, lambda _level, _line: None)
    except BadCertificates as error:
        raise UsageError(f"--zookeeper-config {config}: {error}") from error
    except ValueError as error:
        raise UsageError(f"--zookeeper {arguments.zookeeper}: {error}") from error


def _settings(file: Path) -> Mapping[str, str]:
    try:
        given = parse_properties(file.read_text(encoding="latin-1"))
    except OSError as error:
        raise UsageError(f"--zookeeper-config {file}: {error.strerror}") from error
    except BadSettings as error:
        raise UsageError(f"--zookeeper-config {file}: {error}") from error
    for name in ("camerlengo.zookeeper.digest", "camerlengo.zookeeper.sasl"):
        if name in given and not all(given[name].partition(":")):
            raise UsageError(f"--zookeeper-config {file}: {name}: expected USER:PASSWORD")
    return given

"""The options `--zookeeper` and `--zookeeper-jars` of the commands that start a ZooKeeper."""

from __future__ import annotations

import argparse
from pathlib import Path

from controller.cli.main import UsageError
from controller.cli.requirements import Need, zookeeper_server
from controller.zookeeper.embedded import KINDS, ZooKeeperKind, kind_for


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

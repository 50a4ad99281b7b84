"""`camerlengo state`: a cluster as its ZooKeeper shows it, or as a file of its znodes does. Reads only."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from controller.cli import state_text
from controller.cli.main import UsageError
from controller.cli.output import output_file
from controller.cli.running import zookeeper_of_running
from controller.cli.state_document import document
from controller.cli.values import number
from controller.clock import Clock
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.cluster_state import ClusterState, NoKafkaCluster, cluster_state
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import ZooKeeperError
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.tree import Tree, TreeFileError, load, save
from controller.zookeeper.tree_reader import PAUSE_MS, read_cluster_tree

COULD_NOT_RUN = 3
_SESSION_TIMEOUT_MS = 18_000
_CLOSE_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A Kafka cluster as its ZooKeeper shows it: controller, brokers, partitions, and what is offline,"
        " under-replicated or off its preferred leader. Nothing is written and no watch is set."
    )
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON document (docs/state.md)")
    parser.add_argument("--save", metavar="FILE", type=output_file, help="also write the znodes to FILE")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the source of a cluster's state, shared by all commands that read one with `read_source`."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--zookeeper",
        metavar="HOSTS",
        help="HOST:PORT[,HOST:PORT...][/chroot] to read from (default: the running `camerlengo cluster`)",
    )
    source.add_argument(
        "--tree", metavar="FILE", type=Path, help="file written by `state --save`, or a listing of znodes"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=number(0, 86_400), default=15.0, help="connection timeout (15)"
    )
    parser.add_argument(
        "--pause-ms",
        metavar="MS",
        type=number(0, 86_400_000),
        default=PAUSE_MS,
        help=f"pause after each 500 znodes ({PAUSE_MS:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        tree, state = read_source(arguments)
    except CouldNotRead as error:
        return _could_not_run(str(error))
    if arguments.save is not None:
        _save(tree, arguments.save)
    print_text(_json(state) if arguments.json else "\n".join(state_text.lines(state)))
    return 0


def read_source(arguments: argparse.Namespace) -> tuple[Tree, ClusterState]:
    """Read the source named by the options of `add_source_options`.

    Raises:
        UsageError: the file is not a tree of a Kafka cluster. The message names the source.
        CouldNotRead: ZooKeeper cannot be reached, or has no Kafka cluster. The message names the source.
    """
    if arguments.tree is not None:
        tree = _load(arguments.tree)
        try:
            return tree, cluster_state(tree)
        except NoKafkaCluster as error:
            raise UsageError(f"{arguments.tree}: {error}") from error
    if arguments.zookeeper is None:
        arguments.zookeeper = zookeeper_of_running("--zookeeper HOSTS or --tree FILE")
    try:
        tree = _read(arguments.zookeeper, arguments.timeout, arguments.pause_ms)
        return tree, cluster_state(tree)
    except (CouldNotRead, NoKafkaCluster) as error:
        raise CouldNotRead(f"{arguments.zookeeper}: {error}") from error


def _json(state: ClusterState) -> str:
    return msgspec.json.format(msgspec.json.encode(document(state)), indent=2).decode("utf-8")


def print_text(text: str) -> None:
    """A reader that has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _could_not_run(why: str) -> int:
    print(f"camerlengo state: {why}", file=sys.stderr)
    return COULD_NOT_RUN


class CouldNotRead(Exception):
    """ZooKeeper was not reached in time, would not answer, or keeps no Kafka cluster."""


def _load(path: Path) -> Tree:
    try:
        return load(path)
    except TreeFileError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _save(tree: Tree, path: Path) -> None:
    try:
        save(tree, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


class _NoEvents:
    """An event queue that must stay empty: no watch is set, and session events are not requested."""

    def put(self, event: object) -> None:
        raise AssertionError(f"unexpected event: {event!r}")


def _read(hosts: str, timeout_seconds: float, pause_ms: float) -> Tree:
    clock = ThreadClock()
    try:
        connection = KazooConnection(hosts, clock, _SESSION_TIMEOUT_MS)
    except ValueError as error:
        raise UsageError(f"--zookeeper {hosts}: {error}") from error
    client = ZooKeeperClient(connection, clock, _NoEvents())
    try:
        wait(client.start(), timeout_seconds)
        return _read_while_answered(client, clock, timeout_seconds, pause_ms)
    except TimeoutError as error:
        raise CouldNotRead(f"no ZooKeeper answered within {timeout_seconds:g} s") from error
    except ZooKeeperError as error:
        raise CouldNotRead(str(error)) from error
    finally:
        with contextlib.suppress(TimeoutError):  # the session ends by itself then
            wait(client.close(), _CLOSE_SECONDS)


def _read_while_answered(client: ZooKeeperClient, clock: Clock, timeout_seconds: float, pause_ms: float) -> Tree:
    """A client that is cut off waits for ever: it is given up on (TimeoutError) once nothing comes for that long."""
    counts = [0]
    reading = drive(read_cluster_tree(client, clock, pause_ms, progress=counts.append))
    while True:
        known = len(counts)
        try:
            return wait(reading, timeout_seconds)
        except TimeoutError:
            if len(counts) == known:
                raise

"""`camerlengo pause`: the controller of a running cluster is to move nothing by choice, or may again. Writes one znode
of ours, which its controller watches; a Kafka controller passes it over."""

from __future__ import annotations

import argparse
import contextlib
import sys

from controller.cli.main import COULD_NOT_RUN
from controller.cli.values import number
from controller.cli.zookeeper_options import NoEvents, add_config_option, connection_for
from controller.clock import Future
from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import PauseZnode, decode_pause, encode_pause
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import (
    ANY_VERSION,
    Create,
    DamagedZnode,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    SetData,
    Write,
    WriteResults,
    ZooKeeperError,
)

_CLOSE_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "While a cluster's controller is paused it elects for failures, and moves nothing by choice: no preferred"
        " elections, no reassignment begins. The reason is kept in ZooKeeper and outlives controllers. Without --reason"
        " and --resume: says whether it is paused, and why."
    )
    parser.add_argument(
        "--zookeeper",
        metavar="HOSTS",
        help="HOST:PORT[,HOST:PORT...][/chroot] of the cluster (default: the running `camerlengo cluster`)",
    )
    add_config_option(parser)
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--reason", metavar="TEXT", type=_filled, help="pause the controller, for this reason")
    wanted.add_argument("--resume", action="store_true", help="resume the controller")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=number(0, 86_400), default=15.0, help="connection timeout (15)"
    )


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a reason, got an empty text")
    return text.strip()


def run(arguments: argparse.Namespace) -> int:
    clock = ThreadClock()
    connection = connection_for(arguments, clock, "--zookeeper HOSTS")
    client = ZooKeeperClient(connection, clock, NoEvents())
    try:
        wait(client.start(), arguments.timeout)
        if arguments.reason is not None:
            _pause(connection, PauseZnode(arguments.reason, clock.wall_ms()), arguments.timeout)
        elif arguments.resume:
            _resume(connection, arguments.timeout)
        print(_said(client, arguments.timeout))
    except TimeoutError:
        return _could_not_run(arguments, f"no ZooKeeper answered within {arguments.timeout:g} s")
    except MultiFailed as failed:
        missing = isinstance(failed.error, NoNode)
        return _could_not_run(
            arguments, f"not a Kafka cluster: {paths.ADMIN} does not exist" if missing else str(failed)
        )
    except ZooKeeperError as error:
        return _could_not_run(arguments, str(error))
    finally:
        with contextlib.suppress(TimeoutError):  # the session ends by itself then
            wait(client.close(), _CLOSE_SECONDS)
    return 0


def _pause(connection: KazooConnection, pause: PauseZnode, timeout_s: float) -> None:
    """Another reason takes the place of one that is there."""
    data = encode_pause(pause)
    try:
        _write(connection, Create(paths.CONTROLLER_PAUSE, data), timeout_s)
    except MultiFailed as failed:
        if not isinstance(failed.error, NodeExists):
            raise
        _write(connection, SetData(paths.CONTROLLER_PAUSE, data, ANY_VERSION), timeout_s)


def _resume(connection: KazooConnection, timeout_s: float) -> None:
    """One that is not paused stays so."""
    try:
        _write(connection, Delete(paths.CONTROLLER_PAUSE, ANY_VERSION), timeout_s)
    except MultiFailed as failed:
        if not isinstance(failed.error, NoNode):
            raise


def _write(connection: KazooConnection, write: Write, timeout_s: float) -> None:
    sent: Future[WriteResults] = connection.multi([write])
    wait(sent, timeout_s)


def _said(client: ZooKeeperClient, timeout_s: float) -> str:
    row = wait(client.read([paths.CONTROLLER_PAUSE]), timeout_s).rows[0]
    if row is None:
        return "not paused"
    try:
        return f"paused: {decode_pause(row.path, row.data).reason}"
    except DamagedZnode as damaged:
        return f"paused: {damaged}"


def _could_not_run(arguments: argparse.Namespace, why: str) -> int:
    print(f"camerlengo pause: {arguments.zookeeper}: {why}", file=sys.stderr)
    return COULD_NOT_RUN

"""`camerlengo zookeeper`: a ZooKeeper on loopback until Ctrl-C, the server in Python or Apache ZooKeeper."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.requirements import Need
from controller.cli.values import integer, output_folder
from controller.cli.zookeeper_options import add_zookeeper_options, zookeeper_needs
from controller.zookeeper.embedded import (
    DataDirectoryError,
    EmbeddedServerUnavailable,
    EmbeddedZooKeeper,
    ServerDied,
    ServerTimedOut,
)

ON_SIGTERM = 0
"""SIGTERM is a request to end in order."""
_LOOK_SECONDS = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a ZooKeeper on loopback until Ctrl-C or SIGTERM: the server in Python, or one or three servers of Apache"
        " ZooKeeper. When it serves, it prints one line: zookeeper.connect=HOST:PORT[,HOST:PORT...]"
    )
    parser.add_argument("--servers", type=integer(1, 3), choices=(1, 3), default=1, help="number of servers (1)")
    add_zookeeper_options(parser)
    parser.add_argument(
        "--data", metavar="DIR", type=output_folder, help="keep the data in DIR (default: a temporary directory)"
    )
    parser.add_argument(
        "--tick-ms", metavar="MS", type=integer(1, 60_000), default=500, help="ZooKeeper's tickTime (500)"
    )
    parser.add_argument(
        "--min-session-timeout-ms",
        metavar="MS",
        type=integer(1, 3_600_000),
        help="minimum session timeout that is granted (2 ticks)",
    )
    parser.add_argument(
        "--max-session-timeout-ms",
        metavar="MS",
        type=integer(1, 3_600_000),
        default=120_000,
        help="maximum session timeout that is granted (120000)",
    )
    parser.add_argument(
        "--port", metavar="PORT", type=integer(0, 65_535), default=0, help="port of the first server (0: a free one)"
    )
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="do not sync writes to disk: faster, but a crash of the machine may lose data",
    )


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_needs(arguments, arguments.servers)


def run(arguments: argparse.Namespace) -> int:
    try:
        zookeeper = EmbeddedZooKeeper(
            arguments.servers,
            kind=arguments.zookeeper,
            port=arguments.port,
            data_dir=arguments.data,
            jars=arguments.zookeeper_jars,
            tick_ms=arguments.tick_ms,
            min_session_timeout_ms=arguments.min_session_timeout_ms,
            max_session_timeout_ms=arguments.max_session_timeout_ms,
            fsync=not arguments.no_fsync,
        )
    except (ValueError, DataDirectoryError) as error:
        raise UsageError(str(error)) from error
    except EmbeddedServerUnavailable as error:
        return _could_not_run(str(error))
    try:
        with zookeeper:
            print(f"zookeeper.connect={zookeeper.connect_string}", flush=True)
            while all(server.running for server in zookeeper.servers):
                time.sleep(_LOOK_SECONDS)
            dead = next(server for server in zookeeper.servers if not server.running)
            return _could_not_run(f"server {dead.index + 1} ended by itself; its log says:\n{dead.log_tail()}")
    except (ServerDied, ServerTimedOut) as error:
        return _could_not_run(str(error))
    except OSError as error:
        return _could_not_run(f"127.0.0.1:{arguments.port}: {error.strerror}")


def _could_not_run(why: str) -> int:
    print(f"camerlengo zookeeper: {why}", file=sys.stderr)
    return COULD_NOT_RUN

"""`camerlengo cluster`: a ZooKeeper and brokers on loopback, until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from controller.broker.settings import BadSettings, parse_settings
from controller.cli.broker import overrides
from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.requirements import SECURE, Need
from controller.cli.running import announced
from controller.cli.values import integer, output_folder, port, session_timeout_ms
from controller.cli.zookeeper_options import add_zookeeper_options, zookeeper_needs
from controller.hosts.local_cluster import BrokerDied, BrokerNotReady, LocalCluster, PortInUse
from controller.hosts.secured import Security
from controller.zookeeper.embedded import DataDirectoryError, EmbeddedServerUnavailable, ServerDied, ServerTimedOut

ON_SIGTERM = 0
"""SIGTERM is a request to end in order."""
_LOOK_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a ZooKeeper and brokers 1 to N on loopback until Ctrl-C or SIGTERM. When all are registered, a controller"
        " is elected and each broker knows of the others, it prints two lines: bootstrap.servers=HOST:PORT,... and"
        " zookeeper.connect=HOST:PORT,... Meanwhile `state`, `explain`, `whatif`, `pause` and `stop` find it by"
        " themselves. It also ends when `camerlengo stop` has stopped all of its brokers."
    )
    parser.add_argument("--brokers", type=integer(1, 1_000), default=3, metavar="N", help="number of brokers (3)")
    parser.add_argument(
        "--zookeeper-servers", type=integer(1, 3), choices=(1, 3), default=1, help="number of ZooKeeper servers (1)"
    )
    add_zookeeper_options(parser)
    parser.add_argument(
        "--session-timeout-ms",
        type=session_timeout_ms,
        default=6_000,
        metavar="MS",
        help="ZooKeeper session timeout of the brokers (6000)",
    )
    parser.add_argument(
        "--data",
        type=output_folder,
        metavar="DIR",
        help="keep ZooKeeper's data, settings and logs in DIR (default: temporary)",
    )
    parser.add_argument(
        "--port", type=port, metavar="N", help="port of broker 1; broker 2 uses N + 1, and so on (default: free ports)"
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="SASL_SSL on every listener, between brokers too, and TLS, a login and ACLs for ZooKeeper, with an"
        " authority, users and ACLs made for this cluster; prints how the user `client` connects",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of every broker; the ports in `listeners` are broker 1's and increase by one for each broker",
    )


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    needed = tuple(zookeeper_needs(arguments, arguments.zookeeper_servers))
    return (*needed, *SECURE) if arguments.secure else needed


def run(arguments: argparse.Namespace) -> int:
    try:
        cluster = _cluster(arguments)
    except EmbeddedServerUnavailable as error:
        return _could_not_run(str(error))
    try:
        cluster.start()
        connect = cluster.zookeeper.connect_string
        secured = None if cluster.security is None else cluster.security.zookeeper
        with announced(connect, None if secured is None else secured.file):
            print(f"bootstrap.servers={cluster.bootstrap_servers}\nzookeeper.connect={connect}", flush=True)
            if cluster.security is not None:
                print(cluster.client().text(), flush=True)
            stopped: set[int] = set()
            while len(stopped) < len(cluster.brokers):
                for broker in cluster.brokers.values():
                    if broker.exit_status == 0:  # a broker ends so where it was asked to
                        _note_stopped(broker.broker_id, stopped)
                    else:
                        broker.require_running()
                _require_zookeeper(cluster)
                time.sleep(_LOOK_S)
        return 0
    except (PortInUse, BrokerDied, BrokerNotReady, ServerDied, ServerTimedOut) as error:
        return _could_not_run(str(error))
    finally:
        cluster.close()


def _cluster(arguments: argparse.Namespace) -> LocalCluster:
    settings = overrides(arguments.override)
    try:
        parse_settings({"zookeeper.connect": "127.0.0.1:2181", "broker.id": "1"} | settings)
        return LocalCluster(
            arguments.brokers,
            zookeeper=arguments.zookeeper,
            zookeeper_servers=arguments.zookeeper_servers,
            session_timeout_ms=arguments.session_timeout_ms,
            data_dir=arguments.data,
            zookeeper_jars=arguments.zookeeper_jars,
            settings=settings,
            port=arguments.port,
            security=Security() if arguments.secure else None,
        )
    except BadSettings as error:
        raise UsageError("\n  ".join(("bad settings:", *error.problems))) from error
    except (ValueError, DataDirectoryError) as error:
        raise UsageError(str(error)) from error


def _require_zookeeper(cluster: LocalCluster) -> None:
    for server in cluster.zookeeper.servers:
        if not server.running:
            raise BrokerNotReady(f"ZooKeeper's server {server.index + 1} ended by itself:\n{server.log_tail()}")


def _note_stopped(broker: int, stopped: set[int]) -> None:
    if broker not in stopped:
        stopped.add(broker)
        print(f"camerlengo cluster: broker {broker} was stopped", file=sys.stderr)


def _could_not_run(why: str) -> int:
    print(f"camerlengo cluster: {why}", file=sys.stderr)
    return COULD_NOT_RUN

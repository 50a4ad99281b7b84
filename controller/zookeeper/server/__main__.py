"""One ZooKeeper server as a process: `python -m controller.zookeeper.server --port 2181`.

It serves until SIGINT or SIGTERM. When it serves, it prints one line: `zookeeper.connect=HOST:PORT`. The exit status is
3 if it can't serve, with the reason on stderr, and 0 after a signal.
"""

from __future__ import annotations

import argparse
import signal
import ssl
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from controller.zookeeper.row_writes import REQUEST_BYTES_MAX
from controller.zookeeper.server.files import DataDirectoryInUse
from controller.zookeeper.server.log import DamagedDataFile
from controller.zookeeper.server.server import LOOPBACK, ZooKeeperServer
from controller.zookeeper.server.storage import SNAPSHOT_TRANSACTIONS

COULD_NOT_SERVE = 3
_LOOK_SECONDS = 0.2


def serve(server: ZooKeeperServer, program: str) -> int:
    """Start `server`, print its address and serve until an exception ends it (a signal's); return 3 if it can't serve.

    Messages on stderr begin with the name of the `program`.
    """
    try:
        with server:
            print(f"zookeeper.connect={server.connect_string}", flush=True)
            warned = 0
            while server.running:
                for warning in server.warnings[warned:]:
                    print(f"{program}: warning: {warning}", file=sys.stderr)
                    warned += 1
                time.sleep(_LOOK_SECONDS)
        reason = f"stopped, since the log can't be written: {server.failure}"
    except (DamagedDataFile, DataDirectoryInUse) as error:
        reason = str(error)
    except OSError as error:
        where = error.filename or f"{server.host}:{server.port}"
        reason = f"{where}: {error.strerror}"
    print(f"{program}: {reason}", file=sys.stderr)
    return COULD_NOT_SERVE


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _tls(keystore: str | None, truststore: str | None) -> ssl.SSLContext | None:
    """Raises OSError, ValueError."""
    if keystore is None:
        if truststore is not None:
            raise ValueError("--tls-truststore: expected --tls-keystore with it")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore, password=lambda: "")  # never asked for at a terminal
    if truststore is not None:
        context.load_verify_locations(truststore)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _users(file: Path) -> dict[str, str]:
    """Raises OSError, ValueError."""
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        name, equals, password = line.partition("=")
        if not (name and equals and password):
            raise ValueError(f"--sasl-users {file}: line {number}: expected NAME=PASSWORD")
        found[name] = password
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m controller.zookeeper.server",
        description="Serves one ZooKeeper written in Python until SIGINT or SIGTERM. When it serves, it prints one"
        " line: zookeeper.connect=HOST:PORT",
    )
    parser.add_argument("--host", default=LOOPBACK, help=f"address to listen on ({LOOPBACK})")
    parser.add_argument("--port", metavar="PORT", type=int, default=0, help="port to listen on (0: a free one)")
    parser.add_argument("--tick-ms", metavar="MS", type=int, default=500, help="ZooKeeper's tickTime (500)")
    for name, default in (("min", "2 ticks"), ("max", "20 ticks")):
        parser.add_argument(
            f"--{name}-session-timeout-ms",
            metavar="MS",
            type=int,
            help=f"{name}imum session timeout that is granted ({default})",
        )
    parser.add_argument(
        "--max-request-bytes",
        metavar="N",
        type=int,
        default=REQUEST_BYTES_MAX,
        help=f"longest request (jute.maxbuffer; {REQUEST_BYTES_MAX})",
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="keep the data in DIR (default: in memory)")
    parser.add_argument(
        "--no-fsync",
        action="store_true",
        help="do not sync writes to disk: faster, but a crash of the machine may lose data",
    )
    parser.add_argument(
        "--snapshot-transactions",
        metavar="N",
        type=int,
        default=SNAPSHOT_TRANSACTIONS,
        help=f"transactions from one snapshot to the next ({SNAPSHOT_TRANSACTIONS})",
    )
    parser.add_argument(
        "--tls-keystore", metavar="FILE", help="serve TLS alone, with the key and certificates of this PEM file"
    )
    parser.add_argument(
        "--tls-truststore", metavar="FILE", help="accept clients whose certificate an authority of this file has signed"
    )
    parser.add_argument(
        "--sasl-users", metavar="FILE", type=Path, help="who may log in by DIGEST-MD5: lines of NAME=PASSWORD"
    )
    arguments = parser.parse_args()
    if not 0 <= arguments.port <= 65_535:
        parser.error(f"--port {arguments.port}: expected 0 to 65535")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        server = ZooKeeperServer(
            host=arguments.host,
            port=arguments.port,
            tick_ms=arguments.tick_ms,
            min_session_timeout_ms=arguments.min_session_timeout_ms,
            max_session_timeout_ms=arguments.max_session_timeout_ms,
            max_request_bytes=arguments.max_request_bytes,
            data_dir=arguments.data,
            fsync=not arguments.no_fsync,
            snapshot_transactions=arguments.snapshot_transactions,
            tls=_tls(arguments.tls_keystore, arguments.tls_truststore),
            sasl_users=None if arguments.sasl_users is None else _users(arguments.sasl_users),
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return serve(server, parser.prog)


if __name__ == "__main__":
    sys.exit(main())

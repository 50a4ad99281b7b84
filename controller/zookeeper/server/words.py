"""The four-letter words: a server's answers to `ruok`, `srvr`, `mntr` and others, in ZooKeeper 3.9's texts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.zookeeper.server.connection import ServedConnection
    from controller.zookeeper.server.core import ZooKeeperCore

VERSION = "3.9.5-camerlengo, built on 2026-01-01 00:00 UTC"
"""The protocol's level. Clients read the number; the rest says which server answers."""


def _srvr(server: ZooKeeperCore) -> str:
    connections = list(server.connections)
    return (
        f"Zookeeper version: {VERSION}\n"
        "Latency min/avg/max: 0/0.0/0\n"
        f"Received: {server.received()}\n"
        f"Sent: {server.sent()}\n"
        f"Connections: {len(connections)}\n"
        "Outstanding: 0\n"
        f"Zxid: 0x{server.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {len(server.processor.tree.nodes)}\n"
    )


def _line(connection: ServedConnection) -> str:
    session = connection.session
    state = "0" if session is None else "1"
    counts = f"queued=0,recved={connection.received},sent={connection.sent}"
    named = "" if session is None else f",sid=0x{session.id:x},to={session.timeout_ms}"
    return f" /{connection.peer[0]}:{connection.peer[1]}[{state}]({counts}{named})\n"


def _cons(server: ZooKeeperCore) -> str:
    return "".join(map(_line, server.connections)) + "\n"


def _stat(server: ZooKeeperCore) -> str:
    head, _, rest = _srvr(server).partition("\n")
    return f"{head}\nClients:\n{_cons(server)}{rest}"


def _mntr(server: ZooKeeperCore) -> str:
    tree = server.processor.tree
    rows = {
        "zk_version": VERSION,
        "zk_server_state": "standalone",
        "zk_packets_received": server.received(),
        "zk_packets_sent": server.sent(),
        "zk_num_alive_connections": len(server.connections),
        "zk_outstanding_requests": 0,
        "zk_znode_count": len(tree.nodes),
        "zk_watch_count": server.watches.count(),
        "zk_ephemerals_count": sum(len(tree.ephemerals(session)) for session in server.sessions),
        "zk_approximate_data_size": sum(len(path) + len(node.data or b"") for path, node in tree.nodes.items()),
        "zk_global_sessions": len(server.sessions),
    }
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def _conf(server: ZooKeeperCore) -> str:
    return (
        f"clientPort={server.port}\ntickTime={server.timeouts.tick_ms}\nmaxClientCnxns={server.max_connections_per_address}\n"
        f"minSessionTimeout={server.timeouts.min_ms}\nmaxSessionTimeout={server.timeouts.max_ms}\n"
        "serverId=0\n"
    )


def _envi(_server: ZooKeeperCore) -> str:
    rows = {
        "zookeeper.version": VERSION,
        "host.name": platform.node(),
        "python.version": platform.python_version(),
        "os.name": platform.system(),
        "os.arch": platform.machine(),
        "user.dir": os.getcwd(),
        "python.executable": sys.executable,
    }
    return "Environment:\n" + "".join(f"{name}={value}\n" for name, value in rows.items())


def _dump(server: ZooKeeperCore) -> str:
    tree = server.processor.tree
    owners = {session: tree.ephemerals(session) for session in server.sessions if tree.ephemerals(session)}
    lines = [f"Global Sessions({len(server.sessions)}):"]
    lines += [f"0x{session.id:x}\t{session.timeout_ms}ms" for session in server.sessions.values()]
    lines.append("SessionTracker dump:")
    lines.append(f"ephemeral nodes dump:\nSessions with Ephemerals ({len(owners)}):")
    for session, paths in owners.items():
        lines += [f"0x{session:x}:", *(f"\t{path}" for path in paths)]
    return "\n".join(lines) + "\n"


def _wchs(server: ZooKeeperCore) -> str:
    paths = server.watches.by_path()
    watchers = {watcher for found in paths.values() for watcher in found}
    return f"{len(watchers)} connections watching {len(paths)} paths\nTotal watches:{server.watches.count()}\n"


def _wchp(server: ZooKeeperCore) -> str:
    lines: list[str] = []
    for path, watchers in server.watches.by_path().items():
        sessions = sorted(connection.session_id for connection in server.connections if connection in watchers)
        lines += [path, *(f"\t0x{session:x}" for session in sessions)]
    return "\n".join(lines) + "\n"


def _wchc(server: ZooKeeperCore) -> str:
    lines: list[str] = []
    by_path = server.watches.by_path()
    for connection in server.connections:
        if paths := [path for path, watchers in by_path.items() if connection in watchers]:
            lines += [f"0x{connection.session_id:x}", *(f"\t{path}" for path in paths)]
    return "\n".join(lines) + "\n"


WORDS: dict[bytes, Callable[[ZooKeeperCore], str]] = {
    b"ruok": lambda _server: "imok",
    b"isro": lambda _server: "rw",
    b"srvr": _srvr,
    b"stat": _stat,
    b"mntr": _mntr,
    b"conf": _conf,
    b"cons": _cons,
    b"envi": _envi,
    b"dump": _dump,
    b"wchs": _wchs,
    b"wchp": _wchp,
    b"wchc": _wchc,
}
"""All are answered; a real server answers `srvr` alone unless its whitelist names more."""

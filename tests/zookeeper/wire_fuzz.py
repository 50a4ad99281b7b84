"""Random histories of raw requests on the ZooKeeper server in Python and on a real one, compared reply by reply.

    python -m tests.zookeeper.wire_fuzz --histories 2000 --seed 1

sends the same frames to both: every request type, sessions that move between connections, all watch modes, ACLs,
multis, bad paths and frames that are too short. Compared are all replies with their error codes and relative zxids,
and every watch event in its place before a reply. Times, session ids and the order of children are left out. A
difference is printed with its seed and the steps that led to it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.jute import END, INT, MULTI_HEADER, STAT, acl_entries, buffer, string, strings
from controller.zookeeper.memory.database import digest_id
from controller.zookeeper.operations import ACL, OPEN_ACL, PERM_ALL, PERM_CREATE, PERM_READ, PERM_WRITE, Stat
from controller.zookeeper.server import wire
from controller.zookeeper.server.server import ZooKeeperServer
from controller.zookeeper.server.wire import OpCode, RecordReader

CLIENTS = 3
STEPS = 30
UNKNOWN = 99
"""No request has this type. A check is one in a multi alone."""
NO_CHECK_MS = 86_400_000
"""Containers are deleted by a timer, which no two servers have in common."""
JAVA_OPTIONS = ("-Dzookeeper.extendedTypesEnabled=true", f"-Dznode.container.checkIntervalMs={NO_CHECK_MS}")
_LONG = struct.Struct("!q")
_TIMEOUT_MS = 60_000
_DEADLINE_S = 30.0
_PING_XID, _EVENT_XID, _AUTH_XID, _SET_WATCHES_XID = -2, -1, -4, -8

NAMES = ["", "/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z", "/a/x/z"]
BAD_NAMES = ["/a//b", "/a/", "/a/../b", "/a/\u0001"]
ACLS = [
    *[OPEN_ACL] * 6,
    (ACL(PERM_READ, "world", "anyone"),),
    (ACL(PERM_READ | PERM_CREATE, "world", "anyone"), ACL(PERM_WRITE, "world", "anyone")),
    (ACL(PERM_ALL, "auth", ""),),
    (ACL(PERM_ALL, "digest", digest_id("u0:p")), ACL(PERM_READ, "world", "anyone")),
    (ACL(PERM_ALL, "ip", "127.0.0.1"),),
    (ACL(PERM_ALL, "ip", "10.0.0.0/8"), ACL(PERM_READ, "ip", "127.0.0.0/8")),
    (ACL(PERM_ALL, "unknown", "x"),),
    (),
]


class RawClient:
    """One session on one server, and the frames of its connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self.session, self._password = 0, bytes(16)
        self._xid = 0
        self._socket: socket.socket | None = None
        self._received = b""

    def connect(self) -> bool:
        """Return whether the session, which is a new one at first, is served over a new connection."""
        self.disconnect()
        self._socket = socket.create_connection(self._address, timeout=_DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = INT.pack(0) + _LONG.pack(0) + INT.pack(_TIMEOUT_MS) + _LONG.pack(self.session)
        self._socket.sendall(wire.frame(head, buffer(self._password), b"\0"))
        answer = self.frame()
        assert answer is not None, "no answer to a connect request"
        record = RecordReader(answer)
        record.integer(), record.integer()
        self.session, self._password = record.long(), record.buffer() or b""
        return self.session != 0

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def renew(self) -> None:
        self.session, self._password = 0, bytes(16)
        self.connect()

    def send(self, operation: int, body: bytes) -> None:
        assert self._socket is not None
        special = {OpCode.PING: _PING_XID, OpCode.AUTH: _AUTH_XID}
        special |= dict.fromkeys((OpCode.SET_WATCHES, OpCode.SET_WATCHES2), _SET_WATCHES_XID)
        self._xid += 1
        xid = special.get(OpCode(operation), self._xid) if operation in set(OpCode) else self._xid
        self._socket.sendall(wire.frame(INT.pack(xid), INT.pack(operation), body))

    def frame(self) -> bytes | None:
        """Return the next frame, or None at the connection's end."""
        assert self._socket is not None
        while True:
            if len(self._received) >= 4 and len(self._received) >= (end := 4 + INT.unpack_from(self._received)[0]):
                frame, self._received = self._received[4:end], self._received[end:]
                return frame
            try:
                data = self._socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data


@dataclass(frozen=True, slots=True)
class WireStep:
    """One request of one client; `operation` 0 is a reconnect, and `since` a SetWatches' transactions ago."""

    client: int
    operation: int
    body: bytes
    since: int | None = None

    def __str__(self) -> str:
        name = OpCode(self.operation).name if self.operation in set(OpCode) else str(self.operation)
        return f"client {self.client}: {name} {self.body!r}"


class HistoryMaker:
    """Draws the steps of one history."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.root = f"/h{seed}"

    def path(self) -> str:
        if self.draw.random() < 0.02:
            return self.root + self.draw.choice(BAD_NAMES)
        return self.root + self.draw.choice(NAMES)

    def paths(self) -> list[str]:
        return [self.path() for _ in range(self.draw.randrange(3))]

    def data(self) -> bytes:
        return buffer(self.draw.choice([None, b"", b"1", b"two"]))

    def version(self) -> bytes:
        return INT.pack(self.draw.choice([-1, -1, 0, 0, 1, 2]))

    def acl(self) -> bytes:
        return acl_entries(self.draw.choice(ACLS))

    def flag(self) -> bytes:
        return bytes([self.draw.random() < 0.5])

    def write(self) -> tuple[int, bytes]:
        operation = self.draw.choice(
            [OpCode.CREATE] * 4
            + [OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL]
            + [OpCode.DELETE, OpCode.DELETE, OpCode.SET_DATA, OpCode.SET_DATA, OpCode.CHECK]
        )
        path = string(self.path())
        if operation == OpCode.DELETE or operation == OpCode.CHECK:
            return operation, path + self.version()
        if operation == OpCode.SET_DATA:
            return operation, path + self.data() + self.version()
        flags_of: dict[int, list[int]] = {OpCode.CREATE_CONTAINER: [4], OpCode.CREATE_TTL: [5, 5, 6, 0]}
        flags = flags_of.get(operation, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 7])
        body = path + self.data() + self.acl() + INT.pack(self.draw.choice(flags))
        if operation == OpCode.CREATE_TTL:
            body += _LONG.pack(self.draw.choice([100_000, 1_000_000, 0, 1 << 50]))
        return operation, body

    def request(self) -> tuple[int, bytes]:
        draw = self.draw
        operation: int = draw.choice(sorted(set(OpCode) - {OpCode.CLOSE, OpCode.PING, OpCode.CHECK}))
        if operation in (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA) or draw.random() < 0.3:
            operation, body = self.write()
            return (operation, body) if operation != OpCode.CHECK else (OpCode.SYNC, string(self.path()))
        path = string(self.path())
        if operation in (OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL):
            return OpCode.GET_ACL, path
        if operation == OpCode.MULTI:
            rows = [self.write() for _ in range(draw.randrange(5))]
            return operation, b"".join(MULTI_HEADER.pack(kind, 0, -1) + body for kind, body in rows) + END
        if operation == OpCode.MULTI_READ:
            kinds = [OpCode.GET_DATA, OpCode.GET_CHILDREN]
            heads = [MULTI_HEADER.pack(draw.choice(kinds), 0, -1) for _ in range(3)]
            return operation, b"".join(head + string(self.path()) + self.flag() for head in heads) + END
        if operation == OpCode.SET_ACL:
            return operation, path + self.acl() + self.version()
        if operation == OpCode.AUTH:
            scheme, credential = draw.choice([("digest", f"u{draw.randrange(2)}:p")] * 8 + [("unknown", "x")])
            return operation, INT.pack(0) + string(scheme) + buffer(credential.encode())
        if operation in (OpCode.ADD_WATCH, OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES):
            kinds_of: dict[int, list[int]] = {OpCode.ADD_WATCH: [0, 1]}
            return operation, path + INT.pack(draw.choice(kinds_of.get(operation, [1, 2, 3])))
        if operation == OpCode.RECONFIG:
            return operation, string("") + string("") + string("") + _LONG.pack(-1)
        if operation in (OpCode.EXISTS, OpCode.GET_DATA, OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2):
            return operation, path + self.flag()
        return operation, path

    def step(self) -> WireStep:
        draw, client = self.draw, self.draw.randrange(CLIENTS)
        chance = draw.random()
        if chance < 0.03:
            return WireStep(client, 0, b"")
        if chance < 0.06:
            return WireStep(client, OpCode.CLOSE, b"")
        if chance < 0.07:
            return WireStep(client, draw.choice([UNKNOWN, OpCode.CHECK]), string(self.root) + INT.pack(0))
        operation, body = self.request()
        if operation in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
            vectors = 3 if operation == OpCode.SET_WATCHES else 5
            body = b"".join(strings(self.paths()) for _ in range(vectors))
            return WireStep(client, operation, body, draw.randrange(6))
        if chance < 0.08 and operation in (OpCode.EXISTS, OpCode.GET_DATA, OpCode.CREATE, OpCode.SET_DATA):
            body = body[: draw.randrange(4)]
        return WireStep(client, operation, body)


class WireReplay:
    """A history on one server, and everything that the server answered."""

    def __init__(self, address: str, root: str) -> None:
        self.owners: dict[int, str] = {}
        self.base = self.zxid = 0
        self.clients = [RawClient(address) for _ in range(CLIENTS)]
        for number, client in enumerate(self.clients):
            client.renew()
            self.owners[client.session] = f"client {number}, session 0"
        self.clients[0].send(OpCode.CREATE2, string(root) + buffer(b"") + acl_entries(OPEN_ACL) + INT.pack(0))
        frame = self.clients[0].frame()
        assert frame is not None
        self.base = self.zxid = RecordReader(frame, 4).long()

    def close(self) -> None:
        for client in self.clients:
            with contextlib.suppress(OSError):  # closed already, where the servers differ
                client.send(OpCode.CLOSE, b"")
                while client.frame() is not None:
                    pass
            client.disconnect()

    def run(self, number: int, step: WireStep) -> list[Any]:
        """Make one request and return what each client was sent, up to the answer of a ping that follows."""
        client = self.clients[step.client]
        found: list[Any] = []
        ended = False
        if step.operation == 0:
            found.append(client.connect())
        else:
            since = b"" if step.since is None else _LONG.pack(self.zxid - step.since)
            client.send(step.operation, since + step.body)
            found += self.until_reply(client, step.operation)
            ended = (
                found[-1] is None or step.operation in (OpCode.CLOSE, OpCode.CHECK, 99) or found[-1][-2:] == [-115, b""]
            )
            if ended:
                while (frame := client.frame()) is not None:
                    found.append(self.plain(frame, step.operation))
        if ended:
            if step.operation == OpCode.CLOSE:
                client.renew()
            else:
                found.append(client.connect())
            self.owners[client.session] = f"client {step.client}, session {number}"
        for each in self.clients:
            each.send(OpCode.PING, b"")
            found.append(self.until_reply(each, OpCode.PING))
        return found

    def until_reply(self, client: RawClient, operation: int) -> list[Any]:
        found: list[Any] = []
        while True:
            frame = client.frame()
            if frame is None:
                return [*found, None]
            found.append(self.plain(frame, operation))
            if INT.unpack_from(frame)[0] != _EVENT_XID:
                return found

    def plain(self, frame: bytes, operation: int) -> list[Any]:
        record = RecordReader(frame)
        xid, zxid, error = record.integer(), record.long(), record.integer()
        if xid == _EVENT_XID:
            kind, state, path = record.integer(), record.integer(), record.text()
            return ["event", zxid if zxid < 0 else zxid - self.base, kind, state, path]
        if zxid > 0:  # some replies name none
            self.zxid = max(self.zxid, zxid)
            zxid -= self.base
        if operation == OpCode.AUTH or error or operation not in READERS:
            return [xid if xid < 0 else "xid", zxid, error, frame[record.at :]]
        body = READERS[operation](self, record)
        return ["xid", zxid, error, body, frame[record.at :]]

    def stat(self, record: RecordReader) -> list[Any]:
        found = Stat._make(STAT.unpack_from(record.data, record.at))
        record.at += STAT.size
        owner = self.owners.get(found.ephemeral_owner, found.ephemeral_owner)
        zxids = [zxid - self.base for zxid in (found.czxid, found.mzxid, found.pzxid)]
        return [*zxids, found.version, found.cversion, found.aversion, found.data_length, found.num_children, owner]

    def rows(self, record: RecordReader) -> list[Any]:
        found: list[Any] = []
        while True:
            kind, done, error = record.integer(), record.boolean(), record.integer()
            if done:
                return found
            if kind == -1:
                found.append([kind, error, record.integer()])
            else:
                found.append([kind, error, READERS[kind](self, record) if kind in READERS else None])


READERS: dict[int, Callable[[WireReplay, RecordReader], Any]] = {
    OpCode.CREATE: lambda _replay, record: record.text(),
    OpCode.EXISTS: WireReplay.stat,
    OpCode.GET_DATA: lambda replay, record: (record.buffer(), replay.stat(record)),
    OpCode.SET_DATA: WireReplay.stat,
    OpCode.SET_ACL: WireReplay.stat,
    OpCode.GET_ACL: lambda replay, record: (record.acl(), replay.stat(record)),
    OpCode.GET_CHILDREN: lambda _replay, record: sorted(record.texts()),
    OpCode.GET_CHILDREN2: lambda replay, record: (sorted(record.texts()), replay.stat(record)),
    OpCode.GET_EPHEMERALS: lambda _replay, record: sorted(record.texts()),
    OpCode.SYNC: lambda _replay, record: record.text(),
    OpCode.MULTI: WireReplay.rows,
    OpCode.MULTI_READ: WireReplay.rows,
    OpCode.WHO_AM_I: lambda _replay, record: sorted((record.text(), record.text()) for _ in range(record.integer())),
}
for _kind in (OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL):
    READERS[_kind] = lambda replay, record: (record.text(), replay.stat(record))


def difference(seed: int, ours: str, theirs: str) -> str | None:
    """Run the history of a seed on both servers; return where their answers differ, or None."""
    maker = HistoryMaker(seed)
    python, real = WireReplay(ours, maker.root), WireReplay(theirs, maker.root)
    steps: list[WireStep] = []
    try:
        for number in range(1, STEPS + 1):
            step = maker.step()
            steps.append(step)
            found, expected = python.run(number, step), real.run(number, step)
            if found != expected:
                before = "\n".join(f"  {each}" for each in steps)
                return f"seed {seed}, step {number}:\n{before}\n  real server: {expected}\n  in Python:   {found}"
    finally:
        python.close()
        real.close()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the others follow it")
    parser.add_argument("--show", type=int, default=5, help="differences printed in full")
    arguments = parser.parse_args()
    failed = 0
    with (
        ZooKeeperServer(max_session_timeout_ms=120_000, container_check_ms=NO_CHECK_MS) as python,
        EmbeddedZooKeeper(fsync=False, java_options=JAVA_OPTIONS) as real,
    ):
        for seed in range(arguments.seed, arguments.seed + arguments.histories):
            found = difference(seed, python.connect_string, real.connect_string)
            if found is not None:
                failed += 1
                if failed <= arguments.show:
                    print(found, flush=True)
    print(f"{arguments.histories} histories of {STEPS} steps, {failed} with a difference")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

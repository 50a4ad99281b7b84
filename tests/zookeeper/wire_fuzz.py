"""Random histories of raw requests on the ZooKeeper server in Python and on a real one, compared reply by reply.

    python -m tests.zookeeper.wire_fuzz --histories 2000 --seed 1 --jobs 2
    python -m tests.zookeeper.wire_fuzz --histories 500 --seed 1 --timed
    python -m tests.zookeeper.wire_fuzz --histories 500 --seed 1 --tcp

sends the same frames to both: every request type, bursts, sessions that move between connections, all watch modes and
their restoration, ACLs and credentials, multis, bad paths and frames that are too short; with `--timed` also sessions
that expire, and containers and TTL nodes that the servers delete. Compared are all replies with their error codes and
relative zxids, and every watch event in its place before a reply. Times, session ids and the order of children are left
out. A difference is printed with its seed and the steps that led to it; the exit status is then 1.

The Python server is its core in this process, in virtual time, or with `--tcp` behind a socket. One pair of servers
serves many histories, each below a root of its own. Every `BATCH` histories all znodes are deleted: on the real server
by a multi of the paths that the Python server has, which fails if a path is missing or has children that the Python
server does not have.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from controller.clock import VirtualClock
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.jute import END, INT, MULTI_HEADER, STAT, acl_entries, buffer, string
from controller.zookeeper.memory.database import digest_id
from controller.zookeeper.operations import OPEN_ACL, Delete, Stat
from controller.zookeeper.server.core import ZooKeeperCore
from controller.zookeeper.server.identity import ConnectionIdentity
from controller.zookeeper.server.server import ZooKeeperServer
from controller.zookeeper.server.wire import OpCode, RecordReader
from tests.zookeeper.wire_client import DEADLINE_S, EVENT_XID, LONG_TIMEOUT_MS, RawClient, SilentServer
from tests.zookeeper.wire_histories import (
    CLIENTS,
    ENDING,
    LONG,
    STEPS,
    Connect,
    HistoryMaker,
    TimedHistoryMaker,
    WireStep,
)

BATCH = 50
NO_CHECK_MS = 86_400_000
"""Containers are deleted by a timer, which the servers have in common only with `--timed`."""
CHECK_MS = 100
"""A real server that has not deleted a node before the next check asks for the deletion again: one more transaction."""
TICK_MS = 50
SHORT_TIMEOUT_MS = 2 * TICK_MS
_SUPER = "super:p"
_POLL_S = 0.005
_AUTH_FAILED = [-115, b""]


class Server:
    """A server that histories run on: a real one, or the one in Python over TCP."""

    time_passes = True

    def __init__(self, reached_by: str | ZooKeeperCore, *, loses_connections: bool = False) -> None:
        self.loses_connections = loses_connections
        self.reached_by = reached_by
        """What a `RawClient` takes."""

    def pass_time(self, _ms: float) -> None:
        """Let virtual time pass, where it does not pass by itself."""


class CoreServer(Server):
    """The Python server's core in this process, in virtual time."""

    time_passes = False

    def __init__(self, core: ZooKeeperCore) -> None:
        super().__init__(core)
        assert isinstance(core.clock, VirtualClock)
        self._clock = core.clock

    def pass_time(self, ms: float) -> None:
        self._clock.advance_to(self._clock.now_ms() + ms)


class WireReplay:
    """A history on one server, and everything that the server answered."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.owners: dict[int, str] = {}
        self.unconnected: int | None = None
        self.base = self.zxid = 0
        self.clients = [RawClient(server.reached_by) for _ in range(CLIENTS)]
        for client in self.clients:
            client.begin_connect()

    def begin(self, root: str) -> None:
        """Create the history's root, once all clients have their sessions."""
        for number, client in enumerate(self.clients):
            client.end_connect()
            self.owners[client.session] = f"client {number}, session 0"
        self.clients[0].send(OpCode.CREATE2, string(root) + buffer(b"") + acl_entries(OPEN_ACL) + INT.pack(0))
        frame = self.clients[0].frame()
        assert frame is not None
        self.base = self.zxid = RecordReader(frame, 4).long()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed already, where the servers differ
            for client in self.clients:
                client.send(OpCode.CLOSE, b"")
            for client in self.clients:
                while (frame := client.frame()) is not None and INT.unpack_from(frame)[0] == EVENT_XID:
                    pass
        for client in self.clients:
            client.disconnect()

    def send(self, step: WireStep) -> None:
        """Write all requests of a step."""
        client = self.clients[step.client]
        frames = []
        for request in step.requests:
            since = b"" if request.since is None else LONG.pack(self.zxid - request.since)
            frames.append(client.request(request.operation, since + request.body))
        if frames:
            client.write(b"".join(frames))

    def receive(self, step: WireStep) -> list[Any]:
        """Return what the step's client was sent since its last step, up to the last of the step's replies."""
        client = self.clients[step.client]
        if step.connect is not None:
            return self.connected(step.client, step.connect)
        found: list[Any] = []
        for request in step.requests:
            found += self.until_reply(client, request.operation)
        operation = step.requests[-1].operation
        if found[-1] is None or operation in ENDING or found[-1][-2:] == _AUTH_FAILED:
            while (frame := client.frame()) is not None:
                found.append(self.plain(frame, operation))
            if operation == OpCode.CLOSE:
                client.forget()
            self.unconnected = step.client
        return found

    def connected(self, place: int, how: Connect) -> list[Any]:
        client = self.clients[place]
        found: list[Any] = []
        if how is Connect.AFTER_CLOSING:
            client.disconnect()
            found.append(client.connect())
        elif how is Connect.MOVE:
            former = client.leave()
            found.append(client.connect())
            found += self.ending(former)
            former.disconnect()
        else:
            self.unconnected = place
            found.append(client.connect(SHORT_TIMEOUT_MS))
            if how is Connect.ABSENCE:
                client.disconnect()
            self.server.pass_time(SHORT_TIMEOUT_MS + TICK_MS)
            if how is Connect.SILENCE:
                while (frame := client.frame()) is not None:
                    found.append(self.plain(frame, OpCode.PING))
        return found

    def ending(self, former: RawClient) -> list[Any]:
        """Return what came over the connection that a session has left, until the server closed it.

        A real server that learns of the end of a connection after the session's return loses track of the new one
        (NIOServerCnxnFactory.removeCnxn), and then does not close that when the session leaves it.
        """
        found: list[Any] = []
        try:
            while (frame := former.frame()) is not None:
                found.append(self.plain(frame, OpCode.PING))
        except SilentServer:
            if not self.server.loses_connections:
                raise
        return found

    def restore(self, number: int) -> bool | None:
        """Connect the client whose connection the last step has ended; return whether its session was still known."""
        if self.unconnected is None:
            return None
        place, self.unconnected = self.unconnected, None
        client = self.clients[place]
        known = client.connect()
        if not known:
            client.renew()
        self.owners.setdefault(client.session, f"client {place}, session {number}")
        return known

    def await_zxid(self, place: int, zxid: int) -> list[Any]:
        """Wait until the server has made the transaction `zxid`; return what the client at `place` was sent meanwhile.

        Raises SilentServer if it is not made in time.
        """
        client = self.clients[place]
        found: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while True:
            client.send(OpCode.PING, b"")
            sent = self.until_reply(client, OpCode.PING)
            found += sent[:-1]
            if self.zxid >= zxid:
                return found
            if sent[-1] is None or not self.server.time_passes or time.monotonic() > deadline:
                raise SilentServer(f"transaction {zxid - self.base} of the history was not made")
            time.sleep(_POLL_S)

    def await_timers(self, place: int, relative: int) -> list[Any]:
        """Wait for the transaction of this relative zxid; return what the client at `place` was sent meanwhile."""
        return self.await_zxid(place, self.base + relative)

    def ping(self) -> list[Any]:
        """Return what each client was sent since its last step."""
        for client in self.clients:
            client.send(OpCode.PING, b"")
        return [self.until_reply(client, OpCode.PING) for client in self.clients]

    def until_reply(self, client: RawClient, operation: int) -> list[Any]:
        found: list[Any] = []
        while True:
            frame = client.frame()
            if frame is None:
                return [*found, None]
            found.append(self.plain(frame, operation))
            if INT.unpack_from(frame)[0] != EVENT_XID:
                return found

    def plain(self, frame: bytes, operation: int) -> list[Any]:
        record = RecordReader(frame)
        xid, zxid, error = record.integer(), record.long(), record.integer()
        if xid == EVENT_XID:
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


class Pair:
    """A Python server and a real one that histories are compared on. With `timed`, both delete containers."""

    def __init__(self, core: ZooKeeperCore, python: Server, real: str, *, timed: bool = False) -> None:
        self.core = core
        self.python = python
        self.real = Server(real, loses_connections=True)
        self.timed = timed
        self._super = RawClient(real)
        self._super.connect()
        self._super.send(OpCode.AUTH, INT.pack(0) + string("digest") + buffer(_SUPER.encode()))
        self._super.frame()

    def close(self) -> None:
        self._super.send(OpCode.CLOSE, b"")
        self._super.disconnect()

    def difference(self, seed: int) -> str | None:
        """Run the history of a seed on both servers; return where their answers differ, or None."""
        maker = (TimedHistoryMaker if self.timed else HistoryMaker)(seed)
        return self.compare(f"seed {seed}", maker.root, maker.steps())

    def confirmed_difference(self, seed: int) -> str | None:
        """Run a history, and once more if its answers differ: a timed one may differ because the machine was busy."""
        if (found := self.difference(seed)) is None or not self.timed:
            return found
        print(f"{found}\nonce more:", flush=True)
        self.clean()
        return self.difference(seed)

    def compare(self, name: str, root: str, steps: list[WireStep]) -> str | None:
        """Run steps below a new root on both servers; return where the answers differ, or None."""
        python, real = WireReplay(self.python), WireReplay(self.real)
        done: list[WireStep] = []

        def both(what: str, ask: Callable[[WireReplay], object]) -> str | None:
            found, expected = _answers(ask, python), _answers(ask, real)
            if found == expected:
                return None
            before = "\n".join(f"  {each}" for each in done)
            return f"{name}, {what}:\n{before}\n  real server: {expected}\n  in Python:   {found}"

        try:
            python.begin(root)
            real.begin(root)
            for number, step in enumerate(steps, 1):
                done.append(step)
                has_timers = bool(self.core.processor.extended) or step.connect is Connect.ABSENCE
                real.send(step)
                python.send(step)
                if found := both(f"step {number}", partial(WireReplay.receive, step=step)):
                    return found
                deleted = 0
                if self.timed and (has_timers or self.core.processor.extended):
                    deleted = self._pass_timers()
                    other, relative = (step.client + 1) % CLIENTS, self.core.zxid - python.base
                    awaited = partial(WireReplay.await_timers, place=other, relative=relative)
                    if found := both(f"timers after step {number}", awaited):
                        return found
                if found := both(f"session after step {number}", partial(WireReplay.restore, number=number)):
                    return found
                if deleted > 1:  # each server has an order of its own
                    break
            else:
                if found := both("at the end", WireReplay.ping):
                    return found
        finally:
            real.close()
            python.close()
        return self._await_timers(name, real.base - python.base) if self.timed else None

    def _pass_timers(self) -> int:
        """Let the Python server's timers delete what is due, and what is due then; return how many transactions."""
        before_zxid = self.core.zxid
        while True:
            zxid = self.core.zxid
            self.python.pass_time(CHECK_MS + TICK_MS)
            if self.core.zxid == zxid:
                return zxid - before_zxid

    def _await_timers(self, name: str, offset: int) -> str | None:
        """Wait until both servers have deleted what the end of the sessions has left to their timers."""
        self._pass_timers()
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._super.send(OpCode.PING, b"")
            frame = self._super.frame()
            assert frame is not None
            zxid = RecordReader(frame, 4).long() - offset
            if zxid == self.core.zxid:
                return None
            if time.monotonic() > deadline:
                return f"{name}, after its end: {zxid - self.core.zxid} more transactions on the real server"
            time.sleep(_POLL_S)

    def clean(self) -> str | None:
        """Delete every znode on both servers; return how their trees differ, or None."""
        processor = self.core.processor
        paths = [path for path in processor.tree.nodes if path != "/" and not f"{path}/".startswith("/zookeeper/")]
        paths.sort(reverse=True)
        processor.tree.apply([Delete(path, -1) for path in paths], 0, _Everyone("127.0.0.1"), processor.zxid, 0)
        processor.extended.clear()
        rows = [MULTI_HEADER.pack(OpCode.DELETE, 0, -1) + string(path) + INT.pack(-1) for path in paths]
        self._super.send(OpCode.MULTI, b"".join(rows) + END)
        frame = self._super.frame()
        assert frame is not None
        error = RecordReader(frame, 12).integer()
        return f"the trees differ: the real server answers {error} to the deletion of {paths}" if error else None


class _Everyone(ConnectionIdentity):
    """May do everything."""

    __slots__ = ()

    def may(self, acl: object, permission: int) -> bool:
        return True


def _answers(ask: Callable[[WireReplay], object], replay: WireReplay) -> object:
    try:
        return ask(replay)
    except AssertionError as unexpected:
        return f"{type(unexpected).__name__}: {unexpected}"


def java_options(check_ms: int = NO_CHECK_MS) -> tuple[str, ...]:
    """Return a real server's options: TTL nodes, how often containers are checked, a super user."""
    return (
        "-Dzookeeper.extendedTypesEnabled=true",
        f"-Dznode.container.checkIntervalMs={check_ms}",
        "-Dznode.container.maxPerMinute=60000",
        f"-Dzookeeper.DigestAuthenticationProvider.superDigest={digest_id(_SUPER)}",
    )


@contextmanager
def pair(*, tcp: bool = False, timed: bool = False) -> Iterator[Pair]:
    """Start a real server and one in Python."""
    check_ms = CHECK_MS if timed else NO_CHECK_MS
    longest_ms = 2 * LONG_TIMEOUT_MS
    with (
        EmbeddedZooKeeper(
            kind="java",
            fsync=False,
            tick_ms=TICK_MS,
            max_session_timeout_ms=longest_ms,
            java_options=java_options(check_ms),
        ) as real,
        contextlib.ExitStack() as stack,
    ):
        if tcp:
            server = stack.enter_context(
                ZooKeeperServer(max_session_timeout_ms=longest_ms, container_check_ms=check_ms)
            )
            core, python = server.core, Server(server.connect_string)
        else:
            core = ZooKeeperCore(
                VirtualClock(), tick_ms=TICK_MS, max_session_timeout_ms=longest_ms, container_check_ms=check_ms
            )
            core.start()
            python = CoreServer(core)
        made = Pair(core, python, real.connect_string, timed=timed)
        yield made
        made.close()


def campaign(seeds: range, *, tcp: bool = False, timed: bool = False, show: int = 5) -> int:
    """Compare the histories of these seeds, print up to `show` differences, return how many differ."""
    failed = 0
    with pair(tcp=tcp, timed=timed) as servers:
        for at, seed in enumerate(seeds, 1):
            found = servers.confirmed_difference(seed)
            if found is None and (timed or at % BATCH == 0 or at == len(seeds)):
                found = servers.clean()
            if found is not None:
                failed += 1
                if failed <= show:
                    print(found, flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the others follow it")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with servers of its own")
    parser.add_argument("--show", type=int, default=5, help="differences printed in full by each process")
    parser.add_argument("--timed", action="store_true", help="also draw what time decides")
    parser.add_argument("--tcp", action="store_true", help="the Python server behind a socket")
    given = parser.parse_args()
    if given.histories < 1 or given.jobs < 1 or given.seed < 0:
        parser.error("expected --histories and --jobs of 1 or more, and --seed of 0 or more")
    if given.timed and given.tcp:
        parser.error("--timed needs virtual time, which --tcp does not have")
    settings = {"tcp": given.tcp, "timed": given.timed, "show": given.show}
    bounds = [given.seed + given.histories * job // given.jobs for job in range(given.jobs + 1)]
    pieces = [range(first, end) for first, end in pairwise(bounds) if end > first]
    if len(pieces) == 1:
        failed = campaign(pieces[0], **settings)
    else:
        with multiprocessing.get_context("spawn").Pool(len(pieces)) as pool:
            failed = sum(
                result.get() for result in [pool.apply_async(campaign, (piece,), settings) for piece in pieces]
            )
    print(f"{given.histories} histories of {STEPS} steps, {failed} with a difference")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

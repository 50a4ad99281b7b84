"""A `ZooKeeperConnection` to a real ZooKeeper: the port's requests, as bytes, over a `KazooLink`.

kazoo offers no multi-read and no SetWatches, and builds an object a row; so the requests are our own
(`jute_requests.py`, `jute_replies.py`), and kazoo carries them. Here are only paths, the chroot, access lists and what
is done for a server that is too old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from kazoo.hosts import collect_hosts

from controller.clock import Clock
from controller.pending import Pending
from controller.zookeeper import jute, jute_replies, jute_requests
from controller.zookeeper.connection import BATCH, LONGEST_READ, ConnectionListener
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import (
    ConnectionLost,
    MultiFailed,
    NodeExists,
    NoNode,
    SessionGone,
    UnknownOutcome,
    UnsupportedOperation,
)
from controller.zookeeper.kazoo_link import KazooLink
from controller.zookeeper.kazoo_requests import path_error
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    Columns,
    Create,
    Listing,
    ReadResult,
    Write,
    WriteResults,
    Znode,
)
from controller.zookeeper.path_rules import validate_new_path, validate_path, validate_paths
from controller.zookeeper.paths import partitions as parent_of_partitions
from controller.zookeeper.state_sets import FencedSets, StatePaths

T = TypeVar("T")


class KazooConnection:
    """`hosts` is a connect string ("host:port,host:port/chroot"); `auth` are (scheme, credential) pairs, as
    ("digest", "user:password"); `default_acl` is that of creates which name none. With `create_chroot` the chroot's
    own znode and those above it are made, where they are missing, before `start` is answered. ValueError for a connect
    string that is none.

    `start` fails with AuthenticationFailed when the server refuses the credentials, and with a path's error when the
    chroot can't be made; otherwise it waits for as long as it takes.
    """

    def __init__(
        self,
        hosts: str,
        clock: Clock,
        session_timeout_ms: int = 18_000,
        *,
        auth: Sequence[tuple[str, str]] = (),
        default_acl: Sequence[ACL] = OPEN_ACL,
        create_chroot: bool = False,
    ) -> None:
        servers, chroot = collect_hosts(hosts)
        self._chroot = (chroot or "").rstrip("/")
        if self._chroot:
            validate_path(self._chroot)
        self._create_chroot = create_chroot and bool(self._chroot)
        self._default_acl = tuple(default_acl)
        self._started = False
        self._starting: list[Pending[int]] = []
        hosts_only = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)
        path_of = partial(jute.stripped, self._chroot)
        self._link = KazooLink(hosts_only, clock, session_timeout_ms, auth, path_of, self._connected)

    @property
    def session_timeout_ms(self) -> int:
        return self._link.session_timeout_ms

    # -- the session

    def listen(self, listener: ConnectionListener) -> None:
        self._link.listener = listener

    def start(self) -> Pending[int]:
        if self._started:
            raise RuntimeError("a connection is started once")
        self._started = True
        begun: Pending[int] = Pending()
        self._starting.append(begun)
        if not self._link.start():
            self._begun(SessionGone(0))
        return begun

    def close(self) -> Pending[None]:
        session = self._link.session()
        closed = self._link.close()
        self._begun(SessionGone(session))
        return closed

    def _begun(self, outcome: int | BaseException) -> None:
        """Answers `start`, once: popping is atomic, and close can meet the first connection."""
        try:
            begun = self._starting.pop()
        except IndexError:
            return
        if isinstance(outcome, BaseException):
            begun.fail(outcome)
        else:
            begun.resolve(outcome)

    def _connected(self) -> None:
        """On the connection thread, with each connection; also when it has ended unasked."""
        session = self._link.session()
        if not self._starting:
            return
        if not session:
            self._begun(self._link.refusal())
            return
        made = drive(self._make_chroot())

        def ready() -> None:
            if made.error is None:
                self._begun(session)
            elif not isinstance(made.error, ConnectionLost | UnknownOutcome | SessionGone):
                self._begun(made.error)  # otherwise the next connection tries again

        made.on_done(ready)

    async def _make_chroot(self) -> None:
        if not self._create_chroot or (await self.read(["/"])).rows[0] is not None:
            return
        names = self._chroot[1:].split("/")
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            try:
                await self._multi([Create(path, None)], chroot="")
            except MultiFailed as failed:
                if not isinstance(failed.error, NodeExists):
                    raise failed.error from failed
        self._create_chroot = False

    def session(self) -> int:
        return self._link.session()

    def acknowledged_sent_ms(self) -> float:
        return self._link.acknowledged_sent_ms()

    def last_zxid(self) -> int:
        return self._link.last_zxid()

    # -- reads

    def read(self, paths: Sequence[str]) -> Pending[ReadResult]:
        return drive(self._read(_batch(paths)))

    async def _read(self, paths: Sequence[str]) -> ReadResult:
        def parse(message: bytes, offset: int, zxid: int) -> ReadResult:
            return ReadResult(jute_replies.read_rows(message, offset, paths, path_error), zxid)

        many = await self._multi_read_of(jute.GET_DATA, paths, parse)
        return many or ReadResult(*await self._each(jute.GET_DATA, paths, _parse_row))

    def read_columns(self, paths: Sequence[str]) -> Pending[Columns]:
        if isinstance(paths, StatePaths) and len(paths) <= LONGEST_READ:
            validate_paths(_parents_of(paths))
            return drive(self._read_columns(paths))
        return drive(self._read_columns(_batch(paths, LONGEST_READ)))

    async def _read_columns(self, paths: Sequence[str]) -> Columns:
        def parse(message: bytes, offset: int, zxid: int) -> Columns:
            return jute_replies.read_columns(message, offset, paths, zxid, path_error)

        many = await self._multi_read_of(jute.GET_DATA, paths, parse)
        return many or jute_replies.columns_of(*await self._each(jute.GET_DATA, paths, _parse_row))

    def children(self, paths: Sequence[str]) -> Pending[Listing]:
        return drive(self._list(_batch(paths)))

    async def _list(self, paths: Sequence[str]) -> Listing:
        def parse(message: bytes, offset: int, zxid: int) -> Listing:
            return Listing(jute_replies.read_listings(message, offset, paths, path_error), zxid)

        many = await self._multi_read_of(jute.GET_CHILDREN, paths, parse)
        return many or Listing(*await self._each(jute.GET_CHILDREN, paths, _parse_names))

    async def _multi_read_of(
        self, opcode: int, paths: Sequence[str], parse: Callable[[bytes, int, int], T]
    ) -> T | None:
        """Send one multi-read; return None if the server is older than 3.6.

        An older server that did not report its version closes the connection on this request.
        """
        if not self._link.multi_read():
            return None
        if isinstance(paths, StatePaths) and opcode == jute.GET_DATA:
            body = jute_requests.multi_read_states(paths.topics, self._chroot)
        else:
            body = jute_requests.multi_read(opcode, self._prefixed(paths))
        try:
            many: T = await self._link.request(jute.MULTI_READ, body, parse, paths[0] if paths else "/")
        except UnsupportedOperation:
            self._link.refuse_multi_read()
            return None
        return many

    async def _each(
        self, opcode: int, paths: Sequence[str], parse: Callable[[str, bytes, int], T]
    ) -> tuple[tuple[T | None, ...], int]:
        """Reads one by one, pipelined; what was read, and the zxid of the first reply."""

        def request(path: str) -> Pending[tuple[T, int]]:
            def parse_one(message: bytes, offset: int, zxid: int) -> tuple[T, int]:
                return parse(path, message, offset), zxid

            body = jute_requests.path_and_watch(jute.prefixed(self._chroot, path), watch=False)
            return self._link.request(opcode, body, parse_one, path)

        sent = [request(path) for path in paths]
        found: list[T | None] = []
        zxid = self.last_zxid()
        for answer in sent:
            try:
                value, seen = await answer
            except NoNode:
                found.append(None)
            else:
                found.append(value)
                zxid = min(zxid, seen)
        return tuple(found), zxid

    # -- writes and watches

    def multi(self, operations: Sequence[Write]) -> Pending[WriteResults]:
        if isinstance(operations, FencedSets):
            validate_paths([operations.fence.path, *_parents_of(operations.sets.paths)])
            return self._multi(operations, self._chroot)
        sequential = [one.path for one in operations if isinstance(one, Create) and one.sequential]
        if sequential:
            for path in sequential:
                validate_new_path(path, sequential=True)
            named = [one.path for one in operations if not (isinstance(one, Create) and one.sequential)]
        else:
            named = [one.path for one in operations]
        validate_paths(named)
        return self._multi(tuple(operations), self._chroot)

    def _multi(self, operations: Sequence[Write], chroot: str) -> Pending[WriteResults]:
        def parse(message: bytes, offset: int, _zxid: int) -> WriteResults:
            results, index, code = jute_replies.read_multi(message, offset, len(operations))
            if code:
                raise MultiFailed(index, path_error(code, operations[index].path))
            if isinstance(operations, FencedSets):
                return results
            return tuple(jute.stripped(chroot, result) if isinstance(result, str) else result for result in results)

        if isinstance(operations, FencedSets):
            body = jute_requests.multi_set_states(operations.fence, operations.sets, chroot)
        else:
            body = jute_requests.multi(operations, self._default_acl, chroot)
        path = operations[0].path if operations else "/"
        return self._link.request(jute.MULTI, body, parse, path, write=True)

    def set_watches(
        self, since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
    ) -> Pending[None]:
        lists = []
        for paths in (data, exists, children):
            validate_paths(paths)
            lists.append(self._prefixed(paths))
        return self._link.request(jute.SET_WATCHES, jute_requests.set_watches(since_zxid, *lists), _nothing, "/")

    def watch(self, nodes: Sequence[str], children: Sequence[str]) -> Pending[None]:
        validate_paths(nodes)
        validate_paths(children)
        kinds = [(jute.EXISTS, path) for path in nodes] + [(jute.GET_CHILDREN, path) for path in children]
        sent = [
            self._link.request(
                opcode, jute_requests.path_and_watch(jute.prefixed(self._chroot, path), watch=True), _nothing, path
            )
            for opcode, path in kinds
        ]
        return drive(_all_armed(sent))

    def sync(self, path: str) -> Pending[None]:
        validate_path(path)
        return self._link.request(jute.SYNC, jute_requests.string(jute.prefixed(self._chroot, path)), _nothing, path)

    def _prefixed(self, paths: Sequence[str]) -> Sequence[str]:
        return [jute.prefixed(self._chroot, path) for path in paths] if self._chroot else paths


async def _all_armed(sent: Sequence[Pending[None]]) -> None:
    for answer in sent:
        try:
            await answer
        except NoNode:
            continue  # a children watch on a node that is not there is not armed


def _parse_row(path: str, message: bytes, offset: int) -> Znode:
    data, offset = jute_replies.read_data(message, offset)
    return Znode(path, data, jute_replies.read_stat(message, offset))


def _parse_names(_path: str, message: bytes, offset: int) -> tuple[str, ...]:
    return jute_replies.read_names(message, offset)[0]


def _parents_of(paths: StatePaths) -> list[str]:
    """What is to be validated of them: what follows is numbers and a fixed name."""
    return [parent_of_partitions(name) for name, _ in paths.topics]


def _nothing(_message: bytes, _offset: int, _zxid: int) -> None:
    return None


def _batch(paths: Sequence[str], most: int = BATCH) -> tuple[str, ...]:
    if len(paths) > most:
        raise ValueError(f"{len(paths)} paths in one request: expected at most {most}")
    validate_paths(paths)
    return tuple(paths)

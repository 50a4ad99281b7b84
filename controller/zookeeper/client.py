"""The ZooKeeper client of controller and broker: the rules that hold over any connection, written once.

It provides standing watches without gaps, retried reads, the lease, and the fence: every write made as controller takes
a `Leadership` and carries a check of /controller_epoch. There is no unfenced write here except the election; a broker's
own few are in `broker_writes.py`. It uses no threads, no time but the clock port, and does not depend on the kind of
connection. The listener's part runs on the connection's threads and only arms watches and puts events.

ZooKeeper's watches fire once and die with their connection. Here a path and kind has one event value, for as long as
it is wanted (`Watches`): when its watch fires it is armed again *before* the event is put, so that whatever a handler
reads when that event's turn comes is read behind the new watch, and no change falls between. Every CONNECTED arms
everything again (kazoo itself arms nothing; kazoo #151, S27). Listener calls come from any thread and the table is
changed from the controller's; each step is one operation on a dictionary, so no lock is needed.

Retries are bounded, jittered, and take the clock's own time. Tenacity holds the rules; the waiting goes through the
clock port and the jitter comes from a seed, so that a retry takes no wall time under a virtual clock and the same seed
gives the same delays. Which requests are safe to retry is the caller's to say: reads, registrations and idempotent
creations are, a write with an unknown outcome is not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import msgspec
from tenacity import AsyncRetrying, IterState, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base

from controller.backoff import backoff_ms
from controller.clock import Clock, Future, spawn
from controller.zookeeper.operations import (
    BATCH,
    NOT_READABLE,
    BadVersion,
    Check,
    Columns,
    ConnectionLost,
    ControllerMoved,
    Create,
    LeaseExpired,
    Listing,
    MultiFailed,
    NoAuth,
    NoNode,
    ReadResult,
    RequestTooLarge,
    SessionGone,
    SessionState,
    SetData,
    WatchEvent,
    WatchKind,
    Write,
    WriteResults,
    ZooKeeperConnection,
    ZooKeeperError,
    stand_in,
)
from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH, is_one_of_many
from controller.zookeeper.row_writes import (
    FencedSets,
    RowsWritten,
    RowWriter,
    StateSets,
    judge_create,
    judge_set,
    parents_among,
    path_batches,
    refuse_sequential,
    refuse_unversioned,
    require_sendable,
)

SET_WATCHES_PATHS = 2_000
"""Paths a SetWatches request: with Kafka's longest paths (300 bytes) some 600 kB, below jute.maxbuffer (1 MB)."""


class EventSink(Protocol):
    """The receiver of events. Called on the connection's threads: must not block."""

    def put(self, event: Any) -> None:
        """Queue an event, from any thread. Equal pending events that coalesce are queued once."""


class _Standing(msgspec.Struct, frozen=True):
    """The event to put when a watch fires.

    `bulk`: set with watch_many; after a reconnection the event is put only if the server reports that the node changed.
    """

    event_of: Callable[[str], Any]
    bulk: bool


class StandingWatches:
    """Invariant: a path in the table has a watch armed on the server, or a request under way that arms it, or there
    is no connection and the next CONNECTED will arm it.

    A re-arming request that the server refuses (NoAuth) is not reported apart: its event was put all the same, and the
    handler's own read of that path meets the same refusal.
    """

    def __init__(self, connection: ZooKeeperConnection, events: EventSink) -> None:
        self._connection = connection
        self._events = events
        self._nodes: dict[str, _Standing] = {}
        self._children: dict[str, _Standing] = {}
        self._kept: dict[str, _Standing] = {}
        """Children that a second party watches, as long as the client exists: one server watch serves both."""
        self._since_zxid: int | None = None
        self._breaks = 0

    def add_node(self, path: str, event: Any) -> None:
        self._nodes[path] = _Standing(lambda _path: event, bulk=False)

    def add_children(self, path: str, event: Any) -> None:
        self._children[path] = _Standing(lambda _path: event, bulk=False)

    def keep_children(self, path: str, event: Any) -> None:
        """As `add_children`, beside one on the same path; `remove` and `table` have nothing to do with it."""
        self._kept[path] = _Standing(lambda _path: event, bulk=False)

    def add_many(self, paths: Iterable[str], event_of: Callable[[str], Any]) -> None:
        self._nodes.update(dict.fromkeys(paths, _Standing(event_of, bulk=True)))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove watches here only: one on the server fires or ends with the connection, and has no effect."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)

    def table(self) -> frozenset[tuple[str, str]]:
        """("node" or "children", path) of everything that stands."""
        nodes, children = list(self._nodes), list(self._children)
        return frozenset([("node", path) for path in nodes] + [("children", path) for path in children])

    def fired(self, event: WatchEvent) -> None:
        """Arms again, then puts. A deletion fires both kinds on its path."""
        path = event.path
        node = self._nodes.get(path) if event.kind is not WatchKind.CHILDREN else None
        of_children = event.kind in (WatchKind.CHILDREN, WatchKind.DELETED)
        children = self._children.get(path) if of_children else None
        kept = self._kept.get(path) if of_children else None
        if node is None and children is None and kept is None:
            return
        self.arm([path] if node else [], [path] if children or kept else [])
        for standing in (node, children, kept):
            if standing is not None:
                self._events.put(standing.event_of(path))

    @property
    def breaks(self) -> int:
        """Return how often the connection has broken."""
        return self._breaks

    def connection_broke(self) -> None:
        """Record the last zxid that was seen.

        If a second break interrupts the re-arming, the first zxid is kept: changes since then have not been reported.
        """
        self._breaks += 1
        if self._since_zxid is None:
            self._since_zxid = self._connection.last_zxid()

    def connected(self, same_session: bool) -> None:
        """Arms everything, then puts the events of what was watched one by one; on a new session, of everything."""
        singles = [path for path, standing in list(self._nodes.items()) if not standing.bulk]
        many = [path for path, standing in list(self._nodes.items()) if standing.bulk]
        children, kept = list(self._children), list(self._kept)
        since_zxid = self._connection.last_zxid() if self._since_zxid is None else self._since_zxid
        self.arm(singles, list(dict.fromkeys(children + kept)))
        self._clear_when_done([self.arm_chunk(since_zxid, chunk) for chunk in self.requests(many)])
        self._put(self._nodes, singles if same_session else singles + many)
        self._put(self._children, children)
        self._put(self._kept, kept)

    def arm(self, nodes: Sequence[str], children: Sequence[str]) -> Future[None]:
        return self._connection.watch(nodes, children) if nodes or children else Future.resolved(None)

    def arm_chunk(self, since_zxid: int, paths: Sequence[str]) -> Future[None]:
        """One of `requests`' chunks; what changed after `since_zxid` fires at once."""
        return self._connection.set_watches(since_zxid, paths, (), ())

    @staticmethod
    def requests(paths: Sequence[str]) -> list[Sequence[str]]:
        """The paths of each SetWatches request that so many need."""
        return list(path_batches(paths, SET_WATCHES_PATHS))

    def _put(self, table: dict[str, _Standing], paths: Iterable[str]) -> None:
        for path in paths:
            standing = table.get(path)
            if standing is not None:
                self._events.put(standing.event_of(path))

    def _clear_when_done(self, requests: Sequence[Future[None]]) -> None:
        breaks = self._breaks
        waiting, lost = len(requests), False

        def one_done(request: Future[None]) -> None:
            nonlocal waiting, lost
            waiting -= 1
            lost = lost or request.error is not None
            if waiting == 0 and not lost and breaks == self._breaks:
                self._since_zxid = None

        for request in requests:
            request.on_done(partial(one_done, request))
        if not requests:
            self._since_zxid = None


T = TypeVar("T")

FIRST_DELAY_MS = 10.0
LONGEST_DELAY_MS = 1_000.0
ATTEMPTS = 30
"""With the delays above some 20 s of trying: longer than a session outlives the last connection that it had, so that
in practice the session's end is the limit, and this one stops only a request that breaks each connection it is
sent on."""


class JitteredBackoff(wait_base):
    """Doubles from `first_ms` up to `longest_ms`; each wait is between half of that and all of it."""

    def __init__(self, rng: random.Random, first_ms: float, longest_ms: float) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._longest_ms = longest_ms

    def __call__(self, retry_state: RetryCallState) -> float:
        full_ms = backoff_ms(retry_state.attempt_number, self._first_ms, self._longest_ms)
        return full_ms * self._rng.uniform(0.5, 1.0) / 1_000.0


class OneCall(AsyncRetrying):
    """Goes on wherever it is resumed. Tenacity keeps what it knows of a call for each thread, and a coroutine of ours
    that is answered runs on, on the thread that answers: there tenacity would know nothing (KeyError: 'idle_for')."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self._statistics: dict[str, Any] = {}
        self._iter_state = IterState()

    @property
    def statistics(self) -> dict[str, Any]:
        return self._statistics

    @property
    def iter_state(self) -> IterState:
        return self._iter_state


class Retrier:
    """Makes an attempt again over the named errors. One a client: the jitter's sequence is its own."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self._clock = clock
        self._rng = random.Random(seed)

    async def call(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        over: tuple[type[Exception], ...],
        attempts: int = ATTEMPTS,
        first_delay_ms: float = FIRST_DELAY_MS,
        longest_delay_ms: float = LONGEST_DELAY_MS,
    ) -> T:
        """Return or raise the outcome of the first attempt that does not raise one of `over`.

        After `attempts` attempts the last one's error is raised. BaseExceptions (a resignation thrown in) end the call
        at once.
        """

        # Tenacity's objects refer to each other. The collector's pass over those of some thousand calls stops all
        # threads for 70 ms, so a call that succeeds at once makes none.
        failure: Exception | None = None
        try:
            return await attempt()
        except over as error:
            failure = error

        async def again() -> T:
            nonlocal failure
            if failure is not None:
                first, failure = failure, None
                raise first
            return await attempt()

        retrying = OneCall(
            sleep=self._sleep,
            stop=stop_after_attempt(attempts),
            wait=JitteredBackoff(self._rng, first_delay_ms, longest_delay_ms),
            retry=retry_if_exception_type(over),
            reraise=True,
        )
        result: T = await retrying(again)
        return result

    def _sleep(self, seconds: float) -> Future[None]:
        return self._clock.sleep(seconds * 1_000.0)


@dataclass(frozen=True, slots=True)
class ElectionPaths:
    """The znodes of a cluster's leader election: Kafka's, unless another controller names its own.

    Both are children of one znode, which exists before the first election. Raises ValueError if they are not.
    """

    controller: str = CONTROLLER
    """Ephemeral: names the leader."""
    epoch: str = CONTROLLER_EPOCH
    """Persistent: the number of the term, and by its version the fence of the term's writes."""

    def __post_init__(self) -> None:
        if self.controller.rpartition("/")[0] != self.epoch.rpartition("/")[0] or self.controller == self.epoch:
            raise ValueError(f"{self.controller} and {self.epoch}: expected two children of one znode")

    @property
    def parent(self) -> str:
        return self.epoch.rpartition("/")[0] or "/"


KAFKA_PATHS = ElectionPaths()


class Leadership(msgspec.Struct, frozen=True):
    """One term as controller.

    It is void once `session` is not the connection's session any more, or the lease has run out, or
    /controller_epoch has left `epoch_zk_version`, whichever is first. A session that still exists after a resignation
    may win again: that is another term, with another epoch and version.
    """

    session: int
    """The ZooKeeper session that owns /controller."""
    epoch: int
    """What the election wrote into /controller_epoch."""
    epoch_zk_version: int
    """The version of /controller_epoch that this write made: the fence of every later write."""
    epoch_path: str = CONTROLLER_EPOCH
    """The znode that is called /controller_epoch here."""


READS_IN_FLIGHT = 8
"""Read batches sent ahead of the answers; more gain nothing."""
LEASE_FRACTION = 2.0 / 3.0
"""Of the session timeout. The server ends a session no sooner than a whole timeout after it got the last message, and
that was after it was sent: a third is left for a pause between the check and the write."""
FORMER_SESSIONS = 100


class ConnectionView(Protocol):
    """The connection as others may see it: to look at, not to write through."""

    @property
    def session_timeout_ms(self) -> int: ...

    def session(self) -> int: ...

    def acknowledged_sent_ms(self) -> float: ...

    def last_zxid(self) -> int: ...


class ZooKeeperClient:
    """One a node, shared by its controller and its broker.

    `session_event(state, session)` gives the event to queue on a change of the session's state (None: none); with
    EXPIRED and CLOSED comes the id of the session that ended. Sets itself as the connection's listener.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        clock: Clock,
        events: EventSink,
        *,
        session_event: Callable[[SessionState, int], Any | None] = lambda _state, _session: None,
        seed: int = 0,
    ) -> None:
        self._connection = connection
        self.clock = clock
        self._events = events
        self._session_event = session_event
        self.retrier = Retrier(clock, seed)
        self._watches = StandingWatches(connection, events)
        self._session = 0
        self._former_sessions: deque[int] = deque(maxlen=FORMER_SESSIONS)
        connection.listen(self)

    @property
    def connection(self) -> ConnectionView:
        return self._connection

    def start(self) -> Future[int]:
        """Begins to connect, and goes on for as long as it takes. Answered with the first session's id."""
        return self._connection.start()

    def close(self) -> Future[None]:
        """Ends the session: its ephemerals go at once, what is pending fails with SessionGone."""
        return self._connection.close()

    # -- the session and the lease

    def session(self) -> int:
        """The session that requests now belong to; 0 while there is none."""
        return self._connection.session()

    def former_sessions(self) -> tuple[int, ...]:
        """Sessions that this client had before the present one, oldest first (the latest `FORMER_SESSIONS`)."""
        return tuple(self._former_sessions)

    @property
    def breaks(self) -> int:
        """Return how often the connection has broken so far."""
        return self._watches.breaks

    def lease_until_ms(self) -> float:
        """Until when this client may act as controller, by what has been acknowledged: two thirds of the session
        timeout from when that was sent. Minus infinity with no session."""
        if not self._connection.session():
            return float("-inf")
        return self._connection.acknowledged_sent_ms() + LEASE_FRACTION * self._connection.session_timeout_ms

    # -- reads

    def read(self, paths: Sequence[str]) -> Future[ReadResult]:
        """Any number of paths, in batches. Made again over a broken connection; SessionGone once the session in which
        it was asked has ended. The zxid is the oldest batch's. A znode that is one of many (`is_one_of_many`) and that
        this client may not read is answered with a stand-in, whose data is NOT_READABLE; NoAuth for any other."""
        return spawn(self._read(paths))

    async def _read(self, paths: Sequence[str]) -> ReadResult:
        batches = await self._batches(self._connection.read, paths, _unreadable_row)
        if len(batches) == 1:
            return batches[0]
        rows = tuple(chain.from_iterable(batch.rows for batch in batches))
        return ReadResult(rows, min((batch.zxid for batch in batches), default=self._connection.last_zxid()))

    def children(self, paths: Sequence[str]) -> Future[Listing]:
        """As `read`, for the children's names; None also for a znode that this client may not read."""
        return spawn(self._list(paths))

    async def _list(self, paths: Sequence[str]) -> Listing:
        batches = await self._batches(self._connection.children, paths, _unreadable_children)
        if len(batches) == 1:
            return batches[0]
        children = tuple(chain.from_iterable(batch.children for batch in batches))
        return Listing(children, min((batch.zxid for batch in batches), default=self._connection.last_zxid()))

    def read_columns(self, paths: Sequence[str], a_request: int = BATCH) -> Future[list[Columns]]:
        """As `read`, without an object a row: one Columns for each `a_request` paths (at most `LONGEST_READ`, for
        znodes that are small), or several where one of them may not be read, in order."""
        return spawn(self._batches(self._connection.read_columns, paths, _unreadable_columns, a_request))

    def sync(self, path: str) -> Future[None]:
        """Answered when the server has caught up with the leader. Safe to make again, so it is."""
        return spawn(self._again(lambda: self._connection.sync(path)))

    async def _batches(
        self,
        request: Callable[[Sequence[str]], Future[T]],
        paths: Sequence[str],
        unreadable: Callable[[str, int], T],
        a_request: int = BATCH,
    ) -> list[T]:
        """One request for each so many paths, or fewer long ones, `READS_IN_FLIGHT` of them at a time."""
        answers: list[T] = []
        in_flight: deque[Future[list[T]]] = deque()
        for batch in path_batches(paths, a_request):
            if len(in_flight) == READS_IN_FLIGHT:
                answers += await in_flight.popleft()
            in_flight.append(spawn(self._batch(request, batch, unreadable)))
        while in_flight:
            answers += await in_flight.popleft()
        return answers

    async def _batch(
        self, request: Callable[[Sequence[str]], Future[T]], batch: Sequence[str], unreadable: Callable[[str, int], T]
    ) -> list[T]:
        """One request. One that fails because of a znode that is one of many is made again in halves, so that the
        znodes that may not be read cost a few requests each and nothing else."""
        zxid = self._connection.last_zxid()
        try:
            return [await self._again(lambda: request(batch))]
        except NoAuth as error:
            if not is_one_of_many(error.path):
                raise
        if len(batch) == 1:
            return [unreadable(batch[0], zxid)]
        middle = len(batch) // 2
        halves = [spawn(self._batch(request, half, unreadable)) for half in (batch[:middle], batch[middle:])]
        return [*await halves[0], *await halves[1]]

    async def _again(self, request: Callable[[], Future[T]]) -> T:
        """Makes a request that is safe to repeat, again over ConnectionLost, in this session only."""
        session = self._connection.session()
        try:
            return await request()
        except ConnectionLost:
            pass  # made again below, outside the handler: a host may throw at any await, and an except must not wait

        async def attempt() -> T:
            if self._connection.session() != session:
                raise SessionGone(session)
            return await request()

        return await self.retrier.call(attempt, over=(ConnectionLost,))

    # -- watches

    def watch_node(self, path: str, event: Any) -> Future[None]:
        """From now on `event` is put whenever the znode is created, changed or deleted, and on every CONNECTED.
        Answered when armed. Stands over reconnections and sessions until `unwatch`."""
        self._watches.add_node(path, event)
        return spawn(self._again(lambda: self._watches.arm([path], [])))

    def watch_children(self, path: str, event: Any) -> Future[None]:
        """From now on `event` is put whenever a child comes or goes, and on every CONNECTED. The parent must exist: as
        in ZooKeeper, nothing is armed on one that does not, until the next CONNECTED."""
        self._watches.add_children(path, event)
        return spawn(self._again(lambda: self._watches.arm([], [path])))

    def keep_watching_children(self, path: str, event: Any) -> Future[None]:
        """As `watch_children`, for a second party: stands beside one on the same path, whatever becomes of that, for
        as long as this client lives."""
        self._watches.keep_children(path, event)
        return spawn(self._again(lambda: self._watches.arm([], [path])))

    def watch_many(self, paths: Sequence[str], event_of: Callable[[str], Any], since_zxid: int) -> Future[None]:
        """Watches existing znodes in bulk: `event_of(path)` is put whenever one changes or goes. What changed after
        `since_zxid` (that of the first read, taken before it) fires at once, and so does, after a reconnection, what
        changed meanwhile."""
        self._watches.add_many(paths, event_of)
        return spawn(self._watch_many(tuple(paths), since_zxid))

    async def _watch_many(self, paths: Sequence[str], since_zxid: int) -> None:
        # Made again with the zxid it was given: what a reconnection arms by itself starts at the break, which is later.
        armed = [
            spawn(self._again(lambda request=request: self._watches.arm_chunk(since_zxid, request)))  # type: ignore[misc]
            for request in self._watches.requests(paths)
        ]
        for request in armed:
            await request

    def unwatch(self, paths: Sequence[str]) -> None:
        """No event is put for these paths any more, of either kind."""
        self._watches.remove(paths)

    def watched(self) -> frozenset[tuple[str, str]]:
        """All that stands: ("node" or "children", path)."""
        return self._watches.table()

    # -- the controller's writes

    def commit_election(self, operations: Sequence[Write]) -> Future[WriteResults]:
        """Send the multi of an election, the only write of a controller that is not fenced by a leadership.

        It is never repeated: the caller handles MultiFailed and UnknownOutcome (S08).
        """
        return self._send(operations)

    def _send(self, operations: Sequence[Write]) -> Future[WriteResults]:
        """The one way by which a multi leaves this client: fails with RequestTooLarge for one that no server takes."""
        try:
            require_sendable(operations)
        except RequestTooLarge as error:
            return Future.failed(error)
        return self._connection.multi(operations)

    def commit(self, leadership: Leadership, operations: Sequence[Write]) -> Future[WriteResults]:
        """All of `operations` or none, and none unless `leadership` still holds.

        SessionGone, LeaseExpired or RequestTooLarge: nothing was sent. ControllerMoved: nothing was applied and the
        term is over. MultiFailed: nothing was applied; its index is one of `operations`. UnknownOutcome: ask before
        doing anything.
        """
        void = self._void(leadership)
        if void is not None:
            return Future.failed(void)
        return spawn(self._fenced(leadership, self._send(self._with_fence(leadership, operations))))

    def _void(self, leadership: Leadership) -> ZooKeeperError | None:
        if self._connection.session() != leadership.session:
            return SessionGone(leadership.session)
        now_ms, until_ms = self.clock.now_ms(), self.lease_until_ms()
        if now_ms >= until_ms:
            return LeaseExpired(
                f"controller epoch {leadership.epoch}: the lease ran out {now_ms - until_ms:.0f} ms ago;"
                " nothing was sent"
            )
        return None

    def _with_fence(self, leadership: Leadership, operations: Sequence[Write]) -> Sequence[Write]:
        fence = Check(leadership.epoch_path, leadership.epoch_zk_version)
        return FencedSets(fence, operations) if isinstance(operations, StateSets) else (fence, *operations)

    async def _fenced(self, leadership: Leadership, sent: Future[WriteResults]) -> WriteResults:
        try:
            results = await sent
        except MultiFailed as failed:
            if failed.index == 0 and isinstance(failed.error, BadVersion | NoNode):
                raise ControllerMoved(leadership.epoch, leadership.epoch_zk_version, leadership.epoch_path) from failed
            raise MultiFailed(failed.index - 1, failed.error) from failed
        return results[1:]

    async def commit_rows(self, leadership: Leadership, rows: Sequence[SetData]) -> RowsWritten:
        """Sets many znodes, each at the version it was read at, in fenced batches with several in flight. Rows that
        moved are handed back, the others written. Raises as `commit` does, and ValueError for a row of any version."""
        refuse_unversioned(rows)
        return await RowWriter(
            rows, judge_set, lambda batch: self.commit(leadership, batch), self.sync, self.read
        ).write()

    async def create_rows(self, leadership: Leadership, rows: Sequence[Create]) -> RowsWritten:
        """Creates many znodes, as `commit_rows` sets them. Parents come before their children among the rows, and one
        that is there already counts as written, with the version that it has; any other is handed back."""
        refuse_sequential(rows)
        judge = judge_create(parents_among(rows))
        return await RowWriter(rows, judge, lambda batch: self.commit(leadership, batch), self.sync, self.read).write()

    # -- the connection's listener

    def session_state(self, state: SessionState) -> None:
        """Called by the connection, on its thread."""
        ended = self._session
        if state is SessionState.CONNECTED:
            same_session = self._connection.session() == self._session
            self._session = self._connection.session()
            self._put_session_event(state, self._session)
            self._watches.connected(same_session)
            return
        if state is SessionState.SUSPENDED:
            self._watches.connection_broke()
        elif ended:
            self._watches.connection_broke()
            self._former_sessions.append(ended)
            self._session = 0
        self._put_session_event(state, ended)

    def watch_fired(self, event: WatchEvent) -> None:
        """Called by the connection, on its thread."""
        self._watches.fired(event)

    def _put_session_event(self, state: SessionState, session: int) -> None:
        event = self._session_event(state, session)
        if event is not None:
            self._events.put(event)


def _unreadable_row(path: str, zxid: int) -> ReadResult:
    return ReadResult((stand_in(path, NOT_READABLE),), zxid)


def _unreadable_columns(path: str, zxid: int) -> Columns:
    return Columns.of_rows([stand_in(path, NOT_READABLE)], zxid)


def _unreadable_children(_path: str, zxid: int) -> Listing:
    return Listing((None,), zxid)

"""One follower's talk with one leader: a long poll after the other, and what has to be asked before and after it.

A coroutine over one lasting connection, on the broker's thread; none is held while a fetch is under way, which is
nearly always. What answers make of each partition is `fetcher_partitions.py`'s. Rules: Kafka 2.8's
AbstractFetcherThread and ReplicaFetcherThread.
"""

from __future__ import annotations

import traceback

from controller.broker.following.fetcher_partitions import FetcherPartitions, FetcherTools
from controller.broker.following.fetcher_requests import fetch_request
from controller.core.ports import PeerError, PeerUnreachable
from controller.pending import Pending
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import decode_response_body
from controller.protocol.errors import ProtocolError
from controller.protocol.fetch_values import FetchResponse
from controller.zookeeper.drive import drive


class Fetcher(FetcherPartitions):
    """Follows the leader `leader`. `number` tells apart the fetchers to one leader (num.replica.fetchers). Runs from
    `start` to `close`; nothing of it runs after that."""

    __slots__ = (
        "_closed",
        "_fetching",
        "_hurried",
        "_looks_at_all",
        "_refusals",
        "_resting",
        "_started",
    )

    def __init__(self, leader: int, number: int, tools: FetcherTools) -> None:
        super().__init__(leader, number, tools)
        self._resting: Pending[None] | None = None
        self._fetching: Pending[bytes] | None = None
        """A fetch that is not answered: all goes on with its answer."""
        self._refusals = 0
        self._looks_at_all = False
        """Something has changed without the fetcher."""
        self._hurried = False
        """The connection that is about to fail was given up here: the next one need not wait."""
        self._started = False
        self._closed = False

    # -- for whoever gives it partitions

    def start(self) -> None:
        """Takes up what was added, now or with its next request."""
        if not self._started:
            self._started = True
            drive(self._run())
        else:
            self._wake()

    def endpoint_changed(self) -> None:
        """The metadata may have the leader elsewhere. One that the metadata has lost is still talked to."""
        if self._link.moved():
            self._hurried = self._disconnect()
            self._wake()

    def logs_changed(self) -> None:
        """Logs may begin elsewhere, by their own retention: the next request says so."""
        self._looks_at_all = True

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._disconnect()
        self._wake()

    # -- the loop

    def __call__(self) -> None:
        """A fetch was answered."""
        answer, self._fetching = self._fetching, None
        if answer is None or self._closed or not isinstance(answer.error, PeerError):
            drive(self._run(answer))
        else:
            self._go_on_after("debug", str(answer.error))

    def _go_on_after(self, level: str, message: str) -> None:
        if self._given_up(level, message):
            self._rest(self._tools.settings.replica_fetch_backoff_ms).on_done(self._again)
        else:
            drive(self._run())

    def _again(self) -> None:
        """As `_run`, without a coroutine where a fetch is all there is to be done: followers of a broker that is gone
        ask again and again, all of them, until they are told of another leader."""
        if self._closed or self._looks_at_all or not self._queue.is_all_asked:
            drive(self._run())
            return
        try:
            self._fetch()
        except Exception as error:  # noqa: BLE001 - told as that of any round
            self._go_on_after(*self._trouble(error))
            return
        assert self._fetching is not None
        self._fetching.on_done(self)

    async def _run(self, answer: Pending[bytes] | None = None) -> None:
        """Until it is closed, or has a fetch under way. `answer`: that of the fetch before."""
        while not self._closed:
            trouble = await self._round(answer)
            answer = None
            if self._fetching is not None:
                if not self._fetching.done:
                    self._fetching.on_done(self)
                    return
                answer, self._fetching = self._fetching, None
                continue
            if trouble is None or self._closed:
                continue
            if self._given_up(*trouble):
                await self._rest(self._tools.settings.replica_fetch_backoff_ms)

    def _given_up(self, level: str, message: str) -> bool:
        """The connection, for what went wrong with it. Whether the next one has to wait."""
        self._note(level, message)
        self._disconnect()
        hurried, self._hurried = self._hurried, False
        return not hurried

    async def _round(self, answer: Pending[bytes] | None) -> tuple[str, str] | None:
        """What came of the last fetch, or one question about everything that is due, or a rest if nothing is. What went
        wrong, if that ends the connection: a level and a sentence."""
        queue = self._queue
        try:
            if answer is not None:
                await self._fetched(answer.result())
                return None
            if queue.is_empty:
                self._disconnect()
            self._take_up()
            if queue.disagreeing:
                await self._agree(dict(queue.disagreeing))
            elif queue.has_questions:
                self._fetch()
            else:
                await self._rest(self._until_due_ms())
        except Exception as error:  # noqa: BLE001 - told with its place; the partitions wait for the next round
            return self._trouble(error)
        return None

    def _trouble(self, error: Exception) -> tuple[str, str]:
        """What ended a round, while it is caught. What is none of the leader's doing is a fault of ours."""
        if isinstance(error, PeerError | ProtocolError):
            return "debug", str(error)
        self._looks_at_all = True
        return "error", f"failed\n{traceback.format_exc()}"

    def _take_up(self) -> None:
        now_ms = self._tools.clock.now_ms()
        self._queue.take_up(now_ms, self._is_held, self._tools.settings.replica_fetch_backoff_ms)
        if self._looks_at_all:
            self._looks_at_all = False
            self._queue.ask_all()

    def _until_due_ms(self) -> float | None:
        """None: nothing will be."""
        due_ms = self._queue.next_due_ms()
        return None if due_ms is None else max(due_ms - self._tools.clock.now_ms(), 0.0)

    def _rest(self, delay_ms: float | None) -> Pending[None]:
        """Answered after `delay_ms` (None: never), or when somebody wakes the fetcher."""
        resting: Pending[None] = Pending()
        if delay_ms is not None:
            timer = self._tools.clock.call_later(delay_ms, self._wake)
            resting.on_done(timer.cancel)
        self._resting = resting
        return resting

    def _wake(self) -> None:
        resting, self._resting = self._resting, None
        if resting is not None:
            resting.resolve(None)

    # -- fetching

    def _fetch(self) -> None:
        request = fetch_request(
            self._tools.settings, self._session.next(), self._until_due_ms(), self._tools.broker_epoch()
        )
        self._fetching = self._link.sent(ApiKey.FETCH, self._tools.versions.fetch, request)

    async def _fetched(self, answer: bytes) -> None:
        self._link.answered()
        response = decode_response_body(ApiKey.FETCH, self._tools.versions.fetch, answer)
        assert isinstance(response, FetchResponse)
        if not self._session.answered(response):
            self._refusals += 1
            if self._refusals > 1:
                raise PeerUnreachable(f"fetch refused with error {response.error_code}")
            return
        self._refusals = 0
        astray = self._take(response)
        if astray:
            await self._return_to_range(astray)

    def _disconnect(self) -> bool:
        """False if there was no connection."""
        if not self._link.close():
            return False
        self._session.lost()
        return True

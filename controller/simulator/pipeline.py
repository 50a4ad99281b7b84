"""A client's lasting connection to a broker: several requests in flight, answered in their order, each with a deadline.

As real clients have it: when one answer is late or the connection breaks, all that is in flight on it has an unknown
fate, and the connection is not used again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from controller.clock import Timer
from controller.core.ports import PeerError, PeerTimedOut, PeerUnreachable
from controller.pending import Pending
from controller.protocol import ApiKey, MalformedFrame, request_header, response_body
from controller.simulator.network import Address, Network
from controller.simulator.process import Process, ProcessClock
from controller.trace_records import OBSERVER

CONNECT_TIMEOUT_MS = 1_000.0


class _Asked(NamedTuple):
    api_key: ApiKey
    version: int
    correlation_id: int
    answer: Pending[bytes]
    timer: Timer


class Pipeline:
    """Dials when it is made; what is asked before it is accepted waits for that. `broken` once it is of no more use."""

    def __init__(
        self, network: Network, process: Process, clock: ProcessClock, address: Address, client_id: str
    ) -> None:
        self.broken: PeerError | None = None
        self._clock = clock
        self._address = address
        self._client_id = client_id
        self._correlation_id = 0
        self._asked: deque[_Asked] = deque()
        self._waiting: list[bytes] | None = []
        self._deadline = clock.call_later(
            CONNECT_TIMEOUT_MS, lambda: self._break(PeerUnreachable(f"{self}: no connection"))
        )
        self._socket = network.dial(OBSERVER, process, address, self._opened)

    @property
    def in_flight(self) -> int:
        return len(self._asked)

    def ask(self, api_key: ApiKey, version: int, body: bytes, timeout_ms: float) -> Pending[bytes]:
        """The response's body. Fails with PeerTimedOut or PeerUnreachable."""
        answer: Pending[bytes] = Pending()
        if self.broken is not None:
            answer.fail(self.broken)
            return answer
        timer = self._clock.call_later(
            timeout_ms, lambda: self._break(PeerTimedOut(f"{self}: no answer in {timeout_ms:g} ms"))
        )
        self._correlation_id += 1
        self._asked.append(_Asked(api_key, version, self._correlation_id, answer, timer))
        self._send(api_key, version, body)
        return answer

    def send_without_response(self, api_key: ApiKey, version: int, body: bytes) -> None:
        """Send a request that has no response."""
        if self.broken is None:
            self._correlation_id += 1
            self._send(api_key, version, body)

    def _send(self, api_key: ApiKey, version: int, body: bytes) -> None:
        frame = request_header(api_key, version, self._correlation_id, self._client_id) + body
        if self._waiting is None:
            self._socket.send(frame)
        else:
            self._waiting.append(frame)

    def close(self) -> None:
        """What is in flight fails."""
        self._break(PeerUnreachable(f"{self}: closed at this end"))

    def _opened(self, accepted: bool) -> None:
        self._deadline.cancel()
        if not accepted:
            self._break(PeerUnreachable(f"{self}: refused"))
            return
        self._socket.on_frame = self._answered
        self._socket.on_closed = lambda: self._break(PeerUnreachable(f"{self}: the connection broke"))
        waiting, self._waiting = self._waiting or [], None
        for frame in waiting:
            self._socket.send(frame)

    def _answered(self, frame: bytes) -> None:
        if not self._asked:
            self._break(PeerUnreachable(f"{self}: an unexpected response"))
            return
        asked = self._asked[0]
        try:
            correlation_id, body = response_body(asked.api_key, asked.version, frame)
        except MalformedFrame as error:
            self._break(PeerUnreachable(f"{self}: {error}"))
            return
        if correlation_id != asked.correlation_id:
            self._break(PeerUnreachable(f"{self}: answer {correlation_id} to request {asked.correlation_id}"))
            return
        self._asked.popleft()
        asked.timer.cancel()
        asked.answer.resolve(body)

    def _break(self, error: PeerError) -> None:
        if self.broken is not None:
            return
        self.broken = error
        self._deadline.cancel()
        self._socket.close()
        asked, self._asked = self._asked, deque()
        for each in asked:
            each.timer.cancel()
        for each in asked:
            each.answer.fail(error)

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

"""One connection to a broker as those use it who ask: one request at a time, its answer, a deadline."""

from __future__ import annotations

from controller.broker.ports import PeerTimedOut, PeerUnreachable
from controller.pending import Pending
from controller.protocol import ApiKey, MalformedFrame, RequestHeader, request_head, response_body
from controller.simulator.network import Address, Network, SharedFrame, Socket
from controller.simulator.process import Process, ProcessClock

CONNECT_TIMEOUT_MS = 5_000.0
SHARED_FROM_BYTES = 512
"""From here on the end that a request has in common with others is sent as the object that it is."""


class BrokerConnection:
    """Opened by `open`, once. After any error it is closed and of no further use."""

    def __init__(
        self, network: Network, node: int, process: Process, clock: ProcessClock, address: Address, client_id: str
    ) -> None:
        self._network = network
        self._node = node
        self._process = process
        self._clock = clock
        self._address = address
        self.client_id = client_id
        self._socket: Socket | None = None
        self._correlation_id = 0
        self._opening: Pending[None] | None = None
        self._asking: tuple[ApiKey, int, Pending[bytes]] | None = None

    def now_ms(self) -> float:
        return self._clock.now_ms()

    @property
    def usable(self) -> bool:
        """Open, as far as this end knows, and with nothing asked that is unanswered."""
        return (
            self._socket is not None
            and self._socket.open
            and self._asking is None
            and self._opening is not None
            and self._opening.done
        )

    def open(self, timeout_ms: float = CONNECT_TIMEOUT_MS) -> Pending[None]:
        """Fails with PeerUnreachable when refused, or not answered in time."""
        opening: Pending[None] = Pending()
        timer = self._clock.call_later(timeout_ms, lambda: self._break(PeerUnreachable(f"{self}: no connection")))
        opening.on_done(timer.cancel)

        def answered(accepted: bool) -> None:
            if not accepted:
                self._break(PeerUnreachable(f"{self}: refused"))
                return
            socket.on_frame = self._answered
            socket.on_closed = lambda: self._break(PeerUnreachable(f"{self}: the connection broke"))
            opening.resolve(None)

        self._opening = opening
        self._socket = socket = self._network.dial(self._node, self._process, self._address, answered)
        return opening

    def ask(self, api_key: int, version: int, body: bytes, timeout_ms: float, rest: bytes = b"") -> Pending[bytes]:
        """The response's body. `rest` follows the body, and is not copied where it is long. Fails with PeerTimedOut or
        PeerUnreachable."""
        assert self._asking is None, "one request at a time"
        asking: Pending[bytes] = Pending()
        if self._socket is None or not self._socket.open:
            asking.fail(PeerUnreachable(f"{self}: the connection is closed"))
            return asking
        self._correlation_id += 1
        self._asking = (ApiKey(api_key), version, asking)
        header = RequestHeader(ApiKey(api_key), version, self._correlation_id, self.client_id)
        timer = self._clock.call_later(
            timeout_ms, lambda: self._break(PeerTimedOut(f"{self}: no answer in {timeout_ms:g} ms"))
        )
        asking.on_done(timer.cancel)
        head = request_head(header) + body
        self._socket.send(SharedFrame(head, rest) if len(rest) >= SHARED_FROM_BYTES else head + rest)
        return asking

    def close(self) -> None:
        """Fails whatever still waits."""
        self._break(PeerUnreachable(f"{self}: closed at this end"))

    def _answered(self, frame: bytes) -> None:
        if self._asking is None:
            self._break(PeerUnreachable(f"{self}: an answer that nobody asked for"))
            return
        api_key, version, asking = self._asking
        try:
            correlation_id, body = response_body(api_key, version, frame)
        except MalformedFrame as error:
            self._break(PeerUnreachable(f"{self}: {error}"))
            return
        if correlation_id != self._correlation_id:
            self._break(PeerUnreachable(f"{self}: answer {correlation_id} to request {self._correlation_id}"))
            return
        self._asking = None
        asking.resolve(body)

    def _break(self, error: PeerUnreachable | PeerTimedOut) -> None:
        asking, self._asking = self._asking, None
        if self._socket is not None:
            self._socket.close()
        if self._opening is not None and not self._opening.done:
            self._opening.fail(error)
        if asking is not None and not asking[2].done:
            asking[2].fail(error)

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

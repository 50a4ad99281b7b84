"""Connections to brokers over the network in memory: one request at a time, its answer, a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from controller.clock import Future, Timer
from controller.core.channels import PeerTimedOut, PeerUnreachable, ask_once
from controller.machine.process import Process, ProcessClock
from controller.protocol import ApiKey, MalformedFrame, request_header, response_body
from controller.simulator.network import Address, Network, SharedFrame, Socket

CONNECT_TIMEOUT_MS = 5_000.0
SHARED_FROM_BYTES = 512
"""From here on the end that a request has in common with others is sent as the object that it is."""


_API_KEYS = {int(key): key for key in ApiKey}


@dataclass(slots=True, eq=False)
class BrokerConnection:
    """Opened by `open`, once. After any error it is closed and of no further use."""

    _network: Network
    _node: int
    _process: Process
    _clock: ProcessClock
    _address: Address
    client_id: str
    _socket: Socket | None = None
    _begun: bool = False
    _correlation_id: int = 0
    _opening: Future[None] | _First | None = None
    _opened: bool = False
    _asking: Future[bytes] | None = None
    _api_key: ApiKey = ApiKey.PRODUCE  # of what is asked, as the next two
    _api_version: int = 0
    _timeout_ms: float = 0.0
    _timer: Timer | None = None  # of what is waited for: the connection, then an answer

    def now_ms(self) -> float:
        return self._clock.now_ms()

    @property
    def usable(self) -> bool:
        """Open, as far as this end knows, and with nothing asked that is unanswered."""
        return self._socket is not None and self._socket.open and self._asking is None and self._opened

    def open(self, timeout_ms: float = CONNECT_TIMEOUT_MS) -> Future[None]:
        """Fails with PeerUnreachable when refused, or not answered in time."""
        opening: Future[None] = Future()
        self._open(opening, timeout_ms)
        return opening

    def _open(self, opening: Future[None] | _First, timeout_ms: float) -> None:
        self._timer = self._clock.call_later(timeout_ms, self)
        self._opening = opening
        self._begun = True
        self._socket = self._network.open(self._node, self._process, self._address, self)

    def __call__(self) -> None:
        """The time is over for what is waited for."""
        if self._opening is not None:
            self._break(PeerUnreachable(f"{self}: no connection"))
        else:
            self._break(PeerTimedOut(f"{self}: no answer in {self._timeout_ms:g} ms"))

    def answered(self, accepted: bool) -> None:
        if not accepted:
            self._broke("the connection broke" if self._opened else "refused")
            return
        opening, self._opening = self._opening, None
        assert opening is not None
        self._opened = True
        self._stop_timer()
        opening.resolve(None)

    def _broke(self, how: str) -> None:
        self._break(PeerUnreachable(f"{self}: {how}"))

    def open_and_ask(self, api_key: int, version: int, body: bytes, timeout_ms: float) -> Future[bytes]:
        """`open`, then `ask`, in so much time for both."""
        asking: Future[bytes] = Future()
        first = _First(self, api_key, version, body, timeout_ms, asking, self.now_ms())
        self._open(first, min(timeout_ms, CONNECT_TIMEOUT_MS))
        return asking

    def ask(
        self,
        api_key: int,
        version: int,
        body: bytes,
        timeout_ms: float,
        rest: bytes = b"",
        asking: Future[bytes] | None = None,
    ) -> Future[bytes]:
        """The response's body, into `asking` if that is given. `rest` follows the body, and is not copied where it is
        long. Fails with PeerTimedOut or PeerUnreachable."""
        assert self._asking is None, "one request at a time"
        asking = Future() if asking is None else asking
        if self._socket is None or not self._socket.open:
            asking.fail(PeerUnreachable(f"{self}: the connection is closed"))
            return asking
        self._correlation_id += 1
        self._asking, self._api_key, self._api_version = asking, _API_KEYS[api_key], version
        self._timeout_ms = timeout_ms
        self._timer = self._clock.call_later(timeout_ms, self)
        head = request_header(self._api_key, version, self._correlation_id, self.client_id) + body
        self._socket.send(SharedFrame(head, rest) if len(rest) >= SHARED_FROM_BYTES else head + rest)
        return asking

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def request(
        self, api_key: int, api_version: int, body: bytes, timeout_ms: float, rest: bytes = b""
    ) -> Future[bytes]:
        """As a `PeerConnection`: opened with the first of them, if it was not before."""
        if self._begun:
            return self.ask(api_key, api_version, body, timeout_ms, rest)
        assert not rest, "expected `open` before a request in two parts"
        return self.open_and_ask(api_key, api_version, body, timeout_ms)

    def close(self) -> None:
        """Fails whatever still waits."""
        self._begun = True
        if self._asking is not None or self._opening is not None:
            self._break(PeerUnreachable(f"{self}: closed at this end"))
        elif self._socket is not None:
            self._socket.close()

    def arrived(self, frame: bytes) -> None:
        if self._asking is None:
            self._break(PeerUnreachable(f"{self}: an unexpected response"))
            return
        try:
            correlation_id, body = response_body(self._api_key, self._api_version, frame)
        except MalformedFrame as error:
            self._break(PeerUnreachable(f"{self}: {error}"))
            return
        if correlation_id != self._correlation_id:
            self._break(PeerUnreachable(f"{self}: answer {correlation_id} to request {self._correlation_id}"))
            return
        asking, self._asking = self._asking, None
        self._stop_timer()
        asking.resolve(body)

    def _break(self, error: PeerUnreachable | PeerTimedOut) -> None:
        asking, self._asking = self._asking, None
        opening, self._opening = self._opening, None
        if self._socket is not None:
            self._socket.close()
        self._stop_timer()
        if opening is not None:
            opening.fail(error)
        if asking is not None:
            asking.fail(error)

    def __str__(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


@dataclass(slots=True, eq=False)
class _First:
    """What is asked once the connection is there, and takes what becomes of it in place of a `Future`."""

    _connection: BrokerConnection
    _api_key: int
    _version: int
    _body: bytes
    _timeout_ms: float
    _asking: Future[bytes]
    _began_ms: float

    def resolve(self, _opened: None) -> None:
        left_ms = self._timeout_ms - (self._connection.now_ms() - self._began_ms)
        self._connection.ask(self._api_key, self._version, self._body, left_ms, asking=self._asking)

    def fail(self, error: BaseException) -> None:
        self._asking.fail(error)


Connect = Callable[[Address], BrokerConnection]
"""A new connection of this process's to an address, not opened yet."""


class SimulatedPeers:
    """Requests to other brokers: single ones, over a connection each, and lasting connections."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        return ask_once(self.connect(host, port), api_key, api_version, body, timeout_ms)

    def connect(self, host: str, port: int, client_id: str | None = None) -> BrokerConnection:
        connection = self._connect(_address(host, port))
        if client_id is not None:
            connection.client_id = client_id
        return connection


@lru_cache(maxsize=1_024)
def _address(host: str, port: int) -> Address:
    """One object for all that hold it."""
    return host, port

"""Which requests of a controller a broker believes: by their listener, and by an epoch that ZooKeeper confirms.

A broker refuses every controller whose epoch is below the highest one that it has seen. Without a check, one request
with epoch 2^31-1 from any client would make it refuse the real controller for ever. So a request with an epoch above
the confirmed one waits until /controller_epoch has been read. At or below what is there, it is admitted; above it, also
after a sync, no controller was elected in that epoch, and the request is refused with STALE_CONTROLLER_EPOCH. If the
znode can't be read the connection is closed, and a controller sends its request again.

Markers of transactions carry the epoch of a coordinator, and a partition refuses lower ones of the same producer. One
with epoch 2^31-1 would refuse the coordinator for ever. Where nothing else says who may send markers, they are taken
from the brokers' own listener alone.

One look at ZooKeeper is under way at a time, and decides for all requests that came before it began.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import msgspec

from controller.broker.request_context import RequestContext, on_broker_thread
from controller.broker.security.principal import Requester
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, spawn
from controller.protocol.codec import ApiKey
from controller.protocol.control import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from controller.protocol.errors import ErrorCode
from controller.trace import Noted, RequestRefused, Trace
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_controller_epoch
from controller.zookeeper.operations import ZooKeeperError

ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

CONTROL_APIS = {
    ApiKey.LEADER_AND_ISR: "LeaderAndIsr",
    ApiKey.UPDATE_METADATA: "UpdateMetadata",
    ApiKey.STOP_REPLICA: "StopReplica",
}
"""The requests of a controller, with the names that the log has for them."""
WAITING_MAX = 100
"""Requests that wait for ZooKeeper; the connection of another one is closed."""

ReadEpoch: TypeAlias = Callable[[int], Coroutine[Any, Any, int]]
"""(wanted): the epoch in ZooKeeper, which is up to date if it is below `wanted`. Raises ZooKeeperError."""


async def read_controller_epoch(client: ZooKeeperClient, wanted: int) -> int:
    """Return /controller_epoch, 0 if there is none. A server that lags may show an earlier one: below `wanted` it is
    read again after a sync."""
    found = await _read(client)
    if found < wanted:
        await client.sync(paths.CONTROLLER_EPOCH)
        found = await _read(client)
    return found


async def _read(client: ZooKeeperClient) -> int:
    (row,) = (await client.read([paths.CONTROLLER_EPOCH])).rows
    return 0 if row is None else decode_controller_epoch(row.path, row.data)


def listeners_of(settings: BrokerSettings, *, authorizes: bool) -> Mapping[ApiKey, str]:
    """The one listener by which a request may come. `authorizes`: ACLs say who may send markers, on any listener."""
    found: dict[ApiKey, str] = {}
    if settings.control_plane_listener is not None:
        found = dict.fromkeys(CONTROL_APIS, settings.control_plane_listener)
    if not authorizes and len(settings.listeners) > 1:
        found[ApiKey.WRITE_TXN_MARKERS] = settings.inter_broker_listener
    return found


class _Waiting(msgspec.Struct):
    exchange: RequestContext
    request: ControlRequest
    go_on: Callable[[], None]


class ControlRequests:
    """Admits the requests of a controller. `listeners`: those of `listeners_of`. Without `read_epoch` every epoch is
    believed. All of it runs on the broker's thread."""

    def __init__(
        self, listeners: Mapping[ApiKey, str], read_epoch: ReadEpoch | None, clock: Clock, trace: Trace
    ) -> None:
        self.listeners = listeners
        self._read_epoch = read_epoch
        self._clock = clock
        self._trace = trace
        self._waiting: list[_Waiting] = []
        self._looking = False
        self.confirmed = 0
        """The highest epoch that ZooKeeper has shown."""

    def refuses(self, client: Requester, exchange: RequestContext, request: Any) -> bool:
        """Answer a request that came by another listener than the one for its API."""
        key = exchange.header.api_key
        listener = self.listeners.get(key, client.listener)
        if client.listener == listener:
            return False
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        api = CONTROL_APIS.get(key)
        if api is None:
            self._note(
                "warning", f"WriteTxnMarkers refused: {client} sent it; expected the brokers' listener {listener}"
            )
            exchange.refuse(request, error)
        else:
            reason = f"{client} sent it; expected listener {listener} (control.plane.listener.name)"
            self._refuse(api, exchange, request, error, reason)
        return True

    def admit(self, exchange: RequestContext, request: ControlRequest, go_on: Callable[[], None]) -> None:
        """Call `go_on` once, at once or later, or answer the request."""
        if self._read_epoch is None or request.controller_epoch <= self.confirmed:
            go_on()
        elif len(self._waiting) >= WAITING_MAX:
            self._note("warning", f"connection closed: {WAITING_MAX} requests wait for {paths.CONTROLLER_EPOCH}")
            exchange.close()
        else:
            self._waiting.append(_Waiting(exchange, request, go_on))
            self._look()

    def _look(self) -> None:
        if self._looking or not self._waiting or self._read_epoch is None:
            return
        self._looking = True
        asking, self._waiting = self._waiting, []
        wanted = max(one.request.controller_epoch for one in asking)
        found = spawn(self._read_epoch(wanted))

        def done() -> None:
            self._looking = False
            try:
                epoch = found.result()
            except ZooKeeperError as error:
                self._note("warning", f"connection closed: a new controller epoch is not confirmed: {error}")
                for one in asking:
                    one.exchange.close()
            else:
                self._decide(asking, epoch)
            self._look()

        on_broker_thread(found, self._clock, done)

    def _decide(self, asking: list[_Waiting], epoch: int) -> None:
        self.confirmed = max(self.confirmed, epoch)
        for one in asking:
            if one.request.controller_epoch <= self.confirmed:
                one.go_on()
                continue
            api = CONTROL_APIS[one.exchange.header.api_key]
            reason = (
                f"controller {one.request.controller_id} claims epoch {one.request.controller_epoch},"
                f" {paths.CONTROLLER_EPOCH} is {epoch}"
            )
            self._refuse(api, one.exchange, one.request, ErrorCode.STALE_CONTROLLER_EPOCH, reason)

    def _refuse(
        self, api: str, exchange: RequestContext, request: ControlRequest, error: ErrorCode, reason: str
    ) -> None:
        self._trace.emit(RequestRefused(api, request.controller_epoch, error, reason))
        self._note("warning", f"{api} refused: {reason}")
        exchange.refuse(request, error)

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))

"""A broker's registration in ZooKeeper, and its controlled shutdown.

`Lifecycle` creates the expected tree, reads the cluster's id, and registers in each session: coroutines over
`BrokerWrites`, the only unfenced writes there are. It runs where the controller's events run, so that a registration
and an election of one node never overlap.

`controlled_shutdown` asks the controller to move this broker's leaderships, a bounded number of times. The controller
is the one that the metadata names: ZooKeeper is not asked, so that a shutdown does not hang while ZooKeeper is
unavailable (S20, KAFKA-9189).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Protocol

from controller.broker.metadata import BrokerIdentity, MetadataCache
from controller.broker.ports import Peers
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Future
from controller.core.channels import PeerError
from controller.protocol.codec import ApiKey, control_versions, decode_response_body, encode_request_body
from controller.protocol.control import (
    SHUTDOWN_CHECKED,
    SHUTDOWN_FORCED,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.trace import BrokerRegistered, Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerIdInUse, BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import BrokerEndpoint, BrokerRegistration, encode_broker_registration
from controller.zookeeper.operations import DamagedZnode, InvalidACL, NoAuth, UnsupportedOperation, ZooKeeperError

START_RETRY_MS = 1_000.0


class InconsistentClusterId(ZooKeeperError):
    """The log directories belong to another cluster than the one in ZooKeeper (Kafka: InconsistentClusterIdException).
    `found` is None where ZooKeeper has no cluster id."""

    def __init__(self, settings: BrokerSettings, found: str | None) -> None:
        there = "has no cluster id: it is new, or has lost its data" if found is None else f"is of cluster {found}"
        restore = (
            f" If it is the right ZooKeeper and its data is lost, restore a backup of it, or create {paths.CLUSTER_ID}"
            f' with {{"version":"1","id":"{settings.cluster_id}"}} and then the topics.'
            if found is None
            else ""
        )
        super().__init__(
            f"the log directories ({', '.join(settings.log_dirs)}) are of cluster {settings.cluster_id}, as"
            f" meta.properties says, but ZooKeeper at {settings.zookeeper_connect} {there}. Set zookeeper.connect to"
            f" the ZooKeeper of cluster {settings.cluster_id}, or log.dirs to directories of this cluster.{restore}"
            " To use the directories here although their records are another's, remove meta.properties from each."
        )


HOPELESS = (BrokerIdInUse, InconsistentClusterId, DamagedZnode, NoAuth, InvalidACL, UnsupportedOperation)
"""What another attempt would only meet again."""


class RandomSource(Protocol):
    """What of `random.Random` is needed."""

    def getrandbits(self, count: int, /) -> int: ...

    def randrange(self, stop: int, /) -> int: ...

    def random(self) -> float: ...


@dataclass(eq=False)
class Lifecycle:
    """`registered` is answered with the broker epoch of the first registration, or with what made it hopeless."""

    _settings: BrokerSettings
    _identity: BrokerIdentity
    _client: ZooKeeperClient
    _clock: Clock
    _trace: Trace
    _rng: RandomSource

    def __post_init__(self) -> None:
        self._writes = BrokerWrites(self._client)
        self._data: tuple[int, bytes] | None = None
        self._stopping = False
        self.registered: Future[int] = Future()

    def stop(self) -> None:
        """No attempt to start is made any more."""
        self._stopping = True

    async def start(self) -> None:
        """Do everything that precedes the first election, with retries while ZooKeeper is unavailable (KAFKA-5473).

        Raises an error that no retry can fix."""
        while not self._stopping:
            try:
                await self._start()
                return
            except HOPELESS as error:
                self.registered.fail(error)
                raise
            except ZooKeeperError as error:
                self._trace.emit(Noted("warning", f"not registered yet: {error}"))
            await self._clock.sleep(START_RETRY_MS)

    async def _start(self) -> None:
        await self._check_cluster_id()  # before anything is written to a ZooKeeper that may be another cluster's
        await self._writes.ensure_persistent_paths()
        self._identity.cluster_id = await self._writes.cluster_id(self._new_cluster_id())
        await self.register()

    async def _check_cluster_id(self) -> None:
        if self._settings.cluster_id is not None:
            found = await self._writes.kept_cluster_id()
            if found != self._settings.cluster_id:
                raise InconsistentClusterId(self._settings, found)

    async def register(self) -> int:
        """Registers in the present session; its broker epoch. Safe to repeat: within a session the data stays as
        it was first written. Raises WrongCluster if ZooKeeper was wiped, or replaced, since the broker started."""
        session = self._client.session()
        broker_epoch = await self._writes.register_broker(
            self._settings.broker_id, self._registration(session), self._identity.cluster_id
        )
        if broker_epoch != self._identity.broker_epoch:
            self._identity.broker_epoch = broker_epoch
            self._trace.emit(BrokerRegistered(self._settings.broker_id, broker_epoch, session))
        if not self.registered.done:
            self.registered.resolve(broker_epoch)
        return broker_epoch

    def _registration(self, session: int) -> bytes:
        if self._data is None or self._data[0] != session:
            self._data = (session, registration_data(self._settings, self._clock.wall_ms()))
        return self._data[1]

    def _new_cluster_id(self) -> str:
        """Kafka's form: the 16 bytes of a version 4 UUID in URL-safe base64 without padding."""
        bits = self._rng.getrandbits(128)
        bits = (bits & ~(0xF << 76)) | (4 << 76)
        bits = (bits & ~(0x3 << 62)) | (2 << 62)
        return base64.urlsafe_b64encode(bits.to_bytes(16, "big")).rstrip(b"=").decode()


def registration_data(settings: BrokerSettings, timestamp_ms: int) -> bytes:
    """Return /brokers/ids/N as a Kafka broker of that inter-broker protocol writes it: with features from 2.7 on."""
    endpoints = tuple(
        BrokerEndpoint(listener.name, settings.protocol(listener.name), listener.host, listener.port)
        for listener in settings.advertised
    )
    with_features = control_versions(settings.inter_broker_protocol).feature_znode
    registration = BrokerRegistration(
        settings.broker_id, endpoints, rack=settings.rack, timestamp_ms=timestamp_ms, version=5 if with_features else 4
    )
    return encode_broker_registration(registration)


SHOWN = 5
"""How many partitions that keep it the log names."""
LOOK_MS = 50.0
"""How often a waiting broker looks whether its metadata names another controller."""


async def controlled_shutdown(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    metadata: MetadataCache,
    peers: Peers,
    clock: Clock,
    trace: Trace,
) -> str | None:
    """None once the controller has said that this broker may go; else what was wrong with the last attempt. Takes at
    most `controlled_shutdown_attempts` times `controller_socket_timeout_ms` and the backoffs between."""
    failure: str | None = None
    for attempt in range(1, settings.controlled_shutdown_attempts + 1):
        failure = await _ask(settings, identity, metadata, peers)
        if failure is None:
            trace.emit(Noted("info", "controlled shutdown: everything was moved"))
            return None
        trace.emit(
            Noted("warning", f"controlled shutdown, {attempt} of {settings.controlled_shutdown_attempts}: {failure}")
        )
        if attempt < settings.controlled_shutdown_attempts:
            await _pause(settings, metadata, clock)
    return failure


async def _pause(settings: BrokerSettings, metadata: MetadataCache, clock: Clock) -> None:
    """The backoff, or less of it if the metadata names another controller meanwhile: that one has not been asked."""
    asked = metadata.snapshot.controller_id
    until_ms = clock.now_ms() + settings.controlled_shutdown_backoff_ms
    while clock.now_ms() < until_ms and metadata.snapshot.controller_id == asked:
        await clock.sleep(min(LOOK_MS, until_ms - clock.now_ms()))


async def _ask(settings: BrokerSettings, identity: BrokerIdentity, metadata: MetadataCache, peers: Peers) -> str | None:
    """One request; what was wrong in words, None if nothing was."""
    snapshot = metadata.snapshot
    endpoint = snapshot.endpoint(snapshot.controller_id, settings.inter_broker_listener)
    if endpoint is None:
        return f"controller {snapshot.controller_id} has no address here"
    version = control_versions(settings.inter_broker_protocol).controlled_shutdown
    manner = SHUTDOWN_CHECKED if settings.shutdown_check else SHUTDOWN_FORCED
    request = ControlledShutdownRequest(settings.broker_id, identity.broker_epoch, manner)
    body = encode_request_body(ApiKey.CONTROLLED_SHUTDOWN, version, request)
    timeout_ms = settings.controller_socket_timeout_ms
    try:
        answer = await peers.request(
            endpoint.host, endpoint.port, ApiKey.CONTROLLED_SHUTDOWN, version, body, timeout_ms
        )
        response = decode_response_body(ApiKey.CONTROLLED_SHUTDOWN, version, answer)
    except (PeerError, ProtocolError) as error:
        return f"controller {snapshot.controller_id}: {error}"
    assert isinstance(response, ControlledShutdownResponse)
    if response.error_code != ErrorCode.NONE:
        return f"controller {snapshot.controller_id} answered with error {response.error_code}"
    if response.remaining_partitions:
        return _in_words(response)
    return None


def _in_words(response: ControlledShutdownResponse) -> str:
    """By name, a few of them; a controller of Kafka's gives no reason."""
    names = [f"{one.topic_name}-{one.partition_index}" for one in response.remaining_partitions]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    said = f"{len(names)} partitions are still this broker's: {', '.join(names[:SHOWN])}{more}"
    return f"{said}; {response.reason}" if response.reason else said

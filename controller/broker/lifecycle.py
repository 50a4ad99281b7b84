"""The broker's life in ZooKeeper: the tree it expects, the cluster's id, its registration in each session.

Coroutines over `BrokerWrites`, the only unfenced writes there are. Runs where the controller's events run, so that a
registration and an election of one node never overlap.
"""

from __future__ import annotations

import base64
from typing import Protocol

from controller.broker.broker import Identity
from controller.broker.configs.settings import BrokerSettings
from controller.clock import Clock
from controller.pending import Pending
from controller.protocol.versions import control_versions
from controller.trace import BrokerRegistered, Noted, Trace
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerIdInUse, BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import BrokerEndpoint, BrokerRegistration, encode_broker_registration
from controller.zookeeper.errors import DamagedZnode, InvalidACL, NoAuth, UnsupportedOperation, ZooKeeperError

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


class RandomBits(Protocol):
    """What of `random.Random` an id needs."""

    def getrandbits(self, count: int, /) -> int: ...


class Lifecycle:
    """`registered` is answered with the broker epoch of the first registration, or with what made it hopeless."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: Identity,
        client: ZooKeeperClient,
        clock: Clock,
        trace: Trace,
        rng: RandomBits,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._client = client
        self._writes = BrokerWrites(client)
        self._clock = clock
        self._trace = trace
        self._rng = rng
        self._data: tuple[int, bytes] | None = None
        self._stopping = False
        self.registered: Pending[int] = Pending()

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
        settings.broker_id,
        endpoints,
        rack=settings.rack,
        timestamp_ms=timestamp_ms,
        version=5 if with_features else 4,
    )
    return encode_broker_registration(registration)

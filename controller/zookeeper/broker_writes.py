"""The writes of a broker's own: the complete list of what is written to ZooKeeper without being controller.

`BrokerWrites`: its registration, the tree that a first start makes, the cluster's id, a generated broker id.
`BrokerDataWrites`, for a broker that stores records: blocks of producer ids, changed configs with their notifications
(deleted when all brokers have read them), notifications of failed log directories, and below inter-broker protocol 2.7
the ISRs of partitions that this broker leads, with their notifications.

Each handles its own unknown outcomes, and so does `TopicWrites`, which is fenced: a topic's creation and expansion, the
request to delete one. Nothing else in the project writes past the fence, and the controller's handlers are given
`TopicWrites` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from controller.clock import Future
from controller.zookeeper import paths
from controller.zookeeper.client import LONGEST_DELAY_MS, Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    ClusterId,
    ConfigChange,
    ConfigZnode,
    IsrChangeZnode,
    LogDirEvent,
    PartitionStateZnode,
    ProducerIdBlock,
    decode_cluster_id,
    decode_config,
    decode_partition_state,
    decode_producer_id_block,
    encode_cluster_id,
    encode_config,
    encode_config_change,
    encode_isr_change_notification,
    encode_log_dir_event,
    encode_partition_state,
    encode_producer_id_block,
)
from controller.zookeeper.operations import (
    ANY_VERSION,
    NOT_READABLE,
    BadVersion,
    Check,
    Create,
    DamagedZnode,
    Delete,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    SetData,
    Stat,
    UnknownOutcome,
    Write,
    WriteResults,
    WrongCluster,
    Znode,
    ZooKeeperError,
)

T = TypeVar("T")

RESERVED_BROKER_MAX_ID = 1000
"""Kafka's reserved.broker.max.id: generated ids start above it."""
OTHER_SESSION_TIMEOUTS = 1.5
"""How long another session's registration is waited for, in session timeouts: its timeout (taken to be ours) and a
tick, of which a server's shortest timeout has two."""
HELD_LOOKS = 20
"""Looks at another's registration in that time, at least."""
REGISTRATION_ATTEMPTS = 200


class BrokerIdInUse(ZooKeeperError):
    """/brokers/ids/N stayed another session's for longer than that session could have outlived its broker."""

    def __init__(self, broker_id: int, owner: int, waited_ms: float, path: str = "") -> None:
        super().__init__(
            f"broker id {broker_id} is in use: session 0x{owner:x} still holds {path or paths.broker(broker_id)}"
            f" after {waited_ms:.0f} ms"
        )
        self.broker_id = broker_id
        self.owner = owner


class Undecided(ZooKeeperError):
    """Somebody else's change came between the look and the write, or the outcome is not known: look again. Its cause
    says which, and is what is raised when looking again has been enough."""


class _HeldByAnother(ZooKeeperError):
    """The registration is another session's, which may still end."""


class BrokerWrites:
    """One a node. Every method can be called again after it failed; each raises SessionGone if its session ends."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client

    def _multi(self, operations: Sequence[Write]) -> Future[WriteResults]:
        # The client offers no plain write, so that nothing else has one: this room alone reaches below it.
        return self._client._send(operations)

    # -- the tree

    async def ensure_persistent_paths(self) -> None:
        """Creates what is missing of the tree that a 2.8 broker expects, parents first, each holding nothing."""
        await self._ensure(paths.PERSISTENT_PATHS)

    async def ensure(self, wanted: Sequence[str]) -> None:
        """Creates what is missing of these znodes, parents first, each holding nothing: for a tree that is not
        Kafka's."""
        await self._ensure(wanted)

    async def kept_cluster_id(self) -> str | None:
        """Return the id in /cluster/id, or None if there is no such znode. Raises DamagedZnode if it holds no id."""
        row = await self._look(paths.CLUSTER_ID)
        return None if row is None else decode_cluster_id(row.path, row.data).id

    async def cluster_id(self, proposed: str) -> str:
        """The cluster's id: what /cluster/id holds, or `proposed`, which is then written there. DamagedZnode if it
        holds something else than an id."""

        async def attempt() -> str:
            kept = await self.kept_cluster_id()
            if kept is not None:
                return kept
            await self._ensure((paths.CLUSTER,))
            await self._write([Create(paths.CLUSTER_ID, encode_cluster_id(ClusterId(proposed)))], NodeExists)
            return proposed

        return await self._decide(attempt)

    async def _ensure(self, wanted: Sequence[str]) -> None:
        async def attempt() -> None:
            reading = await self._client.read(wanted)
            missing = [path for path, row in zip(wanted, reading.rows, strict=True) if row is None]
            sent = [self._multi([Create(path, None)]) for path in missing]
            for answer in sent:
                await self._settled(answer, NodeExists, NoNode)

        await self._decide(attempt)

    # -- the broker itself

    async def register_broker(
        self, broker_id: int, data: bytes, cluster_id: str | None = None, ids: str = paths.BROKER_IDS
    ) -> int:
        """Register this session's broker incarnation below `ids`, and return its broker epoch, the znode's czxid.

        Created empty and then set, in one multi, as Kafka 2.8 does (so its version is 1). A node of this session's is
        kept, with `data`; one of a former session of this client's is deleted and made anew (KAFKA-7165); another's is
        waited for until its session must have ended (its timeout, taken to be ours, and a tick), then BrokerIdInUse. A
        connection that breaks meanwhile begins that time anew: ZooKeeper may have elected, and a new leader gives every
        session its whole timeout again.

        Raises WrongCluster, and writes nothing, if ZooKeeper holds another cluster than `cluster_id`, or none any more.
        """
        path = paths.child(ids, str(broker_id))
        clock = self._client.clock
        began_ms, breaks = clock.now_ms(), self._client.breaks
        patience_ms = self._client.connection.session_timeout_ms * OTHER_SESSION_TIMEOUTS

        async def attempt() -> int:
            nonlocal began_ms, breaks
            row, id_row, parent = await self._look_at([path, paths.CLUSTER_ID, ids])
            if cluster_id is not None:
                _refuse_another_cluster(cluster_id, id_row, parent)
            if breaks != self._client.breaks:
                began_ms, breaks = clock.now_ms(), self._client.breaks
            if row is None:
                return await self._create_registration([], path, data)
            owner = row.stat.ephemeral_owner
            if owner == self._client.session():
                return await self._keep_registration(row, data)
            if owner in self._client.former_sessions():
                return await self._create_registration([Delete(path, row.stat.version)], path, data)
            waited_ms = clock.now_ms() - began_ms
            if waited_ms >= patience_ms:
                raise BrokerIdInUse(broker_id, owner, waited_ms, path)
            raise _HeldByAnother(path)

        return await self._client.retrier.call(
            attempt,
            over=(Undecided, _HeldByAnother),
            attempts=REGISTRATION_ATTEMPTS,
            longest_delay_ms=min(patience_ms / HELD_LOOKS, LONGEST_DELAY_MS),
        )

    async def _create_registration(self, before: Sequence[Write], path: str, data: bytes) -> int:
        creation = [*before, Create(path, None, ephemeral=True), SetData(path, data, 0)]
        results = await self._write(creation, NodeExists, NoNode, BadVersion)
        stat = results[-1]
        assert isinstance(stat, Stat)
        return stat.czxid

    async def _keep_registration(self, row: Znode, data: bytes) -> int:
        if row.data != data:
            await self._write([SetData(row.path, data, row.stat.version)], NoNode, BadVersion)
        return row.stat.czxid

    async def generate_broker_id(self) -> int:
        """An id that no broker was given before: the version that /brokers/seqid gets by a write, above
        `RESERVED_BROKER_MAX_ID`. An unknown outcome only skips an id."""

        async def attempt() -> int:
            await self._ensure((paths.BROKERS, paths.BROKER_SEQUENCE))
            results = await self._write([SetData(paths.BROKER_SEQUENCE, b"", ANY_VERSION)], NoNode)
            stat = results[0]
            assert isinstance(stat, Stat)
            return RESERVED_BROKER_MAX_ID + stat.version

        return await self._decide(attempt)

    async def _put(self, path: str, data: bytes) -> None:
        """Sets the znode, or creates it. Safe to make again."""
        row = await self._look(path)
        write = Create(path, data) if row is None else SetData(path, data, ANY_VERSION)
        await self._write([write], NodeExists, NoNode)

    # -- one look, one write, and what comes between

    async def _look(self, path: str) -> Znode | None:
        """Read the current value, after a sync so that the outcome of an earlier write is decided."""
        return (await self._look_at([path]))[0]

    async def _look_at(self, wanted: Sequence[str]) -> tuple[Znode | None, ...]:
        await self._client.sync(wanted[0])
        rows = (await self._client.read(wanted)).rows
        for row in rows:
            if row is not None and row.data == NOT_READABLE:
                raise NoAuth(row.path)  # a decision needs what the znode holds
        return rows

    async def _write(self, operations: Sequence[Write], *passing: type[ZooKeeperError]) -> WriteResults:
        """The results, or Undecided for an unknown outcome or one of the `passing` errors, which a new look explains.
        Any other failing operation's own error is raised."""
        return await self._outcome(self._multi(operations), passing)

    async def _settled(self, sent: Future[WriteResults], *passing: type[ZooKeeperError]) -> None:
        await self._outcome(sent, passing)

    async def _outcome(self, sent: Future[WriteResults], passing: tuple[type[ZooKeeperError], ...]) -> WriteResults:
        try:
            return await sent
        except UnknownOutcome as error:
            raise Undecided(str(error)) from error
        except MultiFailed as failed:
            if isinstance(failed.error, passing):
                raise Undecided(str(failed)) from failed.error
            raise failed.error from failed

    async def _decide(self, attempt: Callable[[], Coroutine[Any, None, T]]) -> T:
        try:
            return await self._client.retrier.call(attempt, over=(Undecided,))
        except Undecided as undecided:
            raise undecided.__cause__ or undecided from None


class TopicWrites(BrokerWrites):
    """What a controller writes about topics because a client asked for it. Fenced: while a controller that was deposed
    stands still, a topic may be deleted and created again, at the same version."""

    def __init__(self, client: ZooKeeperClient, leadership: Leadership) -> None:
        super().__init__(client)
        self._leadership = leadership

    def _multi(self, operations: Sequence[Write]) -> Future[WriteResults]:
        return self._client.commit(self._leadership, operations)

    async def create_topic(self, topic: str, topic_data: bytes, config_data: bytes) -> None:
        """Writes the topic's config, then its znode, which is what a controller looks for. NodeExists if the topic is
        there (its config is then left as it was)."""
        path = paths.topic(topic)
        ours = False

        async def attempt() -> None:
            nonlocal ours
            row = await self._look(path)
            if row is not None:
                if ours and row.data == topic_data:
                    return
                raise NodeExists(path)
            await self._put(paths.config_topic(topic), config_data)
            ours = True
            await self._write([Create(path, topic_data)], NodeExists)

        await self._decide(attempt)

    async def add_partitions(self, topic: str, topic_data: bytes, version: int) -> None:
        """Replaces the topic's znode, which was read at `version`, by one with more partitions. BadVersion if it has
        changed since, NoNode if it is gone."""
        path = paths.topic(topic)

        async def attempt() -> None:
            row = await self._look(path)
            if row is None:
                raise NoNode(path)
            if row.stat.version == version + 1 and row.data == topic_data:
                return
            if row.stat.version != version:
                raise BadVersion(path)
            await self._write([SetData(path, topic_data, version)], BadVersion, NoNode)

        await self._decide(attempt)

    async def ask_to_delete_topic(self, topic: str) -> None:
        """Leaves the request that a controller looks for. NoNode if there is no such topic, NodeExists if it was asked
        for already (by a write of this call whose outcome was unknown, perhaps)."""
        asking = (Check(paths.topic(topic), ANY_VERSION), Create(paths.delete_topic(topic), None))

        async def attempt() -> None:
            await self._write(asking)

        await self._decide(attempt)


def _refuse_another_cluster(expected: str, row: Znode | None, parent: Znode | None) -> None:
    """A lost /cluster/id alone is not enough: /brokers/ids, `parent`, says that the cluster is still there."""
    if row is None:
        if parent is None:
            raise WrongCluster(expected, None)
        return
    try:
        found = decode_cluster_id(row.path, row.data).id
    except DamagedZnode:
        return
    if found != expected:
        raise WrongCluster(expected, found)


PRODUCER_IDS_A_BLOCK = 1_000
PARTITIONS_A_NOTICE = 3_000
"""So that the longest names stay below a znode's size limit, 1 MiB."""
LAST_PRODUCER_ID = 2**63 - 1

Config = Mapping[str, str]


class ProducerIdsExhausted(ZooKeeperError):
    """No block is left below 2**63."""


class BrokerDataWrites(BrokerWrites):
    """One a node. As `BrokerWrites`: every method can be called again after it failed."""

    async def next_producer_id_block(self, broker_id: int) -> ProducerIdBlock:
        """Allocate the block after the last allocated one to this broker, for this call only.

        A write with an unknown outcome skips a block. Raises DamagedZnode, ProducerIdsExhausted.
        """
        path = paths.PRODUCER_ID_BLOCK

        async def attempt() -> ProducerIdBlock:
            row = await self._look(path)
            if row is None:
                await self._ensure((path,))
                row = await self._look(path)
            if row is None:
                raise NoNode(path)
            start = decode_producer_id_block(path, row.data).block_end + 1 if row.data else 0
            if start > LAST_PRODUCER_ID - PRODUCER_IDS_A_BLOCK:
                raise ProducerIdsExhausted(f"{path}: the last block ends at {start - 1}")
            block = ProducerIdBlock(broker_id, start, start + PRODUCER_IDS_A_BLOCK - 1)
            await self._write([SetData(path, encode_producer_id_block(block), row.stat.version)], BadVersion, NoNode)
            return block

        return await self._decide(attempt)

    async def change_config(
        self, path: str, entity: str, change: Callable[[Config], Config], must_exist: str | None = None
    ) -> Config:
        """Replace a config by the result of `change` and create the notification for brokers and the controller.

        Both are written in one multi. `entity` is topics/T or brokers/N. `change` is called again if another client's
        change came between, and its exceptions are passed on.

        Returns: the new config.
        Raises: NoNode if `must_exist` does not exist.
        """
        perhaps: tuple[int, bytes] | None = None  # what would be there if the write that had no answer was made

        async def attempt() -> Config:
            nonlocal perhaps
            row = await self._look(path)
            if row is not None and perhaps == (row.stat.version, row.data):
                return decode_config(path, row.data).config
            known = ConfigZnode({}) if row is None else decode_config(path, row.data)
            config = change(known.config)
            data = encode_config(ConfigZnode(config, known.version, known.kept))
            version = -1 if row is None else row.stat.version
            notice = paths.child(paths.CONFIG_CHANGES, paths.CONFIG_CHANGE_PREFIX)
            operations: list[Write] = [
                *([] if must_exist is None else [Check(must_exist, ANY_VERSION)]),
                Create(path, data) if row is None else SetData(path, data, version),
                Create(notice, encode_config_change(ConfigChange(entity)), sequential=True),
            ]
            try:
                await self._write(operations, BadVersion, NodeExists)
            except Undecided as undecided:
                # Refused for another's change it was not made, though the other may have made the same.
                perhaps = (version + 1, data) if isinstance(undecided.__cause__, UnknownOutcome) else None
                raise
            return config

        return await self._decide(attempt)

    async def notify_of_failed_directory(self, broker_id: int) -> None:
        """Create the notification that a log directory of this broker failed, as Kafka's ReplicaManager does.

        It names no directory: the controller asks the broker for every replica. A notification whose write had an
        unknown outcome may be created twice, which is harmless.
        """
        notice = paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, paths.LOG_DIR_EVENT_PREFIX)
        data = encode_log_dir_event(LogDirEvent(broker_id))

        async def attempt() -> None:
            await self._write([Create(notice, data, sequential=True)])

        await self._decide(attempt)

    async def change_isr(
        self, topic: str, partition: int, state: PartitionStateZnode, version: int
    ) -> tuple[PartitionStateZnode, int] | None:
        """Writes a state with another ISR over that of `version`, unless another leader or leader epoch stands there.
        The state that stands then, this one or not, and its version; None if there is none. DamagedZnode."""
        path = paths.partition_state(topic, partition)

        async def attempt() -> tuple[PartitionStateZnode, int] | None:
            row = await self._look(path)
            if row is None:
                return None
            found = decode_partition_state(path, row.data)
            another = (found.leader, found.leader_epoch) != (state.leader, state.leader_epoch)
            if row.stat.version > version or (row.stat.version == version and another):
                return found, row.stat.version  # an older one is that of a server that lags: the write decides
            written = replace(found, isr=state.isr, controller_epoch=state.controller_epoch)
            await self._write([SetData(path, encode_partition_state(written), version)], BadVersion, NoNode)
            return written, version + 1

        return await self._decide(attempt)

    async def notify_of_isr_changes(self, partitions: tuple[tuple[str, int], ...]) -> None:
        """Create the notifications that announce states that this broker wrote to the controller.

        A notification whose write had an unknown outcome may be created twice; the controller then reads the same
        states twice.
        """
        notice = paths.child(paths.ISR_CHANGE_NOTIFICATION, paths.ISR_CHANGE_PREFIX)
        for start in range(0, len(partitions), PARTITIONS_A_NOTICE):
            named = IsrChangeZnode(partitions[start : start + PARTITIONS_A_NOTICE])
            data = encode_isr_change_notification(named)

            async def attempt(data: bytes = data) -> None:
                await self._write([Create(notice, data, sequential=True)])

            await self._decide(attempt)

    async def remove_config_changes(self, names: Sequence[str]) -> None:
        """Deletes notices that are old enough for all to have read them. One that is gone was another broker's to
        delete."""
        for name in names:
            path = paths.child(paths.CONFIG_CHANGES, name)
            await self._decide(lambda path=path: self._remove(path))  # type: ignore[misc]

    async def _remove(self, path: str) -> None:
        if await self._look(path) is not None:
            await self._write([Delete(path, ANY_VERSION)], NoNode)

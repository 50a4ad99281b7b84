"""The unfenced writes of a broker that stores records, in addition to those of every broker.

These are blocks of producer ids, changed configs with their notifications (deleted when all brokers have read them),
notifications of failed log directories, and below inter-broker protocol 2.7 the ISRs of partitions that this broker
leads, with their notifications.

Together with `broker_writes.py` these are all unfenced writes. Each write handles its own unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites, Undecided
from controller.zookeeper.codecs import (
    ConfigChange,
    ConfigZnode,
    IsrChangeZnode,
    LogDirEvent,
    PartitionStateZnode,
    ProducerIdBlock,
    decode_config,
    decode_partition_state,
    decode_producer_id_block,
    encode_config,
    encode_config_change,
    encode_isr_change_notification,
    encode_log_dir_event,
    encode_partition_state,
    encode_producer_id_block,
)
from controller.zookeeper.errors import BadVersion, NodeExists, NoNode, UnknownOutcome, ZooKeeperError
from controller.zookeeper.operations import ANY_VERSION, Check, Create, Delete, SetData, Write

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

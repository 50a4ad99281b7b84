"""A broker's core that holds records, on a disk in memory: `BrokerUnderTest` with logs, roles and high watermarks."""

from __future__ import annotations

from collections.abc import Sequence

from controller.broker.broker import Broker
from controller.broker.log_manager import LogManager
from controller.broker.partition import Partition
from controller.machine.disk import MemoryDisk
from controller.protocol.codec import ApiKey
from controller.protocol.control import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from controller.storage import LogSettings, PartitionLog
from tests.broker.harness import BROKER_EPOCH, TOPIC_ID, BrokerUnderTest, ReadConfigs, metadata, settings
from tests.storage.batches import batch

REPLICAS = (1, 2, 3)


class DataBroker(BrokerUnderTest):
    """Broker 1, with live brokers 1 to 3 in its metadata once `lead` or `follow` was called."""

    def __init__(self, controller: bool = False, *, log: LogSettings | None = None) -> None:
        super().__init__(controller)
        self.log_settings = LogSettings() if log is None else log
        self.disk = MemoryDisk()
        self.logs = LogManager(self.disk, ["logs"], lambda _topic: self.log_settings, self.clock.wall_ms)
        self.configs = ReadConfigs(settings(log_dirs="logs"), self.trace)
        self.broker = Broker(
            settings(log_dirs="logs"),
            self.identity,
            self.events,
            lambda: self.is_controller,
            self.clock,
            self.trace,
            self.peers,
            self.logs,
            configs=self.configs,
        )

    def lead(self, topic: str = "t", *, epoch: int = 0, isr: Sequence[int] = REPLICAS) -> Partition:
        """Partition 0 of the topic is this broker's to lead, from its present end on."""
        return self._take_role(topic, 1, epoch, isr)

    def follow(self, topic: str = "t", *, epoch: int = 0) -> Partition:
        return self._take_role(topic, 2, epoch, REPLICAS)

    def _take_role(self, topic: str, leader: int, epoch: int, isr: Sequence[int]) -> Partition:
        self.ask(ApiKey.UPDATE_METADATA, metadata((topic, 0, leader)))
        state = LeaderAndIsrPartitionState(0, 1, leader, epoch, tuple(isr), 7, REPLICAS)
        request = LeaderAndIsrRequest(1, 1, (LeaderAndIsrTopicState(topic, (state,), TOPIC_ID),), (), BROKER_EPOCH)
        assert self.ask(ApiKey.LEADER_AND_ISR, request).error_code == ErrorCode.NONE
        partition = self.broker.replicas.partition(topic, 0)
        assert partition is not None
        return partition

    def append(
        self, partition: Partition, count: int = 1, *, timestamp_ms: int | None = None, committed: bool = True
    ) -> PartitionLog:
        """So many records in one batch; committed or not."""
        assert partition.log is not None
        at_ms = self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        partition.log.append_as_leader(batch(count, timestamp_ms=at_ms), partition.leader_epoch)
        if committed:
            partition.high_watermark = partition.log.log_end_offset
        return partition.log

    def follower_fetches(self, partition: Partition, follower: int = 2) -> None:
        """It has all that is in the log."""
        assert partition.log is not None
        part = FetchPartition(partition.index, partition.log.log_end_offset, 1 << 20, partition.leader_epoch)
        self.ask(ApiKey.FETCH, FetchRequest(0, 1, (FetchTopic(partition.topic, (part,)),), follower))

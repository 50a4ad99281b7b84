"""A whole node that holds records, in virtual time over the in-memory ZooKeeper, with clients' requests to it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from controller.broker.config_requests import BrokerLoggers
from controller.broker.log_manager import LogManager
from controller.broker.node import Node
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.protocol.codec import SUPPORTED, ApiKey, encode_request
from controller.protocol.schema import RequestValue
from controller.zookeeper import paths
from controller.zookeeper.codecs import ConfigZnode, TopicAssignment, encode_config, encode_topic_assignment
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, SetData, Znode
from tests.broker.harness import AskedPeers, Deferred, header, leader_and_isr, live, metadata, settings
from tests.broker.test_node import Channels, Hosted

SETTLE_MS = 50.0


class DataNode(Hosted):
    """Broker 1, registered and controller, with `topics` in ZooKeeper, in its metadata and led by it."""

    def __init__(
        self, *topics: str, disk: MemoryDisk | None = None, clock: VirtualClock | None = None, **given: str
    ) -> None:
        clock = clock or VirtualClock()
        self.zookeeper = InMemoryZooKeeper(clock, tick_ms=500)
        super().__init__(self.zookeeper, clock)
        self.asked = AskedPeers()
        self.disk = disk or MemoryDisk()
        self.levels: list[str] = []
        """Log levels that a client has set."""
        self.node = Node(
            settings(log_dirs="logs", **given),
            self.connection,
            Channels,
            self.asked,
            clock,
            self.trace,
            random.Random(5),
            wake=self._wake,
            open_logs=lambda settings_of: LogManager(self.disk, ["logs"], settings_of, clock.wall_ms),
            loggers=BrokerLoggers("INFO", self.levels.append),
        )
        assert self.node.services is not None
        self.services = self.node.services
        self.logs = self.services.logs
        self.other = self.zookeeper.connect(60_000)
        self.other.start()
        self.node.start()
        self.until(lambda: self.node.controller.active)
        self.settle()
        for topic in topics:
            self.write(paths.topic(topic), encode_topic_assignment(TopicAssignment(None, {0: (1, 2, 3)}, version=2)))
            self.lead(topic)
        self.settle()

    def settle(self, for_ms: float = SETTLE_MS) -> None:
        self.clock.advance_to(self.clock.now_ms() + for_ms)

    def lead(self, topic: str, leader_epoch: int = 0, topic_id: bytes = bytes(range(16))) -> None:
        told = metadata((topic, 0, 1), brokers=live(1, 2, 3), broker_epoch=-1)
        assert self.ask(ApiKey.UPDATE_METADATA, told).error_code == 0
        request = leader_and_isr(1, leader_epoch, broker_epoch=-1, topic_id=topic_id)
        state = request.topic_states[0]
        named = type(state)(topic, state.partition_states, state.topic_id)
        assert self.ask(ApiKey.LEADER_AND_ISR, type(request)(1, 1, (named,), (), -1)).error_code == 0

    # -- ZooKeeper, as others see and change it

    def row(self, path: str) -> Znode | None:
        return self.zookeeper.row(path)

    def data(self, path: str) -> bytes | None:
        row = self.row(path)
        return None if row is None else row.data

    def write(self, path: str, data: bytes) -> None:
        there = self.row(path) is not None
        self.other.multi([SetData(path, data, ANY_VERSION) if there else Create(path, data)])
        self.settle()

    def write_config(self, path: str, config: Mapping[str, str]) -> None:
        """Without a notice."""
        self.write(path, encode_config(ConfigZnode(config)))

    def notify(self, data: bytes) -> None:
        notice = f"{paths.CONFIG_CHANGES}/{paths.CONFIG_CHANGE_PREFIX}"
        self.other.multi([Create(notice, data, sequential=True)])
        self.settle()

    def notices(self) -> list[bytes | None]:
        rows = [row for row in self.zookeeper.rows() if row.path.startswith(f"{paths.CONFIG_CHANGES}/")]
        return [row.data for row in sorted(rows, key=lambda row: row.path)]

    # -- a client

    def begin(self, key: ApiKey, value: RequestValue, version: int | None = None) -> Deferred:
        deferred = Deferred(key, SUPPORTED[key].last if version is None else version)
        self.node.broker.receive(encode_request(header(key, deferred.version), value), deferred.take)
        return deferred

    def ask(self, key: ApiKey, value: RequestValue, version: int | None = None) -> Any:
        deferred = self.begin(key, value, version)
        self.until(lambda: deferred.answered)
        return deferred.value()

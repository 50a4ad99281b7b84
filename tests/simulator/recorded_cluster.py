"""A simulated cluster taken through a recorded cluster's steps, with every control request that its brokers receive.

The brokers, their controller and their ZooKeeper are the simulator's own. What the test gives is the recorded timing
and nothing else: when a broker's last moment comes, and when a replica has caught up, which leaders ask of `in_sync`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from controller.broker.broker import Broker
from controller.broker.lifecycle import controlled_shutdown
from controller.broker.partition import Partition
from controller.clock import Coro, Future, spawn
from controller.protocol.codec import (
    SUPPORTED,
    ApiKey,
    RequestHeader,
    VersionRange,
    decode_request,
    decode_response_body,
    encode_request_body,
)
from controller.protocol.schema import RequestValue
from controller.scenarios.host import Workload
from controller.scenarios.language import ClusterSpec
from controller.simulator import requests
from controller.simulator.broker_process import SimulatedBroker
from controller.simulator.host import SimulatedHost
from controller.trace import Noted
from controller.zookeeper import paths
from controller.zookeeper.codecs import ControllerZnode, decode_controller, encode_controller
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from tests.kafka_recording import CONTROL, FlatWrite, Request, flat_write, recorded_versions, seen

SESSION_TIMEOUT_MS = 6_000
LINGER_MS = 700.0
"""Between the answer to a controlled shutdown and the broker's end, as in the recording."""
LONG_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A request as a broker received it. `epoch`: the czxid of its registration then."""

    broker: int
    header: RequestHeader
    value: Any
    epoch: int

    @property
    def api(self) -> ApiKey:
        return self.header.api_key


class RecordedCluster:
    """Three brokers, none running. `heard` is every request of the controller's, and of brokers to it, in the order in
    which they were received."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.host = SimulatedHost(seed)
        self.heard: list[Heard] = []
        self.caught_up: set[tuple[str, int, int]] = set()
        self._brokers: dict[int, Broker] = {}
        self._watch_brokers(monkeypatch)
        spec = ClusterSpec(brokers=3, zookeeper_servers=1, session_timeout_ms=SESSION_TIMEOUT_MS)
        self.do(self.host.boot(spec, Workload()))
        self.server = self.host._world.zookeeper
        self._admin = self.server.connect(LONG_MS // 2, latency=lambda: 0.0)  # type: ignore[arg-type]
        self._answered(self._admin.start())

    def _watch_brokers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        receive = Broker.receive

        def received(broker: Broker, frame: bytes, *rest: Any) -> None:
            number = broker._settings.broker_id
            self._brokers[number] = broker
            self._hear(number, frame)
            receive(broker, frame, *rest)

        async def lingering(*arguments: Any) -> str | None:
            problem = await controlled_shutdown(*arguments)
            await self.host.clock.sleep(LINGER_MS)
            return problem

        def in_sync(partition: Partition, broker: int) -> bool:
            return (partition.topic, partition.index, broker) in self.caught_up

        monkeypatch.setattr(Broker, "receive", received)
        as_recorded = {**SUPPORTED, ApiKey.ALTER_ISR: VersionRange(0, 0)}
        monkeypatch.setattr("controller.broker.broker.SUPPORTED", as_recorded)
        monkeypatch.setattr(requests, "SHARED_FROM_BYTES", sys.maxsize)  # every frame whole, so that it is heard
        monkeypatch.setattr("controller.broker.node.controlled_shutdown", lingering)
        monkeypatch.setattr("controller.broker.isr_manager.live_followers", lambda metadata: in_sync)

    def _hear(self, broker: int, frame: bytes) -> None:
        request = decode_request(frame)
        api = request.header.api_key
        if api in CONTROL or api in (ApiKey.ALTER_ISR, ApiKey.CONTROLLED_SHUTDOWN):
            row = self.server.row(paths.broker(broker))
            epoch = -1 if row is None else row.stat.czxid
            self.heard.append(Heard(broker, request.header, request.value, epoch))

    # -- time

    def do(self, task: Coro[Any]) -> Any:
        return self._answered(spawn(task))

    def _answered(self, pending: Future[Any]) -> Any:
        self.until(lambda: pending.done)
        return pending.result()

    def until(self, condition: Callable[[], bool]) -> None:
        clock = self.host.clock
        assert clock.run_until(condition, clock.now_ms() + LONG_MS), "it did not come to that"

    def settle(self) -> None:
        """Far longer than anything takes that is on its way, far shorter than any retry."""
        self.pass_ms(1_500.0)

    def pass_ms(self, ms: float) -> None:
        self.host.clock.advance_to(self.host.clock.now_ms() + ms)

    # -- the cluster

    def start(self, *brokers: int) -> None:
        for broker in brokers:
            self.do(self.host.start(broker))
        self.until(lambda: all(self.server.row(paths.broker(broker)) for broker in brokers))
        self.settle()

    def process(self, broker: int) -> SimulatedBroker:
        return self.host._process(broker)

    def write(self, *operations: Write) -> None:
        self._answered(self._admin.multi(operations))

    @property
    def controller(self) -> int:
        row = self.server.row(paths.CONTROLLER)
        return -1 if row is None else decode_controller(row.path, row.data).broker_id

    def start_led_by(self, leader: int, others: tuple[int, ...], epochs_before: int, states: list[Write]) -> None:
        """Brokers that are all there, and states as they were stored, before `leader` begins its term: nobody is
        elected until then, and the others stand still meanwhile."""
        self.write(Create(paths.CONTROLLER, encode_controller(ControllerZnode(99, 0)), ephemeral=True))
        self.start(*others, leader)
        self.write(Create(paths.CONTROLLER_EPOCH, b"0"))
        for epoch in range(1, epochs_before + 1):
            self.write(SetData(paths.CONTROLLER_EPOCH, b"%d" % epoch, ANY_VERSION))
        for write in states:
            self.write(write)
        for broker in others:
            self.process(broker).pause()
        self.write(Delete(paths.CONTROLLER, ANY_VERSION))
        self.until(lambda: self.controller == leader)
        for broker in others:
            self.process(broker).resume()
        self.settle()
        assert self.controller == leader

    def farther_from_zookeeper(self, broker: int) -> None:
        """Its next life loses every election against another broker."""
        paces = self.host._paces[broker]
        slow = lambda: 40.0  # noqa: E731
        self.host._paces[broker] = type(paces)(paces.boot_ms, paces.step_ms, slow)

    def ask(self, api: ApiKey, value: RequestValue) -> Any:
        """As a client, of the controller."""
        version = SUPPORTED[api].last
        client = self.host._client
        assert client is not None
        body = encode_request_body(api, version, value)
        answer = self.do(client._ask(self.controller, api, version, body, LONG_MS))
        return decode_response_body(api, version, answer)

    def catch_up(self, leader: int, topic: str, partition: int, replica: int) -> None:
        """The replica has all that the leader has, which finds that now and waits until it was told."""
        self.caught_up.add((topic, partition, replica))
        self._brokers[leader].isr_manager.check_open()
        self.settle()

    # -- what was seen

    def brokers(self) -> list[Broker]:
        return [self._brokers[broker] for broker in self.host.running()]

    def writes_from_now(self, broker: int) -> list[FlatWrite]:
        """What its controller sets and deletes, in the order of the writes."""
        connection, found = self.process(broker).connection, list[FlatWrite]()
        multi = connection.multi

        def noted(operations: Sequence[Write]) -> Any:
            found.extend(flat_write(one) for one in operations if isinstance(one, SetData | Delete))
            return multi(operations)

        connection.multi = noted  # type: ignore[method-assign]
        return found

    def told_since(self, mark: int) -> dict[int, list[Request]]:
        """The controller's requests by broker, each in the recorded version and with the epoch of the broker's life."""
        by_broker: dict[int, list[Request]] = {}
        for one in self.heard[mark:]:
            if one.api in CONTROL:
                assert one.value.broker_epoch == one.epoch, one
                assert one.header.api_version == recorded_versions()[one.api], one
                assert one.header.client_id == str(one.value.controller_id), one
                by_broker.setdefault(one.broker, []).append(seen(one.api, one.value))
        return by_broker

    def asked_since(self, mark: int, api: ApiKey) -> list[Heard]:
        return [one for one in self.heard[mark:] if one.api is api]

    def check(self) -> None:
        """No node noted an error."""
        errors = [record for record in self.host.records() if isinstance(record.event, Noted)]
        assert [record.event for record in errors if getattr(record.event, "level", "") == "error"] == []

"""The in-process host: brokers on one thread of the test's process, on real sockets, with an in-memory ZooKeeper.

The code of the brokers is that of `camerlengo broker`. Records are in memory unless a directory is given. A call is
handed to the cluster's thread and waits there; a wait ends when a change of the state is signalled, and polls nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from controller.broker.settings import BrokerSettings, parse_settings
from controller.hosts.secured import SECRETS
from controller.machine.process import ProcessState
from controller.protocol.client import CreateTopicsRequest, CreateTopicsResponse
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.framing import Part
from controller.storage.disk import Disk
from controller.system import LOOPBACK, HeldPorts
from controller.testing.changes import Changes
from controller.testing.clock import ClusterThread, ShiftedClock
from controller.testing.disks import InProcessDisk, directory_disk, stop_disk
from controller.testing.host import ABILITIES, ClusterHost, ClusterOptions, KnownPartition, Target, UnansweredCall
from controller.testing.incarnation import BROKERS, Incarnation, Shared
from controller.testing.links import Links
from controller.testing.request_faults import RequestFault, RequestFaults
from controller.trace import FaultInjected, Noted, TraceEvent
from controller.trace_records import OBSERVER, Recorder, TraceRecord
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller, decode_partition_state
from controller.zookeeper.memory.server import InMemoryZooKeeper

T = TypeVar("T")

MEMORY_LOG_DIR = "/kafka"
CREATE_TOPICS_VERSION = 5
FOREIGN_S = 0.02
"""How often a condition of the user's is evaluated where the cluster does not change."""


class _Broker:
    """What outlives the incarnations of one broker."""

    def __init__(self, disk: Disk, port: int) -> None:
        self.disk = disk
        self.port = port
        self.incarnation: Incarnation | None = None
        self.without_zookeeper = False


class MemoryHost(ClusterHost):
    name = "memory"
    abilities: ClassVar = frozenset(ABILITIES)

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options)
        seed = options.seed
        self._rng = random.Random(seed)
        self._faults_rng = random.Random(None if seed is None else f"{seed}/faults")
        self._recorder = Recorder()
        self._network: ClusterThread | None = None
        self._brokers: dict[int, _Broker] = {}

    # -- begin and end

    def start(self) -> None:
        self.open()
        self.call(self._begin_all)

    def open(self) -> None:
        """Start what brokers need, and none of them."""
        self.make_security(self.options.directory and self.options.directory / SECRETS)  # may fail: no thread yet
        self._ports = HeldPorts(self.options.brokers)
        self._network = network = ClusterThread("kafka")
        self.changes = Changes(network.loop)
        self._zookeeper = InMemoryZooKeeper(network.clock)
        if self.security is not None:
            self._zookeeper.restore(self.security.creations())
        self._zookeeper.on_commit(lambda _session, _writes: self.changes.signal())
        self._shared = Shared(
            network,
            self._zookeeper,
            self._recorder,
            Links(network.clock),
            RequestFaults(self._faults_rng, self._note_request_fault),
            self._rng,
            self._ended_by_itself,
            self.changes.signal,
        )
        network.loop.set_exception_handler(self._on_unhandled_exception)
        network.start()
        for broker, port in enumerate(self._ports.numbers, 1):
            self._brokers[broker] = _Broker(self._new_disk(broker), port)

    def _begin_all(self) -> None:
        for broker in self._brokers:
            self._begin(broker)

    def stop(self) -> None:
        network = self._network
        if network is None:
            return
        try:
            self.call(self._stop_all)
        finally:
            network.stop()
            self.remove_security()
            self._ports.release()

    def _stop_all(self) -> None:
        for number, broker in self._brokers.items():
            if broker.incarnation is not None and self.options.directory is not None:
                broker.incarnation.node.close_logs()
            self._end(number)
            stop_disk(broker.disk)

    @property
    def zookeeper(self) -> InMemoryZooKeeper:
        """For `call`: it belongs to the cluster's thread."""
        return self._zookeeper

    @property
    def clock(self) -> ShiftedClock:
        """Of the brokers and of ZooKeeper."""
        assert self._network is not None
        return self._network.clock

    @property
    def links(self) -> Links:
        """As `zookeeper`."""
        return self._shared.links

    # -- threads and time

    def call(self, action: Callable[[], T]) -> T:
        network = self._network
        assert network is not None
        if network.on_loop():
            return action()
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                outcome.set_result(action())
            except BaseException as error:  # noqa: BLE001 - raised to the caller, on its thread
                outcome.set_exception(error)

        network.call(run)
        try:
            return outcome.result(self.options.timeout_s)
        except concurrent.futures.TimeoutError:
            raise UnansweredCall(f"the cluster's thread did not answer in {self.options.timeout_s:g} s") from None

    def _run(self, task: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run a coroutine on the cluster's thread until it ends. Raises UnansweredCall when the time is up."""
        network = self._network
        assert network is not None
        if network.on_loop():
            task.close()
            raise RuntimeError("a call that waits can't be made on the cluster's own thread")
        outcome = asyncio.run_coroutine_threadsafe(task, network.loop)
        try:
            return outcome.result(limit_s)
        except concurrent.futures.TimeoutError:
            outcome.cancel()
            raise UnansweredCall from None

    def wait(self, condition: Callable[[], bool], limit_s: float, *, own_thread: bool = False) -> bool:
        if not own_thread:
            try:
                self._run(self.changes.until(condition), limit_s)
            except UnansweredCall:
                return False
            return True
        until_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() >= until_s:
                return False
            self._run(self._change_or(FOREIGN_S), self.options.timeout_s)
        return True

    async def _change_or(self, limit_s: float) -> None:
        """Wait for the next change of the cluster, for `limit_s` at most."""
        await asyncio.wait([asyncio.ensure_future(self.changes.next())], timeout=limit_s)

    def now_ms(self) -> float:
        return time.monotonic() * 1_000.0 if self._network is None else self._network.clock.now_ms()

    def advance(self, by_ms: float) -> None:
        self.call(lambda: self.inject("advance", f"the clock by {by_ms:g} ms"))
        assert self._network is not None
        self._run(self._network.clock.advance(by_ms), self.options.timeout_s)

    # -- state

    def controller(self) -> int | None:
        row = self._zookeeper.row(paths.CONTROLLER)
        return None if row is None else decode_controller(row.path, row.data).broker_id

    def partition(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]] | None:
        row = self._zookeeper.row(paths.partition_state(topic, partition))
        if row is None:
            return None
        state = decode_partition_state(row.path, row.data)
        return state.leader, state.isr

    def partitions(self) -> Iterable[tuple[str, int]]:
        for topic in self._zookeeper.children(paths.BROKER_TOPICS) or ():
            for name in self._zookeeper.children(paths.partitions(topic)) or ():
                yield topic, int(name)

    def registered(self) -> frozenset[int]:
        return frozenset(one for one in self._brokers if self._zookeeper.row(paths.broker(one)) is not None)

    def address(self, broker: int) -> str:
        return f"{LOOPBACK}:{self._brokers[broker].port}"

    def running(self, broker: int) -> bool:
        return self._brokers[broker].incarnation is not None

    def paused(self, broker: int) -> bool:
        incarnation = self._brokers[broker].incarnation
        return incarnation is not None and incarnation.process.state is ProcessState.PAUSED

    def known_brokers(self, broker: int) -> frozenset[int]:
        incarnation = self._brokers[broker].incarnation
        return frozenset() if incarnation is None else frozenset(incarnation.node.broker.metadata.snapshot.brokers)

    def known_partition(self, broker: int, topic: str, partition: int) -> KnownPartition | None:
        incarnation = self._brokers[broker].incarnation
        if incarnation is None:
            return None
        state = incarnation.node.broker.metadata.snapshot.topics.get(topic, {}).get(partition)
        return None if state is None else KnownPartition(state.leader, tuple(state.replicas))

    # -- topics

    def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse | None:
        try:
            return self._run(self._ask_controller(request), self.options.timeout_s)
        except UnansweredCall:
            return None

    async def _ask_controller(self, request: CreateTopicsRequest) -> CreateTopicsResponse | None:
        controller = self.controller()
        incarnation = None if controller is None else self._brokers[controller].incarnation
        if incarnation is None:
            return None
        header = RequestHeader(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, 1, "test")
        frames: list[bytes | None] = []

        def respond(parts: Sequence[Part] | None) -> None:
            frames.append(None if parts is None else b"".join(_read(part) for part in parts))
            self.changes.signal()

        incarnation.node.broker.receive(encode_request(header, request), respond)
        await self.changes.until(lambda: bool(frames) or not incarnation.process.alive)
        if not frames or frames[0] is None:
            return None
        _, response = decode_response(ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, frames[0])
        assert isinstance(response, CreateTopicsResponse)
        return response

    # -- brokers

    def kill(self, broker: int, *, expire: bool) -> None:
        self._require(broker)
        self.inject("kill", broker)
        self._end(broker, expire=expire)

    def begin_stop(self, broker: int) -> None:
        incarnation = self._require(broker)
        self.inject("stop", broker)
        incarnation.shut_down(lambda: self._end(broker))

    def begin_start(self, broker: int) -> None:
        if self.running(broker):
            raise RuntimeError(f"broker {broker} runs")
        self.inject("restart", broker)
        self._begin(broker)

    def started(self, broker: int) -> bool:
        incarnation = self._brokers[broker].incarnation
        if incarnation is None:
            raise RuntimeError(f"broker {broker} ended while it was started")
        return incarnation.node.registered.done and broker in self.known_brokers(broker)

    def pause(self, broker: int) -> None:
        incarnation = self._require(broker)
        self.inject("pause", broker)
        incarnation.pause()
        self.changes.signal()

    def resume(self, broker: int) -> None:
        incarnation = self._require(broker)
        if incarnation.process.state is ProcessState.PAUSED:
            self.inject("resume", broker)
            incarnation.resume()
            self.changes.signal()

    def expire_session(self, broker: int) -> None:
        session = self._require(broker).connection.session()
        if session not in self._zookeeper.sessions():
            raise RuntimeError(f"broker {broker} has no ZooKeeper session")
        self.inject("expire", broker)
        self._zookeeper.expire(session)
        self.changes.signal()

    def cut(self, broker: int, other: Target) -> None:
        if other == "zookeeper":
            self._require(broker).connection.cut()
            self._brokers[broker].without_zookeeper = True
        else:
            self._shared.links.cut(broker, other)
            self._shared.links.cut(other, broker)
        self.inject("cut", f"{broker}->{other}")
        if other != "zookeeper":
            self.inject("cut", f"{other}->{broker}")

    def heal(self, broker: int, other: Target | None) -> None:
        links, state = self._shared.links, self._brokers[broker]
        if other in (None, "zookeeper") and state.incarnation is not None and state.without_zookeeper:
            state.without_zookeeper = False
            self.inject("heal", f"{broker}->zookeeper")
            state.incarnation.connection.heal()
        for one in links.cut_from(broker) if other is None else [other]:
            if isinstance(one, int):
                self.inject("heal", f"{broker}->{one}")
                self.inject("heal", f"{one}->{broker}")
                links.heal(broker, one)
                links.heal(one, broker)

    def slow(self, broker: int, ms: float) -> None:
        slow_ms = self._shared.links.slow_ms
        if ms or broker in slow_ms:
            self.inject("slow", f"broker {broker} by {ms:g} ms")
        slow_ms[broker] = ms
        if not ms:
            del slow_ms[broker]

    def fill_disk(self, broker: int) -> None:
        self._disk_in_memory(broker).full = True
        self.inject("fill disk", broker)

    def free_disk(self, broker: int) -> None:
        disk = self._brokers[broker].disk
        if isinstance(disk, InProcessDisk) and disk.full:
            disk.full = False
            self.inject("free disk", broker)

    def lose_disk(self, broker: int) -> None:
        self._disk_in_memory(broker)
        self.inject("lose disk", broker)
        self._brokers[broker].disk = InProcessDisk()
        self._end(broker, expire=True)

    def _require(self, broker: int) -> Incarnation:
        incarnation = self._brokers[broker].incarnation
        if incarnation is None:
            raise RuntimeError(f"broker {broker} does not run")
        return incarnation

    def _begin(self, broker: int) -> None:
        state = self._brokers[broker]
        state.incarnation = incarnation = Incarnation(self._shared, self._settings_of(broker), state.disk)
        incarnation.start()

    def _end(self, broker: int, *, expire: bool = False) -> None:
        state = self._brokers[broker]
        incarnation, state.incarnation = state.incarnation, None
        state.without_zookeeper = False
        if incarnation is None:
            return
        session = incarnation.kill()
        if isinstance(state.disk, InProcessDisk):
            state.disk.process_ended()
        if expire and session in self._zookeeper.sessions():
            self._zookeeper.expire(session)
        self.changes.signal()

    # -- requests of clients

    def add_fault(self, fault: RequestFault) -> None:
        self._shared.faults.rules.append(fault)

    def clear_faults(self) -> None:
        self._shared.faults.rules.clear()

    def _note_request_fault(self, broker: int, text: str) -> None:
        self.inject("request", f"broker {broker}, {text}")

    # -- what happened

    def emit(self, node: int, event: TraceEvent) -> None:
        self._shared.emit(node, event)

    def records(self) -> tuple[TraceRecord, ...]:
        return tuple(self._recorder.records)

    def _ended_by_itself(self, broker: int, reason: str) -> None:
        self.emit(broker, Noted("error", f"the broker ends: {reason}"))
        self.emit(OBSERVER, FaultInjected("kill", str(broker)))
        self._end(broker, expire=True)

    def _on_unhandled_exception(self, _loop: object, context: dict[str, Any]) -> None:
        """An exception that no code of the cluster caught is a defect: the timeline shows it."""
        self.emit(OBSERVER, Noted("error", f"{context['message']}: {context.get('exception')!r}"))

    # -- what brokers are made of

    def _new_disk(self, broker: int) -> Disk:
        directory = self.options.directory
        return InProcessDisk() if directory is None else directory_disk(directory / f"broker-{broker}")

    def _disk_in_memory(self, broker: int) -> InProcessDisk:
        disk = self._brokers[broker].disk
        if not isinstance(disk, InProcessDisk):
            raise ValueError(f"broker {broker} keeps its records in a directory: expected them in memory")
        return disk

    def _settings_of(self, broker: int) -> BrokerSettings:
        options = self.options
        port = self._brokers[broker].port
        protocol = self.protocol
        own = {
            "broker.id": str(broker),
            "zookeeper.connect": "memory:2181",
            "zookeeper.session.timeout.ms": str(options.session_timeout_ms),
            "listeners": f"{protocol}://{LOOPBACK}:{port},{BROKERS}://{LOOPBACK}:0",
            "listener.security.protocol.map": f"{protocol}:{protocol},{BROKERS}:{protocol}",
            "inter.broker.listener.name": BROKERS,
            "log.dirs": MEMORY_LOG_DIR if options.directory is None else str(options.directory / f"broker-{broker}"),
        }
        if options.racks:
            own["broker.rack"] = options.racks[(broker - 1) % len(options.racks)]
        if self.security is not None:
            own |= self.security.broker_settings(broker, (protocol, BROKERS))
        return parse_settings({**own, **options.settings_beside(own)})


def _read(part: Part) -> bytes:
    return bytes(part) if isinstance(part, bytes | memoryview) else part.read()

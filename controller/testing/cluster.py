"""A Kafka cluster inside the process of a test: brokers with their controllers, ZooKeeper and their disks.

    with Kafka(brokers=3) as kafka:
        kafka.create_topic("payments", partitions=3, replication_factor=3)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
        kafka.broker(kafka.leader("payments", 0)).kill()

The code of the brokers is that of `camerlengo broker`. They run on one thread, on real sockets of the loopback
interface, with an in-memory ZooKeeper; records are in memory unless a directory is given. Any thread may use a
cluster: a call is handed to the cluster's thread and waits there, for a limited time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from controller.broker.settings import BrokerSettings, parse_settings
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import Part
from controller.simulator.process import ProcessState
from controller.storage.disk import Disk
from controller.testing.brokers import HOST, BrokerControl
from controller.testing.clock import ClusterClock, ClusterThread
from controller.testing.disks import InProcessDisk, directory_disk, stop_disk
from controller.testing.incarnation import BROKERS, CLIENTS, Incarnation, Shared
from controller.testing.links import Links
from controller.testing.request_faults import RequestFault, RequestFaults, api_key, error_code
from controller.testing.timeline import timeline_of
from controller.trace import FaultInjected, Noted
from controller.trace_records import OBSERVER, Recorder, TraceRecord
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller, decode_partition_state
from controller.zookeeper.memory.server import InMemoryZooKeeper

T = TypeVar("T")

MEMORY_LOG_DIR = "/kafka"
SLICE_S = 0.001
"""How long a wait sleeps before it looks again."""
MARGIN_S = 5.0
"""How much longer than the limit of a wait the caller's thread waits for the cluster's."""
_CREATE_VERSION = 5
_AGAIN = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR)


class ClusterTimeout(TimeoutError):
    """A cluster did not do in time what was waited for. Says what that was, and how the cluster was then."""


class TopicNotCreated(Exception):
    """The controller refused to create a topic; `error` is Kafka's name for the reason."""

    def __init__(self, topic: str, error: str, message: str | None) -> None:
        super().__init__(f"topic {topic!r}: {error}" + (f": {message}" if message else ""))
        self.error = error


class Kafka:
    """A cluster of `brokers` brokers, with ids from 1. Use it with `with` or `async with`, or `start` and `stop`.

    Args:
        brokers: how many brokers there are.
        settings: settings of all brokers, as in server.properties (`{"min.insync.replicas": "2"}`).
        directory: where the brokers keep their records, in one directory each; None: in memory.
        session_timeout_ms: of the brokers' ZooKeeper sessions (`zookeeper.session.timeout.ms`).
        seed: of what is random in the brokers, and apart from that in faults of requests; None: another each time.
            Threads, sockets and time are real, so that a run is not repeated exactly (see `Simulation` for that).
        timeout_s: how long each call waits for the cluster.

    Raises:
        BadSettings: from `start`; names each wrong setting.
        ClusterTimeout: from each call that waits.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        settings: Mapping[str, object] | None = None,
        directory: Path | str | None = None,
        session_timeout_ms: int = 6_000,
        seed: int | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers {brokers}: expected 1 or more")
        self.timeout_s = timeout_s
        self._settings = {name: _text(value) for name, value in (settings or {}).items()}
        self._directory = None if directory is None else Path(directory)
        self._session_timeout_ms = session_timeout_ms
        self._rng = random.Random(seed)
        self._faults_rng = random.Random(None if seed is None else f"{seed}/faults")
        self._recorder = Recorder()
        self._state: Literal["new", "running", "stopped"] = "new"
        self.brokers: dict[int, BrokerControl] = {}
        """The brokers by id."""
        self._count = brokers
        self._reserved: dict[int, socket.socket] = {}

    # -- begin and end

    def start(self) -> Self:
        """Start all brokers and wait until each is registered, knows all others, and one is the controller."""
        if self._state != "new":
            raise RuntimeError("this cluster was started before: make another")
        self._network = network = ClusterThread("kafka")
        self._zookeeper = InMemoryZooKeeper(network.clock)
        self._shared = Shared(
            network,
            self._zookeeper,
            self._recorder,
            Links(network.clock),
            RequestFaults(self._faults_rng, self._note_request_fault),
            self._rng,
            self._ended_by_itself,
        )
        self.clock = ClusterClock(network.clock, self._advance)
        """The brokers' and ZooKeeper's clock."""
        self._began_ms = network.clock.now_ms()
        network.loop.set_exception_handler(self._on_unhandled_exception)
        network.start()
        self._state = "running"
        try:
            for broker in range(1, self._count + 1):
                self._reserved[broker] = _reserved_port()
                self.brokers[broker] = BrokerControl(self, broker, self._disk(broker))
            self._call(self._start_all)
            self._wait(self._all_know_all, "every broker is registered and known")
        except BaseException:
            self.stop()
            raise
        return self

    def _start_all(self) -> None:
        for broker in self.brokers.values():
            broker._begin()

    def stop(self) -> None:
        """Stop all brokers and the cluster's thread. Safe to call twice."""
        if self._state != "running":
            self._state = "stopped"
            return
        try:
            self._call(self._stop_all)
        finally:
            self._state = "stopped"
            self._network.stop()
            for reserved in self._reserved.values():
                reserved.close()

    def _stop_all(self) -> None:
        for broker in self.brokers.values():
            incarnation = broker._incarnation
            if incarnation is not None and self._directory is not None:
                incarnation.node.close_logs()
            broker._end()
            stop_disk(broker._disk)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.stop()
        if error is not None and isinstance(error, Exception):
            error.add_note(self.timeline())

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    # -- state

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for a client's `bootstrap.servers`."""
        return ",".join(broker.address for broker in self.brokers.values())

    def broker(self, broker_id: int) -> BrokerControl:
        """Return one broker. Raises KeyError that names the ids there are."""
        try:
            return self.brokers[broker_id]
        except KeyError:
            raise KeyError(f"broker {broker_id}: expected one of {sorted(self.brokers)}") from None

    @property
    def controller(self) -> int | None:
        """The id of the broker that is the controller by ZooKeeper's account, None if there is none."""
        return self._call(self._controller)

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader of a partition by ZooKeeper's account, None if it has none. Raises KeyError for a
        partition that does not exist."""
        leader, _ = self._call(lambda: self._leader_and_isr(topic, partition))
        return None if leader < 0 else leader

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the in-sync replicas of a partition by ZooKeeper's account, the leader's choice of order. Raises
        KeyError for a partition that does not exist."""
        return self._call(lambda: self._leader_and_isr(topic, partition))[1]

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic and wait until every running broker knows its leaders.

        Args:
            replication_factor: None: `default.replication.factor`.
            assignment: the brokers of each partition, instead of a number of partitions and a factor.
            config: settings of the topic (`{"min.insync.replicas": 2}`).

        Raises:
            TopicNotCreated: the controller refused it.
            ClusterTimeout: there was no controller, or a leader was not known in time.
        """
        topic = CreatableTopic(
            name,
            -1 if assignment is not None else partitions,
            -1 if assignment is not None or replication_factor is None else replication_factor,
            tuple(CreatableReplicaAssignment(one, tuple(brokers)) for one, brokers in (assignment or {}).items()),
            tuple(CreatableTopicConfig(key, _text(value)) for key, value in (config or {}).items()),
        )
        count = partitions if assignment is None else len(assignment)
        self._run(self._create_topic(topic, count), f"topic {name!r} is created")

    async def _create_topic(self, topic: CreatableTopic, partitions: int) -> None:
        wanted = [(topic.name, one) for one in range(partitions)]
        asked = 0
        while True:
            answer = await self._ask_controller(topic)
            asked += 1
            error = answer.topics[0].error_code if answer is not None else ErrorCode.NOT_CONTROLLER
            if error == ErrorCode.NONE or (asked > 1 and error == ErrorCode.TOPIC_ALREADY_EXISTS):
                break
            if error not in _AGAIN:
                assert answer is not None
                raise TopicNotCreated(topic.name, ErrorCode(error).name, answer.topics[0].error_message)
            await asyncio.sleep(0.01)
        await _until(lambda: all(self._is_led_everywhere(*key) for key in wanted))

    async def _ask_controller(self, topic: CreatableTopic) -> CreateTopicsResponse | None:
        controller = self._controller()
        incarnation = None if controller is None else self.brokers[controller]._incarnation
        if incarnation is None:
            return None
        request = CreateTopicsRequest((topic,), timeout_ms=int(self.timeout_s * 1_000))
        header = RequestHeader(ApiKey.CREATE_TOPICS, _CREATE_VERSION, 1, "test")
        answered: asyncio.Future[bytes | None] = self._network.loop.create_future()

        def respond(parts: Sequence[Part] | None) -> None:
            if not answered.done():
                answered.set_result(None if parts is None else b"".join(_read(part) for part in parts))

        incarnation.node.broker.receive(encode_request(header, request), respond)
        while incarnation.process.alive and not answered.done():
            await asyncio.wait([answered], timeout=0.05)
        frame = answered.result() if answered.done() else None
        if frame is None:
            return None
        _, response = decode_response(ApiKey.CREATE_TOPICS, _CREATE_VERSION, frame)
        assert isinstance(response, CreateTopicsResponse)
        return response

    # -- waits

    def wait_for_leader(self, topic: str, partition: int = 0) -> int:
        """Wait until a partition has a leader that runs and that every running broker knows. Return its id."""
        what = f"{topic}-{partition} has a leader that all brokers know"
        self._wait(lambda: self._is_led_everywhere(topic, partition), what)
        return self._call(lambda: self._leader_and_isr(topic, partition))[0]

    def wait_for_isr(self, topic: str, partition: int = 0, *, size: int) -> tuple[int, ...]:
        """Wait until a partition has exactly `size` in-sync replicas. Return them."""
        self._wait(
            lambda: len(self._leader_and_isr(topic, partition)[1]) == size,
            f"{topic}-{partition} has {size} in-sync replicas",
        )
        return self.isr(topic, partition)

    def wait_until_healthy(self) -> None:
        """Wait until all brokers that run know each other, and each partition has a leader and all of its replicas on
        running brokers in sync."""
        self._wait(lambda: not self._unhealthy(), "the cluster is healthy")

    def wait_until(self, condition: Callable[[], bool], what: str = "the condition holds") -> None:
        """Wait until `condition`, which is called on this thread, is true. `what` is for the error."""
        until_s = time.monotonic() + self.timeout_s
        while not condition():
            if time.monotonic() >= until_s:
                raise ClusterTimeout(self._late(what))
            time.sleep(SLICE_S * 5)

    # -- faults of requests

    def fail(
        self,
        api: ApiKey | str,
        error: ErrorCode | str,
        *,
        times: int | None = None,
        probability: float = 1.0,
        broker: int | None = None,
    ) -> RequestFault:
        """Answer requests of clients with an error, without carrying them out.

        Args:
            api: the API by its name, such as "Produce".
            error: Kafka's name of the error, such as "NOT_LEADER_OR_FOLLOWER".
            times: how many requests; None: all until `heal_requests`.
            probability: of each request to be hit.
            broker: only requests to this broker; None: to any.

        Returns:
            The fault; its `hits` says how many requests it has hit.
        """
        return self._add(RequestFault(api_key(api), broker, error=error_code(error)), times, probability)

    def delay(
        self,
        api: ApiKey | str,
        ms: float,
        *,
        times: int | None = None,
        probability: float = 1.0,
        broker: int | None = None,
    ) -> RequestFault:
        """Let requests of clients wait `ms` milliseconds before a broker handles them; see `fail`."""
        if ms <= 0:
            raise ValueError(f"delay of {ms} ms: expected more than 0")
        return self._add(RequestFault(api_key(api), broker, delay_ms=ms), times, probability)

    def lose_answer(
        self, api: ApiKey | str, *, times: int | None = 1, probability: float = 1.0, broker: int | None = None
    ) -> RequestFault:
        """Carry requests of clients out, and close the connection instead of answering; see `fail`."""
        return self._add(RequestFault(api_key(api), broker, disconnect=True), times, probability)

    def _add(self, fault: RequestFault, times: int | None, probability: float) -> RequestFault:
        if times is not None and times < 1:
            raise ValueError(f"times {times}: expected 1 or more")
        if not 0.0 < probability <= 1.0:
            raise ValueError(f"probability {probability}: expected more than 0 and at most 1")
        if fault.broker is not None:
            self.broker(fault.broker)
        fault.times, fault.probability = times, probability
        self._call(lambda: self._shared.faults.rules.append(fault))
        return fault

    def heal_requests(self) -> None:
        """End all faults of requests."""
        self._call(self._shared.faults.rules.clear)

    def restore(self) -> None:
        """End every fault: of requests, links, speed, disks and processes; start what does not run. Wait until the
        cluster is healthy."""
        self.heal_requests()
        for broker in self.brokers.values():
            broker.heal()
            broker.slow(0)
            if not self._directory:
                broker.free_disk()
            broker.resume() if broker.running else broker.start()
        self.wait_until_healthy()

    # -- what happened

    @property
    def records(self) -> tuple[TraceRecord, ...]:
        """All trace events of the cluster so far, with their time and broker."""
        return tuple(self._recorder.records)

    def timeline(self) -> str:
        """Return what happened, one line each: faults, controllers, leaders and errors, in milliseconds since the
        start."""
        return timeline_of(self.records, self._began_ms if self._state != "new" else 0.0)

    def report(self, directory: Path | str, *, name: str = "test", verdict: str = "unknown") -> Path:
        """Write an HTML report of the cluster so far into a directory, and return its path.

        Args:
            name: the heading, such as the test's name.
            verdict: "pass", "fail" or "unknown".
        """
        from controller.testing.html_report import write_report

        return write_report(self.records, self._began_ms, self._count, name, verdict, Path(directory))

    # -- hand-over to the cluster's thread

    def _call(self, action: Callable[[], T]) -> T:
        """Run `action` on the cluster's thread, and return its result."""
        if self._state != "running":
            raise RuntimeError(f"the cluster is {'stopped' if self._state == 'stopped' else 'not started'}")
        network = self._network
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
            return outcome.result(self.timeout_s)
        except concurrent.futures.TimeoutError:
            raise ClusterTimeout(f"the cluster's thread did not answer in {self.timeout_s:g} s") from None

    def _run(self, task: Coroutine[Any, Any, T], what: str) -> T:
        """Run a coroutine on the cluster's thread until it ends or the time is up."""
        if self._state != "running" or self._network.on_loop():
            task.close()
            self._call(lambda: None)
            raise RuntimeError("a call that waits can't be made on the cluster's own thread")
        outcome = asyncio.run_coroutine_threadsafe(task, self._network.loop)
        try:
            return outcome.result(self.timeout_s)
        except concurrent.futures.TimeoutError:
            outcome.cancel()
            raise ClusterTimeout(self._late(what)) from None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self._run(_until(condition), what)

    def _late(self, what: str) -> str:
        state = self._call(self._unhealthy)
        return f"waited {self.timeout_s:g} s until {what}; " + ("; ".join(state) if state else "the cluster is healthy")

    def _advance(self, by_ms: float) -> None:
        self._call(lambda: self._shared.emit(OBSERVER, FaultInjected("advance", f"the clock by {by_ms:g} ms")))
        self._run(self._network.clock.advance(by_ms), f"the clock is advanced by {by_ms:g} ms")

    # -- on the cluster's thread

    def _disk(self, broker: int) -> Disk:
        return InProcessDisk() if self._directory is None else directory_disk(self._directory / f"broker-{broker}")

    def _settings_of(self, broker: int) -> BrokerSettings:
        port = self._reserved[broker].getsockname()[1]
        own = {
            "broker.id": str(broker),
            "zookeeper.connect": "memory:2181",
            "zookeeper.session.timeout.ms": str(self._session_timeout_ms),
            "listeners": f"{CLIENTS}://{HOST}:{port},{BROKERS}://{HOST}:0",
            "listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT,{BROKERS}:PLAINTEXT",
            "inter.broker.listener.name": BROKERS,
            "log.dirs": MEMORY_LOG_DIR if self._directory is None else str(self._directory / f"broker-{broker}"),
        }
        taken = own.keys() & self._settings.keys()
        if taken:
            raise ValueError(f"settings: {', '.join(sorted(taken))}: set by the cluster itself")
        return parse_settings(own | self._settings)

    def _controller(self) -> int | None:
        row = self._zookeeper.row(paths.CONTROLLER)
        return None if row is None else decode_controller(row.path, row.data).broker_id

    def _leader_and_isr(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]]:
        row = self._zookeeper.row(paths.partition_state(topic, partition))
        if row is None:
            raise KeyError(f"{topic}-{partition}: no such partition")
        state = decode_partition_state(row.path, row.data)
        return state.leader, state.isr

    def _running(self) -> dict[int, Incarnation]:
        return {one: broker._incarnation for one, broker in self.brokers.items() if broker._incarnation is not None}

    def _attentive(self) -> dict[int, Incarnation]:
        """Those that run and are not paused."""
        return {one: each for one, each in self._running().items() if each.process.state is ProcessState.RUNNING}

    def _all_know_all(self) -> bool:
        running = self._running()
        return self._controller() is not None and all(
            each.node.registered.done and each.node.broker.metadata.snapshot.brokers.keys() == running.keys()
            for each in running.values()
        )

    def _is_led_everywhere(self, topic: str, partition: int) -> bool:
        try:
            leader, _ = self._leader_and_isr(topic, partition)
        except KeyError:
            return False
        attentive = self._attentive()
        if leader not in attentive:
            return False
        for each in attentive.values():
            snapshot = each.node.broker.metadata.snapshot
            state = snapshot.topics.get(topic, {}).get(partition)
            if state is None or state.leader != leader or leader not in snapshot.brokers:
                return False
        return True

    def _unhealthy(self) -> list[str]:
        """What is missing until the cluster is healthy."""
        running = self._attentive()
        missing = [] if self._controller() in running else ["there is no controller"]
        missing += [
            f"broker {broker} is not registered"
            for broker in running
            if self._zookeeper.row(paths.broker(broker)) is None
        ]
        for broker, each in running.items():
            known = sorted(each.node.broker.metadata.snapshot.brokers)
            if known != sorted(running):
                missing.append(f"broker {broker} knows the brokers {known}, and {sorted(running)} run")
        for topic in self._zookeeper.children(paths.BROKER_TOPICS) or ():
            for name in self._zookeeper.children(paths.partitions(topic)) or ():
                missing += self._unhealthy_partition(topic, int(name), running)
        return missing

    def _unhealthy_partition(self, topic: str, partition: int, running: Mapping[int, Incarnation]) -> list[str]:
        try:
            leader, isr = self._leader_and_isr(topic, partition)
        except KeyError:
            return [f"{topic}-{partition} has no state"]
        if not self._is_led_everywhere(topic, partition):
            return [f"{topic}-{partition}: leader {leader} is not known to every running broker"]
        state = running[leader].node.broker.metadata.snapshot.topics[topic][partition]
        lacking = [one for one in state.replicas if one in running and one not in isr]
        return [f"{topic}-{partition}: replicas {lacking} are not in sync"] if lacking else []

    def _note_request_fault(self, broker: int, text: str) -> None:
        self._shared.emit(OBSERVER, FaultInjected("request", f"broker {broker}, {text}"))

    def _ended_by_itself(self, broker: int, reason: str) -> None:
        self._shared.emit(broker, Noted("error", f"the broker ends: {reason}"))
        self._shared.emit(OBSERVER, FaultInjected("kill", str(broker)))
        self.brokers[broker]._end(expire=True)

    def _on_unhandled_exception(self, _loop: object, context: dict[str, Any]) -> None:
        """An exception that no code of the cluster caught is a defect: the timeline shows it."""
        self._shared.emit(OBSERVER, Noted("error", f"{context['message']}: {context.get('exception')!r}"))


def _reserved_port() -> socket.socket:
    """A socket that keeps a port for all incarnations of a broker: bound and not listening, so that clients are refused
    while the broker is down, and no other program gets the port."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


async def _until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(SLICE_S)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(part: Part) -> bytes:
    return bytes(part) if isinstance(part, bytes | memoryview) else part.read()

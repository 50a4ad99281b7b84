"""A Kafka cluster for a test: brokers with their controllers, ZooKeeper and their disks.

    with Kafka(brokers=3) as kafka:
        kafka.create_topic("payments", partitions=3, replication_factor=3)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
        kafka.broker(kafka.leader("payments", 0)).kill()

By default the cluster is in this process: brokers run on one thread, on real sockets of the loopback interface, with an
in-memory ZooKeeper. The same calls work with processes and containers (`host`). Any thread may use a cluster; each call
waits for a limited time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

from controller.hosts.secured import CLIENT, ClientSettings, ClusterSecurity, Security
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.testing.brokers import BrokerControl
from controller.testing.clock import ClusterClock
from controller.testing.host import ABILITIES, ClusterHost, ClusterOptions, UnansweredCall
from controller.testing.memory_host import MemoryHost
from controller.testing.request_faults import RequestFault, api_key, error_code
from controller.testing.timeline import timeline_of
from controller.trace_records import TraceRecord

T = TypeVar("T")

HostFactory = Callable[[ClusterOptions], ClusterHost]
AGAIN_S = 0.01
"""How long to wait before a controller is asked again."""
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
        directory: where the brokers keep their records, in one directory each; None: in memory, or in a temporary
            directory where brokers are processes.
        session_timeout_ms: of the brokers' ZooKeeper sessions (`zookeeper.session.timeout.ms`).
        seed: of what is random in the brokers, and apart from that in faults of requests; None: another each time.
            Threads, sockets and time are real, so that a run is not repeated exactly (see `Simulation` for that).
            Only brokers in memory use it.
        timeout_s: how long each call waits for the cluster.
        security: SASL_SSL on all listeners, with an authority, users and ACLs made for this cluster: True, or what it
            is like. `client_settings` says how clients connect.
        host: what runs the brokers: "memory" is this process, "process" a process for each broker. For containers:
            a function that makes a `DockerHost`.

    Raises:
        BadSettings: from `start`; names each wrong setting.
        ClusterTimeout: from each call that waits.
        UnsupportedByHost: from a call that the host can't carry out.
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
        security: Security | bool = False,
        host: Literal["memory", "process"] | HostFactory = "memory",
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers {brokers}: expected 1 or more")
        self.timeout_s = timeout_s
        options = ClusterOptions(
            brokers,
            {name: _text(value) for name, value in (settings or {}).items()},
            None if directory is None else Path(directory),
            session_timeout_ms,
            seed,
            timeout_s,
            Security() if security is True else security or None,
        )
        self._host: ClusterHost = _factory(host)(options)
        self._state: Literal["new", "running", "stopped"] = "new"
        self._began_ms = 0.0
        self.brokers: dict[int, BrokerControl] = {}
        """The brokers by id."""
        self.clock = ClusterClock(self._host.now_ms, self._advance)
        """The brokers' and ZooKeeper's clock."""

    @property
    def host(self) -> str:
        """What runs the brokers: "memory", "process" or "docker"."""
        return self._host.name

    def requires(self, *abilities: str) -> None:
        """Skip the test (`pytest.skip`) where the cluster's host lacks one of these abilities.

        Raises:
            ValueError: there is no such ability; names those there are.
        """
        lacking = lacking_abilities(self._host, abilities)
        if lacking:
            import pytest

            pytest.skip(f"clusters on the host {self.host!r} lack: {', '.join(lacking)}")

    # -- begin and end

    def start(self) -> Self:
        """Start all brokers and wait until each is registered, knows all others, and one is the controller."""
        if self._state != "new":
            raise RuntimeError("this cluster was started before: make another")
        self._state = "running"
        self._began_ms = self._host.now_ms()
        try:
            self._host.start()
            self.brokers |= {
                broker: BrokerControl(self, broker, self._host.address(broker))
                for broker in range(1, self._host.options.brokers + 1)
            }
            self._wait(self._all_know_all, "every broker is registered and known")
        except BaseException as error:
            self.stop()
            error.add_note(self.timeline())
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers, and everything that was started for them. Safe to call twice."""
        was, self._state = self._state, "stopped"
        if was == "running":
            self._host.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and isinstance(error, Exception):
                error.add_note(self.timeline())
        finally:
            self.stop()

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

    def client_settings(self, user: str = CLIENT) -> ClientSettings:
        """Return how a user's clients connect to a secured cluster: "client", "admin", who may do everything, or one of
        `Security.users`. Raises KeyError that names the users, RuntimeError for a cluster that is not secured."""
        return self._secured().client(self.bootstrap_servers, user)

    def replace_certificate(self, broker_id: int) -> None:
        """Give a broker of a secured cluster a new key and certificate. It takes them within a second, for the next
        connections. Raises as `client_settings`."""
        self.broker(broker_id)
        self._secured().replace_certificate(broker_id)

    def _secured(self) -> ClusterSecurity:
        if self._host.security is None:
            raise RuntimeError("this cluster has no users: expected one that runs, made with Kafka(security=True)")
        return self._host.security

    def broker(self, broker_id: int) -> BrokerControl:
        """Return one broker. Raises KeyError that names the ids there are."""
        try:
            return self.brokers[broker_id]
        except KeyError:
            raise KeyError(f"broker {broker_id}: expected one of {sorted(self.brokers)}") from None

    @property
    def controller(self) -> int | None:
        """The id of the broker that is the controller by ZooKeeper's account, None if there is none."""
        return self._call(self._host.controller)

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
        self._ask_until_created(topic)
        wanted = range(partitions if assignment is None else len(assignment))
        self._wait(lambda: all(self._is_led_everywhere(name, one) for one in wanted), f"topic {name!r} is created")

    def _ask_until_created(self, topic: CreatableTopic) -> None:
        until_s = time.monotonic() + self.timeout_s
        request = CreateTopicsRequest((topic,), timeout_ms=int(self.timeout_s * 1_000))
        asked = 0
        while True:
            self._call(lambda: None)
            answer = self._host.create_topics(request)
            asked += 1
            error = answer.topics[0].error_code if answer is not None else ErrorCode.NOT_CONTROLLER
            if error == ErrorCode.NONE or (asked > 1 and error == ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            if error not in _AGAIN:
                assert answer is not None
                raise TopicNotCreated(topic.name, ErrorCode(error).name, answer.topics[0].error_message)
            if time.monotonic() >= until_s:
                raise ClusterTimeout(self._late(f"topic {topic.name!r} is created"))
            time.sleep(AGAIN_S)

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
        """Wait until `condition`, which is called on this thread, is true: after each change of the cluster, and every
        20 ms, since it may depend on something else. `what` is for the error."""
        self._call(lambda: None)
        if not self._host.wait(condition, self.timeout_s, own_thread=True):
            raise ClusterTimeout(self._late(what))

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
        self._call(lambda: self._host.add_fault(fault))
        return fault

    def heal_requests(self) -> None:
        """End all faults of requests."""
        self._call(self._host.clear_faults)

    def restore(self) -> None:
        """End every fault: of requests, links, speed, disks and processes; start what does not run. Wait until the
        cluster is healthy."""
        self.heal_requests()
        for broker in self.brokers.values():
            broker.heal()
            broker.slow(0)
            broker.free_disk()
            broker.resume() if broker.running else broker.start()
        self.wait_until_healthy()

    # -- what happened

    @property
    def records(self) -> tuple[TraceRecord, ...]:
        """All trace events of the cluster so far, with their time and broker."""
        return self._host.records()

    def timeline(self) -> str:
        """Return what happened, one line each: faults, controllers, leaders and errors, in milliseconds since the
        start."""
        return timeline_of(self.records, self._began_ms)

    def logs(self) -> str:
        """Return the last lines that each broker wrote; "" for brokers in memory, whose errors are in the timeline."""
        return self._host.logs()

    def report(self, directory: Path | str, *, name: str = "test", verdict: str = "unknown") -> Path:
        """Write an HTML report of the cluster so far into a directory, and return its path.

        Args:
            name: the heading, such as the test's name.
            verdict: "pass", "fail" or "unknown".
        """
        from controller.testing.html_report import report_of, write_page

        host = "in-process" if self.host == "memory" else self.host
        brokers = self._host.options.brokers
        return write_page(report_of(self.records, self._began_ms, brokers, name, verdict, host=host), Path(directory))

    # -- calls of the host

    def _call(self, action: Callable[[], T]) -> T:
        if self._state != "running":
            raise RuntimeError(f"the cluster is {'stopped' if self._state == 'stopped' else 'not started'}")
        try:
            return self._host.call(action)
        except UnansweredCall as error:
            raise ClusterTimeout(str(error)) from None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self._call(lambda: None)
        if not self._host.wait(condition, self.timeout_s):
            raise ClusterTimeout(self._late(what))

    def _late(self, what: str) -> str:
        state = self._call(self._unhealthy)
        return f"waited {self.timeout_s:g} s until {what}; " + ("; ".join(state) if state else "the cluster is healthy")

    def _advance(self, by_ms: float) -> None:
        self._call(lambda: None)
        try:
            self._host.advance(by_ms)
        except UnansweredCall:
            raise ClusterTimeout(self._late(f"the clock is advanced by {by_ms:g} ms")) from None

    # -- conditions, where the host evaluates them

    def _leader_and_isr(self, topic: str, partition: int) -> tuple[int, tuple[int, ...]]:
        state = self._host.partition(topic, partition)
        if state is None:
            raise KeyError(f"{topic}-{partition}: no such partition")
        return state

    def _attentive(self) -> frozenset[int]:
        """The brokers that run and are not paused."""
        host = self._host
        return frozenset(one for one in self.brokers if host.running(one) and not host.paused(one))

    def _all_know_all(self) -> bool:
        host = self._host
        running = frozenset(one for one in self.brokers if host.running(one))
        return (
            host.controller() is not None
            and running <= host.registered()
            and all(host.started(one) and host.known_brokers(one) == running for one in running)
        )

    def _is_led_everywhere(self, topic: str, partition: int) -> bool:
        state = self._host.partition(topic, partition)
        attentive = self._attentive()
        if state is None or state[0] not in attentive:
            return False
        for broker in attentive:
            known = self._host.known_partition(broker, topic, partition)
            if known is None or known.leader != state[0] or state[0] not in self._host.known_brokers(broker):
                return False
        return True

    def _unhealthy(self) -> list[str]:
        """What is missing until the cluster is healthy."""
        host = self._host
        running = sorted(self._attentive())
        missing = [] if host.controller() in running else ["there is no controller"]
        registered = host.registered()
        missing += [f"broker {broker} is not registered" for broker in running if broker not in registered]
        for broker in running:
            known = sorted(host.known_brokers(broker))
            if known != running:
                missing.append(f"broker {broker} knows the brokers {known}, and {running} run")
        for topic, partition in host.partitions():
            missing += self._unhealthy_partition(topic, partition, running)
        return missing

    def _unhealthy_partition(self, topic: str, partition: int, running: Sequence[int]) -> list[str]:
        state = self._host.partition(topic, partition)
        if state is None:
            return [f"{topic}-{partition} has no state"]
        leader, isr = state
        if not self._is_led_everywhere(topic, partition):
            return [f"{topic}-{partition}: leader {leader} is not known to every running broker"]
        known = self._host.known_partition(leader, topic, partition)
        replicas = () if known is None else known.replicas
        lacking = [one for one in replicas if one in running and one not in isr]
        return [f"{topic}-{partition}: replicas {lacking} are not in sync"] if lacking else []


def lacking_abilities(host: ClusterHost | type[ClusterHost], abilities: Sequence[str]) -> list[str]:
    """Return those that a host lacks. Raises ValueError for one that there is not."""
    unknown = [one for one in abilities if one not in ABILITIES]
    if unknown:
        raise ValueError(f"ability {unknown[0]!r}: expected one of {', '.join(ABILITIES)}")
    return [one for one in abilities if one not in host.abilities]


def _factory(host: str | HostFactory) -> HostFactory:
    if not isinstance(host, str):
        return host
    if host == "memory":
        return MemoryHost
    if host == "process":
        from controller.testing.process_host import ProcessHost

        return ProcessHost
    raise ValueError(f"host {host!r}: expected 'memory', 'process', or a function that makes a host")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

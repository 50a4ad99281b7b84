"""One incarnation of a broker in this process: a `Node` on real sockets, in the thread of its cluster.

It stands between `controller.hosts.process`, where a broker is a process, and `controller.simulator.broker_process`,
where everything is simulated: sockets and time are real, the process is not. A `Process` decides whether what reaches
the broker (a timer, a request, an answer) is handled now, waits for the end of a pause, or never is.
"""

from __future__ import annotations

import random
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType

from controller.broker.log_manager import LogManager, SettingsOf
from controller.broker.node import Node
from controller.broker.request_context import Gate, Job, Respond, Steps, resumed
from controller.broker.security.principal import Requester
from controller.broker.settings import Address, BrokerSettings
from controller.clock import Timer, spawn
from controller.core.channels import ControllerChannels
from controller.core.event_loop import EventLoop
from controller.core.events import Event
from controller.hosts.listener_security import ListenerSecurity
from controller.hosts.server import SocketServer, limits_of
from controller.machine.process import PacedExecutor, Process, ProcessClock, ProcessState
from controller.protocol.codec import ApiKey
from controller.protocol.framing import Part
from controller.storage.disk import Disk
from controller.testing.clock import ClusterThread
from controller.testing.links import FaultyPeers, Links
from controller.testing.request_faults import RequestFaults
from controller.trace import Noted, TraceEvent
from controller.trace_records import Recorder
from controller.zookeeper.memory.server import InMemoryZooKeeper

BROKERS = "BROKERS"
"""The name of the listener by which brokers reach each other, so that faults can tell them from clients."""
_UPDATE_METADATA = int(ApiKey.UPDATE_METADATA).to_bytes(2, "big")
"""How such a request begins."""


@dataclass(slots=True)
class Shared:
    """What all brokers of a cluster share. `ended` is called when a broker ends by itself, with the reason; `changed`
    when what a broker says of the cluster may be another."""

    network: ClusterThread
    zookeeper: InMemoryZooKeeper
    recorder: Recorder
    links: Links
    faults: RequestFaults
    rng: random.Random
    ended: Callable[[int, str], None]
    changed: Callable[[], None]
    addresses: dict[Address, int] = field(default_factory=dict)
    """Which broker listens for others at an address."""

    def emit(self, node: int, event: TraceEvent) -> None:
        self.recorder.take(self.network.clock.now_ms(), node, event)
        self.changed()


class _IncarnationTrace:
    """A dead process emits nothing."""

    enabled = True

    def __init__(self, shared: Shared, process: Process, node: int) -> None:
        self._shared = shared
        self._process = process
        self._node = node

    def emit(self, event: TraceEvent) -> None:
        if self._process.alive:
            self._shared.emit(self._node, event)


class _IncarnationClock(ProcessClock):
    """Its timers go with the process, and all that they hold: some are due in minutes, and a cluster of a test outlives
    many processes."""

    def __init__(self, network: ClusterThread, process: Process) -> None:
        super().__init__(network.clock, process)
        self._timers: weakref.WeakSet[Timer] = weakref.WeakSet()
        process.at_death(self._cancel_all)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = super().call_later(delay_ms, callback)
        if self._process.alive:
            self._timers.add(timer)
        else:
            timer.cancel()
        return timer

    def _cancel_all(self) -> None:
        for timer in list(self._timers):
            timer.cancel()


class Incarnation:
    """Runs from `start` to `kill`. All of it is used on the cluster's thread. CannotListen, BadSettings,
    BadCertificates."""

    def __init__(self, shared: Shared, settings: BrokerSettings, disk: Disk) -> None:
        self.broker = broker = settings.broker_id
        self._shared = shared
        self._disk = disk
        self._began = False
        self.process = Process(f"broker-{broker}")
        self._channels: ControllerChannels | None = None
        self.clock = _IncarnationClock(shared.network, self.process)
        self.trace = _IncarnationTrace(shared, self.process, broker)
        self.server = SocketServer(shared.network, limits_of(settings), self.trace)
        ports = self.server.bind(settings.listeners)
        self.settings = settings.with_bound_ports(ports, "127.0.0.1")
        secured = ListenerSecurity(self.settings, lambda level, message: self.trace.emit(Noted(level, message)))
        secured.serve_tls(self.server)
        shared.addresses = {at: one for at, one in shared.addresses.items() if one != broker}
        shared.addresses["127.0.0.1", ports[BROKERS]] = broker
        self.connection = shared.zookeeper.connect(settings.zookeeper_session_timeout_ms, clock=shared.network.clock)
        self.event_loop = EventLoop(PacedExecutor(self.clock, lambda: 0.0), self._defect)
        peers = secured.peers(shared.network, BROKERS)
        self._peers = FaultyPeers(broker, self.process, self.clock, shared.links, peers, shared.addresses.get)
        self.node = self._make_node()
        secured.serve_sasl(self.server, self.node.access.credentials.read, self.clock)
        self.node.access.quota_store.limit(self.server.gate.quotas)

    def _make_node(self) -> Node:
        settings = self.settings

        def channels() -> ControllerChannels:
            self._channels = made = ControllerChannels(
                self._peers.connect,
                self.clock,
                node.events,
                request_timeout_ms=settings.controller_socket_timeout_ms,
                may_send=lambda: node.controller.void_reason() is None,
                note=lambda level, message: self.trace.emit(Noted(level, message)),
            )
            return made

        node = Node(
            settings,
            self.connection,
            channels,
            self._peers,
            self.clock,
            self.trace,
            self._shared.rng,
            wake=self.event_loop.wake,
            open_logs=self._open_logs,
            on_all_offline=lambda: self._end_soon("every log directory is offline"),
            drive=lambda steps: self.server.turns.drive(_without_jobs(steps)),
        )
        return node

    def _open_logs(self, settings_of: SettingsOf) -> LogManager:
        settings = self.settings
        clock = self.clock
        return LogManager(
            self._disk,
            settings.log_dirs,
            settings_of,
            clock.wall_ms,
            producer_ids_max=settings.producer_ids_max,
            tiers=settings.tiers.tiers,
        )

    # -- requests

    def start(self) -> None:
        self._began = True
        self.server.serve_now(self._receive)
        self.node.start()
        self.node.registered.on_done(self._registered)
        self.event_loop.start(self.node)

    def _receive(self, frame: bytes, respond: Respond, client: Requester) -> Steps | None:
        """A request waits while the process is paused or slow, and the requests behind it on its connection with it."""
        shared = self._shared
        if frame[:2] == _UPDATE_METADATA:
            respond = _followed(respond, shared.changed)
        if not self.process.runs_freely or (self.broker in shared.links.slow_ms) or shared.faults.any:
            return self._delayed(frame, respond, client)
        steps = self.node.broker.begin(frame, respond, client)
        return None if steps is None else _without_jobs(steps)

    def _delayed(self, frame: bytes, respond: Respond, client: Requester) -> Steps:
        shared = self._shared
        delay_ms = shared.links.slow_ms.get(self.broker, 0.0)
        verdict = None
        if client.listener != BROKERS:
            verdict = shared.faults.verdict(self.broker, frame, respond)
            if verdict is not None:
                delay_ms += verdict.delay_ms
        if delay_ms:
            late = Gate(0)
            shared.network.clock.call_later(delay_ms, late.leave)
            yield late
        running = Gate(0)
        self.process.deliver(running.leave)
        yield running
        if verdict is not None:
            if verdict.answer is not None:
                verdict.answer()
                return
            respond = verdict.respond
        steps = self.node.broker.begin(frame, respond, client)
        if steps is not None:
            yield from _without_jobs(steps)

    # -- ends

    def _registered(self) -> None:
        self._shared.changed()
        try:
            self.node.registered.result()
        except Exception as error:  # noqa: BLE001 - a broker that can't register ends, and says why
            self._end_soon(str(error))

    def _end_soon(self, reason: str) -> None:
        self._shared.network.clock.call_later(0.0, lambda: self._end(reason))

    def _end(self, reason: str) -> None:
        if self.process.alive:
            self._shared.ended(self.broker, reason)

    def _defect(self, event: Event, error: BaseException) -> None:
        if self.node.registered.error is error:
            return  # it ends of itself, and says why
        where = "".join(traceback.format_exception(error))
        self.trace.emit(Noted("error", f"the event {event} was not handled to its end\n{where}"))

    def kill(self) -> int:
        """SIGKILL. Return the ZooKeeper session that it leaves behind, 0 if it has none."""
        session = self.connection.session()
        self.process.die()
        self.connection.kill()
        self.event_loop.stop()
        self.server.close_now()
        self._peers.close()
        if self._channels is not None:
            self._channels.close()
        if self.node.broker.data is not None:
            for directory in self.node.broker.data.logs.directories:
                directory.unlock()
        self._shared.network.clock.call_later(0.0, self._free)
        return session

    def _free(self) -> None:
        """Break the references among the parts of a dead broker, of which nothing runs any more, so that it is freed
        now. Python's collector would free many of them at once, and whatever goes on then would wait for it."""
        node, broker, data = self.node, self.node.broker, self.node.broker.data
        parts: list[object] = [node, node.client, node.controller, node.services, node.log_maintenance]
        parts += [self.connection, broker, broker.replicas, broker.groups, broker.transactions]
        parts += [one.__self__ for one in broker.replicas.of_roles if isinstance(one, MethodType)]
        parts += [broker.transactions and broker.transactions.coordinator]
        if data is not None:
            parts += [data, data.logs, *data.logs.directories, data.partition_events, data.fetchers, data.fetch]
            parts += [data.produces, data.fetches, data.deletions]
            data.fetch.sessions.clear()
            data.fetchers.close()
        for partition in broker.replicas.partitions():
            partition.leading = partition.readers = None
        for part in parts:
            if part is not None:
                vars(part).clear()

    def shut_down(self, then: Callable[[], None]) -> None:
        """SIGTERM: the controlled shutdown begins, once the process runs. `then` is called at its end, with the broker
        still there to be killed."""

        def begin() -> None:
            spawn(self.node.shut_down()).on_done(ended)

        def ended() -> None:
            if self.process.alive:
                self.node.close_logs()
                then()

        self.process.deliver(begin)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process.state is ProcessState.RUNNING:
            self.process.pause()
            self.connection.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process.state is ProcessState.PAUSED:
            self.connection.resume()
            self.process.resume()


def _followed(respond: Respond, then: Callable[[], None]) -> Respond:
    """The same answer, and a call once it was given."""

    def both(parts: Sequence[Part] | None) -> None:
        respond(parts)
        then()

    return both


def _without_jobs(steps: Steps) -> Steps:
    """The steps with their jobs done in place: a cluster has one thread, which a test leaves nothing of."""
    try:
        yielded = next(steps)
        while True:
            if isinstance(yielded, Job):
                yielded = resumed(steps, yielded)
                continue
            yield yielded
            yielded = steps.send(None)
    except StopIteration:
        return
    finally:
        steps.close()

"""One life of a simulated broker: the same `Node` as in a real broker process, with everything around it in memory.

A kill takes all of it but what ZooKeeper and its disk hold. Its session lives on there until the server has missed it
for its timeout, and its sockets are closed by its machine. In scenarios the disk then loses what was not synced, as
with a loss of power: more than a real kill takes, and so what the replicas must be able to bear. In plans a kill
takes the process alone, and there are faults of disks and machines apart from it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from controller.broker.log_manager import LogManager, SettingsOf
from controller.broker.metadata import MetadataCache
from controller.broker.node import Node
from controller.broker.request_context import Job, Respond, Steps, Yielded, finish, resumed
from controller.broker.settings import BrokerSettings, parse_settings
from controller.clock import Clock, Future, VirtualClock, spawn
from controller.core.channels import ControllerChannels
from controller.core.event_loop import EventLoop
from controller.core.events import Event
from controller.machine.disk import SimulatedDisk
from controller.machine.process import MachineClock, PacedExecutor, Process, ProcessClock, ProcessState
from controller.simulator.metadata_interning import MetadataInterning
from controller.simulator.network import Address, Frame, Network
from controller.simulator.randomness import Streams
from controller.simulator.requests import BrokerConnection, SimulatedPeers
from controller.simulator.server import Answers, Server, Unanswered
from controller.storage import DeviceUnavailable
from controller.storage.devices import outcome_of
from controller.storage.disk import Device
from controller.storage.segment import PAGE_BYTES
from controller.trace import Noted, TraceEvent
from controller.trace_records import Recorder
from controller.zookeeper.memory.followers import Follower
from controller.zookeeper.memory.server import InMemoryZooKeeper

_DEAD = ProcessState.DEAD


@dataclass(frozen=True, slots=True)
class World:
    """What all processes of a run share."""

    clock: VirtualClock
    streams: Streams
    network: Network
    zookeeper: InMemoryZooKeeper
    recorder: Recorder
    addresses: Mapping[int, Address]
    interning: MetadataInterning = field(default_factory=MetadataInterning)
    disks: dict[int, SimulatedDisk] = field(default_factory=dict)
    """By broker; one that has `log.dirs` keeps its disk over all of its lives."""
    kills_forget: bool = True
    """Whether every end of a process takes along what was not synced."""
    machines: dict[int, MachineClock] = field(default_factory=dict)
    """By broker: the clock that all of its lives go by."""
    followers: Mapping[int, Follower] = field(default_factory=dict)
    """By broker: the lagging ZooKeeper server that it is at; without one it is at the leader."""


@dataclass(frozen=True, slots=True)
class Paces:
    """How fast a node is: milliseconds, drawn anew at each call."""

    boot_ms: Callable[[], float]
    step_ms: Callable[[], float]
    to_zookeeper_ms: Callable[[], float]


class NodeTrace:
    """The trace of one node. A dead process emits no events."""

    def __init__(self, world: World, process: Process, node: int) -> None:
        self.enabled = world.recorder.enabled
        self._now_ms = world.clock.now_ms
        self._take = world.recorder.take
        self._process = process
        self._node = node

    def emit(self, event: TraceEvent) -> None:
        if self._process.state is not _DEAD:
            self._take(self._now_ms(), self._node, event)


class _Receiving:
    """A node's listener, for frames that are shared too."""

    def __init__(self, node: Node, interning: MetadataInterning, disk: SimulatedDisk) -> None:
        self._node = node
        self._interning = interning
        self._disk = disk

    def receive(self, frame: Frame, respond: Respond) -> Steps | None:
        if not isinstance(frame, bytes):
            self._node.broker.handle(self._interning.request(frame), respond)
        elif self._disk.devices:
            return self._node.broker.begin(frame, respond)
        else:
            self._node.broker.receive(frame, respond)
        return None


class DeviceSteps:
    """Runs steps in virtual time: a job of a device takes as long as the device's queue says, or until the device is
    slow no more, and has no answer after `limit_ms`. One that begins later than that is not carried out; else it
    happens, as a whole, when it ends."""

    def __init__(self, disk: SimulatedDisk, clock: Clock, now_ms: Callable[[], float], limit_ms: float) -> None:
        self._disk = disk
        self._clock = clock
        self._now_ms = now_ms
        self._limit_ms = limit_ms

    def drive(self, steps: Steps) -> None:
        if self._disk.devices:
            self.run(steps, lambda: None)
        else:
            finish(steps)

    def run(self, steps: Steps, ended: Callable[[], None]) -> None:
        self._go_on(steps, ended, partial(next, steps))

    def _go_on(self, steps: Steps, ended: Callable[[], None], step: Callable[[], Yielded]) -> None:
        try:
            yielded = step()
            while True:
                if isinstance(yielded, Job):
                    if self._takes_time(yielded, steps, ended):
                        return
                    yielded = resumed(steps, yielded)
                    continue
                if yielded is not None and not yielded.enter(
                    lambda: self._go_on(steps, ended, partial(steps.send, None))
                ):
                    return
                yielded = steps.send(None)
        except StopIteration:
            ended()

    def _takes_time(self, job: Job, steps: Steps, ended: Callable[[], None]) -> bool:
        device = self._disk.devices.get(job.lane.name) if isinstance(job.lane, Device) else None
        if device is None:
            return False
        now_ms, queue = self._now_ms(), device.queue
        before_s = queue.busy_s
        done_ms = now_ms
        if device.is_slow:
            done_ms = queue.submit(now_ms / 1_000.0, object(), max(job.size_bytes, PAGE_BYTES)) * 1_000.0
        begun_ms = done_ms - (queue.busy_s - before_s) * 1_000.0
        limit_ms = self._limit_ms if job.limit_ms is None else job.limit_ms
        is_over = is_late = False

        def end() -> None:
            nonlocal is_over
            device.waiting.pop(end_early, None)
            self._disk.let_go(queue.name)
            if not is_over:
                is_over = True
                if is_late:
                    outcome_of(job.call)  # no one takes it
                else:
                    self._go_on(steps, ended, partial(resumed, steps, job))

        def expire() -> None:
            nonlocal is_over, is_late
            if not is_over:
                is_late, is_over = True, begun_ms - now_ms >= limit_ms
                why = f"{job.what}: no answer from the device in {limit_ms / 1_000.0:.1f} s"
                self._go_on(steps, ended, partial(steps.throw, DeviceUnavailable(queue.name, why)))

        def end_early() -> None:
            self._clock.call_later(0.0, end)

        device.waiting[end_early] = None
        self._clock.call_later(done_ms - now_ms, end)
        if done_ms - now_ms > limit_ms:
            self._clock.call_later(limit_ms, expire)
        return True


class SimulatedBroker:
    """One incarnation of a broker, which runs from construction on.

    The node inside starts once the process has booted. `failure` says why the process ended by itself.
    """

    def __init__(self, world: World, node: int, life: int, settings: Mapping[str, str], paces: Paces) -> None:
        self.node_id = node
        self.failure: str | None = None
        self.exited: Future[None] = Future()
        self._world = world
        self._name = f"broker-{node}/{life}"
        self._settings: BrokerSettings = parse_settings(settings)
        self._rng = world.streams.stream(f"{self._name}/core")
        self._coin = world.streams.stream(f"{self._name}/resume")
        self._stopping = False
        self._waits_for_disk = False
        self._disk_until_ms = 0.0
        self._node: Node | None = None
        self._answers: Answers | None = None
        self.process = Process(self._name)
        machine = world.machines.setdefault(node, MachineClock(world.clock))
        self.clock = ProcessClock(machine, self.process)
        self.trace = NodeTrace(world, self.process, node)
        self.zookeeper_slower = 1.0
        """How many times as slow as usual its way to ZooKeeper is."""
        self.connection = world.zookeeper.connect(
            self._settings.zookeeper_session_timeout_ms,
            latency=lambda: paces.to_zookeeper_ms() * self.zookeeper_slower,
            clock=machine,
            follower=world.followers.get(node),
        )
        self._paces = paces
        self.event_loop = EventLoop(PacedExecutor(self.clock, paces.step_ms), self._defect)
        self.clock.call_later(paces.boot_ms(), self._boot)

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def stopping(self) -> bool:
        """True once the broker was asked to stop, even if it has not ended yet."""
        return self._stopping

    @property
    def node(self) -> Node | None:
        """What runs in it, to look at; None before it has booted."""
        return self._node

    def unanswered(self) -> list[Unanswered]:
        """What it was asked and has not answered, the oldest first."""
        return [] if self._answers is None else self._answers.unanswered()

    @property
    def waiting(self) -> int:
        """How many requests it has not answered."""
        return 0 if self._answers is None else len(self._answers)

    def _open_logs(self, settings_of: SettingsOf) -> LogManager:
        settings = self._settings
        disk = self._world.disks.setdefault(self.node_id, SimulatedDisk())
        disk.waits = self._wait_for_disk
        disk.now_ms = self.clock.wall_ms()
        return LogManager(
            disk,
            settings.log_dirs,
            settings_of,
            self.clock.wall_ms,
            producer_ids_max=settings.producer_ids_max,
            tiers=settings.tiers.tiers,
        )

    def _boot(self) -> None:
        peers, interning = SimulatedPeers(self._connect), self._world.interning
        has_logs = bool(self._settings.log_dirs)
        disk = self._world.disks.setdefault(self.node_id, SimulatedDisk()) if has_logs else SimulatedDisk()
        timed = DeviceSteps(disk, self.clock, self._world.clock.now_ms, self._settings.device_timeout_ms)
        node = Node(
            self._settings,
            self.connection,
            lambda: self._channels(node, peers),
            peers,
            self.clock,
            self.trace,
            self._rng,
            wake=self.event_loop.wake,
            open_logs=self._open_logs if has_logs else None,
            on_all_offline=self._disk_gone,
            metadata=MetadataCache(interning.updated, interning.named),
            metadata_bodies=interning.metadata_bodies,
            drive=timed.drive,
        )
        self._node = node
        receiving = _Receiving(node, interning, disk)
        self._answers = Answers(receiving, self.clock, lambda why: self.trace.emit(Noted("error", why)))
        server = Server(self._answers, self.clock, self._paces.step_ms, timed.run)
        self._world.network.listen(self.process, self._world.addresses[self.node_id], server.accept)
        node.start()
        node.registered.on_done(lambda: self._registered(node))
        self.event_loop.start(node)

    def _channels(self, node: Node, peers: SimulatedPeers) -> ControllerChannels:
        return ControllerChannels(
            peers.connect,
            self.clock,
            node.events,
            request_timeout_ms=self._settings.controller_socket_timeout_ms,
            may_send=lambda: node.controller.void_reason() is None,
            note=self._note_defect,
        )

    def _note_defect(self, level: str, message: str) -> None:
        if level == "error":
            self.trace.emit(Noted(level, message))

    def _connect(self, address: Address) -> BrokerConnection:
        client_id = str(self.node_id)
        return BrokerConnection(self._world.network, self.node_id, self.process, self.clock, address, client_id)

    def _registered(self, node: Node) -> None:
        try:
            node.registered.result()
        except Exception as error:  # noqa: BLE001 - a broker that can't register ends, and says why
            self.failure = f"broker {self.node_id} ended of itself: {error}"
            self.clock.call_later(0.0, self.kill)

    def _disk_gone(self) -> None:
        """A broker without any log directory is of no use to anybody, and ends, as on the real host."""
        self.failure = f"broker {self.node_id} ended of itself: every log directory is offline"
        self.clock.call_later(0.0, self.kill)

    def _defect(self, event: Event, error: BaseException) -> None:
        if self._node is not None and self._node.registered.error is error:
            return  # it ends of itself, and says why
        where = "".join(traceback.format_exception(error))
        self.trace.emit(Noted("error", f"the event {event} was not handled to its end\n{where}"))

    # Fault injection.

    def kill(self, *, power: bool = False) -> None:
        """With `power`, its machine's power goes, whatever a kill alone takes in this world."""
        disk = self._world.disks.get(self.node_id)
        if disk is not None and self.alive:
            disk.process_ended()
            if power or self._world.kills_forget:
                disk.crash(self._world.streams.stream(f"{self._name}/crash"))
        self.process.die()
        self.connection.kill()
        self.event_loop.stop()
        if not self.exited.done:
            self.exited.resolve(None)

    def stop(self) -> None:
        """SIGTERM: the controlled shutdown begins, once it runs."""
        self.process.deliver(self._shut_down)

    def _shut_down(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        if self._node is None:
            self.kill()
        else:
            spawn(self._node.shut_down()).on_done(self._exit)

    def _exit(self) -> None:
        if self.alive and self._node is not None:
            self._node.close_logs()
        self.kill()

    def pause(self) -> None:
        if self.process.state is ProcessState.RUNNING or self._waits_for_disk:
            self._waits_for_disk = False
            self.process.pause()
            self.connection.pause()

    def _wait_for_disk(self, for_ms: float) -> None:
        """Its one thread that serves requests stands still; events of ZooKeeper arrive on another thread."""
        if self.process.state is ProcessState.RUNNING:
            self.process.pause()
            self._disk_until_ms = self._world.clock.now_ms()
            self._waits_for_disk = True
            self._world.clock.call_later(for_ms, self._disk_done)
        self._disk_until_ms += for_ms

    def _disk_done(self) -> None:
        if not self._waits_for_disk:
            return
        more_ms = self._disk_until_ms - self._world.clock.now_ms()
        if more_ms > 0:
            self._world.clock.call_later(more_ms, self._disk_done)
        else:
            self._waits_for_disk = False
            self.process.resume()

    def resume(self) -> None:
        """Which of its threads comes first, the one that hears ZooKeeper or the others, is chance."""
        self._waits_for_disk = False
        if not self.alive:
            return
        first, second = self.connection.resume, self.process.resume
        if self._coin.random() < 0.5:
            first, second = second, first
        first()
        second()

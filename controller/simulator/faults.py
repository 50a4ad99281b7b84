"""What the simulator does at each fault: one function for each class of fault, and what ends it.

A fault that makes no sense at its time does nothing. Two faults of one kind on the same broker or link may overlap: the
later one determines the condition until the first of them ends. The caller decides when a fault occurs and how long it
lasts: a plan's injector, a scenario's step, or a user of `Simulation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol

from controller.clock import Coro, Future, spawn
from controller.core.leadership import epoch_in
from controller.machine.disk import SlowedDevice
from controller.machine.process import ProcessState
from controller.scenarios.faults import (
    SIMULATED,
    ZOOKEEPER,
    BreakDisk,
    BreakLogDirectory,
    ChangeMember,
    ChangeProducer,
    ChangeRegistration,
    Cut,
    CutZooKeeper,
    DeleteController,
    Depose,
    Drift,
    EditController,
    EditControllerEpoch,
    ElectLeaders,
    ElectZooKeeper,
    Expire,
    Fault,
    HostileClient,
    Implementations,
    Isolate,
    Kill,
    KillZooKeeper,
    Link,
    LosePower,
    LoseReply,
    Lossy,
    Operation,
    Pause,
    PauseController,
    Reassign,
    ReplaceCertificate,
    Reset,
    ResetZooKeeper,
    Shut,
    Slow,
    SlowDevice,
    SlowDisk,
    SlowZooKeeper,
    SpoilZnode,
    StepWall,
    Stop,
    Undo,
    describe,
    kind_of,
)
from controller.simulator.broker_process import SimulatedBroker, World
from controller.simulator.ensemble import Ensemble
from controller.simulator.group_members import SimulatedMember
from controller.simulator.hostile_clients import HostileClients
from controller.simulator.network import GOOD, LinkCondition
from controller.simulator.observer import controller_named
from controller.simulator.transactional_client import RestartableClient, SimulatedWriter
from controller.trace import FaultInjected, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    ControllerZnode,
    PauseZnode,
    PreferredElection,
    Reassignments,
    TopicAssignment,
    decode_preferred_election,
    decode_reassignments,
    encode_controller,
    encode_pause,
    encode_preferred_election,
    encode_reassignments,
    encode_topic_assignment,
)
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import (
    ANY_VERSION,
    Create,
    Delete,
    SetData,
    Write,
    WriteResults,
    Znode,
    ZooKeeperError,
)
from statemachines.device_model import DeviceModel, DeviceQueue

SHELL_SESSION_MS = 30_000
GARBAGE = b"{not json"
EPOCHS = {"garbage": GARBAGE, "negative": b"-7", "lowered": b"1", "highest": b"2147483647", "raised": b"2147483646"}
"""What is written into /controller_epoch, by `how`."""
RETRY_MS = 50.0
WRITTEN = "written"
PAUSE_REASON = "the plan says so"


def _nothing(_argument: object = None) -> None:
    pass


def _change_client(client: RestartableClient[Any], how: str) -> Undo:
    if how == "replace":
        return client.replace()
    if how == "pause":
        client.pause()
        return client.resume
    if how == "resume":
        client.resume()
        return _nothing
    client.die()
    return client.begin


class FaultTarget(Protocol):
    """The host on whose cluster they are carried out."""

    @property
    def world(self) -> World: ...

    @property
    def ensemble(self) -> Ensemble: ...

    @property
    def processes(self) -> Mapping[int, SimulatedBroker]: ...

    @property
    def members(self) -> Mapping[int, SimulatedMember]: ...
    @property
    def writers(self) -> Mapping[int, SimulatedWriter]: ...

    def take(self, event: TraceEvent) -> None: ...

    def cut(self, link: Link) -> Coro[None]: ...

    def heal(self, link: Link) -> Coro[None]: ...


SIMULATED_FAULTS: Implementations[Callable[[Any, Any], Undo | None]] = Implementations(SIMULATED)


class Faults:
    """Faults on the brokers 1 to `brokers` of a booted host.

    `restart` starts a broker again once its process has ended. `expires` is called before a session is ended from
    outside; `powerless` is called with each broker that loses power.
    """

    def __init__(
        self,
        host: FaultTarget,
        brokers: int,
        restart: Callable[[int], None],
        expires: Callable[[int], None] = _nothing,
        powerless: Callable[[int], None] = _nothing,
    ) -> None:
        self._host = host
        self._world = host.world
        self._zookeeper = host.world.zookeeper
        self._nodes = range(1, brokers + 1)
        self._restart = restart
        self._expires = expires
        self._powerless = powerless
        self._spoiled: dict[str, tuple[bytes, bytes]] = {}  # the spoiled and the former value, by path
        self._hostile = HostileClients(host.world)
        self._epoch_edited = False
        self._written: Future[WriteResults] | None = None  # the last write of the administrator's session

    @cached_property
    def shell(self) -> InMemoryConnection:
        """The administrator's own session, which begins with its first use."""
        shell = self._zookeeper.connect(SHELL_SESSION_MS)
        shell.start()
        return shell

    def begin(self, fault: Fault) -> Undo | None:
        """Carry out a fault, and return what ends it. None: it makes no sense now, and nothing was done."""
        return SIMULATED_FAULTS[fault](self, fault)

    def is_by_hand(self, session: int) -> bool:
        """Whether a session's writes are the administrator's."""
        return session == self.shell.session()

    def trace(self, happening: Fault | Operation) -> None:
        """Record the happening in the trace; a kill and the like by its broker alone, as scenarios record them."""
        kind, node = kind_of(happening), getattr(happening, "node", None)
        if isinstance(happening, Kill | LosePower | Stop | Pause | Expire):
            self._host.take(FaultInjected(kind, str(node)))
        else:
            self._host.take(FaultInjected(kind, describe(happening).partition(" ")[2]))

    def heal_all(self) -> None:
        """End every lasting fault: links and clocks work, ZooKeeper's servers run, and no process is paused.

        Dead brokers stay dead.
        """
        host = self._host
        for path in list(self._spoiled):
            self._restore_znode(path)
        self._hostile.end_all()
        for _, member in sorted(host.members.items()):
            member.resume()
        for _, writer in sorted(host.writers.items()):
            writer.resume()
        self._world.network.heal_all()
        for server in range(1, host.ensemble.servers + 1):
            if server not in host.ensemble.running:
                host.ensemble.start(server)
        for node in self._nodes:
            if node in self._world.machines:
                self._world.machines[node].set_rate(1.0)
            spawn(host.heal(Link(node, ZOOKEEPER)))
            self._repair_disk(node)
            process = self._process(node)
            if process is not None:
                process.zookeeper_slower = 1.0
                process.resume()
        self._repair_edits()

    # -- processes

    def _process(self, node: int) -> SimulatedBroker | None:
        process = self._host.processes.get(node)
        return process if process is not None and process.alive else None

    def _starts_again(self, process: SimulatedBroker) -> Undo:
        """Start the broker again, unless somebody has by then."""

        def undo() -> None:
            if self._host.processes.get(process.node_id) is process:
                self._restart(process.node_id)

        return undo

    @SIMULATED_FAULTS.of(Kill)
    def _kill(self, fault: Kill) -> Undo | None:
        process = self._process(fault.broker)
        if process is None:
            return None
        process.kill()
        return self._starts_again(process)

    @SIMULATED_FAULTS.of(Stop)
    def _stop(self, fault: Stop) -> Undo | None:
        process = self._process(fault.broker)
        if process is None:
            return None
        process.stop()
        return self._starts_again(process)

    @SIMULATED_FAULTS.of(Pause)
    def _pause(self, fault: Pause) -> Undo | None:
        process = self._process(fault.broker)
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        return process.resume

    # -- clocks

    @SIMULATED_FAULTS.of(Drift)
    def _drift(self, fault: Drift) -> Undo:
        machine = self._world.machines[fault.broker]
        machine.set_rate(fault.rate)
        return partial(machine.set_rate, 1.0)

    @SIMULATED_FAULTS.of(StepWall)
    def _step_wall(self, fault: StepWall) -> Undo:
        self._world.machines[fault.broker].step_wall(fault.by_ms)
        return _nothing

    # -- disks

    @SIMULATED_FAULTS.of(LosePower)
    def _lose_power(self, fault: LosePower) -> Undo | None:
        process = self._process(fault.broker)
        if process is None or fault.broker not in self._world.disks:
            return None
        self._powerless(fault.broker)
        process.kill(power=True)
        return self._starts_again(process)

    @SIMULATED_FAULTS.of(BreakDisk)
    def _break_disk(self, fault: BreakDisk) -> Undo | None:
        disk = self._world.disks.get(fault.broker)
        if disk is None or disk.broken:
            return None
        disk.fail()
        return partial(self._repair_disk, fault.broker)

    @SIMULATED_FAULTS.of(BreakLogDirectory)
    def _break_log_directory(self, fault: BreakLogDirectory) -> Undo | None:
        """One of several, so that the broker lives on with the others."""
        disk = self._world.disks.get(fault.broker)
        if disk is None or (disk.broken and not fault.unreadable):
            return None
        disk.fail_directory(fault.directory, for_good=not fault.for_ms, unreadable=fault.unreadable)
        return partial(self._repair_disk, fault.broker)

    def _repair_disk(self, node: int) -> None:
        """A broker that has found its disk broken does not try it again until it is started anew."""
        disk, process = self._world.disks.get(node), self._process(node)
        if disk is None:
            return
        before = (disk.broken, disk.broken_directories)
        disk.repair()
        if before != (disk.broken, disk.broken_directories) and process is not None:
            process.kill()
            self._restart(node)

    @SIMULATED_FAULTS.of(SlowDisk)
    def _slow_disk(self, fault: SlowDisk) -> Undo | None:
        disk = self._world.disks.get(fault.broker)
        if disk is None:
            return None
        disk.a_change_ms = fault.a_change_ms
        return partial(setattr, disk, "a_change_ms", 0.0)

    @SIMULATED_FAULTS.of(SlowDevice)
    def _slow_device(self, fault: SlowDevice) -> Undo | None:
        disk = self._world.disks.get(fault.broker)
        if disk is None:
            return None
        model = DeviceModel(fault.bytes_per_s, seeks_s=((2, fault.a_seek_ms / 1_000.0),))
        before = disk.devices.get(fault.directory)
        device = disk.devices[fault.directory] = SlowedDevice(DeviceQueue(fault.directory, model))
        if before is not None:
            before.end()

        def end() -> None:
            if disk.devices.get(fault.directory) is device:
                device.end()
                disk.let_go(fault.directory)

        return end

    # -- sessions

    @SIMULATED_FAULTS.of(CutZooKeeper)
    def _cut_zookeeper(self, fault: CutZooKeeper) -> Undo | None:
        """In one direction, of this incarnation: the next one has connections of its own, which only "both" cuts."""
        if fault.way == "both":
            return self._cut_link(Link(fault.broker, ZOOKEEPER))
        process = self._process(fault.broker)
        if process is None:
            return None
        ways = {"to_server": fault.way == "to", "to_client": fault.way == "from"}
        process.connection.cut(**ways)
        return lambda: process.connection.heal(**ways) if process.alive else None

    @SIMULATED_FAULTS.of(SlowZooKeeper)
    def _slow_zookeeper(self, fault: SlowZooKeeper) -> Undo | None:
        process = self._process(fault.broker)
        if process is None:
            return None
        process.zookeeper_slower = fault.slower
        return partial(setattr, process, "zookeeper_slower", 1.0)

    @SIMULATED_FAULTS.of(ResetZooKeeper)
    def _reset_zookeeper(self, fault: ResetZooKeeper) -> Undo | None:
        process = self._process(fault.broker)
        if process is None:
            return None
        process.connection.reset()
        return _nothing

    @SIMULATED_FAULTS.of(LoseReply)
    def _lose_reply(self, fault: LoseReply) -> Undo | None:
        process = self._process(fault.broker)
        if process is None:
            return None
        process.connection.lose_reply(applied=fault.applied)
        return _nothing

    @SIMULATED_FAULTS.of(Expire)
    def _expire(self, fault: Expire) -> Undo | None:
        process = self._process(fault.broker)
        session = 0 if process is None else process.connection.session()
        if session not in self._zookeeper.sessions():
            return None
        self._expires(session)
        self._zookeeper.expire(session)
        return _nothing

    @SIMULATED_FAULTS.of(ReplaceCertificate)
    def _replace_certificate(self, fault: ReplaceCertificate) -> Undo | None:
        return _nothing

    # -- /controller and /controller_epoch, through the administrator's session

    @SIMULATED_FAULTS.of(DeleteController)
    def _delete_controller(self, fault: DeleteController) -> Undo | None:
        row = self._zookeeper.row(paths.CONTROLLER)
        if row is None or not self._zookeeper.running:
            return None
        self._expires(row.stat.ephemeral_owner)
        self._write([Delete(paths.CONTROLLER, ANY_VERSION)])
        return _nothing

    @SIMULATED_FAULTS.of(Depose)
    def _depose(self, fault: Depose) -> Undo | None:
        process = self._process(controller_named(self._zookeeper))
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        self._host.take(FaultInjected("pause", str(process.node_id)))
        self._delete_controller(DeleteController())

        def undo() -> None:
            self._host.take(FaultInjected("resume", str(process.node_id)))
            process.resume()

        return undo

    @SIMULATED_FAULTS.of(EditController)
    def _edit_controller(self, fault: EditController) -> Undo | None:
        row = self._zookeeper.row(paths.CONTROLLER)
        if not self._zookeeper.running or (row is None and fault.how != "persistent"):
            return None
        if row is not None:
            self._expires(row.stat.ephemeral_owner)
        if fault.how == "persistent":
            deletion = [] if row is None else [Delete(paths.CONTROLLER, ANY_VERSION)]
            self._write([*deletion, Create(paths.CONTROLLER, _controller_data(fault.broker))])
            return self._delete_persistent
        data = {"another": _controller_data(fault.broker), "no-broker": _controller_data(-1), "garbage": GARBAGE}
        self._write([SetData(paths.CONTROLLER, data[fault.how], ANY_VERSION)])
        return _nothing

    @SIMULATED_FAULTS.of(EditControllerEpoch)
    def _edit_epoch(self, fault: EditControllerEpoch) -> Undo | None:
        row = self._zookeeper.row(paths.CONTROLLER_EPOCH)
        if not self._zookeeper.running or row is None:
            return None
        self._epoch_edited = True
        if fault.how == "deleted":
            self._write([Delete(paths.CONTROLLER_EPOCH, ANY_VERSION)])
        else:
            self._write([SetData(paths.CONTROLLER_EPOCH, EPOCHS[fault.how], ANY_VERSION)])
        return self._delete_unreadable

    def _repair_edits(self) -> None:
        """Repair what candidates report, as their log messages advise an administrator.

        An idle controller notices a change of the epoch only at its next write; so an election is forced after one.
        """
        self._delete_persistent()
        self._delete_unreadable()
        if self._epoch_edited:
            self._epoch_edited = False
            spawn(self._until_deleted(paths.CONTROLLER, lambda row: True))

    def _delete_persistent(self) -> None:
        spawn(self._until_deleted(paths.CONTROLLER, lambda row: not row.stat.ephemeral_owner))

    def _delete_unreadable(self) -> None:
        spawn(self._until_deleted(paths.CONTROLLER_EPOCH, lambda row: epoch_in(row) is None))

    async def _until_deleted(self, path: str, wrong: Callable[[Znode], bool]) -> None:
        """Delete the znode if it is `wrong`; again while ZooKeeper does not answer.

        What was written before has its answer first: ZooKeeper may apply it after an election only."""
        while True:
            if self._written is not None and not self._written.done:
                with suppress(ZooKeeperError):
                    await self._written
            row = self._zookeeper.row(path)
            if row is None or not wrong(row):
                return
            if path == paths.CONTROLLER:
                self._expires(row.stat.ephemeral_owner)
            try:
                await self.shell.multi([Delete(path, row.stat.version)])
                return
            except ZooKeeperError:
                pass  # tried again below
            await self._world.clock.sleep(RETRY_MS)

    # -- other znodes. What is spoiled is written past every session, because the safety checker judges what nodes write

    @SIMULATED_FAULTS.of(SpoilZnode)
    def _spoil_znode(self, fault: SpoilZnode) -> Undo | None:
        """None: there is no such znode now, or it is spoiled already."""
        path = spoiled_path(fault)
        row = self._zookeeper.row(path)
        if not self._zookeeper.running or path in self._spoiled or (row is None) != (fault.what == "topic"):
            return None
        if row is None:
            sound = encode_topic_assignment(TopicAssignment(None, {0: (fault.broker,)}, version=2))
            value = encode_topic_assignment(TopicAssignment(None, {0: (fault.broker, fault.broker)}, version=2))
            self._zookeeper.restore([Create(path, value)])
        else:
            sound = row.data or b""
            value = _spoiled(fault.what, sound)
            self._zookeeper.restore([SetData(path, value, ANY_VERSION)])
        self._spoiled[path] = (value, sound)
        return partial(self._restore_znode, path)

    def _restore_znode(self, path: str) -> None:
        """Only where the spoiled value still stands: the znode may have been deleted or rewritten meanwhile."""
        value, sound = self._spoiled.pop(path, (b"", b""))
        row = self._zookeeper.row(path)
        if row is not None and row.data == value:
            self._zookeeper.restore([SetData(path, sound, ANY_VERSION)])

    @SIMULATED_FAULTS.of(ChangeRegistration)
    def _change_registration(self, fault: ChangeRegistration) -> Undo | None:
        path = paths.broker(fault.broker)
        row = self._zookeeper.row(path)
        if row is None or not self._zookeeper.running:
            return None
        registration = {**json.loads(row.data or b"{}"), "rack": fault.rack}
        self._zookeeper.restore([SetData(path, json.dumps(registration).encode(), ANY_VERSION)])
        return _nothing

    @SIMULATED_FAULTS.of(PauseController)
    def _pause_controller(self, fault: PauseController) -> Undo | None:
        if self._zookeeper.row(paths.CONTROLLER_PAUSE) is not None or self._request([paused()]) != WRITTEN:
            return None
        return lambda: _nothing(self._request([Delete(paths.CONTROLLER_PAUSE, ANY_VERSION)]))

    def ask(self, operation: Reassign | ElectLeaders) -> str:
        """Request an operation by the znode that the controller watches; return the outcome in words.

        Only ZooKeeper answers such a request.
        """
        return self._request(_request_znode(self._zookeeper, operation))

    def _request(self, operations: Sequence[Write]) -> str:
        if not self._zookeeper.running:
            return "ZooKeeper does not run"
        self._write(operations)
        return WRITTEN

    def _write(self, operations: Sequence[Write]) -> None:
        self._written = self.shell.multi(operations)

    # -- clients

    @SIMULATED_FAULTS.of(HostileClient)
    def _hostile_client(self, fault: HostileClient) -> Undo:
        return self._hostile.begin(fault)

    # -- members of a consumer group

    @SIMULATED_FAULTS.of(ChangeMember)
    def _change_member(self, fault: ChangeMember) -> Undo | None:
        member = self._host.members.get(fault.member)
        if member is None or (not member.is_running and fault.how != "join"):
            return None
        if fault.how == "join":
            if member.takes_part:
                return None
            member.begin()
            return member.leave
        if fault.how == "leave":
            member.leave()
            return member.begin
        return _change_client(member, fault.how)

    @SIMULATED_FAULTS.of(ChangeProducer)
    def _change_producer(self, fault: ChangeProducer) -> Undo | None:
        writer = self._host.writers.get(fault.producer)
        if writer is None or (not writer.is_running and fault.how != "start"):
            return None
        if fault.how == "start":
            writer.begin()
            return _nothing
        return _change_client(writer, fault.how)

    # -- ZooKeeper's servers

    @SIMULATED_FAULTS.of(ElectZooKeeper)
    def _elect_zookeeper(self, fault: ElectZooKeeper) -> Undo | None:
        if self._host.ensemble.leader is None:
            return None
        self._host.ensemble.elect_again()
        return _nothing

    @SIMULATED_FAULTS.of(KillZooKeeper)
    def _kill_zookeeper(self, fault: KillZooKeeper) -> Undo | None:
        ensemble, server = self._host.ensemble, fault.number
        if server not in ensemble.running:
            return None
        ensemble.kill(server)

        def undo() -> None:
            if server not in ensemble.running:
                ensemble.start(server)

        return undo

    # -- the network

    @SIMULATED_FAULTS.of(Cut)
    def _cut(self, fault: Cut) -> Undo:
        return self._cut_link(fault.link)

    def _cut_link(self, link: Link) -> Undo:
        spawn(self._host.cut(link))
        return lambda: _nothing(spawn(self._host.heal(link)))

    @SIMULATED_FAULTS.of(Shut)
    def _shut(self, fault: Shut) -> Undo:
        return self._way(fault.link, LinkCondition(shut=True))

    @SIMULATED_FAULTS.of(Slow)
    def _slow(self, fault: Slow) -> Undo:
        return self._way(fault.link, LinkCondition(slower=fault.slower, more_ms=fault.more_ms))

    @SIMULATED_FAULTS.of(Lossy)
    def _lossy(self, fault: Lossy) -> Undo:
        return self._way(fault.link, LinkCondition(loss=fault.loss))

    def _way(self, link: Link, condition: LinkCondition) -> Undo:
        self._world.network.set_way(link.source, link.target, condition)
        return partial(self._world.network.set_way, link.source, link.target, GOOD)

    @SIMULATED_FAULTS.of(Reset)
    def _reset(self, fault: Reset) -> Undo:
        self._world.network.reset(fault.link.source, fault.link.target, fault.late_ms or None)
        return _nothing

    @SIMULATED_FAULTS.of(Isolate)
    def _isolate(self, fault: Isolate) -> Undo:
        others = [node for node in self._nodes if node != fault.broker]
        self.cut_off(fault.broker, others)

        def undo() -> None:
            for other in others:
                self._world.network.heal(fault.broker, other)
                self._world.network.heal(other, fault.broker)

        return undo

    def cut_off(self, node: int, others: Iterable[int]) -> None:
        """Cut every link between the node and those."""
        for other in others:
            self._world.network.cut(node, other)
            self._world.network.cut(other, node)


def paused() -> Create:
    """Return the write that pauses the controller."""
    return Create(paths.CONTROLLER_PAUSE, encode_pause(PauseZnode(PAUSE_REASON, 0)))


def _controller_data(broker: int) -> bytes:
    return encode_controller(ControllerZnode(broker, 0))


def spoiled_path(fault: SpoilZnode) -> str:
    if fault.what == "state":
        return paths.partition_state(fault.topic, fault.partition)
    return paths.broker(fault.broker) if fault.what == "registration" else paths.topic(fault.topic)


def _spoiled(what: str, sound: bytes) -> bytes:
    fields = json.loads(sound)
    if what == "state":
        fields["isr"] = [*fields["isr"], *fields["isr"]]
    else:
        fields["rack"] = "r" * 40_000
    return json.dumps(fields).encode()


def _request_znode(zookeeper: InMemoryZooKeeper, operation: Reassign | ElectLeaders) -> Sequence[Write]:
    """Add a request to those that the znode holds, as Kafka's old tools did; a later one on the same partition counts.

    The write alone, as a tool that reads first would send it.
    """
    key = (operation.topic, operation.partition)
    if isinstance(operation, Reassign):
        path = paths.REASSIGN_PARTITIONS
        row = zookeeper.row(path)
        moves = Reassignments({}) if row is None else decode_reassignments(path, row.data)
        data = encode_reassignments(replace(moves, replicas={**moves.replicas, key: tuple(operation.replicas)}))
    else:
        path = paths.PREFERRED_ELECTION
        row = zookeeper.row(path)
        election = PreferredElection(()) if row is None else decode_preferred_election(path, row.data)
        data = encode_preferred_election(
            replace(election, partitions=tuple(dict.fromkeys((*election.partitions, key))))
        )
    return (Create(path, data),) if row is None else (SetData(path, data, row.stat.version),)

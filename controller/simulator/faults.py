"""Carry out every fault of a plan on a simulated cluster, and return what ends it.

A fault that makes no sense at its time does nothing. Two faults of one kind on the same broker or link may overlap: the
later one determines the condition until the first of them ends. The caller decides when a fault occurs and how long it
lasts: a plan's injector, a scenario's step, or a user of `Simulation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from controller.pending import Task
from controller.scenarios.faults import InjectedFault
from controller.scenarios.host import ZOOKEEPER, Link
from controller.simulator import by_znode
from controller.simulator.broker_process import SimulatedBroker, World
from controller.simulator.ensemble import Ensemble
from controller.simulator.faults_between import ON_ENSEMBLE, ON_NETWORK, Undo, cut_off, isolate
from controller.simulator.faults_of_disks import ON_DISKS, DiskFaults, back, living
from controller.simulator.hand_edits import ON_HAND_EDITS, HandEdits, controller_named
from controller.simulator.hostile_clients import HostileClients
from controller.simulator.plan import (
    ChangeRegistration,
    CutZooKeeper,
    DeleteController,
    Depose,
    Drift,
    ElectLeaders,
    Expire,
    Fault,
    Happening,
    HostileClient,
    Isolate,
    Kill,
    LosePower,
    LoseReply,
    Pause,
    PauseController,
    Reassign,
    ResetZooKeeper,
    SlowZooKeeper,
    SpoilZnode,
    StepWall,
    Stop,
    describe,
    kind_of,
)
from controller.simulator.process import ProcessState
from controller.simulator.spoiled_znodes import SpoiledZnodes, change_registration
from controller.trace import FaultInjected, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.drive import drive
from controller.zookeeper.operations import ANY_VERSION, Delete, Write

SHELL_SESSION_MS = 30_000


def _nothing(_argument: object = None) -> None:
    pass


def as_happening(fault: InjectedFault, at_ms: float) -> Fault:
    """A scenario's fault, its nodes known, as a plan has it: the same name, the same fields."""
    fields = msgspec.to_builtins(fault)
    del fields["when"]
    happening: Fault = msgspec.convert({**fields, "at_ms": at_ms}, Fault)
    return happening


class FaultTarget(Protocol):
    """The host on whose cluster they are carried out."""

    @property
    def world(self) -> World: ...

    @property
    def ensemble(self) -> Ensemble: ...

    @property
    def processes(self) -> Mapping[int, SimulatedBroker]: ...

    def take(self, event: TraceEvent) -> None: ...

    def cut(self, link: Link) -> Task[None]: ...

    def heal(self, link: Link) -> Task[None]: ...


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
        self._nodes = range(1, brokers + 1)
        self._restart = restart
        self._expires = expires
        self._disks = DiskFaults(host.world, host.processes, restart, powerless)
        self._spoiled = SpoiledZnodes(host.world.zookeeper)
        self._hostile = HostileClients(host.world)
        self._shell = host.world.zookeeper.connect(SHELL_SESSION_MS)
        self._shell.start()
        self._edits = HandEdits(host.world.zookeeper, self._shell, host.world.clock, expires)

    def begin(self, fault: Fault) -> Undo | None:
        """Carries it out; gives what ends it. None: it makes no sense now, and nothing was done."""
        on_the_way, on_servers = ON_NETWORK.get(type(fault)), ON_ENSEMBLE.get(type(fault))
        if on_the_way is not None:
            return on_the_way(self._host.world.network, fault)
        if on_servers is not None:
            return on_servers(self._host.ensemble, fault)
        on_disks = ON_DISKS.get(type(fault))
        if on_disks is not None:
            return on_disks(self._disks, fault)
        by_hand = ON_HAND_EDITS.get(type(fault))
        if by_hand is not None:
            return by_hand(self._edits, fault)
        return _CARRY_OUT[type(fault)](self, fault)

    def is_by_hand(self, session: int) -> bool:
        """Whether a session's writes are the administrator's."""
        return session == self._shell.session()

    def trace(self, happening: Happening) -> None:
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
        self._spoiled.repair_all()
        self._hostile.end_all()
        host.world.network.heal_all()
        for server in range(1, host.ensemble.servers + 1):
            if server not in host.ensemble.running:
                host.ensemble.start(server)
        for node in self._nodes:
            if node in host.world.machines:
                host.world.machines[node].set_rate(1.0)
            drive(host.heal(Link(node, ZOOKEEPER)))
            self._disks.repair(node)
            process = living(host.processes, node)
            if process is not None:
                process.zookeeper_slower = 1.0
                process.resume()
        self._edits.repair()

    # -- processes

    def _process(self, node: int) -> SimulatedBroker | None:
        return living(self._host.processes, node)

    def _kill(self, fault: Kill) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.kill()
        return back(self._host.processes, process, self._restart)

    def _stop(self, fault: Stop) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.stop()
        return back(self._host.processes, process, self._restart)

    def _pause(self, fault: Pause) -> Undo | None:
        process = self._process(fault.node)
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        return process.resume

    # -- clocks

    def _drift(self, fault: Drift) -> Undo:
        machine = self._host.world.machines[fault.node]
        machine.set_rate(fault.rate)
        return partial(machine.set_rate, 1.0)

    def _step_wall(self, fault: StepWall) -> Undo:
        self._host.world.machines[fault.node].step_wall(fault.by_ms)
        return _nothing

    # -- sessions

    def _cut_zookeeper(self, fault: CutZooKeeper) -> Undo | None:
        """Of the life that it is in: the next one has connections of its own, which are cut by the whole way alone."""
        if fault.way == "both":
            link = Link(fault.node, ZOOKEEPER)
            drive(self._host.cut(link))
            return lambda: _begun(self._host.heal(link))
        process = self._process(fault.node)
        if process is None:
            return None
        ways = {"to_server": fault.way == "to", "to_client": fault.way == "from"}
        process.connection.cut(**ways)
        return lambda: process.connection.heal(**ways) if process.alive else None

    def _slow_zookeeper(self, fault: SlowZooKeeper) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.zookeeper_slower = fault.slower

        def undo() -> None:
            process.zookeeper_slower = 1.0

        return undo

    def _reset_zookeeper(self, fault: ResetZooKeeper) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.connection.reset()
        return _nothing

    def _lose_reply(self, fault: LoseReply) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.connection.lose_reply(applied=fault.applied)
        return _nothing

    def _expire(self, fault: Expire) -> Undo | None:
        process = self._process(fault.node)
        session = 0 if process is None else process.connection.session()
        if session not in self._host.world.zookeeper.sessions():
            return None
        self._expires(session)
        self._host.world.zookeeper.expire(session)
        return _nothing

    def _delete_controller(self, fault: DeleteController) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        row = zookeeper.row(paths.CONTROLLER)
        if row is None or not zookeeper.running:
            return None
        self._expires(row.stat.ephemeral_owner)
        self._shell.multi([Delete(paths.CONTROLLER, ANY_VERSION)])
        return _nothing

    def _depose(self, fault: Depose) -> Undo | None:
        process = self._process(controller_named(self._host.world.zookeeper))
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        self._host.take(FaultInjected("pause", str(process.node_id)))
        self._delete_controller(DeleteController(at_ms=fault.at_ms))

        def undo() -> None:
            self._host.take(FaultInjected("resume", str(process.node_id)))
            process.resume()

        return undo

    # -- what is asked for by znodes

    def ask(self, operation: Reassign | ElectLeaders) -> str:
        """Request an operation by the znode that the controller watches; return the outcome in words.

        Only ZooKeeper answers such a request.
        """
        return self._written(by_znode.asked_for(self._host.world.zookeeper, operation))

    def _pause_controller(self, fault: PauseController) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        if zookeeper.row(paths.CONTROLLER_PAUSE) is not None or self._written(by_znode.paused()) != by_znode.WRITTEN:
            return None
        return lambda: _nothing(self._written([Delete(paths.CONTROLLER_PAUSE, ANY_VERSION)]))

    def _written(self, operations: Sequence[Write]) -> str:
        if not self._host.world.zookeeper.running:
            return "ZooKeeper does not run"
        self._shell.multi(operations)
        return by_znode.WRITTEN

    def _spoil_znode(self, fault: SpoilZnode) -> Undo | None:
        return self._spoiled.begin(fault) if self._host.world.zookeeper.running else None

    def _hostile_client(self, fault: HostileClient) -> Undo:
        return self._hostile.begin(fault)

    def _change_registration(self, fault: ChangeRegistration) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        return change_registration(zookeeper, fault) if zookeeper.running else None

    # -- the network

    def cut_off(self, node: int, others: Iterable[int]) -> None:
        """Nothing passes between it and those any more."""
        cut_off(self._host.world.network, node, others)

    def _isolate(self, fault: Isolate) -> Undo:
        return isolate(self._host.world.network, fault.node, [node for node in self._nodes if node != fault.node])


def _begun(task: Task[None]) -> None:
    drive(task)


_CARRY_OUT: dict[type, Callable[..., Undo | None]] = {
    Kill: Faults._kill,
    Stop: Faults._stop,
    Pause: Faults._pause,
    Drift: Faults._drift,
    StepWall: Faults._step_wall,
    CutZooKeeper: Faults._cut_zookeeper,
    SlowZooKeeper: Faults._slow_zookeeper,
    ResetZooKeeper: Faults._reset_zookeeper,
    LoseReply: Faults._lose_reply,
    Expire: Faults._expire,
    DeleteController: Faults._delete_controller,
    Depose: Faults._depose,
    Isolate: Faults._isolate,
    PauseController: Faults._pause_controller,
    SpoilZnode: Faults._spoil_znode,
    HostileClient: Faults._hostile_client,
    ChangeRegistration: Faults._change_registration,
}

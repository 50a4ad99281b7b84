"""Every fault that a plan may name, carried out on a simulated cluster, with what ends it again.

One that makes no sense when its time comes does nothing. Two of a kind on the same broker or link may overlap: the way
is as bad as the later one says, until the first of them ends. When a fault comes and how long it lasts is for whoever
asks: a plan's injector, a scenario's step, a user of `Simulation`.
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
from controller.simulator import plan as told
from controller.simulator.broker_process import BrokerProcess, World
from controller.simulator.conditions import GOOD, Condition
from controller.simulator.ensemble import Ensemble
from controller.simulator.plan import Fault
from controller.simulator.process import ProcessState
from controller.trace import FaultInjected, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.drive import drive
from controller.zookeeper.operations import ANY_VERSION, Delete, Write

Undo = Callable[[], None]
SHELL_SESSION_MS = 30_000


def _nothing(_argument: object = None) -> None:
    pass


def as_happening(fault: InjectedFault, at_ms: float) -> Fault:
    """A scenario's fault, its nodes known, as a plan has it: the same name, the same fields."""
    fields = msgspec.to_builtins(fault)
    del fields["when"]
    happening: Fault = msgspec.convert({**fields, "at_ms": at_ms}, Fault)
    return happening


class Struck(Protocol):
    """The host on whose cluster they are carried out."""

    @property
    def world(self) -> World: ...

    @property
    def ensemble(self) -> Ensemble: ...

    @property
    def processes(self) -> Mapping[int, BrokerProcess]: ...

    def take(self, event: TraceEvent) -> None: ...

    def cut(self, link: Link) -> Task[None]: ...

    def heal(self, link: Link) -> Task[None]: ...


class Faults:
    """On the brokers 1 to `brokers` of a booted host. `restart` starts a broker again, once it has gone; `expires` is
    told of each session that is ended from outside, before it is; `powerless` of each broker that loses power."""

    def __init__(
        self,
        host: Struck,
        brokers: int,
        restart: Callable[[int], None],
        expires: Callable[[int], None] = _nothing,
        powerless: Callable[[int], None] = _nothing,
    ) -> None:
        self._host = host
        self._nodes = range(1, brokers + 1)
        self._restart = restart
        self._expires = expires
        self._powerless = powerless
        self._shell = host.world.zookeeper.connect(SHELL_SESSION_MS)
        self._shell.start()

    def begin(self, fault: Fault) -> Undo | None:
        """Carries it out; gives what ends it. None: it makes no sense now, and nothing was done."""
        return _CARRY_OUT[type(fault)](self, fault)

    def tell(self, happening: told.Happening) -> None:
        """To the trace. Kills and the like by the broker alone, as scenarios' faults are told."""
        kind, node = told.kind_of(happening), getattr(happening, "node", None)
        if isinstance(happening, told.Kill | told.LosePower | told.Stop | told.Pause | told.Expire):
            self._host.take(FaultInjected(kind, str(node)))
        else:
            self._host.take(FaultInjected(kind, told.told(happening).partition(" ")[2]))

    def mend(self) -> None:
        """Every fault that lasts ends: ways and clocks are good again, ZooKeeper's servers run, nobody stands still.
        Who is dead stays dead."""
        host = self._host
        host.world.network.mend()
        for server in range(1, host.ensemble.servers + 1):
            if server not in host.ensemble.running:
                host.ensemble.start(server)
        for node in self._nodes:
            if node in host.world.machines:
                host.world.machines[node].set_rate(1.0)
            drive(host.heal(Link(node, ZOOKEEPER)))
            if node in host.world.disks:
                self._mend_disk(node)
            process = self._process(node)
            if process is not None:
                process.zookeeper_slower = 1.0
                process.resume()

    # -- processes

    def _process(self, node: int) -> BrokerProcess | None:
        process = self._host.processes.get(node)
        return process if process is not None and process.alive else None

    def _kill(self, fault: told.Kill) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.kill()
        return partial(self._back, process)

    def _stop(self, fault: told.Stop) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.stop()
        return partial(self._back, process)

    def _back(self, process: BrokerProcess) -> None:
        """Starts the broker again, unless somebody has by now."""
        if self._host.processes.get(process.node_id) is process:
            self._restart(process.node_id)

    def _pause(self, fault: told.Pause) -> Undo | None:
        process = self._process(fault.node)
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        return process.resume

    # -- disks

    def _lose_power(self, fault: told.LosePower) -> Undo | None:
        process = self._process(fault.node)
        if process is None or fault.node not in self._host.world.disks:
            return None
        self._powerless(fault.node)
        process.kill(power=True)
        return partial(self._back, process)

    def _break_disk(self, fault: told.BreakDisk) -> Undo | None:
        disk = self._host.world.disks.get(fault.node)
        if disk is None or disk.broken:
            return None
        disk.fail()
        return partial(self._mend_disk, fault.node)

    def _break_log_directory(self, fault: told.BreakLogDirectory) -> Undo | None:
        """One of several, so that the broker lives on with the others."""
        disk = self._host.world.disks.get(fault.node)
        if disk is None or disk.broken:
            return None
        disk.fail_directory(fault.directory, for_good=not fault.for_ms)
        return partial(self._mend_disk, fault.node)

    def _mend_disk(self, node: int) -> None:
        """A broker that has found its disk broken does not try it again until it is started anew."""
        disk, process = self._host.world.disks[node], self._process(node)
        before = (disk.broken, disk.broken_directories)
        disk.mend()
        if before != (disk.broken, disk.broken_directories) and process is not None:
            process.kill()
            self._restart(node)

    def _slow_disk(self, fault: told.SlowDisk) -> Undo | None:
        disk = self._host.world.disks.get(fault.node)
        if disk is None:
            return None
        disk.a_change_ms = fault.a_change_ms

        def undo() -> None:
            disk.a_change_ms = 0.0

        return undo

    # -- clocks

    def _drift(self, fault: told.Drift) -> Undo:
        machine = self._host.world.machines[fault.node]
        machine.set_rate(fault.rate)
        return partial(machine.set_rate, 1.0)

    def _step_wall(self, fault: told.StepWall) -> Undo:
        self._host.world.machines[fault.node].step_wall(fault.by_ms)
        return _nothing

    # -- sessions

    def _cut_zookeeper(self, fault: told.CutZooKeeper) -> Undo | None:
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

    def _slow_zookeeper(self, fault: told.SlowZooKeeper) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.zookeeper_slower = fault.slower

        def undo() -> None:
            process.zookeeper_slower = 1.0

        return undo

    def _reset_zookeeper(self, fault: told.ResetZooKeeper) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.connection.reset()
        return _nothing

    def _lose_reply(self, fault: told.LoseReply) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.connection.lose_reply(applied=fault.applied)
        return _nothing

    def _expire(self, fault: told.Expire) -> Undo | None:
        process = self._process(fault.node)
        session = 0 if process is None else process.connection.session()
        if session not in self._host.world.zookeeper.sessions():
            return None
        self._expires(session)
        self._host.world.zookeeper.expire(session)
        return _nothing

    def _delete_controller(self, fault: told.DeleteController) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        row = zookeeper.row(paths.CONTROLLER)
        if row is None or not zookeeper.running:
            return None
        self._expires(row.stat.ephemeral_owner)
        self._shell.multi([Delete(paths.CONTROLLER, ANY_VERSION)])
        return _nothing

    def _depose(self, fault: told.Depose) -> Undo | None:
        row = self._host.world.zookeeper.row(paths.CONTROLLER)
        process = None if row is None else self._process(decode_controller(row.path, row.data).broker_id)
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        self._host.take(FaultInjected("pause", str(process.node_id)))
        self._delete_controller(told.DeleteController(at_ms=fault.at_ms))

        def undo() -> None:
            self._host.take(FaultInjected("resume", str(process.node_id)))
            process.resume()

        return undo

    # -- what is asked for by znodes

    def ask(self, operation: told.Reassign | told.ElectLeaders) -> str:
        """By the znode that the controller watches for it. What came of it, in words: nobody answers but ZooKeeper."""
        return self._written(by_znode.asked_for(self._host.world.zookeeper, operation))

    def _pause_controller(self, fault: told.PauseController) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        if zookeeper.row(paths.CONTROLLER_PAUSE) is not None or self._written(by_znode.paused()) != by_znode.WRITTEN:
            return None
        return lambda: _nothing(self._written([Delete(paths.CONTROLLER_PAUSE, ANY_VERSION)]))

    def _written(self, operations: Sequence[Write]) -> str:
        if not self._host.world.zookeeper.running:
            return "ZooKeeper does not run"
        self._shell.multi(operations)
        return by_znode.WRITTEN

    # -- ZooKeeper's servers

    def _elect_zookeeper(self, fault: told.ElectZooKeeper) -> Undo | None:
        if self._host.ensemble.leader is None:
            return None
        self._host.ensemble.elect_again()
        return _nothing

    def _kill_zookeeper(self, fault: told.KillZooKeeper) -> Undo | None:
        ensemble = self._host.ensemble
        if fault.server not in ensemble.running:
            return None
        ensemble.kill(fault.server)

        def undo() -> None:
            if fault.server not in ensemble.running:
                ensemble.start(fault.server)

        return undo

    # -- the network

    def _cut(self, fault: told.Cut) -> Undo:
        network = self._host.world.network
        network.cut(fault.source, fault.target)
        return partial(network.heal, fault.source, fault.target)

    def _shut(self, fault: told.Shut) -> Undo:
        return self._way(fault.source, fault.target, Condition(shut=True))

    def _slow(self, fault: told.Slow) -> Undo:
        return self._way(fault.source, fault.target, Condition(slower=fault.slower, more_ms=fault.more_ms))

    def _lossy(self, fault: told.Lossy) -> Undo:
        return self._way(fault.source, fault.target, Condition(loss=fault.loss))

    def _way(self, source: int, target: int, condition: Condition) -> Undo:
        network = self._host.world.network
        network.set_way(source, target, condition)
        return partial(network.set_way, source, target, GOOD)

    def _reset(self, fault: told.Reset) -> Undo:
        self._host.world.network.reset(fault.source, fault.target, fault.late_ms or None)
        return _nothing

    def _isolate(self, fault: told.Isolate) -> Undo:
        others = [node for node in self._nodes if node != fault.node]
        self.cut_off(fault.node, others)

        def undo() -> None:
            for other in others:
                self._host.world.network.heal(fault.node, other)
                self._host.world.network.heal(other, fault.node)

        return undo

    def cut_off(self, node: int, others: Iterable[int]) -> None:
        """Nothing passes between it and those any more."""
        for other in others:
            self._host.world.network.cut(node, other)
            self._host.world.network.cut(other, node)


def _begun(task: Task[None]) -> None:
    drive(task)


_CARRY_OUT: dict[type, Callable[..., Undo | None]] = {
    told.Kill: Faults._kill,
    told.Stop: Faults._stop,
    told.Pause: Faults._pause,
    told.LosePower: Faults._lose_power,
    told.BreakDisk: Faults._break_disk,
    told.BreakLogDirectory: Faults._break_log_directory,
    told.SlowDisk: Faults._slow_disk,
    told.Drift: Faults._drift,
    told.StepWall: Faults._step_wall,
    told.CutZooKeeper: Faults._cut_zookeeper,
    told.SlowZooKeeper: Faults._slow_zookeeper,
    told.ResetZooKeeper: Faults._reset_zookeeper,
    told.LoseReply: Faults._lose_reply,
    told.Expire: Faults._expire,
    told.DeleteController: Faults._delete_controller,
    told.Depose: Faults._depose,
    told.ElectZooKeeper: Faults._elect_zookeeper,
    told.KillZooKeeper: Faults._kill_zookeeper,
    told.Cut: Faults._cut,
    told.Shut: Faults._shut,
    told.Slow: Faults._slow,
    told.Lossy: Faults._lossy,
    told.Reset: Faults._reset,
    told.Isolate: Faults._isolate,
    told.PauseController: Faults._pause_controller,
}

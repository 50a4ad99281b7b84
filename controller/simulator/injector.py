"""Carries a plan out on a simulated cluster: every fault at its time and for as long as it lasts, until the calm.

A fault that makes no sense when its time comes does nothing. Two of a kind on the same broker or link may overlap: the
way is as bad as the later one says, until the first of them ends. At the calm everything is undone at once, in the
core; what a fault would have done later is not done any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from controller.pending import Task
from controller.scenarios.host import ZOOKEEPER, Link
from controller.simulator import plan as told
from controller.simulator.administrator import Administrator
from controller.simulator.broker_process import BrokerProcess
from controller.simulator.conditions import GOOD, Condition
from controller.simulator.host import OBSERVER_SESSION_MS, SimulatedHost
from controller.simulator.plan import Happening, Outside, Plan
from controller.simulator.process import ProcessState
from controller.simulator.sentinel import Sentinel
from controller.trace import FaultInjected
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.drive import drive
from controller.zookeeper.operations import ANY_VERSION, Delete

Undo = Callable[[], None]
RESTART_LOOK_MS = 5.0


def _nothing() -> None:
    pass


class Injector:
    """`begin` once the host is booted. `calm` ends all faults; `running` says what is still asked of the cluster."""

    def __init__(self, plan: Plan, host: SimulatedHost, sentinel: Sentinel, administrator: Administrator) -> None:
        self._plan = plan
        self._host = host
        self._sentinel = sentinel
        self._administrator = administrator
        self._is_calm = False
        self._asking = 0
        self._wanted: dict[int, bool] = {}
        self._shell = host.world.zookeeper.connect(OBSERVER_SESSION_MS)

    @property
    def asking(self) -> int:
        """How many operations wait for their outcome."""
        return self._asking

    def begin(self) -> None:
        self._shell.start()
        for node in self._plan.cluster.nodes:
            self._start(node)
        for happening in self._plan.happenings:
            drive(self._at_its_time(happening))

    async def _at_its_time(self, happening: Happening) -> None:
        await self._host.clock.sleep(happening.at_ms)
        if self._is_calm:
            return
        if isinstance(happening, told.CreateTopic | told.DeleteTopic | told.AddPartitions):
            self._tell(happening)
            self._asking += 1
            await self._administrator.carry_out(happening)
            self._asking -= 1
            return
        undo = _CARRY_OUT[type(happening)](self, happening)
        if undo is None:
            return
        self._tell(happening)
        lasts_ms = getattr(happening, "for_ms", 0.0)
        if lasts_ms:
            await self._host.clock.sleep(lasts_ms)
            if not self._is_calm:
                self._host.take(FaultInjected("end", told.told(happening)))
                undo()

    def _tell(self, happening: Happening) -> None:
        """Kills and the like by the broker alone, as scenarios' faults are told."""
        kind, node = told.kind_of(happening), getattr(happening, "node", None)
        if isinstance(happening, told.Kill | told.Stop | told.Pause | told.Expire):
            self._host.take(FaultInjected(kind, str(node)))
        else:
            self._host.take(FaultInjected(kind, told.told(happening).partition(" ")[2]))

    # -- processes

    def _process(self, node: int) -> BrokerProcess | None:
        process = self._host.processes.get(node)
        return process if process is not None and process.alive else None

    def _start(self, node: int) -> None:
        """Once the life before it has gone, as an init system would."""
        self._wanted[node] = True
        drive(self._start_when_gone(node))

    async def _start_when_gone(self, node: int) -> None:
        while self._process(node) is not None:
            await self._host.clock.sleep(RESTART_LOOK_MS)
        if self._wanted.get(node):
            self._wanted[node] = False
            await self._host.start(node)
            process = self._host.processes[node]
            process.process.at_death(lambda: self._ended(process))

    def _ended(self, process: BrokerProcess) -> None:
        """One that gave up of itself (its registration was another session's for too long, S06) is started again."""
        node, failure = process.node_id, process.failure
        self._sentinel.died(node)
        if failure is not None:
            process.failure = None  # told here; to the host it would be the end of the run
            self._host.take(FaultInjected("gave-up", failure))
            if not self._is_calm or node in self._plan.core:
                self._start(node)

    def _kill(self, fault: told.Kill) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.kill()
        return partial(self._start, fault.node)

    def _stop(self, fault: told.Stop) -> Undo | None:
        process = self._process(fault.node)
        if process is None:
            return None
        process.stop()
        return partial(self._start, fault.node)

    def _pause(self, fault: told.Pause) -> Undo | None:
        process = self._process(fault.node)
        if process is None or process.process.state is not ProcessState.RUNNING:
            return None
        process.pause()
        return process.resume

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
        self._sentinel.expires(session)
        self._host.world.zookeeper.expire(session)
        return _nothing

    def _delete_controller(self, fault: told.DeleteController) -> Undo | None:
        zookeeper = self._host.world.zookeeper
        row = zookeeper.row(paths.CONTROLLER)
        if row is None or not zookeeper.running:
            return None
        self._sentinel.expires(row.stat.ephemeral_owner)
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
        others = [node for node in self._plan.cluster.nodes if node != fault.node]
        self._cut_off(fault.node, others)

        def undo() -> None:
            for other in others:
                self._host.world.network.heal(fault.node, other)
                self._host.world.network.heal(other, fault.node)

        return undo

    def _cut_off(self, node: int, others: Iterable[int]) -> None:
        for other in others:
            self._host.world.network.cut(node, other)
            self._host.world.network.cut(other, node)

    # -- the calm

    def calm(self) -> None:
        """Every fault ends in the core; who is outside becomes what the plan says, for good."""
        self._is_calm = True
        host, nodes = self._host, self._plan.cluster.nodes
        host.take(FaultInjected("calm", f"core {list(self._plan.core)}, others {self._plan.outside.value}"))
        host.world.network.mend()
        for server in range(1, self._plan.cluster.zookeeper_servers + 1):
            if server not in host.ensemble.running:
                host.ensemble.start(server)
        for node in nodes:
            host.world.machines[node].set_rate(1.0)
            drive(host.heal(Link(node, ZOOKEEPER)))
            process = self._process(node)
            if process is not None:
                process.zookeeper_slower = 1.0
                process.resume()
        for node in nodes:
            if node in self._plan.core:
                self._start_if_down(node)
            else:
                self._leave_out(node)

    def _start_if_down(self, node: int) -> None:
        process = self._process(node)
        if process is None or process.stopping:
            self._start(node)

    def _leave_out(self, node: int) -> None:
        self._wanted[node] = False
        process = self._process(node)
        if process is None:
            return
        if self._plan.outside is Outside.DEAD:
            self._host.take(FaultInjected("kill", str(node)))
            process.kill()
        elif self._plan.outside is Outside.PAUSED:
            self._host.take(FaultInjected("pause", str(node)))
            process.pause()
        else:
            drive(self._host.cut(Link(node, ZOOKEEPER)))
            self._cut_off(node, [other for other in self._plan.cluster.nodes if other != node])


def _begun(task: Task[None]) -> None:
    drive(task)


_CARRY_OUT: dict[type, Callable[..., Undo | None]] = {
    told.Kill: Injector._kill,
    told.Stop: Injector._stop,
    told.Pause: Injector._pause,
    told.Drift: Injector._drift,
    told.StepWall: Injector._step_wall,
    told.CutZooKeeper: Injector._cut_zookeeper,
    told.SlowZooKeeper: Injector._slow_zookeeper,
    told.ResetZooKeeper: Injector._reset_zookeeper,
    told.LoseReply: Injector._lose_reply,
    told.Expire: Injector._expire,
    told.DeleteController: Injector._delete_controller,
    told.Depose: Injector._depose,
    told.ElectZooKeeper: Injector._elect_zookeeper,
    told.KillZooKeeper: Injector._kill_zookeeper,
    told.Cut: Injector._cut,
    told.Shut: Injector._shut,
    told.Slow: Injector._slow,
    told.Lossy: Injector._lossy,
    told.Reset: Injector._reset,
    told.Isolate: Injector._isolate,
}

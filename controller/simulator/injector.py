"""Carries a plan out on a simulated cluster: every fault at its time and for as long as it lasts, until the calm.

What each fault does is in `faults.py`. At the calm everything is undone at once, in the core; what a fault would have
done later is not done any more.
"""

from __future__ import annotations

from functools import partial

from controller.clock import Future, spawn
from controller.scenarios.faults import ZOOKEEPER, AskIsr, HostFailure, Link, Operation, PauseController, Undo, describe
from controller.scenarios.language import Happening, Outside, Plan
from controller.scenarios.runner import NodeNames, has_names
from controller.simulator.administrator import STRAY_ISRS, Administrator, Asked, stray_isr_request
from controller.simulator.broker_process import SimulatedBroker
from controller.simulator.faults import Faults
from controller.simulator.host import SimulatedHost
from controller.simulator.safety_checker import SafetyChecker
from controller.trace import FaultInjected

RESTART_LOOK_MS = 5.0
WRITTEN_MS = 100.0
"""When what is asked for by a znode is there, if ever."""


class Injector:
    """`begin` once the host is booted. `calm` ends all faults; `running` says what is still asked of the cluster."""

    def __init__(
        self, plan: Plan, host: SimulatedHost, safety_checker: SafetyChecker, administrator: Administrator
    ) -> None:
        self._plan = plan
        self._host = host
        self._safety_checker = safety_checker
        self._administrator = administrator
        self._names = NodeNames(host, plan.cluster)
        self._is_calm = False
        self._asking = 0
        self._wanted: dict[int, bool] = {}
        self._ends_late: list[tuple[PauseController, Undo]] = []
        self.faults = Faults(
            host, plan.cluster.brokers, self.start, safety_checker.expires, safety_checker.data_loss.lost_power
        )
        self.faults.shell  # noqa: B018 - the administrator's session begins with the run
        safety_checker.is_by_hand = self.faults.is_by_hand

    @property
    def asking(self) -> int:
        """How many operations wait for their outcome, and how many pauses end after the calm and have not."""
        return self._asking

    def begin(self) -> None:
        for node in self._plan.cluster.nodes:
            self.start(node)
        for happening in self._plan.happenings:
            if happening.when:
                spawn(self._at_its_time(happening, happening.at_ms))

    def take(self, happening: Happening) -> Future[str]:
        """Has it happen at its time, at once if that is past. Answered when it is over: with what came of an operation,
        in words; with "ended", or "nothing" for a fault that made no sense."""
        in_ms = happening.at_ms - self._host.clock.now_ms()
        return spawn(self._carry_out(happening) if in_ms <= 0 else self._at_its_time(happening, in_ms))

    async def _at_its_time(self, happening: Happening, in_ms: float) -> str:
        await self._host.clock.sleep(in_ms)
        return "nothing" if self._is_calm else await self._carry_out(happening)

    async def _carry_out(self, happening: Happening) -> str:
        if has_names(happening):
            try:
                happening = await self._names.resolved(happening)
            except HostFailure:
                return "nothing"
        if isinstance(happening, Operation):
            self.faults.trace(happening)
            if getattr(happening, "znode", False):
                # Nobody answers; a client's request that comes later counts, and takes the znode's word out.
                now_ms = self._host.clock.now_ms()
                self._administrator.asked.append(Asked(happening, now_ms, now_ms + WRITTEN_MS))
                return self.faults.ask(happening)  # type: ignore[arg-type]
            self._asking += 1
            outcome = await self._administrator.carry_out(happening)
            self._asking -= 1
            return outcome
        if isinstance(happening, AskIsr):
            return await self._ask_isr(happening)
        undo = self.faults.begin(happening)
        if undo is None:
            return "nothing"
        self.faults.trace(happening)
        if isinstance(happening, PauseController) and happening.after_calm_ms:
            self._asking += 1
            self._ends_late.append((happening, undo))
        elif happening.lasts_ms:
            await self._host.clock.sleep(happening.lasts_ms)
            if not self._is_calm:
                self._host.take(FaultInjected("end", describe(happening)))
                undo()
        return "ended"

    async def _ask_isr(self, fault: AskIsr) -> str:
        request = stray_isr_request(self._host.world.zookeeper, fault)
        if request is None:
            return "nothing"
        self.faults.trace(fault)
        wrong = await self._administrator.ask_isr(fault, request)
        if wrong is not None:
            self._safety_checker.violated(STRAY_ISRS, [], wrong)
        return "ended"

    # -- processes

    def _process(self, node: int) -> SimulatedBroker | None:
        process = self._host.processes.get(node)
        return process if process is not None and process.alive else None

    def start(self, node: int) -> None:
        """Once the life before it has gone, as an init system would."""
        self._wanted[node] = True
        spawn(self._start_when_gone(node))

    async def _start_when_gone(self, node: int) -> None:
        while self._process(node) is not None:
            await self._host.clock.sleep(RESTART_LOOK_MS)
        if self._wanted.get(node):
            self._wanted[node] = False
            await self._host.start(node)
            process = self._host.processes[node]
            process.process.at_death(lambda: self._ended(process))

    def _ended(self, process: SimulatedBroker) -> None:
        """One that gave up of itself (its registration was another session's for too long, S06) is started again."""
        node, failure = process.node_id, process.failure
        self._safety_checker.died(node)
        if failure is not None:
            process.failure = None  # reported here; the host would end the run
            self._host.take(FaultInjected("gave-up", failure))
            if not self._is_calm or node in self._plan.core:
                self.start(node)

    # -- the calm

    def calm(self) -> None:
        """Every fault ends in the core; who is outside becomes what the plan says, for good."""
        self._is_calm = True
        self._safety_checker.terms_last = False
        host, nodes = self._host, self._plan.cluster.nodes
        host.take(FaultInjected("calm", f"core {list(self._plan.core)}, others {self._plan.outside.value}"))
        self.faults.heal_all()
        for node in nodes:
            if node in self._plan.core:
                self._start_if_down(node)
            else:
                self._leave_out(node)
        for pause, undo in self._ends_late:
            host.clock.call_later(pause.after_calm_ms, partial(self._end_late, pause, undo))

    def _end_late(self, pause: PauseController, undo: Undo) -> None:
        self._asking -= 1
        self._host.take(FaultInjected("end", describe(pause)))
        undo()

    def _start_if_down(self, node: int) -> None:
        process = self._process(node)
        if process is None or process.stopping:
            self.start(node)

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
            spawn(self._host.cut(Link(node, ZOOKEEPER)))
            self.faults.cut_off(node, [other for other in self._plan.cluster.nodes if other != node])

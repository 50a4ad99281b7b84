"""Faults of brokers' disks, and of the power that they stand on. See `faults.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from controller.simulator.broker_process import SimulatedBroker, World
from controller.simulator.faults_between import Undo
from controller.simulator.plan import BreakDisk, BreakLogDirectory, LosePower, SlowDisk


def living(processes: Mapping[int, SimulatedBroker], node: int) -> SimulatedBroker | None:
    process = processes.get(node)
    return process if process is not None and process.alive else None


def back(processes: Mapping[int, SimulatedBroker], process: SimulatedBroker, restart: Callable[[int], None]) -> Undo:
    """Starts the broker again, unless somebody has by then."""

    def undo() -> None:
        if processes.get(process.node_id) is process:
            restart(process.node_id)

    return undo


class DiskFaults:
    """Faults of the brokers' disks.

    `processes`: the current process of each broker. `powerless` is called with each broker that loses power.
    """

    def __init__(
        self,
        world: World,
        processes: Mapping[int, SimulatedBroker],
        restart: Callable[[int], None],
        powerless: Callable[[int], None],
    ) -> None:
        self._disks = world.disks
        self._processes = processes
        self._restart = restart
        self._powerless = powerless

    def lose_power(self, fault: LosePower) -> Undo | None:
        process = living(self._processes, fault.node)
        if process is None or fault.node not in self._disks:
            return None
        self._powerless(fault.node)
        process.kill(power=True)
        return back(self._processes, process, self._restart)

    def break_disk(self, fault: BreakDisk) -> Undo | None:
        disk = self._disks.get(fault.node)
        if disk is None or disk.broken:
            return None
        disk.fail()
        return partial(self.repair, fault.node)

    def break_log_directory(self, fault: BreakLogDirectory) -> Undo | None:
        """One of several, so that the broker lives on with the others."""
        disk = self._disks.get(fault.node)
        if disk is None or disk.broken:
            return None
        disk.fail_directory(fault.directory, for_good=not fault.for_ms)
        return partial(self.repair, fault.node)

    def repair(self, node: int) -> None:
        """A broker that has found its disk broken does not try it again until it is started anew."""
        disk, process = self._disks.get(node), living(self._processes, node)
        if disk is None:
            return
        before = (disk.broken, disk.broken_directories)
        disk.repair()
        if before != (disk.broken, disk.broken_directories) and process is not None:
            process.kill()
            self._restart(node)

    def slow_disk(self, fault: SlowDisk) -> Undo | None:
        disk = self._disks.get(fault.node)
        if disk is None:
            return None
        disk.a_change_ms = fault.a_change_ms

        def undo() -> None:
            disk.a_change_ms = 0.0

        return undo


ON_DISKS: Mapping[type, Callable[[DiskFaults, Any], Undo | None]] = MappingProxyType(
    {
        LosePower: DiskFaults.lose_power,
        BreakDisk: DiskFaults.break_disk,
        BreakLogDirectory: DiskFaults.break_log_directory,
        SlowDisk: DiskFaults.slow_disk,
    }
)

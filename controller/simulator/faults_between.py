"""Faults of what is between the brokers and beneath them: the network's ways, ZooKeeper's servers.

Each is a function of what it strikes and the fault's value, and gives what ends it; None: it makes no sense now, and
nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from controller.simulator.ensemble import Ensemble
from controller.simulator.network import GOOD, Condition, Network
from controller.simulator.plan import Cut, ElectZooKeeper, KillZooKeeper, Lossy, Reset, Shut, Slow

Undo: TypeAlias = Callable[[], None]


def _nothing() -> None:
    pass


# -- the network


def _cut(network: Network, fault: Cut) -> Undo:
    network.cut(fault.source, fault.target)
    return partial(network.heal, fault.source, fault.target)


def _shut(network: Network, fault: Shut) -> Undo:
    return _way(network, fault.source, fault.target, Condition(shut=True))


def _slow(network: Network, fault: Slow) -> Undo:
    return _way(network, fault.source, fault.target, Condition(slower=fault.slower, more_ms=fault.more_ms))


def _lossy(network: Network, fault: Lossy) -> Undo:
    return _way(network, fault.source, fault.target, Condition(loss=fault.loss))


def _way(network: Network, source: int, target: int, condition: Condition) -> Undo:
    network.set_way(source, target, condition)
    return partial(network.set_way, source, target, GOOD)


def _reset(network: Network, fault: Reset) -> Undo:
    network.reset(fault.source, fault.target, fault.late_ms or None)
    return _nothing


def cut_off(network: Network, node: int, others: Iterable[int]) -> None:
    """Nothing passes between it and those any more."""
    for other in others:
        network.cut(node, other)
        network.cut(other, node)


def isolate(network: Network, node: int, others: Sequence[int]) -> Undo:
    cut_off(network, node, others)

    def undo() -> None:
        for other in others:
            network.heal(node, other)
            network.heal(other, node)

    return undo


# -- ZooKeeper's servers


def _elect_zookeeper(ensemble: Ensemble, fault: ElectZooKeeper) -> Undo | None:
    if ensemble.leader is None:
        return None
    ensemble.elect_again()
    return _nothing


def _kill_zookeeper(ensemble: Ensemble, fault: KillZooKeeper) -> Undo | None:
    if fault.server not in ensemble.running:
        return None
    ensemble.kill(fault.server)

    def undo() -> None:
        if fault.server not in ensemble.running:
            ensemble.start(fault.server)

    return undo


ON_NETWORK: Mapping[type, Callable[[Network, Any], Undo | None]] = MappingProxyType(
    {Cut: _cut, Shut: _shut, Slow: _slow, Lossy: _lossy, Reset: _reset}
)
ON_ENSEMBLE: Mapping[type, Callable[[Ensemble, Any], Undo | None]] = MappingProxyType(
    {ElectZooKeeper: _elect_zookeeper, KillZooKeeper: _kill_zookeeper}
)

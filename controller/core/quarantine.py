"""Znodes that cannot be used: damaged or invalid ones. Each affects only its own topic, partition or broker.

An entry is reported once (log and metric), and again when its fault changes. Its znode is never written, and it is
watched: when it is repaired, the watch's event reads it again and it is served, in the same term.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from controller.core.events import BrokerModifications, PartitionModifications, ReassignmentIsrChange
from controller.core.term import Term
from controller.zookeeper import paths
from controller.zookeeper.operations import DamagedZnode


def describe(damaged: DamagedZnode) -> str:
    """Describe the error without the znode's bytes, as bulk reads do."""
    return f"{damaged.path}: expected {damaged.expected}"


def why(decode: Callable[[str, bytes | None], object], path: str, data: bytes | None) -> str:
    """Return the error of a znode that a bulk read found damaged."""
    try:
        decode(path, data)
    except DamagedZnode as damaged:
        return describe(damaged)
    return f"{path}: it is damaged"


def report(term: Term, path: str, message: str, level: str = "error") -> None:
    """Enters the znode, and logs it unless it was entered with the same message before."""
    if term.context.quarantine.get(path) != message:
        term.context.quarantine[path] = message
        term.note(level, message)


def report_state(term: Term, topic: str, partition: int, message: str, level: str = "error") -> None:
    """As `report`, for a partition's state, which is watched from now on."""
    path = paths.partition_state(topic, partition)
    _watched(term, path, ReassignmentIsrChange(topic, partition), message, level)


def report_unwritable_state(term: Term, topic: str, partition: int, message: str) -> None:
    """As `report_state`, for a state that can be read and not written. It is not read again before it changes: that
    would end the quarantine, and the next write would begin it again."""
    path = paths.partition_state(topic, partition)
    _watched(term, path, ReassignmentIsrChange(topic, partition), message, "error", again=False)


def report_broker(term: Term, broker: int, message: str) -> None:
    """As `report`, for a registration, which is watched from now on."""
    _watched(term, paths.broker(broker), BrokerModifications(broker), message, "error")


def _watched(term: Term, path: str, event: Any, message: str, level: str, *, again: bool = True) -> None:
    is_new = path not in term.context.quarantine
    report(term, path, message, level)
    if is_new:
        term.zookeeper.watch_node(path, event)
    if is_new and again:
        term.put(event)  # read once more behind the watch: nothing that was written meanwhile is missed


def released(term: Term, path: str) -> bool:
    """Takes out an entry whose znode has been repaired, or is gone; False if there was none."""
    if term.context.quarantine.pop(path, None) is None:
        return False
    if paths.partition_of(path) is not None:
        term.zookeeper.unwatch([path])
    term.note("info", f"{path} is not in quarantine any more")
    return True


def forget_topics(term: Term, topics: Collection[str]) -> None:
    """Takes out the entries of topics that are gone, and of their partitions."""
    gone = frozenset(topics)
    _forget(term, lambda path: paths.topic_of(path) in gone)
    for name, holder in list(term.context.shares_id.items()):
        if name in gone:
            del term.context.shares_id[name]
        elif holder in gone:
            term.put(PartitionModifications(name))  # its id is its own by now


def forget_brokers_but(term: Term, names: Collection[str]) -> None:
    """Takes out the entries of registrations that are gone; `names` are those that are there."""
    there = frozenset(paths.child(paths.BROKER_IDS, name) for name in names)
    _forget(term, lambda path: path.startswith(f"{paths.BROKER_IDS}/") and path not in there)


def _forget(term: Term, is_gone: Callable[[str], bool]) -> None:
    found = [path for path in term.context.quarantine if is_gone(path)]
    for path in found:
        del term.context.quarantine[path]
    if found:
        term.zookeeper.unwatch(found)

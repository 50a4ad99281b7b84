"""The membership of a cluster, read from ZooKeeper: registered brokers, the controller, and changes between two reads.

The observers of both hosts use this module; each has its own trigger for the next read. Their clients use
`judge_metadata`, the evaluation of one metadata response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controller.core.leadership import named_in
from controller.scenarios.host import PartitionView, TopicSpec
from controller.trace import EphemeralSeen, MetadataSeen
from controller.zookeeper import paths
from controller.zookeeper.client import ZooKeeperClient

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Membership:
    """`registered`: broker id to the session that owns /brokers/ids/N; `controller_session` 0 where there is none."""

    registered: Mapping[int, int] = field(default_factory=dict)
    controller: int = NOBODY
    controller_session: int = 0


async def look(client: ZooKeeperClient) -> Membership:
    names = (await client.children([paths.BROKER_IDS])).children[0] or ()
    brokers = [int(name) for name in names]
    reading = await client.read([paths.CONTROLLER, *(paths.broker(broker) for broker in brokers)])
    controller, *rows = reading.rows
    registered = {
        broker: row.stat.ephemeral_owner for broker, row in zip(brokers, rows, strict=True) if row is not None
    }
    if controller is None:
        return Membership(registered)
    named = named_in(controller)
    return Membership(registered, NOBODY if named is None else named, controller.stat.ephemeral_owner)


def changes(was: Membership, now: Membership) -> Iterator[EphemeralSeen]:
    """Yield the changes between two reads. A znode whose owner changed was deleted and created, even if no read saw it
    missing."""
    for broker in sorted(was.registered.keys() | now.registered.keys()):
        path = paths.broker(broker)
        yield from _change(path, broker, was.registered.get(broker, 0), broker, now.registered.get(broker, 0))
    yield from _change(paths.CONTROLLER, was.controller, was.controller_session, now.controller, now.controller_session)


def _change(path: str, was: int, was_session: int, now: int, now_session: int) -> Iterator[EphemeralSeen]:
    if (was, was_session) == (now, now_session):
        return
    if was_session:
        yield EphemeralSeen(path, was, False, was_session)
    if now_session:
        yield EphemeralSeen(path, now, True, now_session)


def judge_metadata(
    topics: Iterable[TopicSpec],
    brokers: Iterable[int],
    controller: int,
    partitions: Mapping[tuple[str, int], PartitionView],
) -> MetadataSeen:
    """Counts the partitions of `topics` that the answer shows as led by a broker that it lists.

    A partition is expected to have a leader unless the response shows it with an ISR of which no broker is listed: no
    replica of it is electable. A partition that is not in the response is expected.
    """
    listed = frozenset(brokers)
    expected = led = 0
    for topic in topics:
        for partition in range(topic.partitions):
            view = partitions.get((topic.name, partition))
            if view is not None and view.leader in listed:
                expected, led = expected + 1, led + 1
            elif view is None or not view.isr or any(member in listed for member in view.isr):
                expected += 1
    return MetadataSeen(expected, led, controller, tuple(sorted(listed)), "")


def failed_metadata(error: str) -> MetadataSeen:
    """A metadata request that had no answer, with the reason in words."""
    return MetadataSeen(0, 0, -1, (), error)

"""The evaluation of one metadata response by a client. The clients of both hosts use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.scenarios.host import PartitionView, TopicSpec
from controller.trace import MetadataSeen


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

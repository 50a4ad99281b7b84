"""Which partitions an UpdateMetadata names, of those that somebody holds."""

from __future__ import annotations

import pytest

from controller.broker.metadata import Key, NamedPartitions
from controller.protocol.control import LEADER_DURING_DELETE, UpdateMetadataPartitionState, UpdateMetadataTopicState


def state(index: int, leader: int = 1) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(index, 1, leader, 0, (1,), 0, (1, index + 2), ())


NAMED = NamedPartitions(
    (
        UpdateMetadataTopicState("b", (state(1), state(0, LEADER_DURING_DELETE))),
        UpdateMetadataTopicState("a", ()),
        UpdateMetadataTopicState("c", (state(7),)),
    )
)


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ((), []),
        ((("a", 0), ("b", 2)), []),
        ((("c", 7), ("b", 1)), [("c", 7), ("b", 1)]),  # fewer are held than named: as they are held
        ((("x", 0), ("c", 7), ("y", 0), ("b", 0), ("b", 1)), [("b", 1), ("b", 0), ("c", 7)]),  # as they are named
    ],
)
def test_what_is_held_of_them_is_found(held: tuple[Key, ...], found: list[Key]) -> None:
    assert NAMED.among({key: key for key in held}) == found


def test_those_on_their_way_out_come_with_their_assignments() -> None:
    assert NAMED.going == {("b", 0): (1, 2)}

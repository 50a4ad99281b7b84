"""A deletion whose znodes go in several writes; faults put into deletions, each of which must turn its check red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.core import topic_deletion
from controller.core.context import Replicas
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from tests.incidents.deletion import DELETION
from tests.incidents.interruption import STRIKES, Strike, at_await, every_place


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: str(strike.name))
def test_a_topic_that_goes_in_pieces_goes_whole(strike: Strike, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its znodes are gone when the next controller finds it."""
    monkeypatch.setattr(topic_deletion, "BATCH", 4)
    assert every_place(DELETION, strike) >= (8 if strike.arm is at_await else 4)


DIES = STRIKES[0]


def nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestBatch, "_columns_during_delete", RequestBatch._columns)


def not_stopped_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def moved_alone(term: Term, replicas: Replicas) -> None:
        term.context.partitions.replica_state[replicas.rows, replicas.slots] = 3

    monkeypatch.setattr(topic_deletion, "_take_offline", moved_alone)


def not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = topic_deletion._begin

    async def at_once(term: Term, topics: Any) -> None:
        await topic_deletion._complete(term, topics)
        await begin(term, topics)

    monkeypatch.setattr(topic_deletion, "_begin", at_once)


def not_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(term: Term) -> int:
        return 0

    monkeypatch.setattr(topic_deletion, "take_up", none)


def removed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request first: a controller that finds half a topic does not know what for."""
    remove = topic_deletion.remove_topics

    async def request_first(term: Term, names: Any) -> None:
        await topic_deletion.refuse(term, names)
        await remove(term, names)

    monkeypatch.setattr(topic_deletion, "remove_topics", request_first)


FAULTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    nobody_is_told,
    not_stopped_before,
    not_waited_for,
    not_taken_up,
    removed_in_parts,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__).replace("_", " "))
def test_a_planted_fault_turns_the_deletion_red(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="topic deletion, dies at"):
        every_place(DELETION, DIES)

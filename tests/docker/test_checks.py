"""What judges the containers' tests: it finds nothing wrong with a sound cluster, and each planted fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.trace import (
    ControllerElected,
    ControllerResigned,
    MetadataApplied,
    PartitionStateWritten,
    RequestSent,
    TraceEvent,
)
from controller.trace_records import TraceRecord
from tests.docker.checks import (
    BrokerView,
    Partition,
    acts_as_controller,
    controller_of,
    election,
    incomplete,
    live_brokers,
    partitions_of,
    resignation,
    unsettled,
    written_by_another_epoch,
)

LIVE = (1, 3)


def partition(number: int, leader: int, isr: list[int]) -> dict[str, Any]:
    return {
        "partition": number,
        "leader": leader,
        "leader_epoch": 2,
        "isr": isr,
        "assignment": [1, 2, 3],
        "controller_epoch": 4,
        "zk_version": 2,
        "problems": [],
    }


SOUND: dict[str, Any] = {
    "controller_epoch": 4,
    "controller": {"broker_id": 3, "live": True, "timestamp_ms": 0},
    "brokers": [
        {"id": 1, "live": True, "broker_epoch": 10},
        {"id": 3, "live": True, "broker_epoch": 30},
        {"id": 2, "live": False},
    ],
    "topics": [
        {"name": "other", "partitions": [partition(0, -1, [2])]},
        {"name": "orders", "partitions": [partition(0, 1, [1, 3]), partition(1, 3, [3])]},
    ],
}
VIEW = BrokerView(
    brokers=LIVE,
    controller=3,
    partitions={
        ("orders", 0): Partition(1, (1, 3), (1, 2, 3), 2),
        ("orders", 1): Partition(3, (3,), (1, 2, 3), 2),
    },
)

Change = Callable[[Any], None]


def changed(change: Change) -> dict[str, Any]:
    state = copy.deepcopy(SOUND)
    change(state)
    return state


def in_orders(number: int, **fields: Any) -> Change:
    return lambda state: state["topics"][1]["partitions"][number].update(fields)


def test_a_sound_cluster_has_nothing_wrong() -> None:
    assert unsettled(SOUND, "orders", 2, LIVE) == []
    assert unsettled(SOUND, None, 2, LIVE) == []
    assert incomplete(SOUND, "orders", 1, VIEW) == []
    assert written_by_another_epoch(SOUND, SOUND, "orders", 5) == []
    assert (live_brokers(SOUND), controller_of(SOUND)) == ({1: 10, 3: 30}, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.update(controller=None), "controller"),
        (lambda state: state["controller"].update(live=False), "controller"),
        (lambda state: state["brokers"][2].update(live=True, broker_epoch=20), "registered"),
        (lambda state: state["brokers"].pop(0), "registered"),
        (lambda state: state["topics"].pop(), "0 partitions"),
        (lambda state: state["topics"][1]["partitions"].pop(), "1 partitions"),
        (lambda state: state["topics"][1]["partitions"][1].pop("leader_epoch"), "1 partitions"),
        (in_orders(0, leader=-1), "orders-0: leader -1"),
        (in_orders(0, leader=2), "orders-0: leader 2"),
        (in_orders(1, isr=[3, 2]), "orders-1"),
        (in_orders(1, leader=1), "orders-1"),
    ],
)
def test_a_cluster_that_has_not_settled_is_found_out(change: Change, said: str) -> None:
    assert said in "\n".join(unsettled(changed(change), "orders", 2, LIVE))


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (replace(VIEW, brokers=(1, 2, 3)), "lists [1, 2, 3]"),
        (replace(VIEW, brokers=(3,)), "lists [3]"),
        (replace(VIEW, controller=-1), "controller -1"),
        (replace(VIEW, partitions={}), "orders-1 as None"),
        (replace(VIEW, partitions={**VIEW.partitions, ("orders", 0): Partition(3, (1, 3), (), 2)}), "orders-0"),
        (replace(VIEW, partitions={**VIEW.partitions, ("orders", 0): Partition(1, (1,), (), 2)}), "orders-0"),
        (replace(VIEW, partitions={**VIEW.partitions, ("orders", 0): Partition(1, (1, 3), (), 1)}), "orders-0"),
    ],
)
def test_metadata_that_is_not_complete_is_found_out(view: BrokerView, said: str) -> None:
    assert said in "\n".join(incomplete(SOUND, "orders", 1, view))


def test_a_state_written_by_a_controller_of_the_past_is_found_out() -> None:
    stale, current = changed(in_orders(0, isr=[1])), changed(in_orders(0, isr=[1], controller_epoch=5))
    assert "orders-0" in "\n".join(written_by_another_epoch(SOUND, stale, "orders", 5))
    assert written_by_another_epoch(SOUND, current, "orders", 5) == []
    assert [view.isr for view in partitions_of(stale, "orders").values()] == [(1,), (3,)]


WRITTEN = PartitionStateWritten(4, "orders", 0, "offline", 1, 3, (1,), 3, (1, 2), (1, 2), (1,), False)


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (WRITTEN, True),
        (ControllerElected(4, 4, 1), True),
        (RequestSent(4, 1, 10, "UpdateMetadata", 0, 1), True),
        (ControllerResigned(4, "lost"), False),
        (MetadataApplied(5, (1,), 1), False),
    ],
)
def test_what_a_controller_does_after_its_end_is_found_out(event: TraceEvent, found: bool) -> None:
    records = [TraceRecord(100.0, 1, event)]
    assert bool(acts_as_controller(records, 99.0)) is found
    assert acts_as_controller(records, 100.0) == []


def test_the_ends_and_beginnings_of_a_term_are_those_of_its_epoch() -> None:
    elected, resigned = (
        TraceRecord(1.0, 1, ControllerElected(4, 4, 1)),
        TraceRecord(2.0, 1, ControllerResigned(4, "lost")),
    )
    assert (election([resigned, elected], 4), resignation([elected, resigned], 4)) == (elected, resigned)
    assert (election([elected, resigned], 5), resignation([elected, resigned], 5)) == (None, None)

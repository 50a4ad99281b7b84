"""The incidents that are told as worlds have golden logs too; see `test_golden.py` for how to write them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.golden_logs import hold
from tests.simulator.stories import STORIES

FOLDER = Path(__file__).parent / "golden" / "worlds"

SHOWN = {
    "s07-own-id-in-anothers-znode": (
        "/controller is another session's, with the id of broker 1",
        "/controller of 1",
        "RESIGNS epoch 1",
        "operator: it goes",
        "ELECTED, controller epoch 2",
    ),
    "s10-gauges-of-nobody": (
        "controller's id: {1: 3, 2: 3, 3: 3}",
        "RESIGNS epoch 1",
        "controller's id: {1: -1, 2: -1, 3: -1}",
        "ELECTED, controller epoch 2",
        "controller's id: {1: 3, 2: 3, 3: 3}",
    ),
    "s19-requests-in-the-queue": (
        "waiting for an answer: 10 of 10",
        "RESIGNS epoch 1: the lease ran out",
        "CREATE_TOPICS is answered: NOT_CONTROLLER",
        "DELETE_TOPICS is answered: NOT_CONTROLLER",
        "CREATE_PARTITIONS is answered: NOT_CONTROLLER",
        "ELECT_LEADERS is answered: NOT_CONTROLLER",
        "ALTER_PARTITION_REASSIGNMENTS is answered: NOT_CONTROLLER",
        "LIST_PARTITION_REASSIGNMENTS is answered: NOT_CONTROLLER",
        "ALTER_ISR is answered: NOT_CONTROLLER",
        "CONTROLLED_SHUTDOWN is answered: NOT_CONTROLLER",
        "UPDATE_FEATURES is answered: NOT_CONTROLLER",
        "ALLOCATE_PRODUCER_IDS is answered: NOT_CONTROLLER",
    ),
    "s21-a-busy-hour": ("EventQueueTimeMs, 99th percentile: ", "EventQueueTimeMs, 99th percentile: 0 ms"),
    "s23-notifications-in-a-row": ("-> 1 UpdateMetadata", "no notification is left"),
    "s25-topic-made-without-a-session": (
        "** expire 1",
        "makes topic x, with nobody to hear of it",
        "RESIGNS epoch 1",
        "ELECTED, controller epoch 2",
        "leader of x-0, leader 1 epoch 0",
    ),
    "s30-a-stop-that-was-overtaken": ("(replica offline)", "is answered FENCED_LEADER_EPOCH", "(alter isr)"),
    "s40-a-follower-without-its-disk": (
        "asks for ISR",
        "ISR changes refused for now, 1 of 1; t-0: INELIGIBLE_REPLICA",
        "has a disk without the record, and is not in the ISR",
        "(alter isr)",
        "leads, and has 1 record",
    ),
    "s42-a-leader-ahead-of-its-controller": (
        "ELECTED, controller epoch 2",
        "RESIGNS epoch 1",
        "asks broker 3, which answers NOT_CONTROLLER",
    ),
    "s44-an-answer-for-a-shrunk-isr": (
        "a producer waits for the whole ISR",
        "(alter isr)",
        "and has its answer: NONE",
    ),
    "s56d-imbalance-of-a-topic-that-goes": (
        "PreferredReplicaImbalanceCount 1, TopicsToDeleteCount 0",
        "PreferredReplicaImbalanceCount 0, TopicsToDeleteCount 1",
        "1 topics are deleted",
        "PreferredReplicaImbalanceCount 0, TopicsToDeleteCount 0",
    ),
    "s56e-a-topics-other-fields": (
        "** add-partitions topic=t partitions=2",
        "the id is the same: True, of 2 partitions; 'later' is kept",
    ),
}
"""By story, in this order."""


def test_every_story_has_a_log_and_says_what_it_shows() -> None:
    assert sorted(SHOWN) == sorted(STORIES)
    assert sorted(SHOWN) == sorted(path.stem for path in FOLDER.glob("*.log"))


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_log_is_the_one_expected(name: str, pytestconfig: pytest.Config) -> None:
    log = STORIES[name]()
    hold(log, FOLDER / f"{name}.log", SHOWN[name], rewrite=pytestconfig.getoption("--rewrite-golden"))

"""Each counter counts what it is for and nothing that came before the first fault; bounds are judged by it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.scenarios.event_counters import EVENT_COUNTERS, bounded
from controller.scenarios.files import parse_scenario
from controller.scenarios.invariants import INVARIANTS
from controller.scenarios.judge import judge
from controller.scenarios.runner import Outcome
from controller.trace import (
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FaultInjected,
    MetadataSeen,
    RequestRefused,
    RequestSent,
    SessionStarted,
    TraceEvent,
)
from controller.trace_records import OBSERVER
from tests.scenarios.evidence import AFTER_KILL, SNAPSHOT, SOUND, TOPICS, evidence, records

Timed = tuple[float, int, TraceEvent]
RETURNED = replace(AFTER_KILL, zk_version=2, leader=3, leader_epoch=2, why="preferred")
SENT_LATE = RequestSent(1, 2, 50, "UpdateMetadata", 1, 1)

# What the sound run has of each, and an event that makes one more, with what is said of it.
CASES: list[tuple[str, int, Timed, str]] = [
    ("controller-elections", 1, (2300.0, 3, ControllerElected(3, 3, 0xC)), "broker 3 won epoch 3"),
    ("resignations", 0, (2300.0, 2, ControllerResigned(2, "the lease ran out")), "the lease ran out"),
    ("leader-changes", 1, (2300.0, 2, RETURNED), "t-0 from 2 to 3"),
    ("left-leaderless", 0, (2300.0, 2, replace(AFTER_KILL, zk_version=2, leader=-1)), "t-0 written without a leader"),
    ("unclean-elections", 0, (2300.0, 2, replace(RETURNED, unclean=True)), "led by 3 uncleanly"),
    ("registrations-lost", 1, (2300.0, OBSERVER, EphemeralSeen("/brokers/ids/3", 3, False, 0xC)), "/brokers/ids/3"),
    ("bounces", 0, (2300.0, 2, BrokersChanged(2, (), (), (3,), (2, 3))), "broker 3 was found bounced"),
    ("client-errors", 0, (2300.0, OBSERVER, MetadataSeen(0, 0, -1, (), "timed out")), "timed out"),
    ("client-gaps", 1, (2300.0, OBSERVER, MetadataSeen(4, 3, 2, (2, 3), "")), "3 of 4"),
    ("requests-refused", 0, (2300.0, 3, RequestRefused("StopReplica", 1, 11, "stale")), "refused StopReplica"),
    ("new-sessions", 0, (2300.0, 3, SessionStarted(0xD)), "0xd"),
    ("acts-after-session", 0, (2110.0, 1, SENT_LATE), "RequestSent of broker 1 in epoch 1"),
    ("late-resignations", 0, (2150.0, 1, ControllerResigned(1, "woken")), "49 ms after its session 0xa"),
    ("early-resignations", 0, (1400.0, 1, ControllerResigned(1, "lease")), "701 ms, its last request 2090 ms before"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "event", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_counter_counts_one_more(name: str, before: int, event: Timed, said: str) -> None:
    assert bounded(evidence(), name, at_most=before).held is True
    more = evidence(event)
    too_many = bounded(more, name, at_most=before)
    assert too_many.held is False
    assert f"{before + 1}, expected at most {before}" in too_many.detail
    assert any(said in words for words in EVENT_COUNTERS[name](more.records, 0))
    assert bounded(more, name, at_least=before + 1).held is True
    assert bounded(evidence(), name, at_least=before + 1).held is False


def test_every_counter_is_tried() -> None:
    assert {case[0] for case in CASES} == set(EVENT_COUNTERS)


OF_A_TERM = ("acts-after-session", "late-resignations", "early-resignations", "leader-changes")
"""These follow a term, or a partition, from its beginning."""


@pytest.mark.parametrize(("name", "before", "event", "said"), [case for case in CASES if case[0] not in OF_A_TERM])
def test_what_came_before_the_first_fault_is_not_counted(name: str, before: int, event: Timed, said: str) -> None:
    """Starting a cluster elects, registers, and has clients that see nothing yet."""
    assert bounded(evidence((50.0, *event[1:])), name, at_most=before).held is True, said


def test_answers_without_a_broker_are_no_gap() -> None:
    """A broker that has just started knows nobody yet."""
    assert bounded(evidence((2300.0, OBSERVER, MetadataSeen(4, 0, -1, (), ""))), "client-gaps", at_most=1).held is True


def test_too_few_in_a_run_that_ended_early_is_unknown() -> None:
    assert bounded(evidence(snapshot=None), "resignations", at_least=1).held is None
    assert bounded(evidence(snapshot=None), "controller-elections", at_most=0).held is False


def test_the_judge_goes_by_the_bounds() -> None:
    text = (
        'name = "s"\nsteps = []\n[expect.at_most]\ncontroller-elections = {most}\n[expect.at_least]\nresignations = 0'
    )
    outcome = Outcome(topics=list(TOPICS), snapshot=SNAPSHOT)
    for most, verdict in ((1, "pass"), (0, "fail")):
        judgement = judge(parse_scenario(text.replace("{most}", str(most)), "s"), outcome, records())
        assert judgement.verdict == verdict
        names = [result.name for result in judgement.invariants]
        assert [f"at-most-{most}-controller-elections", "at-least-0-resignations"] == names[-2:]


# old-terms-resigned

PAUSED: Timed = (2300.0, OBSERVER, FaultInjected("pause", "2"))
SUCCESSOR: Timed = (2400.0, 3, ControllerElected(3, 3, 0xC))


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ([], True),  # epoch 1's broker was killed in it, epoch 2 has no successor
        ([SUCCESSOR], False),
        ([SUCCESSOR, (2410.0, 2, ControllerResigned(2, "moved"))], True),
        ([SUCCESSOR, (2410.0, 2, ControllerResigned(2, ""))], False),  # it must say why
        ([PAUSED, SUCCESSOR], True),  # it stands still yet
        ([PAUSED, SUCCESSOR, (2500.0, OBSERVER, FaultInjected("resume", "2"))], False),
        ([(2300.0, OBSERVER, FaultInjected("restart", "2")), SUCCESSOR], True),
        ([(2300.0, OBSERVER, FaultInjected("cut", "2->zookeeper")), SUCCESSOR], False),
        ([(2300.0, OBSERVER, FaultInjected("kill", "zookeeper 2")), SUCCESSOR], False),
    ],
)  # fmt: skip
def test_a_term_that_another_followed_must_have_been_resigned(events: list[Timed], held: bool) -> None:
    assert INVARIANTS["old-terms-resigned"](evidence(*events, base=SOUND)).held is held

"""A broker that comes back at once is in every answer a client gets: its failover ends all the same."""

from __future__ import annotations

from controller.scenarios.failovers import Failover, find_failovers
from controller.trace import EphemeralSeen, FaultInjected, MetadataApplied, MetadataSeen
from controller.trace_records import OBSERVER
from tests.scenarios.evidence import records

RESTART = (3000.0, OBSERVER, FaultInjected("restart", "3"))
GONE = (5000.0, OBSERVER, EphemeralSeen("/brokers/ids/3", 3, False, 0xC))
BACK = (5000.0, OBSERVER, EphemeralSeen("/brokers/ids/3", 3, True, 0xD))
TOLD = (5006.0, 3, MetadataApplied(2, (2, 3), 1))
ANSWER = (5010.0, OBSERVER, MetadataSeen(1, 1, 2, (2, 3), ""))


def test_an_answer_with_the_broker_back_in_it_is_its_recovery() -> None:
    assert find_failovers(records(RESTART, GONE, BACK, TOLD, ANSWER))[2] == Failover(
        "broker", 3, 3000.0, 5000.0, 5010.0, 0
    )


def test_an_answer_with_a_broker_in_it_that_nobody_saw_come_back_is_none() -> None:
    assert find_failovers(records(RESTART, GONE, ANSWER))[2] == Failover("broker", 3, 3000.0, 5000.0, None, 0)


def test_a_controller_that_is_elected_again_has_recovered() -> None:
    restart = (3000.0, OBSERVER, FaultInjected("restart", "2"))
    gone = (5000.0, OBSERVER, EphemeralSeen("/controller", 2, False, 0xB))
    back = (5004.0, OBSERVER, EphemeralSeen("/brokers/ids/2", 2, True, 0xD))
    told = (5004.5, 2, MetadataApplied(2, (2, 3), 1))
    again = (5005.0, OBSERVER, EphemeralSeen("/controller", 2, True, 0xD))
    assert find_failovers(records(restart, gone, back, told, ANSWER))[-1].recovered_at_ms is None
    assert find_failovers(records(restart, gone, back, told, again, ANSWER))[-1].recovered_at_ms == 5010.0

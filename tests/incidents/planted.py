"""Which planted fault is found by which test: those that have to be, each with the tests in which it turns red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planted:
    """`nodes`: tests that plant it and hold that a check fails; with a parameter in brackets where one test plants
    many."""

    name: str
    nodes: tuple[str, ...]


def here(fault: str) -> str:
    return f"tests/incidents/test_faults.py::test_a_planted_fault_turns_its_check_red[{fault}]"


def core(fault: str) -> str:
    return f"tests/core/test_planted_faults.py::test_a_planted_fault_turns_a_test_red[{fault}]"


PLANTED = (
    Planted(
        "owner check dropped at the election",
        (
            here("owner not checked at the election"),
            "tests/core/test_leadership.py::test_the_owner_check_is_what_makes_that_so",
            "tests/core/test_leadership.py::test_the_owner_check_matters_there_too",
        ),
    ),
    Planted(
        "epoch taken from a watch",
        (here("epoch taken from ZooKeeper: requests"), here("epoch taken from ZooKeeper: writes")),
    ),
    Planted("event acting on stale children", (here("event acts on stale children"),)),
    Planted("batch kept over a resignation", (here("batch kept over a resignation"),)),
    Planted(
        "request dequeued before its response",
        ("tests/simulator/test_channels.py::test_dequeuing_before_the_response_would_be_seen",),
    ),
    Planted("LeaderAndIsr before UpdateMetadata", (here("LeaderAndIsr before UpdateMetadata"),)),
    Planted("bounced broker unnoticed", (here("bounced broker unnoticed"),)),
    Planted("last ISR member removed", (here("last ISR member removed"),)),
    Planted("callback answered twice", (here("callback answered twice"),)),
    Planted("AlterIsr epoch bumped", (here("AlterIsr bumps the leader epoch"),)),
    Planted(
        "notification znode deleted too early",
        (here("notifications deleted unread"), here("notifications deleted before they are read")),
    ),
    Planted(
        "fence check removed",
        (
            here("fence not checked"),
            core("the fence is not checked"),
            "tests/zookeeper/test_client.py::test_a_removed_fence_is_caught",
        ),
    ),
    Planted(
        "ISR filtered in the wrong order",
        (
            core("the ISR is filtered in the wrong order"),
            "tests/statemachines/test_leader_election.py::test_the_check_catches_a_planted_fault",
        ),
    ),
    Planted(
        "leader taken from the ISR's order",
        (
            core("the leader is taken from the ISR's order"),
            "tests/statemachines/test_leader_election.py::test_the_check_catches_a_planted_fault",
        ),
    ),
    Planted(
        "watch not set again",
        (
            core("a watch is not set again"),
            "tests/zookeeper/test_client_watches.py::test_a_watch_that_is_not_set_again_is_caught",
            "tests/zookeeper/test_client_watches.py::test_a_watch_that_a_reconnection_does_not_set_again_is_caught",
            "tests/simulator/test_runs.py::test_watches_that_are_not_set_again_are_found",
        ),
    ),
    Planted("a callback dropped", (here("callback dropped"), core("a callback is dropped at resignation"))),
    Planted(
        "lease never ending",
        (
            core("the lease is not looked at"),
            "tests/zookeeper/test_client.py::test_a_lease_that_never_runs_out_is_caught",
            "tests/simulator/test_runs.py::test_a_lease_that_nobody_watches_is_found",
        ),
    ),
    Planted("a won election given up", (here("a won election given up"),)),
    Planted("handlers run after the resignation", (here("handlers run after the resignation"),)),
    Planted(
        "a request that outlives its session",
        ("tests/zookeeper/test_kazoo_connection.py::test_requests_that_outlive_their_session_are_caught",),
    ),
)

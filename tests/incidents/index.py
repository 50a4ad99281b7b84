"""Which incident is proved where: its number, Kafka's issue, and the tests that would fail if it happened here.

The page docs/incidents.md tells each in words and ends each section with the proofs as this table has them;
`python -m tests.incidents.index` writes those lines anew. `test_index.py` holds both to what is there.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.incidents.planted import PLANTED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "incidents.md"


class Where(Enum):
    """What a test runs on. The value is how the page says it."""

    PURE = "pure rules"
    CORE = "core, ZooKeeper in memory"
    SIMULATED = "simulated host"
    ZOOKEEPER = "real ZooKeeper"
    REAL = "real host"
    THREADS = "timer and purgatory, threads"


@dataclass(frozen=True, slots=True)
class Proof:
    """`node`: a test function's id as pytest takes it, without parameters."""

    where: Where
    node: str


@dataclass(frozen=True, slots=True)
class Incident:
    """`issue`: where it was reported. `must`: where it has to be proved because the fault is there (a thread, kazoo or
    the server); any place will do for the others."""

    number: str
    issue: str
    title: str
    proofs: tuple[Proof, ...]
    must: frozenset[Where] = frozenset()


def core(node: str) -> Proof:
    return Proof(Where.CORE, f"tests/{node}")


def simulated(node: str) -> Proof:
    return Proof(Where.SIMULATED, f"tests/{node}")


def zookeeper(node: str) -> Proof:
    return Proof(Where.ZOOKEEPER, f"tests/{node}")


def real(node: str) -> Proof:
    return Proof(Where.REAL, f"tests/{node}")


def pure(node: str) -> Proof:
    return Proof(Where.PURE, f"tests/{node}")


def threads(node: str) -> Proof:
    return Proof(Where.THREADS, f"tests/{node}")


ON_ZOOKEEPER = frozenset({Where.ZOOKEEPER})
ON_THREADS = frozenset({Where.REAL})
ON_TIMER_THREADS = frozenset({Where.THREADS})

BUILT_IN = "simulator/test_runs.py::test_built_in_scenarios_pass"
"""zombie-controller, zookeeper-cut, bounce and rolling-restart are among them."""
INTERRUPTED = "incidents/test_prefixes.py::test_wherever_it_is_interrupted_the_next_controller_completes_it"

ELECTION = (
    Incident(
        "S01",
        "KAFKA-532",
        "A controller wakes beside its successor",
        (
            simulated("simulator/test_runs.py::test_the_paused_controller_is_a_zombie_that_is_told_so"),
            core("core/test_terms.py::test_s01_a_later_controllers_state_makes_an_earlier_one_stop"),
            core(INTERRUPTED),
            core("broker/test_epochs.py::test_s31_requests_of_an_earlier_controller_change_nothing"),
            simulated(BUILT_IN),
            real(
                "hosts/test_interleavings.py::test_a_handler_paused_beyond_its_session_writes_nothing_beside_its_successor"
            ),
        ),
    ),
    Incident(
        "S02",
        "KAFKA-1096",
        "An epoch learned from a watch",
        (
            core(
                "incidents/test_epochs.py::test_s02_requests_carry_the_epoch_that_was_won_though_a_later_one_is_there"
            ),
            core("incidents/test_epochs.py::test_s02_nothing_is_written_in_an_epoch_that_another_made"),
            core("incidents/test_epochs.py::test_s02_without_a_term_there_is_no_epoch"),
        ),
    ),
    Incident(
        "S03",
        "KAFKA-6082",
        "Work in the queue when the controller moves",
        (
            core("core/test_terms.py::test_s03_a_fenced_write_ends_the_term_and_nothing_more_is_written"),
            core(INTERRUPTED),
            zookeeper("zookeeper/test_kazoo_faults.py::test_a_deposed_controller_writes_nothing"),
            real("hosts/test_interleavings.py::test_s03_a_writer_paused_between_the_check_and_the_send_writes_nothing"),
        ),
    ),
    Incident(
        "S04",
        "KAFKA-4447",
        "Callbacks queued before a resignation",
        (
            core("core/test_terms.py::test_s04_a_handler_checks_that_it_leads_when_its_turn_comes"),
            real(
                "hosts/test_interleavings.py::test_s04_a_response_that_arrives_after_the_resignation_becomes_no_event"
            ),
        ),
    ),
    Incident(
        "S06",
        "KAFKA-1387, KAFKA-7165, ZOOKEEPER-2985",
        "An old session's registration lingers",
        (
            core("zookeeper/test_broker_writes.py::test_a_former_sessions_registration_is_replaced_at_once"),
            core("zookeeper/test_broker_writes.py::test_another_sessions_registration_is_waited_for"),
            core("zookeeper/test_broker_writes.py::test_a_broker_id_in_use_is_refused_after_a_session_must_have_ended"),
            zookeeper(
                "zookeeper/test_kazoo_faults.py::test_a_registration_lingers_and_is_replaced_by_the_next_session"
            ),
        ),
        ON_ZOOKEEPER,
    ),
    Incident(
        "S07",
        "CURATOR-696",
        "One's own id in another session's znode",
        (
            core("core/test_leadership.py::test_an_older_session_of_its_own_is_no_victory"),
            core("core/test_leadership.py::test_an_unanswered_attempt_is_not_won_by_another_session_of_the_same_id"),
            zookeeper(
                "incidents/test_on_real_zookeeper.py::test_s07_ones_own_id_in_an_older_sessions_znode_is_no_victory"
            ),
        ),
        ON_ZOOKEEPER,
    ),
    Incident(
        "S08",
        "KafkaZkClient.checkControllerAndEpoch",
        "An election whose reply is lost",
        (
            core("core/test_leadership.py::test_a_lost_reply_is_settled_by_looking_again"),
            zookeeper("incidents/test_on_real_zookeeper.py::test_s08_an_election_whose_reply_is_lost_is_won_once"),
        ),
        ON_ZOOKEEPER,
    ),
    Incident(
        "S09",
        "KAFKA-5473",
        "ZooKeeper is away for minutes",
        (
            core("core/test_terms.py::test_a_session_that_ends_ends_the_term_and_the_next_one_registers_again"),
            core("core/test_terms.py::test_a_registration_that_fails_is_tried_again"),
            core("zookeeper/test_broker_writes.py::test_a_registration_ends_with_its_session"),
            real("incidents/test_on_real_zookeeper.py::test_s09_zookeeper_goes_away_with_the_session_and_comes_back"),
        ),
        ON_THREADS,
    ),
    Incident(
        "S10",
        "KAFKA-16509",
        "A gauge that names a controller that is gone",
        (core("core/test_terms.py::test_s10_the_gauge_says_nobody_when_nobody_leads"),),
    ),
    Incident(
        "S11",
        "KAFKA-12315",
        "A batch that outlives its term",
        (
            core("core/test_terms.py::test_s11_a_batch_that_an_error_ended_does_not_reach_the_next_term"),
            core("incidents/test_batches.py::test_s11_a_second_term_sends_what_it_would_have_sent_without_the_first"),
        ),
    ),
    Incident(
        "S12",
        "kazoo #89, Patroni #1981",
        "Suspended for ever",
        (
            core("core/test_terms.py::test_s12_a_leader_that_is_cut_off_stops_before_its_session_ends"),
            core("core/test_terms.py::test_s12_in_the_middle_of_a_failover_too"),
            simulated(
                "simulator/test_runs.py::test_a_leader_cut_off_for_longer_than_its_lease_stands_again_in_the_same_session"
            ),
            zookeeper("zookeeper/test_kazoo_faults.py::test_a_controller_cut_off_stops_before_another_can_be_elected"),
            real("hosts/test_event_thread.py::test_s12_a_lease_that_runs_out_while_a_handler_waits_ends_the_term"),
            simulated(BUILT_IN),
            real(
                "hosts/test_interleavings.py::test_s12_a_request_that_is_queued_when_the_lease_runs_out_does_not_go_out"
            ),
            real(
                "hosts/test_interleavings.py::test_s12_a_channel_looks_at_the_lease_itself_while_the_event_thread_stands_still"
            ),
        ),
        ON_ZOOKEEPER,
    ),
)

THREADS = (
    Incident(
        "S13",
        "KAFKA-6517",
        "Expiry while a batch of requests is in flight",
        (
            real("incidents/test_on_real_zookeeper.py::test_s13_a_session_ends_while_writes_are_in_flight"),
            real("hosts/test_interleavings.py::test_s13_a_term_ends_while_the_requests_in_flight_have_no_answer_yet"),
        ),
        ON_THREADS,
    ),
    Incident(
        "S14",
        "KAFKA-6879",
        "A callback that fails or waits stops the reconnection",
        (
            zookeeper("zookeeper/test_kazoo_connection.py::test_faults_of_those_called_back_do_not_end_the_connection"),
            real(
                "hosts/test_interleavings.py::test_s14_no_lock_is_held_where_the_connection_stands_and_no_fault_of_a_callback_ends_it"
            ),
        ),
        ON_THREADS,
    ),
    Incident(
        "S15",
        "S14 as it would look with kazoo",
        "A listener that waits for a thread that waits for a reply",
        (
            zookeeper(
                "zookeeper/test_kazoo_connection.py::test_a_thread_that_waits_for_a_reply_is_freed_by_the_sessions_end"
            ),
            real(
                "incidents/test_on_real_zookeeper.py::test_s15_a_session_ends_while_the_event_thread_waits_for_a_read"
            ),
            real("hosts/test_interleavings.py::test_s15_the_listener_needs_no_controller_thread"),
        ),
        ON_THREADS,
    ),
    Incident(
        "S16",
        "KAFKA-8121",
        "Closing races with expiry",
        (
            zookeeper("zookeeper/test_kazoo_connection.py::test_close_makes_no_session_whenever_it_comes"),
            zookeeper("zookeeper/test_kazoo_connection.py::test_close_as_it_starts_makes_no_session"),
            real("hosts/test_interleavings.py::test_s16_no_session_is_there_after_a_close_that_met_an_expiry"),
        ),
        ON_THREADS,
    ),
    Incident(
        "S19",
        "KAFKA-10193",
        "Callers left waiting by a resignation",
        (
            core("core/test_terms.py::test_s19_every_queued_callback_is_answered_once_at_resignation"),
            core("core/test_terms.py::test_s19_the_callback_of_the_event_in_hand_is_answered_too"),
            core(INTERRUPTED),
            real("core/test_queue.py::test_many_threads_put_and_every_caller_is_answered_once"),
        ),
    ),
)

WATCHES = (
    Incident(
        "S22",
        "KAFKA-5502",
        "A queue of stale lists",
        (
            core("core/test_broker_changes.py::test_s22_many_brokers_at_once_are_one_look"),
            core("core/test_queue.py::test_equal_pending_events_are_one_until_one_is_taken"),
        ),
    ),
    Incident(
        "S23",
        "KAFKA-5879",
        "Notifications that an earlier event deleted",
        (
            core(
                "core/test_isr_changes.py::"
                "test_s23_notifications_are_listed_when_their_turn_comes_and_one_that_is_gone_is_fine"
            ),
            core("incidents/test_unread.py::test_s23_what_comes_while_others_are_handled_is_read_before_it_is_deleted"),
        ),
    ),
    Incident(
        "S25",
        "KAFKA-928",
        "A topic made while there was no session",
        (
            core("core/test_loading.py::test_a_change_at_any_moment_of_the_loading_is_not_lost"),
            core("zookeeper/test_client_watches.py::test_a_new_session_arms_everything_afresh_and_puts_it"),
            zookeeper("zookeeper/test_kazoo_faults.py::test_a_new_session_watches_again_and_looks_at_everything"),
        ),
        ON_ZOOKEEPER,
    ),
    Incident(
        "S27",
        "kazoo #151",
        "A change in the gap between two connections",
        (
            core("core/test_loading.py::test_s27_what_came_while_the_connection_was_broken_is_found_after_it"),
            zookeeper("zookeeper/test_kazoo_faults.py::test_a_change_in_the_gap_between_two_connections_is_told"),
        ),
        ON_ZOOKEEPER,
    ),
)

REQUESTS = (
    Incident(
        "S29",
        "KAFKA-7235, KIP-380",
        "A broker that bounces unnoticed",
        (
            core("core/test_broker_changes.py::test_s29_a_bounce_is_a_failure_and_a_start_up"),
            core("broker/test_epochs.py::test_s29_requests_for_an_earlier_life_change_nothing"),
            real("hosts/test_channels.py::test_a_channel_to_an_earlier_life_is_dropped_with_its_queue"),
            real("hosts/test_local_cluster.py::test_a_paused_broker_comes_back_in_a_new_life"),
            simulated(BUILT_IN),
        ),
    ),
    Incident(
        "S31",
        "KAFKA-1188",
        "An ISR change that only the leader hears of",
        (
            core("core/test_broker_changes.py::test_s31_the_change_of_an_isr_is_told_to_all_live_replicas"),
            core("broker/test_epochs.py::test_s31_requests_of_an_earlier_controller_change_nothing"),
        ),
    ),
    Incident(
        "S32",
        "KAFKA-4443",
        "Told of a leader that it can't reach",
        (
            core("core/test_failover.py::test_s32_update_metadata_precedes_leader_and_isr"),
            core("core/test_broker_changes.py::test_a_new_broker_hears_of_everything_before_what_is_its_own"),
        ),
    ),
    Incident(
        "S33",
        "KAFKA-1738",
        "A request that was sent and never answered",
        (
            simulated(
                "simulator/test_channels.py::test_a_connection_that_breaks_at_any_moment_neither_loses_nor_reorders"
            ),
            real(
                "hosts/test_channels.py::test_s33_a_request_whose_answer_was_lost_goes_first_over_the_next_connection"
            ),
        ),
    ),
)

ISRS = (
    Incident(
        "S37",
        "KAFKA-708",
        "The last of an ISR dies",
        (
            core("core/test_failover.py::test_s37_the_last_of_an_isr_stays_in_it"),
            core("core/test_failover.py::test_an_isr_that_is_gone_as_a_whole_stays_as_it_was"),
            pure("statemachines/test_leader_election.py::test_an_offline_partition"),
        ),
    ),
    Incident(
        "S38",
        "KAFKA-3096, KAFKA-3143",
        "The dead controller was a follower too",
        (
            core(
                "core/test_failover.py::"
                "test_s38_a_dead_follower_leaves_the_isr_at_start_up_and_a_dead_leader_is_bumped_twice"
            ),
        ),
    ),
    Incident(
        "S39",
        "KAFKA-14140",
        "A follower on its way out joins the ISR",
        (
            core("core/test_isr_changes.py::test_s39_a_follower_that_shuts_down_joins_no_isr"),
            core("core/test_controlled_shutdown.py::test_it_can_ask_again_and_is_elected_nowhere_until_it_is_back"),
        ),
    ),
    Incident(
        "S42",
        "KAFKA-14154",
        "A leader that knows a later controller",
        (
            core("core/test_isr_changes.py::test_a_change_that_cant_be_is_refused_and_nothing_is_written"),
            core("broker/test_isr_changes.py::test_what_was_refused_is_decided_anew_in_a_while"),
            core("broker/test_isr_changes.py::test_another_controller_is_asked_at_once"),
        ),
    ),
    Incident(
        "S46",
        "KAFKA-7482",
        "A broker on its way out that leads on",
        (
            core("core/test_controlled_shutdown.py::test_s46_the_broker_that_goes_is_told_that_it_leads_no_more"),
            real("hosts/test_local_cluster.py::test_sigterm_moves_every_leader_before_the_broker_goes"),
            simulated(BUILT_IN),
        ),
    ),
)

DELETIONS = (
    Incident(
        "S56a",
        "KAFKA-6650",
        "Deleting what never had a leader",
        (core("core/test_topic_deletion.py::test_s56a_a_partition_without_a_state_is_deleted"),),
    ),
    Incident(
        "S56b",
        "KAFKA-6612",
        "Partitions added to a topic that goes",
        (core("core/test_topic_deletion.py::test_s56b_partitions_that_are_added_meanwhile_are_taken_out_again"),),
    ),
    Incident(
        "S56c",
        "KAFKA-1681",
        "A deletion that its controller did not live to see",
        (
            core("core/test_topic_deletion.py::test_s56c_a_new_controller_takes_up_what_was_asked_of_the_one_before"),
            core(INTERRUPTED),
        ),
    ),
    Incident(
        "S56e",
        "KAFKA-12835",
        "A topic's id lost in a rewrite",
        (core("core/test_topic_changes.py::test_s56e_a_topic_without_an_id_gets_one_and_keeps_all_else"),),
    ),
)

TIMERS = (
    Incident(
        "S57",
        "KAFKA-3994, KAFKA-6042",
        "An answer under a lock",
        (
            threads("timer/test_purgatory_threads.py::test_a_forced_race"),
            threads("timer/test_purgatory_threads.py::test_a_planted_race_is_lost"),
            threads("timer/test_threaded.py::test_no_task_runs_under_the_lock"),
            threads(
                "timer/test_purgatory_threads.py::test_the_last_reference_to_an_operation_does_not_go_under_a_lock"
            ),
        ),
        must=ON_TIMER_THREADS,
    ),
    Incident(
        "S58",
        "KAFKA-6653",
        "News that came during a look",
        (
            threads("timer/test_purgatory_threads.py::test_a_forced_race"),
            threads("timer/test_purgatory_threads.py::test_a_planted_race_is_lost"),
            threads("timer/test_purgatory_threads.py::test_many_threads_end_each_operation_once_and_leave_nothing"),
        ),
        must=ON_TIMER_THREADS,
    ),
    Incident(
        "S60",
        "KAFKA-664, KAFKA-1989",
        "Operations that have ended and stay",
        (
            pure("timer/test_purgatory.py::test_whatever_ends_operations_the_lists_stay_within_their_bound"),
            pure("timer/test_purgatory.py::test_operations_leave_the_memory_where_it_was"),
            pure("timer/test_purgatory.py::test_a_purgatory_that_never_purges_is_found"),
        ),
    ),
    Incident(
        "S61",
        "KAFKA-4051",
        "The wall clock is set",
        (
            threads("timer/test_threaded.py::test_s61_a_step_of_the_wall_clock_moves_nothing"),
            threads("timer/test_threaded.py::test_s61_a_timer_on_the_wall_clock_is_caught"),
            threads("timer/test_purgatory_threads.py::test_a_step_of_the_wall_clock_ends_nothing"),
        ),
    ),
)

INCIDENTS = (*ELECTION, *THREADS, *WATCHES, *REQUESTS, *ISRS, *DELETIONS, *TIMERS)

_PLAIN = (1, 2, 3, 4, *range(6, 17), 19, 22, 23, 25, 27, 29, 31, 32, 33, 37, 38, 39, 42, 46)
NUMBERS = (*(f"S{number:02}" for number in _PLAIN), "S56a", "S56b", "S56c", "S56e", "S57", "S58", "S60", "S61")
"""The incidents that have to be proved."""


# -- the page

PROVED = "Proved:"
_SECTION = re.compile(r"(?m)^### (S\d\d[a-e]?) \((.+?)\): (.+)$")
_NEXT_PART = re.compile(r"(?m)^## ")
_PLANTED = re.compile(r"(?s)(<!-- planted -->\n).*?(<!-- end -->)")


def sections(page: str) -> dict[str, tuple[str, str, str]]:
    """By number: the issue, the title, and all that the section says."""
    parts = _SECTION.split(page)[1:]
    found = {}
    for number, issue, title, text in zip(*(parts[at::4] for at in range(4)), strict=True):
        found[number] = (issue, title, _NEXT_PART.split(text)[0])
    return found


def with_proofs(page: str) -> str:
    """The page with every list of proofs, and the table of planted faults, as the tables here have them."""
    for incident in INCIDENTS:
        lines = "".join(f"- {proof.where.value}: `{proof.node}`\n" for proof in incident.proofs)
        pattern = re.compile(rf"(?s)(### {incident.number} .*?\n{PROVED}\n)(?:\n(?:- [^\n]*\n)+)?")
        page = pattern.sub(lambda found, lines=lines: f"{found[1]}\n{lines}", page, count=1)  # type: ignore[misc]
    table = "".join(f"| {fault.name} | {'<br>'.join(f'`{node}`' for node in fault.nodes)} |\n" for fault in PLANTED)
    return _PLANTED.sub(lambda found: f"{found[1]}| the fault | found by |\n| --- | --- |\n{table}{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_proofs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)

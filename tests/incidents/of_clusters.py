"""Incidents of requests and lives of brokers, of ISRs, of topics that go and of waiting requests, with their proofs."""

from __future__ import annotations

from tests.incidents.incident import (
    BUILT_IN,
    INTERRUPTED,
    ON_TIMER_THREADS,
    Incident,
    core,
    golden,
    pure,
    real,
    simulated,
    threads,
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
        "S30",
        "KAFKA-9539, KIP-570",
        "A StopReplica that was overtaken",
        (
            core("broker/test_epochs.py::test_s30_a_late_stop_replica_does_not_stop_a_newer_role"),
            simulated(
                "simulator/test_incidents_in_worlds.py::test_s30_a_stop_replica_that_was_overtaken_stops_nothing"
            ),
        ),
    ),
    Incident(
        "S31",
        "KAFKA-1188",
        "An ISR change that only the leader learns of",
        (
            core("core/test_broker_changes.py::test_s31_the_change_of_an_isr_is_told_to_all_live_replicas"),
            core("broker/test_epochs.py::test_s31_requests_of_an_earlier_controller_change_nothing"),
            golden("s01-zombie-controller"),
        ),
    ),
    Incident(
        "S32",
        "KAFKA-4443",
        "Told of a leader that it can't reach",
        (
            core("core/test_failover.py::test_s32_update_metadata_precedes_leader_and_isr"),
            core("core/test_broker_changes.py::test_a_new_broker_hears_of_everything_before_what_is_its_own"),
            golden("s38-controller-and-follower"),
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
    Incident(
        "S34",
        "KAFKA-6880",
        "A zombie that goes on fetching",
        (golden("s34-zombie-that-fetches"),),
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
        "S40",
        "KIP-903, KAFKA-14139, KAFKA-14617",
        "In sync in an earlier life",
        (
            core("core/test_isr_changes.py::test_s40_a_follower_joins_in_the_life_that_was_seen_to_have_everything"),
            simulated(
                "simulator/test_incidents_in_worlds.py::"
                "test_s40_a_follower_that_lost_its_disk_is_not_taken_for_its_earlier_life"
            ),
        ),
    ),
    Incident(
        "S42",
        "KAFKA-14154",
        "A leader that knows a later controller",
        (
            core("core/test_isr_changes.py::test_a_change_that_cant_be_is_refused_and_nothing_is_written"),
            core("broker/test_isr_changes.py::test_what_may_have_been_made_after_all_is_sent_again_as_it_was"),
            core("broker/test_isr_changes.py::test_another_controller_is_asked_what_one_knew_better"),
            core("broker/test_isr_changes.py::test_another_controller_is_asked_at_once"),
        ),
    ),
    Incident(
        "S43",
        "KAFKA-12686, KAFKA-12751",
        "A new role while a change is asked for",
        (
            core(
                "broker/test_isr_changes.py::test_a_newer_leader_epoch_empties_the_slot_and_a_late_answer_says_nothing"
            ),
            golden("s43-role-while-a-change-is-asked-for"),
        ),
    ),
    Incident(
        "S44",
        "KAFKA-13091, KAFKA-13254",
        "A shrunk ISR that nothing reacts to",
        (
            simulated(
                "simulator/test_incidents_in_worlds.py::"
                "test_s44_a_shrunk_isr_moves_the_high_watermark_without_another_append"
            ),
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
    Incident(
        "S47",
        "KAFKA-2729, KAFKA-1382",
        "A leader with a version that is behind",
        (
            core("broker/test_isr_changes.py::test_a_version_that_is_behind_is_caught_up_with_from_the_metadata"),
            simulated(
                "simulator/test_incidents_in_worlds.py::"
                "test_s47_a_leader_that_missed_a_change_follows_and_isrs_change_on"
            ),
            golden("s47-leader-without-zookeeper"),
        ),
    ),
)

REASSIGNMENTS = (
    Incident(
        "S49",
        "KAFKA-4214",
        "A target that bounces with its controller",
        (
            core("core/test_reassignment.py::test_s49_a_target_that_is_dead_is_waited_for"),
            core(INTERRUPTED),
        ),
    ),
    Incident(
        "S51",
        "KAFKA-9089",
        "A reassignment that comes back",
        (
            core(
                "core/test_reassignment.py::"
                "test_s51_a_request_that_takes_over_from_the_znode_is_what_the_next_controller_finds"
            ),
        ),
    ),
    Incident(
        "S53",
        "KAFKA-10314",
        "An added replica that may not be made",
        (
            core("core/test_reassignment.py::test_s53_what_is_added_may_be_made_in_any_log_directory"),
            core("core/test_against_kafka.py::test_a_reassignment_is_asked_for_answered_and_carried_out_as_kafka_does"),
            real("hosts/test_log_directories.py::test_a_directory_that_fails_loses_its_leaders_and_its_broker_lives"),
        ),
    ),
    Incident(
        "S54",
        "KAFKA-9672, KAFKA-1097, KAFKA-1170",
        "Removed, and in the ISR again",
        (core("core/test_reassignment.py::test_s54_whoever_is_removed_is_out_of_the_isr_when_it_is_done"),),
    ),
    Incident(
        "S55",
        "KIP-550",
        "Reassigned away while its broker was not there",
        (
            core("broker/test_reassigned_away.py::test_s55_it_leads_and_follows_no_more_and_its_records_stay"),
            core(
                "broker/test_reassigned_away.py::"
                "test_s55_files_of_a_topic_that_is_gone_make_way_for_another_of_its_name"
            ),
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
        "S56d",
        "KAFKA-13572",
        "A gauge that deletions turn negative",
        (core("core/test_measures.py::test_s56d_gauges_follow_a_cluster_through_its_troubles"),),
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

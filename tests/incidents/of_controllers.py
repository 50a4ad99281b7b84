"""Incidents of elections and epochs, of threads, and of watches, with their proofs."""

from __future__ import annotations

from tests.incidents.incident import (
    BUILT_IN,
    INTERRUPTED,
    ON_THREADS,
    ON_ZOOKEEPER,
    Incident,
    core,
    golden,
    real,
    simulated,
    zookeeper,
)

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
        "S17",
        "KAFKA-4360",
        "A session ends while leaders are given back",
        (
            core(
                "core/test_elections.py::test_s17_a_session_that_ends_while_leaders_go_back_ends_the_term_and_the_next_one_goes_on"
            ),
            real("hosts/test_interleavings.py::test_s13_a_term_ends_while_the_requests_in_flight_have_no_answer_yet"),
        ),
        ON_THREADS,
    ),
    Incident(
        "S18",
        "KAFKA-1663, KAFKA-1699",
        "A shutdown that waits for who waits for it",
        (
            core("core/test_elections.py::test_s18_a_shutdown_leaves_no_clock_behind"),
            real("hosts/test_event_thread.py::test_s18_a_thread_that_waits_for_an_answer_can_be_stopped"),
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
    Incident(
        "S20",
        "KAFKA-9189",
        "Shutting down without ZooKeeper",
        (
            core("broker/test_node.py::test_s20_a_shutdown_without_zookeeper_is_bounded"),
            golden("s20-shutdown-without-zookeeper"),
        ),
    ),
    Incident(
        "S21",
        "KAFKA-10189",
        "The percentile of an hour that is over",
        (core("core/test_measures.py::test_s21_a_busy_hour_is_forgotten_once_it_is_quiet"),),
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
    Incident(
        "S28",
        "KAFKA-2406, KAFKA-2722",
        "ISRs that flap by the thousand",
        (
            core(
                "core/test_isr_changes.py::test_s28_a_notification_tells_of_the_partitions_that_it_names_and_no_others"
            ),
            core("broker/test_isr_changes.py::test_many_partitions_go_in_one_request_and_one_request_at_a_time"),
            golden("s28-isrs-that-flap"),
        ),
    ),
)

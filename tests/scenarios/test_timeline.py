"""The timeline's values, from crafted traces: lives, sessions, terms, faults, elections, offline counts, the client."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from controller.report.files import main, read_parquet, write_parquet
from controller.report.svg import NARROWEST, QUIET_WIDTH, Piece, TimeScale, close_up, whole_run
from controller.report.timeline import ClientView, Life, Timeline, timeline_of
from controller.trace import (
    ControllerElected,
    EphemeralSeen,
    FaultInjected,
    Noted,
    PartitionMoved,
    SessionEnded,
    StoodStill,
)
from controller.trace_records import OBSERVER, TraceRecord
from tests.scenarios.evidence import records, written
from tests.scenarios.timeline_traces import Event, in_order, joins, large, leaves, zombie

ZOMBIE = timeline_of(zombie())


def lives(timeline: Timeline, lane: int) -> list[tuple[Life, float, float]]:
    return [(span.state, span.from_ms, span.to_ms) for span in timeline.lanes[lane].life]


def test_a_paused_broker_lives_on_and_a_stopped_one_ends_with_its_step() -> None:
    assert lives(ZOMBIE, 0) == [
        (Life.STARTING, 0.0, 600.0),
        (Life.RUNNING, 600.0, 3000.0),
        (Life.PAUSED, 3000.0, 8000.0),
        (Life.RUNNING, 8000.0, 12000.0),
    ]
    assert lives(ZOMBIE, 2)[-1] == (Life.STOPPING, 9000.0, 9350.0)


@pytest.mark.parametrize(
    ("fault", "after", "expected"),
    [
        ("kill", [], [(Life.RUNNING, 10.0, 500.0)]),
        # A record that was on its way as the process died brings nothing back; a new session does.
        ("kill", [(501.0, 1, Noted("info", "late"))], [(Life.RUNNING, 10.0, 500.0)]),
        ("kill", joins(700, 1, 2), [(Life.RUNNING, 10.0, 500.0), (Life.RUNNING, 700.0, 1000.0)]),
        (
            "restart",
            joins(700, 1, 2),
            [(Life.RUNNING, 10.0, 500.0), (Life.RESTARTING, 500.0, 700.0), (Life.RUNNING, 700.0, 1000.0)],
        ),
        ("expire", joins(700, 1, 2), [(Life.RUNNING, 10.0, 1000.0)]),
        ("stop", [], [(Life.RUNNING, 10.0, 500.0), (Life.STOPPING, 500.0, 1000.0)]),
    ],
)
def test_what_a_fault_makes_of_a_life(
    fault: str, after: list[Event], expected: list[tuple[Life, float, float]]
) -> None:
    end = (1000.0, OBSERVER, Noted("info", "end"))
    events = [*joins(10, 1, 1), (500.0, OBSERVER, FaultInjected(fault, "1")), *after, end]
    assert lives(timeline_of(in_order(events)), 0) == expected


def test_a_session_ends_as_zookeeper_had_it_and_the_time_in_which_its_broker_did_not_know_is_kept() -> None:
    old, new = ZOMBIE.lanes[0].sessions
    assert (old.session, old.from_ms, old.to_ms, old.ended, old.believed_until_ms) == (0xA1, 600, 5000, True, 8150)
    assert [(one.from_ms, one.to_ms, one.broker_epoch) for one in old.registrations] == [(621, 5000, 1)]
    assert (new.from_ms, new.to_ms, new.ended, new.believed_until_ms) == (8300, 12000, False, 12000)


def test_a_killed_broker_believes_nothing() -> None:
    kill = (500.0, OBSERVER, FaultInjected("kill", "1"))
    (session,) = timeline_of(in_order([*joins(10, 1, 1), kill, leaves(2000, 1, 1)])).lanes[0].sessions
    assert (session.to_ms, session.ended, session.believed_until_ms) == (2000, True, 2000)


@pytest.mark.parametrize("fault", ["stop", "restart"])
def test_a_broker_that_closes_its_session_knows_of_it(fault: str) -> None:
    strike = (500.0, OBSERVER, FaultInjected(fault, "1"))
    ended = (603.0, 1, SessionEnded(1))
    (session,) = timeline_of(in_order([*joins(10, 1, 1), strike, leaves(600, 1, 1), ended])).lanes[0].sessions
    assert (session.to_ms, session.believed_until_ms) == (600, 600)


def test_every_fault_has_a_mark_on_a_lane_that_there_is() -> None:
    for trace in (zombie(), large(), records()):
        timeline = timeline_of(trace)
        injected = [(record.at_ms, record.event) for record in trace if isinstance(record.event, FaultInjected)]
        assert [(mark.at_ms, FaultInjected(mark.fault, mark.target)) for mark in timeline.faults] == injected
        assert {mark.lane for mark in timeline.faults} <= {lane.name for lane in timeline.lanes}


@pytest.mark.parametrize(
    ("fault", "target", "lane", "crosses"),
    [
        ("kill", "2", "broker 2", True),
        ("cut", "2->zookeeper", "broker 2", True),
        ("reset-zookeeper", "node=2 late_ms=5", "broker 2", True),
        ("slow", "source=10 target=2 for_ms=9", "broker 10", True),
        ("end", "isolate node=2 for_ms=9", "broker 2", False),
        ("create-topic", "topic=node=2 partitions=3", "", False),
        ("delete-controller", "", "", False),
        ("calm", "core [2, 10], others dead", "", False),
    ],
)
def test_a_fault_stands_on_the_lane_of_its_broker_or_on_none(fault: str, target: str, lane: str, crosses: bool) -> None:
    timeline = timeline_of(
        in_order([*joins(1, 2, 1), *joins(2, 10, 1), (3000.0, OBSERVER, FaultInjected(fault, target))])
    )
    assert [lane.name for lane in timeline.lanes] == ["broker 2", "broker 10"]
    assert [(mark.lane, mark.crosses) for mark in timeline.faults] == [(lane, crosses)]


@pytest.mark.parametrize(
    ("lasted_ms", "factors"), [(1_000.0, [1]), (12_000.0, [1, 4, 16]), (86_400_000.0, [1, 4, 16, 64, 256])]
)
def test_zoom_levels_end_at_a_millisecond_and_at_a_width(lasted_ms: float, factors: list[int]) -> None:
    levels = [*close_up(0.0, lasted_ms).zoom_levels()]
    assert [factor for factor, _ in levels] == factors
    for factor, scale in levels:
        assert (scale.x(0.0), scale.x(lasted_ms / 2), scale.x(lasted_ms)) == (0.0, 480.0 * factor, 960.0 * factor)
        assert 2 <= len([*scale.ticks()]) <= scale.width / 60


def test_a_zoomed_scale_keeps_the_width_of_what_is_cut_short() -> None:
    pieces = (
        Piece(0.0, 100.0, 0.0, 50.0, False),
        Piece(100.0, 900.0, 50.0, 20.0, True),
        Piece(900.0, 1000.0, 70.0, 50.0, False),
    )
    zoomed = TimeScale(pieces).zoomed(4.0)
    assert [(piece.x, piece.width) for piece in zoomed.pieces] == [(0.0, 200.0), (200.0, 20.0), (220.0, 200.0)]


@pytest.mark.parametrize(
    ("from_s", "to_s", "labels"),
    [
        (28_984.806, 29_000.0, ["08:03:06", "08:03:08", "08:03:10"]),
        (28_984.806, 28_985.3, ["08:03:04.85", "08:03:04.90"]),
        (0.0, 3 * 86_400.0, ["01-01 00:00", "01-01 06:00"]),
    ],
)
def test_ticks_of_clock_times_are_round(from_s: float, to_s: float, labels: list[str]) -> None:
    scale = dataclasses.replace(close_up(from_s * 1000, to_s * 1000), clock=True)
    assert [label for _, _, label in scale.ticks()][: len(labels)] == labels


def test_a_zookeeper_server_that_is_struck_gets_a_lane_after_the_brokers() -> None:
    kill, start = FaultInjected("kill", "zookeeper 2"), FaultInjected("start", "zookeeper 2")
    end = (3000.0, 10, Noted("info", "end"))
    timeline = timeline_of(in_order([(1000.0, OBSERVER, kill), (2000.0, OBSERVER, start), *joins(1, 2, 1), end]))
    assert [lane.name for lane in timeline.lanes] == ["broker 2", "broker 10", "zookeeper 2"]
    assert lives(timeline, 2) == [(Life.RUNNING, 0.0, 1000.0), (Life.RUNNING, 2000.0, 3000.0)]


def test_a_cut_lasts_until_it_is_healed_or_the_run_ends() -> None:
    (cut,) = ZOMBIE.lanes[2].cuts
    assert (cut.link, cut.from_ms, cut.to_ms, cut.healed) == ("3->zookeeper", 6000, 7000, True)
    never = timeline_of(records((150.0, OBSERVER, FaultInjected("cut", "2->zookeeper"))))
    assert [(cut.to_ms, cut.healed) for lane in never.lanes for cut in lane.cuts] == [(never.duration_ms, False)]


def test_a_zombies_term_runs_on_unbacked_beside_its_successors() -> None:
    first, second = ZOMBIE.terms
    assert (first.controller_epoch, first.broker, first.from_ms, first.to_ms) == (1, 1, 800, 8151)
    assert (first.backed_until_ms, first.ending) == (5000, "resigned: session 0xa1 is gone")
    assert (second.controller_epoch, second.broker, second.to_ms) == (2, 2, ZOMBIE.duration_ms)
    assert [(one.broker, one.from_ms, one.to_ms) for one in ZOMBIE.holders] == [(1, 801, 5000), (2, 5021, 12000)]


def test_phases_lie_within_their_term_one_after_the_other() -> None:
    for term in (*ZOMBIE.terms, *timeline_of(large()).terms):
        assert len(term.phases) == 3
        times = [at_ms for phase in term.phases for at_ms in (phase.from_ms, phase.to_ms)]
        assert times == pytest.approx(sorted(times))
        assert term.from_ms == pytest.approx(times[0])
        assert term.completed_at_ms == pytest.approx(times[-1])


def test_a_killed_controllers_term_ends_with_it() -> None:
    first, second = timeline_of(records()).terms
    assert (first.to_ms, first.ending, second.from_ms) == (100.0, "killed", 2110.0)


@pytest.mark.parametrize("trace", [zombie(), large(), records()], ids=["zombie", "large", "sound"])
def test_no_two_terms_of_one_epoch(trace: list[TraceRecord]) -> None:
    timeline = timeline_of(trace)
    assert timeline.disputed_epochs == ()
    assert len({term.controller_epoch for term in timeline.terms}) == len(timeline.terms)


def test_an_epoch_with_two_terms_is_disputed() -> None:
    assert timeline_of(records((2500.0, 3, ControllerElected(2, 2, 0xC)))).disputed_epochs == (2,)


def offline_at(timeline: Timeline, at_ms: float) -> int:
    """How many partitions were offline at a moment."""
    return next((point.offline for point in reversed(timeline.offline) if point.at_ms <= at_ms), 0)


@pytest.mark.parametrize(
    ("at_ms", "offline"),
    [
        (999, 0),
        (4999, 0),  # paused, and its session still there
        (5000, 2),  # gone: it led t-0 and t-3
        (5060, 1),
        (5061, 0),
        (9300, 0),
        (9301, 3),  # broker 3 led t-2, t-5 and u-0
        (9500, 2),  # t-2 elected
        (9501, 2),  # t-5 has leader -1 now: offline as before
        (11000, 1),  # u-0 was deleted
    ],
)
def test_partitions_offline_at_a_moment(at_ms: float, offline: int) -> None:
    assert offline_at(ZOMBIE, at_ms) == offline


def test_partitions_come_online_with_their_leader_and_old_versions_say_nothing() -> None:
    trace = [
        *joins(0, 1, 1),
        (100.0, 1, written(leader=1, zk_version=3)),
        leaves(200, 1, 1),
        (210.0, OBSERVER, EphemeralSeen("/brokers/ids/1", 1, False, 99)),
        (250.0, 2, written(leader=2, zk_version=2)),
        *joins(300, 1, 2),
        (400.0, 1, PartitionMoved(1, "t", 0, -1, "Offline", "NonExistent")),
        (500.0, 1, written(leader=-1, zk_version=0)),
    ]
    timeline = timeline_of(in_order(trace))
    assert [(point.at_ms, point.offline, point.partitions) for point in timeline.offline] == [
        (100, 0, 1),
        (200, 1, 1),
        (321, 0, 1),
        (400, 0, 0),
        (500, 1, 1),
    ]


def test_a_brokers_late_end_of_an_old_session_takes_nothing_offline() -> None:
    trace = [*joins(0, 1, 1), (100.0, 1, written(leader=1)), *joins(200, 1, 2), leaves(300, 1, 1)]
    assert offline_at(timeline_of(in_order(trace)), 300) == 0


def test_the_offline_count_is_that_of_counting_anew() -> None:
    trace = large(brokers=6, minutes=1, faults=6, partitions=60)
    timeline = timeline_of(trace)
    leader: dict[int, int] = {}
    gone: set[int] = {-1}
    for index, record in enumerate(trace):
        match record.event:
            case EphemeralSeen(path, broker, present) if path != "/controller":
                gone = gone - {broker} if present else gone | {broker}
            case state if isinstance(state, type(written())):
                leader[state.partition] = state.leader
        if index + 1 == len(trace) or trace[index + 1].at_ms > record.at_ms:
            assert offline_at(timeline, record.at_ms) == sum(one in gone for one in leader.values())


def test_elections_of_one_kind_are_one_moment_and_unclean_ones_are_apart() -> None:
    assert [(one.why, one.controller_epoch, one.count, one.unclean) for one in ZOMBIE.elections] == [
        ("initial", 1, 7, False),
        ("offline", 2, 2, False),
        ("offline", 2, 1, True),
    ]
    assert ZOMBIE.elections[0].leaders == ((1, 2), (2, 2), (3, 3))


def test_every_election_is_counted_once() -> None:
    trace = large()
    elected = sum(isinstance(record.event, type(written())) and record.event.leader != -1 for record in trace)
    assert sum(one.count for one in timeline_of(trace).elections) == elected


def test_the_clients_view_and_a_failure_fills_the_time_since_the_answer_before_it() -> None:
    assert [(span.view, span.from_ms, span.to_ms) for span in ZOMBIE.client] == [
        (ClientView.COMPLETE, 1100, 5000),
        (ClientView.INCOMPLETE, 5000, 5200),
        (ClientView.COMPLETE, 5200, 9300),
        (ClientView.INCOMPLETE, 9300, 9400),
        (ClientView.FAILING, 9400, 12000),
    ]
    assert (ZOMBIE.client[1].least_led, ZOMBIE.client[1].expected) == (5, 7)
    assert ZOMBIE.client[-1].error == "timed out"


def test_a_failed_step_and_a_brokers_error_are_marked() -> None:
    assert [(one.at_ms, one.lane, one.text) for one in ZOMBIE.errors] == [
        (12000, None, "wait until metadata: not within 500 ms: 5 of 6 led")
    ]
    error = timeline_of(records((50.0, 2, Noted("error", "Startup failed"))))
    assert [(one.lane, one.text) for one in error.errors] == [("broker 2", "Startup failed")]


def test_nothing_is_a_timeline_too() -> None:
    empty = timeline_of([])
    assert (empty.duration_ms, empty.lanes, offline_at(empty, 0)) == (0.0, (), 0)


def test_a_short_run_is_drawn_to_scale() -> None:
    scale = whole_run(ZOMBIE)
    assert len(scale.pieces) == 1
    assert scale.width == pytest.approx(NARROWEST)
    assert [scale.x(at_ms) for at_ms in (-5, 0, 6000, 12000, 13000)] == pytest.approx([0, 0, 480, 960, 960])
    assert [label for _, _, label in scale.ticks()][:3] == ["0 s", "1 s", "2 s"]


def test_a_long_runs_quiet_stretches_are_cut_short_and_nothing_happens_in_them() -> None:
    timeline = timeline_of(large())
    scale = whole_run(timeline)
    quiet = [piece for piece in scale.pieces if piece.quiet]
    assert len(quiet) >= 20
    assert {piece.width for piece in quiet} == {QUIET_WIDTH}
    for before, after in zip(scale.pieces, scale.pieces[1:], strict=False):
        assert before.to_ms == after.from_ms
        assert before.x + before.width == pytest.approx(after.x)
    moments = [mark.at_ms for mark in timeline.faults] + [point.at_ms for point in timeline.offline]
    assert not [at_ms for at_ms in moments for piece in quiet if piece.from_ms < at_ms < piece.to_ms]
    assert all(
        not piece.quiet or not piece.from_ms < at_ms < piece.to_ms for at_ms, _, _ in scale.ticks() for piece in quiet
    )


def test_a_standstill_is_drawn_to_scale_however_long() -> None:
    stood = timeline_of(records((60_000.0, OBSERVER, StoodStill(20_000.0))))
    scale = whole_run(stood)
    assert [(one.from_ms, one.to_ms) for one in stood.standstills] == [(40_000.0, 60_000.0)]
    assert not [piece for piece in scale.pieces if piece.quiet and piece.to_ms > 40_000.0]
    assert [piece for piece in scale.pieces if piece.quiet and piece.to_ms < 40_000.0]


def test_a_close_up_goes_from_edge_to_edge() -> None:
    scale = close_up(5000, 5100)
    assert (scale.x(5000), scale.x(5050), scale.x(5100)) == pytest.approx((0, 480, 960))
    assert [label for _, _, label in scale.ticks()][:2] == ["5.00 s", "5.01 s"]
    assert not scale.holds(0, 4999)


def test_a_hundred_thousand_events_take_time_in_proportion() -> None:
    """Compared with a tenth of them on the same machine; quadratic work would be a hundred times as long."""

    def cpu(trace: list[TraceRecord]) -> float:
        began = time.process_time()
        timeline_of(trace)
        return time.process_time() - began

    small, big = (
        large(brokers=10, minutes=1, faults=5, partitions=5_000),
        large(brokers=10, faults=5, partitions=58_000),
    )
    assert len(big) > 100_000
    assert len(big) > 8 * len(small)
    assert cpu(big) / len(big) < 6 * cpu(small) / len(small)


def test_a_trace_file_is_drawn_by_a_command(tmp_path: Path) -> None:
    write_parquet(zombie(), tmp_path / "trace.parquet")
    assert read_parquet(tmp_path / "trace.parquet") == zombie()
    assert main([str(tmp_path / "trace.parquet"), str(tmp_path / "timeline.svg")]) == 0
    assert (tmp_path / "timeline.svg").read_text().startswith("<svg xmlns=")
    assert main([]) == 2

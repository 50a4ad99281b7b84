"""Histograms that forget what is long ago, states that are Kafka's, and gauges that are those of the context."""

from __future__ import annotations

import pytest

from controller.core import events
from controller.core.controller import HANDLERS
from controller.core.event_loop import EventQueue
from controller.core.events import AutoPreferredElection
from controller.core.leadership import ControllerSettings
from controller.core.metrics import QUANTILES, SAMPLES, STATES, ControllerGauges, ControllerState, Histogram, state_of
from controller.zookeeper import paths
from controller.zookeeper.operations import Create
from tests.core.driving import Cluster


def test_quantiles_are_of_the_latest_values() -> None:
    histogram = Histogram()
    assert set(histogram.quantiles(0.0).values()) == {0.0}
    for value in range(100):
        histogram.update(float(value), 10.0)
    assert [histogram.quantiles(10.0)[one] for one in (0.5, 0.95, 0.999)] == [50.0, 95.0, 99.0]
    for _ in range(SAMPLES):
        histogram.update(7.0, 20.0)
    assert dict(histogram.quantiles(20.0)) == dict.fromkeys(QUANTILES, 7.0)
    assert (histogram.count, histogram.total) == (100 + SAMPLES, sum(range(100)) + 7.0 * SAMPLES)


def test_s21_a_busy_hour_is_forgotten_once_it_is_quiet() -> None:
    """KAFKA-10189. Counts stay: they are rates' business."""
    histogram = Histogram(idle_ms=1_000.0)
    for _ in range(500):
        histogram.update(9_000.0, 0.0)
    assert histogram.quantiles(1_000.0)[0.99] == 9_000.0
    assert histogram.quantiles(1_001.0)[0.99] == 0.0
    histogram.update(3.0, 5_000.0)
    assert histogram.quantiles(5_000.0)[0.99] == 3.0
    assert histogram.count == 501


def test_values_are_kept_as_long_as_each_comes_within_the_idle_time_of_the_one_before() -> None:
    histogram = Histogram(idle_ms=1_000.0)
    for at_ms in (900.0, 1_900.0, 2_900.0):
        histogram.update(at_ms, at_ms)
    assert histogram.quantiles(3_900.0)[0.5] == 1_900.0
    histogram.update(7.0, 3_900.5)
    assert histogram.quantiles(3_900.5)[0.5] == 7.0


def test_the_queue_tells_how_long_events_waited() -> None:
    now = [0.0]
    queue = EventQueue(10, now_ms=lambda: now[0])
    queue.put(events.TopicChange())
    now[0] = 40.0
    queue.put(events.ControlledShutdownRequested(1, 1, lambda _answer: None))
    queue.put(events.BrokerChange())
    queue.close_callbacks()
    now[0] = 100.0
    assert [queue.take(), queue.take(), queue.take()] == [events.TopicChange(), events.BrokerChange(), None]
    assert (queue.waited_ms.count, queue.waited_ms.total) == (2, 160.0)


def test_every_event_that_is_handled_has_its_state_and_every_state_kafkas_number() -> None:
    assert set(HANDLERS) <= set(STATES)
    assert [state.number for state in ControllerState] == list(range(18))
    assert ControllerState.BrokerChange.timer == "LeaderElectionRateAndTimeMs"
    assert state_of(AutoPreferredElection(1)) is ControllerState.AutoLeaderBalance
    assert state_of(object()) is ControllerState.Idle


def test_s56d_gauges_follow_a_cluster_through_its_troubles() -> None:
    """Each step's figures are held against a count of the context by `Cluster.check` too."""
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (2, 1), 1: (1, 2), 2: (2,)})
    host = cluster.host(1, ControllerSettings(auto_leader_rebalance=False))

    def figures() -> ControllerGauges:
        cluster.check()
        return host.controller.measures.figures

    assert figures() == ControllerGauges(active=True, brokers=3, topics=1, partitions=3)
    cluster.unregister(2)
    cluster.settle()
    assert (figures().offline_partitions, figures().preferred_replica_imbalance, figures().brokers) == (1, 2, 2)
    cluster.write(Create(paths.delete_topic("t"), None))
    cluster.settle()
    found = figures()
    assert (found.topics_to_delete, found.topics_ineligible_to_delete) == (1, 1)
    assert (found.replicas_to_delete, found.replicas_ineligible_to_delete) == (5, 3)
    assert found.preferred_replica_imbalance == 0, "what is being deleted is no imbalance (KAFKA-13572)"
    host.controller.resign("a test")
    assert host.controller.measures.figures == ControllerGauges()


def test_unclean_elections_are_counted_over_terms() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 1)})
    cluster.state("t", 0, 2, (2,), 5)
    host = cluster.host(1, ControllerSettings(unclean_leader_election=True, auto_leader_rebalance=False))
    assert host.controller.measures.figures.unclean_elections == 1
    host.controller.resign("a test")
    assert host.controller.measures.figures == ControllerGauges(unclean_elections=1)
    host.events.put(events.Reelect())
    cluster.settle()
    assert host.controller.measures.figures.active
    assert host.controller.measures.figures.unclean_elections == 1


def test_a_gauge_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: changes of leaders are not counted."""
    monkeypatch.setattr("controller.core.context.PartitionTable.count_off_preferred", lambda self, rows, times: None)
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", {0: (2, 1)})
    cluster.host(1, ControllerSettings(auto_leader_rebalance=False))
    cluster.check()
    cluster.unregister(2)
    cluster.settle()
    with pytest.raises(AssertionError):
        cluster.check()


def test_timers_tell_how_often_events_of_each_state_came() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    timers = host.controller.measures.timers
    before = timers[ControllerState.BrokerChange].count
    cluster.register(2)
    cluster.settle()
    assert timers[ControllerState.BrokerChange].count > before
    assert timers[ControllerState.ControllerChange].count >= 1
    assert host.controller.measures.state is ControllerState.Idle

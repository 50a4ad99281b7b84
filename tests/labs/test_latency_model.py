"""The queueing model against what is known without it: formulas, counts, bounds, and that a seed determines all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from controller.labs.latency.cluster_model import ClusterModel, ClusterShape, ServiceTimes, latencies_ms
from controller.labs.latency.experiments import fixed_load, load_sweep, replication, simulate
from controller.labs.latency.machines import Cores, Threads, VirtualTime
from controller.labs.latency.producer_model import ProducerLoad, ProducerModel
from controller.labs.latency.service_times import MEASURED, NETWORK_THREADS, THREADS

FREE = ServiceTimes(*[*[0.0] * 10, 1.0, 0.0, 0.0])
"""Only the application of a producer takes time."""


def test_a_queue_waits_as_the_formula_for_one_server_says() -> None:
    """M/M/1: the mean wait is the mean service by busy/idle."""
    random, time = Random(1), VirtualTime()
    threads = Threads(time, 1)
    waits: list[float] = []
    for at_s in np.cumsum([random.expovariate(0.7) for _ in range(100_000)]):
        service_s = random.expovariate(1.0)
        time.at(at_s, _submit, threads, service_s, lambda soonest_s: waits.append(time.now_s - soonest_s), at_s)
    time.run_until(1e9)
    assert np.mean(waits) == pytest.approx(0.7 / 0.3, rel=0.05)
    assert threads.busy_until(at_s) / at_s == pytest.approx(0.7, rel=0.02)


def _submit(threads: Threads, service_s: float, call: Callable[[float], None], at_s: float) -> None:
    threads.submit(service_s, call, at_s + service_s)


def test_threads_share_a_queue_and_machines_their_cores() -> None:
    """Four pieces of work for two threads and one for another: on cores of their own, on two, and on one core. A piece
    waits as others do, but not for their ends."""
    for cores, ends in (
        (None, [1.0, 1.0, 1.0, 2.0, 2.0]),
        (2, [1.5, 1.5, 1.5, 2.5, 2.5]),
        (1, [3.0, 3.0, 3.0, 5.0, 5.0]),
    ):
        assert _ends(cores) == pytest.approx(ends, abs=0.012)


def _ends(cores: int | None) -> list[float]:
    time, found = VirtualTime(), list[float]()
    shared = None if cores is None else Cores(time, cores)
    pair, other = Threads(time, 2, shared), Threads(time, 1, shared)
    for threads in (pair, pair, pair, pair, other):
        threads.submit(1.0, lambda: found.append(time.now_s))
    time.run_until(10.0)
    assert shared is None or shared.busy_s == pytest.approx(5.0)
    return found


def test_a_thread_that_slept_takes_a_core_from_one_that_works() -> None:
    """A second of work on one core, and two pieces of 1 ms that come 0.1 s later do not wait for it. It ends as
    much later. Threads that worked as much wait for the end of a slice."""
    time, ends = VirtualTime(), list[float]()
    cores = Cores(time, 1)
    for at_s, service_s in ((0.0, 1.0), (0.1, 0.001), (0.1, 0.001)):
        time.at(at_s, Threads(time, 1, cores).submit, service_s, lambda: ends.append(time.now_s))
    time.run_until(10.0)
    assert ends == pytest.approx([0.101, 0.102, 1.002])


def test_parts_of_a_record_that_nothing_delays_are_the_network() -> None:
    """One zone, no service times: produce is linger, the others are trips of 1 ms."""
    shape = ClusterShape(FREE, brokers=3, zones=1, same_zone_ms=1.0)
    load = ProducerLoad(1, 10.0, linger_ms=5.0, trogdor=False)
    found = simulate(shape, load, partitions=3, consumers=1, seconds=5.0).latency_ms
    assert len(found) == 50
    means = found.mean(axis=0)
    assert means[0] == pytest.approx(5.0, abs=0.01)
    assert means[1] == pytest.approx(1.0, abs=0.01)
    assert means[2] == pytest.approx(2.0, abs=0.01)  # to the follower, and its next fetch
    assert means[3] == pytest.approx(0.0, abs=0.01)
    assert means[4] == pytest.approx(1.0, abs=0.01)


def test_batches_are_full_or_linger_or_flushed() -> None:
    time = VirtualTime()
    cluster = ClusterModel(ClusterShape(FREE, brokers=3), time)
    topic = cluster.add_topic(3, 1, 1)
    load = ProducerLoad(1, 1_000.0, linger_ms=50.0)
    producer = ProducerModel(cluster, load, topic, 0, Random(1))
    time.run_until(10.0)
    counts = [one.count for one in cluster.delivered]
    assert set(counts) == {31, 100 - 3 * 31}  # bursts of 100 records, flushed
    assert sum(counts) == producer.acknowledged_records == pytest.approx(10_000, abs=100)


def test_partitions_that_are_named_in_turn_share_a_request_as_the_client_has_it() -> None:
    """Bursts of 90 records to 30 partitions of three brokers: Kafka's client makes a request for each broker,
    librdkafka one for each batch. Bursts begin with a period of the clock."""
    for alone, requests in ((False, 3), (True, 30)):
        time = VirtualTime()
        cluster = ClusterModel(ClusterShape(FREE, brokers=3), time)
        topic = cluster.add_topic(30, 1, 1)
        load = ProducerLoad(1, 900.0, in_turn=True, alone=alone, aligned=True, in_flight=100)
        producer = ProducerModel(cluster, load, topic, 0, Random(1))
        time.run_until(0.95)
        assert producer.requests == 10 * requests
        assert {one.count for one in cluster.delivered} == {3}
        assert [one.gap_s for one in cluster.delivered] == pytest.approx([30e-6] * len(cluster.delivered))
        assert max(one.first_s % 0.1 for one in cluster.delivered) < 0.0011


def test_a_batch_takes_the_application_its_time_and_the_buffer_its_size() -> None:
    """A record to each of 30 partitions opens a batch and takes 100 µs. With a
    buffer of 20 batches the 21st is opened when the first are answered, after 20 ms."""
    times = replace(FREE, batch_us=99.0)
    for buffered, opened_ms in ((30, 2.9), (20, 22.9)):
        time = VirtualTime()
        cluster = ClusterModel(ClusterShape(times, brokers=3, zones=1, same_zone_ms=10.0), time)
        topic = cluster.add_topic(30, 1, 1)
        load = ProducerLoad(1, 300.0, in_turn=True, aligned=True, buffer_bytes=buffered * 16_384)
        ProducerModel(cluster, load, topic, 0, Random(1))
        time.run_until(0.095)
        sent_ms = sorted(one.first_s * 1e3 for one in cluster.delivered)
        assert sent_ms[-1] - sent_ms[0] == pytest.approx(opened_ms, abs=0.2)
        assert len(sent_ms) >= 30


def test_a_burst_that_outlasts_its_period_goes_on_without_a_flush() -> None:
    """20 records in 100 ms take 160 ms to send: the application never waits."""
    times = replace(FREE, send_us=8_000.0)
    found = simulate(
        ClusterShape(times, brokers=3, zones=1), ProducerLoad(1, 200.0, aligned=True), partitions=3, seconds=4.0
    )
    assert found.records_s == pytest.approx(125.0, rel=0.05)


def test_each_record_of_a_slow_partition_waits_the_whole_linger() -> None:
    """Each of 12 partitions that are named in turn gets a record in 20 ms; a sticky producer fills one batch."""
    p50_ms = {}
    for in_turn in (True, False):
        load = ProducerLoad(1, 600.0, linger_ms=15.0, trogdor=False, in_turn=in_turn, alone=True)
        found = simulate(ClusterShape(FREE, brokers=3, zones=1), load, partitions=12, replicas=1, consumers=1)
        p50_ms[in_turn] = np.median(found.latency_ms[:, 0])
    assert p50_ms[True] == pytest.approx(15.0, abs=0.01)
    assert p50_ms[False] < 8.0


def test_a_producer_stops_at_its_limits_in_flight() -> None:
    time = VirtualTime()
    cluster = ClusterModel(ClusterShape(FREE, brokers=1, zones=1, same_zone_ms=500.0), time)
    topic = cluster.add_topic(1, 1, 1)
    producer = ProducerModel(cluster, ProducerLoad(1, 0.0, in_flight=5), topic, 0, Random(1))
    time.run_until(0.9)
    assert producer.requests == 5
    time.run_until(20.0)
    assert producer.acknowledged_records <= 19 * 5 * 31 + 31


def test_a_muted_connection_has_one_request_at_a_broker() -> None:
    """Of five in flight, the second is read only when the first is answered: acks=all takes as long as a commit for
    each request, acks=1 does not. A broker without network threads takes all five."""
    requests = {}
    for network_threads in (0, 3):
        for acks_all in (False, True):
            time = VirtualTime()
            shape = ClusterShape(FREE, brokers=3, zones=3, between_zones_ms=10.0, network_threads=network_threads)
            cluster = ClusterModel(shape, time)
            topic = cluster.add_topic(1, 3, 1)
            load = ProducerLoad(1, 5_000.0, linger_ms=0.0, batch_bytes=600, acks_all=acks_all, trogdor=False)
            ProducerModel(cluster, load, topic, 0, Random(1))
            time.run_until(1.0)
            requests[network_threads, acks_all] = cluster.brokers[0].produces
    assert requests[0, True] > 2 * requests[3, True]
    assert requests[3, True] == pytest.approx(50, abs=5)  # a commit takes 20 ms
    assert requests[3, False] > 4 * requests[3, True]


def test_network_threads_read_and_send() -> None:
    """A record waits for 1 ms of network thread with its request, and for 1 ms with the fetch's response."""
    times = replace(FREE, network_us=2_000.0)
    shape = ClusterShape(times, brokers=1, zones=1, same_zone_ms=0.0, network_threads=2)
    load = ProducerLoad(1, 10.0, linger_ms=0.0, trogdor=False)
    found = simulate(shape, load, partitions=1, replicas=1, consumers=1, seconds=2.0).latency_ms
    assert np.median(found, axis=0) == pytest.approx([0.0, 1.0, 0.0, 0.0, 1.0], abs=0.01)


def test_work_that_is_there_already_wakes_no_thread() -> None:
    time, ends = VirtualTime(), list[float]()
    threads = Threads(time, 1, wake_s=0.4)
    for _ in range(3):
        threads.submit(1.0, lambda: ends.append(time.now_s))
    time.run_until(10.0)
    assert ends == pytest.approx([1.0, 1.6, 2.2])


def test_clients_alone_have_tls_and_a_leader_unpacks_what_it_validates() -> None:
    """A record of 991 bytes: 1 ms of a network thread for its request and for the fetch's response, 1 µs a byte of a
    handler. A follower's fetch has no TLS."""
    times = replace(FREE, tls_network_us=2_000.0, unpack_byte_us=1.0)
    for tls, replicas, parts in ((True, 2, [0.0, 2.0, 0.0, 0.0, 1.0]), (False, 2, [0.0, 1.0, 0.0, 0.0, 0.0])):
        shape = ClusterShape(times, brokers=2, zones=1, same_zone_ms=0.0, network_threads=3, tls=tls)
        load = ProducerLoad(1, 10.0, 991, linger_ms=0.0, trogdor=False, compression=0.5)
        found = simulate(shape, load, partitions=1, replicas=replicas, consumers=1, seconds=2.0).latency_ms
        assert np.median(found, axis=0) == pytest.approx(parts, abs=0.01)


def test_a_seed_determines_a_run_and_everything_is_delivered() -> None:
    shape = ClusterShape(MEASURED["kafka"], threads=THREADS["kafka"], network_threads=NETWORK_THREADS["kafka"])
    runs = [simulate(shape, fixed_load(30), warm_s=0.1, seconds=0.2, drain_s=0.1, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(runs[0].latency_ms, runs[1].latency_ms)
    assert not np.array_equal(runs[0].latency_ms[:100], runs[2].latency_ms[:100])
    assert len(runs[0].latency_ms) == pytest.approx(0.2 * fixed_load(30).records_s * 30, rel=0.02)
    assert (runs[0].latency_ms >= -1e-9).all()


@pytest.mark.parametrize("cost", ["fetch_session_us", "replica_session_us", "wait_session_us", "follow_session_us"])
def test_idle_partitions_of_a_session_cost_latency(cost: str) -> None:
    """1 ms for each of 10 partitions of a session, of which one has records: what the leader does for the consumer, for
    the follower, when one of them begins to wait, or what the follower does. A record comes while all wait."""
    parts = {
        "fetch_session_us": [0.0, 0.0, 0.0, 0.0, 10.0],
        "replica_session_us": [0.0, 0.0, 20.0, 0.0, 0.0],
        "wait_session_us": [0.0, 0.0, 10.0, 0.0, 0.0],
        "follow_session_us": [0.0, 0.0, 10.0, 0.0, 0.0],
    }
    shape = ClusterShape(
        replace(FREE, **{cost: 1_000.0}), brokers=2, zones=1, threads=8, same_zone_ms=0.0, network_threads=3
    )
    time = VirtualTime()
    cluster = ClusterModel(shape, time)
    topic = cluster.add_topic(20, 2, 1)
    ProducerModel(cluster, ProducerLoad(1, 10.0, linger_ms=0.0, trogdor=False), topic[:1], 0, Random(1))
    time.run_until(2.0)
    found = latencies_ms(cluster.delivered, bystander=False, from_s=0.5, to_s=1.5)
    assert np.median(found, axis=0) == pytest.approx(parts[cost], abs=0.01)


def test_brokers_write_and_read_as_the_formula_says() -> None:
    found = replication(ClusterShape(MEASURED["kafka"], threads=8, network_threads=3), 0.2)
    assert found["largest difference"] <= 0.05


def test_waiting_grows_as_busy_by_idle() -> None:
    found = load_sweep(ClusterShape(MEASURED["camerlengo"], brokers=1, zones=1), 0.4)
    assert found["produce alone"]["R^2"] >= 0.95
    assert found["produce alone"]["ms = a + b * busy/idle"][1] > 0

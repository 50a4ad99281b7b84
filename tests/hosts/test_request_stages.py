"""Stages of requests: their names, that they add up, and that Kafka's metrics of a broker show them."""

from __future__ import annotations

import re
import socket
import urllib.request

import pytest

from controller.broker.metrics import stage_metrics, text_of
from controller.hosts.local_cluster import LocalCluster, ask_broker, ask_metadata
from controller.hosts.request_stages import STAGES, RequestStages, Slot, Unsent, kind_of, name_of
from controller.protocol.codec import ApiKey, RequestHeader, encode_request
from controller.protocol.fetch import FetchRequest
from controller.protocol.produce import ProduceRequest
from controller.protocol.schema import RequestValue
from tests.processes import eventually


@pytest.mark.parametrize("client", [None, "", "a-client", "ü" * 30])
@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize(("replica", "name"), [(-1, "FetchConsumer"), (3, "FetchFollower")])
def test_a_fetch_is_a_consumers_or_a_followers(client: str | None, version: int, replica: int, name: str) -> None:
    fetch = FetchRequest(500, 1, (), replica_id=replica)
    frame = encode_request(RequestHeader(ApiKey.FETCH, version, 7, client), fetch)
    assert name_of(kind_of(frame)) == name


def test_other_requests_have_the_names_of_their_apis() -> None:
    value: RequestValue = ProduceRequest(-1, 1_000, ())
    frame = encode_request(RequestHeader(ApiKey.PRODUCE, 7, 7, "c"), value)
    assert name_of(kind_of(frame)) == "Produce"
    assert kind_of(b"\0\1") == -1


def test_stages_add_up_and_an_answer_within_the_handler_has_no_remote_time() -> None:
    stages = RequestStages()
    unsent = Unsent(stages)
    for handled_s, answered_s in ((0.004, 0.010), (0.011, 0.010), (0.0, 0.010)):
        slot = Slot(lambda *_: None, 100, int(ApiKey.PRODUCE), 0.001, 0.003)
        slot.handled_s, slot.answered_s = handled_s, answered_s
        unsent.add(slot, 0.011)
    unsent.sent(0.012)
    unsent.sent(0.020)  # nothing is counted twice
    times = stages.times()["Produce"]
    assert times.count == 3
    expected = [[2, 1, 6, 1, 1, 11], [2, 7, 0, 1, 1, 11], [2, 7, 0, 1, 1, 11]]
    assert times.latest_ms.tolist() == [pytest.approx(row) for row in expected]
    text = text_of(stage_metrics(stages.summaries(0.02)))
    assert 'kafka_network_requestmetrics_totaltimems_count{request="Produce"} 3.0' in text
    assert 'kafka_network_requestmetrics_remotetimems{quantile="0.999",request="Produce"} 6.0' in text
    assert 'localtimems{quantile="0.5",request="Produce"} 0.0' in text_of(stage_metrics(stages.summaries(999.0)))


def test_many_requests_keep_a_bounded_number_of_values() -> None:
    stages = RequestStages()
    for number in range(5_000):
        stages.take([(0.0, 1.0, 1.0, 1.0, 1.0, 1.0)], 1.0 + number / 1e6)
    times = stages.times()["Produce"]
    assert (times.count, len(times.latest_ms)) == (5_000, 1_028)
    assert times.latest_ms[-1, STAGES.index("ResponseSend")] == pytest.approx(4.999)


def test_a_broker_shows_the_stages_of_what_it_was_asked() -> None:
    with LocalCluster(1, settings={"camerlengo.metrics.address": "127.0.0.1:0"}) as it:
        found = re.search(r"metrics at (http://\S+)", (it.folder / "broker-1.log").read_text())
        assert found is not None
        address = it.brokers[1].ready_at()
        assert address is not None
        ask_metadata(address, 10.0)
        ask_broker(address, ApiKey.FETCH, 4, FetchRequest(50, 1, ()), 10.0)
        with socket.create_connection(address, 10.0):
            pass

        def shown(line: str) -> bool:
            with urllib.request.urlopen(found[1], timeout=30.0) as response:
                return bool(re.search(rf"(?m)^kafka_network_requestmetrics_{line}", response.read().decode()))

        eventually(lambda: shown(r'totaltimems_count\{request="Metadata"\} [1-9]'), "a Metadata request is counted")
        eventually(lambda: shown(r'totaltimems_count\{request="FetchConsumer"\} 1'), "a Fetch is counted")

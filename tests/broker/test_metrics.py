"""A node's metrics: Kafka's names, sound text, and numbers that follow what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily

from controller.broker.metrics import metrics_of, text_of, timer_metrics
from controller.clock import VirtualClock
from controller.timer.wheel import WheelCounts
from controller.zookeeper.memory.server import InMemoryZooKeeper
from tests.broker.test_node import Hosted

DASHBOARD = Path(__file__).parents[2] / "docker" / "grafana-dashboard.json"
KAFKAS = (
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_controllerstate",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "kafka_controller_kafkacontroller_globaltopiccount",
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "kafka_controller_kafkacontroller_topicstodeletecount",
    "kafka_controller_kafkacontroller_topicsineligibletodeletecount",
    "kafka_controller_kafkacontroller_replicastodeletecount",
    "kafka_controller_kafkacontroller_replicasineligibletodeletecount",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
    "kafka_controller_controllereventmanager_eventqueuesize",
    "kafka_controller_controllereventmanager_eventqueuetimems_count",
    "kafka_controller_controllerchannelmanager_totalqueuesize",
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "kafka_server_delayedoperationpurgatory_numdelayedoperations",
    "kafka_server_sessionexpirelistener_sessionstate",
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
)
"""As jmx_exporter's example for Kafka spells them."""


def values_of(hosted: Hosted) -> dict[str, float]:
    """By name and labels."""
    text = text_of((*metrics_of(hosted.node, hosted.clock.now_ms()), *timer_metrics(9, WheelCounts(8, 2, 5, 700))))
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}


@pytest.fixture
def hosted() -> Hosted:
    """Registered, and controller."""
    clock = VirtualClock()
    found = Hosted(InMemoryZooKeeper(clock, tick_ms=500), clock)
    found.node.start()
    found.until(lambda: found.node.controller.active and len(found.node.events) == 0 and not found._busy)
    return found


NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABELS = r'\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\}'
NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"


def test_the_text_is_what_prometheus_reads(hosted: Hosted) -> None:
    text = text_of(metrics_of(hosted.node, hosted.clock.now_ms()))
    assert text.endswith("\n")
    described: str | None = None
    seen: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described = line.split(" ")[2]
            assert described not in seen, "each metric once"
            seen.add(described)
            assert len(line.split(" ", 3)[3]) > 5
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2:] in [[described, kind] for kind in ("gauge", "counter", "summary")]
        else:
            assert re.fullmatch(f"{NAME}(?:{LABELS})? {NUMBER}", line), line
            assert described is not None
            assert re.split(r"[ {]", line)[0] in (described, f"{described}_count", f"{described}_sum")


def test_labels_are_escaped() -> None:
    metric = GaugeMetricFamily("m", "a thing", labels=["a"])
    metric.add_metric(['x"y\\z\n'], 0.5)
    assert text_of([metric]) == '# HELP m a thing\n# TYPE m gauge\nm{a="x\\"y\\\\z\\n"} 0.5\n'


def test_a_controllers_numbers_are_under_kafkas_names(hosted: Hosted) -> None:
    values = values_of(hosted)
    for name in KAFKAS:
        assert any(key == name or key.startswith(name + "{") for key in values), name
    assert values["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert values["kafka_controller_kafkacontroller_activebrokercount"] == 1
    assert values["kafka_controller_kafkacontroller_controllerstate"] == 0
    assert values["camerlengo_controller_id"] == 1
    assert values['kafka_server_sessionexpirelistener_sessionstate{state="CONNECTED"}'] == 1
    assert values["kafka_controller_controllerstats_controllerchangerateandtimems_count"] >= 1
    assert values["kafka_controller_controllereventmanager_eventqueuetimems_count"] >= 1
    assert values['kafka_server_delayedoperationpurgatory_numdelayedoperations{delayedoperation="ElectLeader"}'] == 0


def test_what_the_controllers_brokers_have_not_answered_is_told_by_broker(hosted: Hosted) -> None:
    values = values_of(hosted)
    assert values['kafka_controller_controllerchannelmanager_queuesize{broker_id="1"}'] >= 1, "nothing is answered here"
    assert values["kafka_controller_controllerchannelmanager_totalqueuesize"] >= 1


def test_a_connection_that_breaks_and_a_session_that_ends_are_counted(hosted: Hosted) -> None:
    before = values_of(hosted)
    hosted.connection.cut()
    hosted.until(
        lambda: values_of(hosted).get('kafka_server_sessionexpirelistener_sessionstate{state="SUSPENDED"}') == 1
    )
    after = values_of(hosted)
    disconnects = "kafka_server_sessionexpirelistener_zookeeperdisconnects_total"
    assert after[disconnects] == before[disconnects] + 1


def test_the_wheel_of_timers_is_counted(hosted: Hosted) -> None:
    found = values_of(hosted)
    assert {name: value for name, value in found.items() if name.startswith("camerlengo_timer_")} == {
        "camerlengo_timer_wakeups_total": 9,
        "camerlengo_timer_bucket_polls_total": 8,
        "camerlengo_timer_empty_bucket_polls_total": 2,
        "camerlengo_timer_advances_total": 5,
        "camerlengo_timer_advances_saved_total": 695,
    }


def test_the_dashboard_asks_for_what_there_is(hosted: Hosted) -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\b(?:kafka|camerlengo)_\w+", target["expr"])
    }
    there = {re.split(r"[{]", key)[0] for key in values_of(hosted)}
    assert asked, "a dashboard asks for something"
    assert asked <= there
    assert {name for name in KAFKAS if name.startswith("kafka_controller_kafkacontroller")} <= asked
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])

"""The picture of a run's records: sound as XML, every line where its values are, faults shaded until they were over."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from controller.report.charts import chart
from controller.report.html import report_html
from controller.report.summary import Report
from controller.report.svg import whole_run
from controller.report.timeline import timeline_of
from controller.scenarios.files import parse_scenario
from controller.scenarios.judge import Judgement
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.figures import (
    InjectedFault,
    Timed,
    around_faults,
    latency_over_time,
    rate_over_time,
)
from controller.scenarios.records.history import ACKNOWLEDGED, SendLog, history_of
from controller.trace import FaultInjected
from controller.trace_records import OBSERVER
from tests.scenarios.evidence import records
from tests.scenarios.records.histories import PARTITIONS, Story, sound
from tests.scenarios.records.test_figures_and_files import with_an_outage

FAULTS = [InjectedFault(295.0, "kill", "1"), InjectedFault(800.0, "cut", "1->2")]


def drawn(audit: DeliveryAudit) -> list[ElementTree.Element]:
    timeline = timeline_of(records())
    drawing = chart(audit, around_faults(audit, FAULTS), timeline, whole_run(timeline))
    return [*ElementTree.fromstring(f"<svg>{drawing.drawn}{drawing.beside}</svg>").iter()]


def of_kind(elements: list[ElementTree.Element], kind: str) -> list[ElementTree.Element]:
    return [each for each in elements if each.get("data-kind") == kind]


def test_throughput_and_both_latencies_are_drawn_and_faults_are_shaded() -> None:
    elements = drawn(with_an_outage())
    assert len(of_kind(elements, "rate")) == 3
    assert len(of_kind(elements, "produce")) == 2
    assert len(of_kind(elements, "fetch")) == 2
    first, second = of_kind(elements, "shade")
    assert float(first.get("width", 0)) > 20 * float(second.get("width", 0))
    for element in (*of_kind(elements, "rate"), *of_kind(elements, "produce"), *of_kind(elements, "fetch")):
        numbers = re.findall(r"-?\d+\.?\d*|nan|inf", element.get("d", ""))
        assert all(-1.0 <= float(number) <= 1000.0 for number in numbers), element.get("d")


def test_a_burst_does_not_hide_the_steady_rate() -> None:
    """Records every 10 ms, and a thousand in one moment: the axis shows the steady rate, and the burst is written."""
    send = SendLog(0)
    for at_ms in [10.0 * number for number in range(1_000)] + [9_990.0] * 1_000:
        send.ended(send.sent(0, 0, at_ms), ACKNOWLEDGED, at_ms + 5.0)
    timeline = timeline_of(records((10_010.0, OBSERVER, FaultInjected("kill", "1"))))
    drawing = chart(DeliveryAudit(history_of(PARTITIONS, [send], [])), (), timeline, whole_run(timeline))
    elements = [*ElementTree.fromstring(f"<svg>{drawing.drawn}{drawing.beside}</svg>").iter()]
    assert len(of_kind(elements, "burst")) == 1
    assert "burst of 10,100 records/s" in (of_kind(elements, "burst")[0].findtext("title") or "")
    words = [each.text for each in elements if each.tag == "text"]
    assert "200" in words, "the axis ends at a round number above the steady 100 records/s"
    assert "10.1k" in words


@pytest.mark.parametrize("audit", [DeliveryAudit(Story().history()), DeliveryAudit(history_of(PARTITIONS, [], []))])
def test_a_run_without_records_is_drawn_empty(audit: DeliveryAudit) -> None:
    assert of_kind(drawn(audit), "produce") == []


def test_a_page_has_the_records_if_there_were_any() -> None:
    trace = records((300.0, OBSERVER, FaultInjected("kill", "1")))
    scenario = parse_scenario('name = "s"\nsteps = []', "s")
    with_records = report_html(Report(scenario, "simulated", 1, Judgement("pass", (), (), with_an_outage()), trace))
    assert "<h2>Records</h2>" in with_records
    assert "100 sent, 100 acknowledged" in with_records
    assert "until recovery" in with_records
    assert "<h2>Records</h2>" not in report_html(Report(scenario, "simulated", 1, Judgement("pass", (), ()), trace))


def test_rates_count_what_happened_in_each_stretch() -> None:
    course = rate_over_time(np.array([0.0, 1.0, 99.0, 100.0, 250.0]), 0.0, 300.0, 100.0)
    assert course.values[0].tolist() == [30.0, 10.0, 10.0]


def test_latencies_over_time_are_of_what_was_sent_then() -> None:
    course = latency_over_time(Timed(np.array([0.0, 10.0, 250.0]), np.array([5.0, 7.0, 1.0])), 0.0, 300.0, 100.0)
    medians, highs = course.values
    assert medians[0] == 6.0
    assert np.isnan(medians[1])
    assert medians[2] == highs[2] == 1.0


def test_a_sound_storys_page_says_what_was_counted() -> None:
    scenario = parse_scenario('name = "s"\nsteps = []', "s")
    page = report_html(
        Report(scenario, "real", None, Judgement("pass", (), (), DeliveryAudit(sound().history())), records())
    )
    assert "0 lost, 0 duplicated, 0 reordered" in page

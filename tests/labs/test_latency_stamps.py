"""Parts of latencies from stamps of their own: the join, a leader's end, and the broker's stages beside them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from controller.chaos.protocol_proxy import BorderBegin, BorderEnd, Fetched, Requested
from controller.cli.main import main
from controller.labs.latency.parts import Parts, Received
from controller.labs.latency.stamps import (
    AppendedBatch,
    RequestTimes,
    Watermark,
    parts_of_stamps,
    request_parts_ms,
)
from tests.benchmarks.latency_stamps import misses


def parts(**changed: object) -> Parts:
    """Two batches of two records. The first was written by a leader that ended, and again at the next one, which
    commits it; the fetch of the first waits, that of the second comes after the commit."""
    given = {
        "received": Received(np.arange(4), np.array([0.5, 0.9, 3.5, 3.9]), np.array([2.6, 2.7, 4.6, 4.7])),
        "requested": [Requested(7, 2, 1.0, 1.01), Requested(7, 2, 2.0, 2.01), Requested(8, 2, 4.0, 4.01)],
        "appended": [
            AppendedBatch(9, 0, 2, 0.1, 0.11, 0, 0.05),
            AppendedBatch(7, 0, 2, 2.1, 2.11, 1, 2.05),
            AppendedBatch(8, 2, 2, 4.1, 4.11, 2, 4.05),
        ],
        "watermarks": [Watermark(2, 2.3, 2.31), Watermark(4, 4.3, 4.31)],
        "fetched": [Fetched(0, 2, 0.2, 2.5, -1, 0.21), Fetched(2, 4, 4.4, 4.5, -1, 4.41)],
    } | changed
    return parts_of_stamps(**given)  # type: ignore[arg-type]


def test_each_part_has_two_stamps_of_its_own() -> None:
    found = parts()
    assert found.parts_ms.round(6).tolist() == [
        [1_500, 90, 190, 0, 290],
        [1_100, 90, 190, 0, 390],
        [500, 90, 190, 90, 190],
        [100, 90, 190, 90, 290],
    ]
    assert not found.adds_up.any()  # 10 ms lie between the two stamps of a border here


@pytest.mark.parametrize("missing", ["requested", "appended", "watermarks", "fetched"])
def test_a_missing_stamp_is_not_made_up(missing: str) -> None:
    assert np.isnan(parts(**{missing: []}).parts_ms).any(axis=1).all()


def test_a_wrong_join_does_not_add_up() -> None:
    """The batch of the leader that ended is taken for the one that was received."""
    close = [AppendedBatch(7, 0, 2, 2.01, 2.01, 1, 2.0)]
    right = parts(requested=[Requested(7, 2, 2.0, 2.0)], appended=close, watermarks=[Watermark(2, 2.3, 2.3)])
    assert right.adds_up[:2].all()
    wrong = parts(requested=[Requested(7, 2, 1.0, 1.0)], appended=close, watermarks=[Watermark(2, 2.2, 2.3)])
    assert not wrong.adds_up[:2].any()


def test_records_that_do_not_add_up_are_listed_with_their_time_after_the_kill() -> None:
    found = misses(parts(), [2.5])
    assert [(one["due s"], one["after the kill s"]) for one in found] == [
        (0, [-2]),
        (0.4, [-1.6]),
        (3, [1]),
        (3.4, [1.4]),
    ]
    assert found[0]["latency, in no part ms"] == [2_100, 30]
    assert misses(parts(received=Received(np.array([0]), np.array([0.5]), np.array([9.0]))), []) == []


def test_without_followers_the_append_commits() -> None:
    found = parts(watermarks=[Watermark(2, 2.09, 2.09), Watermark(4, 4.09, 4.09)])
    assert (found.parts_ms[:, 2] <= 0.0).all()
    assert found.parts_ms[0, 1] == pytest.approx(80)


def test_means_of_requests_are_those_of_the_brokers_stages() -> None:
    means = request_parts_ms([RequestTimes(1.0, 1.1, 1.2, 1.5, 1.6), RequestTimes(2.0, 2.1, 2.4, 2.5, 2.6)])
    assert means == pytest.approx({"append": 100, "publish": 300, "high watermark": 200, "commit": 300})
    assert np.isnan(request_parts_ms([])["publish"])


def border_end_s(wall_s: float, cpu_s: float) -> float:
    """When a part has ended, from a first stamp at 1 s to a second one after as much wall time and CPU time."""
    end, begin = BorderEnd(), BorderBegin()
    end.wall_s, end.cpu_s = 1.0, 0.5
    begin.wall_s, begin.cpu_s = 1.0 + wall_s, 0.5 + cpu_s
    return end.until(begin)


def test_a_wait_for_the_core_differs_from_work() -> None:
    """Only the time without CPU is a wait; work between two stamps stays in no part."""
    assert border_end_s(0.016, 0.000002) == pytest.approx(1.015998)
    assert border_end_s(0.016, 0.015) == pytest.approx(1.001)
    assert border_end_s(0.016, 0.017) == 1.0


def test_records_keep_their_stamps_through_a_leaders_kill(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "latency", "--own-stamps", "--kill-leader", "--seconds", "1.5", "--rate", "300", "--json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["leaders killed"] == 1
    assert figures["records"] == 450
    assert figures["sent, not delivered"][1] == 0
    assert figures["records without a stamp"] == 0
    assert figures["share that adds up within 1%"] >= 0.99  # of 450 records: those of one interrupt
    for name in ("publish", "commit"):
        assert figures["compared"][name]["ratio"] == pytest.approx(1.0, abs=0.25), figures["compared"]

"""Simulated clients of records where things go wrong for long: every operation ends, and as what it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from controller.clock import Future, VirtualClock, spawn
from controller.protocol import ApiKey, ErrorCode
from controller.protocol.client import FindCoordinatorResponse
from controller.protocol.codec import encode_response_body
from controller.protocol.groups import OffsetFetchPartitionResult, OffsetFetchResponse, OffsetFetchTopicResult
from controller.scenarios.files import parse_scenario
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, INDETERMINATE, Reached
from controller.simulator.run import SimulationResult, simulate
from controller.simulator.transformer import committed_offsets

HEAD = """
name = "records"
[cluster]
brokers = 2
settings = { "replica.lag.time.max.ms" = 1000 }
[workload.records]
rate_per_s = 20
{settings}
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "registered"
[[steps]]
do = "wait"
until = "brokers"
[[steps]]
do = "create-topics"
partitions = 2
replication_factor = 2
config = { "min.insync.replicas" = 2 }
[[steps]]
do = "wait"
until = "full-isr"
[[steps]]
do = "produce"
"""

LET = '[[steps]]\ndo = "let-run"\nms = {ms}\n'
KILL = '[[steps]]\ndo = "kill"\nnode = "not-controller"\n'


def run(settings: str, *steps: str) -> SimulationResult:
    return simulate(parse_scenario(HEAD.replace("{settings}", settings) + "".join(steps), "records"), 1)


def held(result: SimulationResult) -> dict[str, bool | None]:
    return {each.name: each.held for each in result.report.judgement.invariants}


def test_records_that_too_few_replicas_take_fail_in_time_and_the_producer_says_that_it_gave_up() -> None:
    result = run("", LET.replace("{ms}", "500"), KILL, LET.replace("{ms}", "40000"))
    assert result.report.judgement.records is not None
    history = result.report.judgement.records.history
    assert not np.isnan(history.sends.ended_at_ms).any()
    assert {int(outcome) for outcome in history.sends.outcome} >= {ACKNOWLEDGED, FAILED}
    assert len(history.troubles) == 2
    assert held(result)["clients-served"] is False
    assert held(result)["lost-write"] is True
    assert [final.reached for final in history.finals] == [Reached.END, Reached.END]


def test_a_producer_that_is_not_idempotent_goes_on_after_what_it_gave_up() -> None:
    result = run("idempotent = false", LET.replace("{ms}", "500"), KILL, LET.replace("{ms}", "40000"))
    assert result.report.judgement.records is not None
    history = result.report.judgement.records.history
    assert history.troubles == ()
    last_s = history.sends.sent_at_ms.max() / 1000
    assert last_s > 40.0
    assert held(result)["lost-write"] is True


def test_with_acks_of_0_nothing_is_promised_and_all_is_read() -> None:
    result = run("idempotent = false\nacks = 0", LET.replace("{ms}", "2000"))
    assert result.report.judgement.records is not None
    history = result.report.judgement.records.history
    assert {int(outcome) for outcome in history.sends.outcome} == {INDETERMINATE}
    assert held(result)["lost-write"] is None
    assert held(result)["records-as-sent"] is True
    assert np.count_nonzero(history.reads.reader == -1) == len(history.sends)


class OneCoordinator:
    """Routes and connections to one broker, which coordinates the group and answers every OffsetFetch alike."""

    broken = None
    partitions = (("t", 0),)

    def __init__(self, error: ErrorCode) -> None:
        self.clock = VirtualClock()
        answer = OffsetFetchPartitionResult(0, 7 if error is ErrorCode.NONE else -1, "", int(error))
        self._answer = OffsetFetchResponse((OffsetFetchTopicResult("t", (answer,)),))

    def anybody(self) -> int:
        return 1

    async def _answered(self, value: Any) -> Any:
        await self.clock.sleep(1.0)
        return value

    def ask(self, *asked: Any) -> Future[Any]:
        if asked[0] == 1:
            return spawn(self._answered(FindCoordinatorResponse(0, node_id=1)))
        return spawn(self._answered(encode_response_body(ApiKey.OFFSET_FETCH, asked[1], self._answer)))


@pytest.mark.parametrize(("error", "expected"), [(ErrorCode.NONE, [7]), (ErrorCode.UNSTABLE_OFFSET_COMMIT, None)])
def test_offsets_whose_marker_is_lost_are_not_waited_for_without_end(
    error: ErrorCode, expected: list[int] | None
) -> None:
    one: Any = OneCoordinator(error)
    found = spawn(committed_offsets(one, one.partitions, lambda _: one, {1: ("b1", 1)}, 2_000.0))
    one.clock.advance_to(2_500.0)
    assert found.done
    assert found.result() == expected

"""Random correct histories of transactions have no anomaly; each anomaly that is planted in one is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controller.scenarios.records.checks import NO_LOSS, check_records
from controller.scenarios.records.history import History
from tests.scenarios.records.histories import evidence
from tests.scenarios.records.large_history import large_history
from tests.scenarios.records.transaction_model import MUTATIONS, NEAR_MISSES, Model, consume_each_other, correct

SEEDS = st.integers(0, 2**32)


def violated(history: History) -> dict[str, str]:
    return {
        name: finding.detail
        for name, finding in check_records(evidence(history), None, NO_LOSS)
        if finding.held is False
    }


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(0, 150))
def test_a_correct_log_has_no_anomaly(seed: int, steps: int) -> None:
    assert violated(correct(seed, steps).history()) == {}


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
@pytest.mark.parametrize("plant", MUTATIONS)
def test_a_planted_anomaly_is_reported(plant: Callable[[Model], bool], seed: int) -> None:
    model = correct(seed, 150)
    assume(plant(model))
    found = violated(model.history())
    expected = MUTATIONS[plant]
    assert expected in found or f"int-{expected}" in found


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
@pytest.mark.parametrize("change", NEAR_MISSES)
def test_a_near_miss_is_not_reported(change: Callable[[Model], bool], seed: int) -> None:
    model = correct(seed, 150)
    assume(change(model))
    assert violated(model.history()) == {}


def test_a_large_history_has_no_anomaly_but_writes_that_interleave() -> None:
    assert violated(large_history(20_000)) == {}


def test_cycles_are_found_and_named() -> None:
    """The consuming transactions of a correct log wrote what each other consumed."""
    model = next(model for seed in range(50) if consume_each_other(model := correct(seed, 150)))
    assert violated(model.history())["G1c"].count("of b (producer 2") == 2

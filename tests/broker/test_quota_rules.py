"""The rules of quotas, against Kafka's own results, an independent statement of them, and planted faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.broker.quotas import rules
from controller.broker.quotas.rules import (
    DEFAULT,
    THROTTLE_MS_MAX,
    Entity,
    Measure,
    Rate,
    TokenBucket,
    Window,
    plain,
    quota_of,
    refill_ms,
    sanitised,
    throttle_ms,
)

RECORDED = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "quota_rates.json"
"""Results of Kafka 2.8.2's Rate and TokenBucket for random records: time, value (-1: only measured), rate, window,
throttle time, tokens, time to refill them (-1: Kafka's window is 0 ms)."""


def differences() -> list[str]:
    """What the rules here say otherwise than Kafka did."""
    found: list[str] = []
    for run in json.loads(RECORDED.read_text()):
        window, quota = Window(run["samples"], run["sample_ms"]), run["quota"]
        rate, bucket = Rate(), TokenBucket()
        for now_ms, value, per_s, over_ms, throttle, tokens, refill in run["steps"]:
            if value >= 0:
                rate.record(value, window, now_ms)
                bucket.take(value, quota, window, now_ms)
            measured = rate.measure(window, now_ms)
            here = (measured.per_s, measured.over_ms, throttle_ms(measured, quota))
            left = bucket.tokens(quota, window, now_ms)
            if throttle >= 0 and here != pytest.approx((per_s, over_ms, throttle), abs=1e-6):
                found.append(f"{now_ms}: {here}, Kafka {(per_s, over_ms, throttle)}")
            if (left, refill_ms(left, quota, window)) != pytest.approx((tokens, refill), abs=1e-6):
                found.append(f"{now_ms}: {left} tokens, Kafka {tokens}, {refill} ms")
    return found


def test_rates_throttle_times_and_buckets_are_kafka_s() -> None:
    assert differences() == []


def _never_expires(self: Rate, window: Window, now_ms: int) -> Measure:
    return Measure(sum(self._sums) * 1_000.0 / window.whole_ms if window.whole_ms else 0.0, window.whole_ms)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Rate, "measure", _never_expires),
        (rules, "throttle_ms", lambda measured, quota: max(round(measured.per_s - quota), 0)),
        (rules, "refill_ms", lambda tokens, quota, window: 0),
        (TokenBucket, "tokens", lambda self, quota, window, now_ms: self._tokens or 0.0),
    ],
)
def test_a_fault_in_a_rule_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any) -> None:
    monkeypatch.setattr(owner, name, fault)
    if owner is rules:
        monkeypatch.setitem(globals(), name, fault)
    assert differences() != []


class EventOracle:
    """A rate by its records alone: those of one sample begin with the first that is not within the sample before."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: list[tuple[int, float]] = []

    def record(self, value: float, now_ms: int) -> None:
        if not self._samples or now_ms - self._samples[-1][0] >= self._window.sample_ms:
            self._samples.append((now_ms, 0.0))
        start_ms, total = self._samples[-1]
        self._samples[-1] = (start_ms, total + value)

    def total(self, now_ms: int) -> float:
        """Of the samples that count: the last ones, and not older than the whole of them."""
        oldest_ms = now_ms - self._window.samples * self._window.sample_ms
        counted = [(start, total) for start, total in self._samples if start > oldest_ms]
        return sum(total for _, total in counted[-self._window.samples :])


@given(
    st.integers(2, 12),
    st.sampled_from([1_000, 3_000]),
    st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 1_000)), max_size=60),
)
def test_a_rate_is_the_sum_of_its_samples_over_the_window(
    samples: int, sample_ms: int, records: list[tuple[int, int]]
) -> None:
    window, now_ms = Window(samples, sample_ms), 5_000
    rate, oracle = Rate(), EventOracle(window)
    for gap_ms, value in records:
        now_ms += gap_ms
        rate.record(value, window, now_ms)
        oracle.record(value, now_ms)
        measured = rate.measure(window, now_ms)
        assert measured.per_s * measured.over_ms / 1_000.0 == pytest.approx(oracle.total(now_ms))
        assert window.whole_ms <= measured.over_ms < window.whole_ms + 2 * sample_ms
        for quota in (1.0, 100.0):
            delay_ms = throttle_ms(measured, quota)
            total = measured.per_s * measured.over_ms
            assert (delay_ms > 0) <= (measured.per_s > quota)
            assert total / (measured.over_ms + delay_ms) <= quota * 1.001 or delay_ms == THROTTLE_MS_MAX


def test_throttle_times_have_a_bound() -> None:
    assert throttle_ms(Measure(1e30, 10_000), 1.0) == THROTTLE_MS_MAX
    assert throttle_ms(Measure(5.0, 10_000), 0.0) == 10_000
    assert refill_ms(-1e30, 1.0, Window()) == THROTTLE_MS_MAX
    assert refill_ms(-1.0, 0.0, Window()) == 10_000


NAMES = (None, DEFAULT, "a")
ENTITIES: tuple[Entity, ...] = tuple((u, c) for u, c in product(NAMES, NAMES) if (u, c) != (None, None))
ORDER: Mapping[Entity, int] = {
    ("a", "a"): 1,
    ("a", DEFAULT): 2,
    ("a", None): 3,
    (DEFAULT, "a"): 4,
    (DEFAULT, DEFAULT): 5,
    (DEFAULT, None): 6,
    (None, "a"): 7,
    (None, DEFAULT): 8,
}
"""Kafka's ClientQuotaManager, for the user a with the client id a."""


def wrong_choices() -> list[frozenset[Entity]]:
    """Sets of quotas, of all there are, of which another is chosen than Kafka's order says."""
    wrong = []
    for chosen in product((False, True), repeat=len(ENTITIES)):
        quotas = {entity: float(ORDER[entity]) for entity, set_ in zip(ENTITIES, chosen, strict=True) if set_}
        found = quota_of(quotas, "a", "a")
        expected = min(quotas.values(), default=None)
        of_levels = [("a", "a")] * 2 + [("a", "")] + [("a", "a")] * 2 + [("a", "")] + [("", "a")] * 2
        tags = None if expected is None else of_levels[int(expected) - 1]
        if found != (None if tags is None else (tags, expected)):
            wrong.append(frozenset(quotas))
    return wrong


def test_the_eight_levels_of_quotas_are_kafka_s() -> None:
    assert wrong_choices() == []


def test_a_fault_in_the_precedence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_of(quotas: Mapping[Entity, float], user: str, client_id: str) -> Any:
        return max(((("a", "a"), value) for value in quotas.values()), default=None, key=lambda one: one[1])

    monkeypatch.setitem(globals(), "quota_of", last_of)
    assert wrong_choices() != []


def test_other_names_and_clients_without_an_id() -> None:
    everything = {entity: float(ORDER[entity]) for entity in ENTITIES}
    assert quota_of(everything, "b", "a") == (("b", "a"), 4.0)
    assert quota_of(everything, "b", "b") == (("b", "b"), 5.0)
    assert quota_of(everything, "a", "") == (("a", ""), 3.0)
    assert quota_of({(None, DEFAULT): 8.0, (DEFAULT, DEFAULT): 5.0}, "a", "") is None


@pytest.mark.parametrize(
    ("name", "in_znode"),
    [
        ("alice", "alice"),
        ("CN=a b,O=x", "CN%3Da%20b%2CO%3Dx"),
        ("a*b~c_d-e.f", "a%2Ab%7Ec_d-e.f"),
        ("<default>", "%3Cdefault%3E"),
        ("ü/", "%C3%BC%2F"),
    ],
)
def test_names_are_written_as_kafka_s_sanitizer_does(name: str, in_znode: str) -> None:
    assert sanitised(name) == in_znode
    assert plain(in_znode) == name
    assert plain(DEFAULT) is None

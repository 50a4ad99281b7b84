"""A hundredth of the campaign, hypothesis over the same targets, and what the campaign must find if it is there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import campaign
from tests.fuzz.campaign import Failure, lines, watched
from tests.fuzz.mutations import WOUNDS, Wound, malformed
from tests.fuzz.targets import Target, targets

INPUTS = 10_000
TARGETS = targets()


def test_ten_thousand_malformed_inputs_no_crash_no_hang_no_growth() -> None:
    fed = targets()
    figures = campaign.campaign(INPUTS, 1, fed)
    assert figures.outcomes.total() == INPUTS
    assert {name for name, _ in figures.outcomes} == {target.name for target in fed}
    assert list(lines(figures))[-1] == "no crash, no hang, no growth"
    refused = sum(count for (_, outcome), count in figures.outcomes.items() if outcome not in ("taken", "frames"))
    assert refused > INPUTS // 2, "malformed they should be"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.name))
def test_what_the_inputs_are_made_of_is_sound(target: Target) -> None:
    with watched(campaign.CPU_LIMIT_S):
        outcomes = {campaign.feed(target, data) for data in target.sound}
    assert outcomes <= {"taken", "frames", "answered", "answered later"}


Patch = tuple[int, int, bytes]


@settings(max_examples=1_000, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, len(TARGETS) - 1),
    st.integers(0, 1 << 16),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.binary(max_size=8)), max_size=3),
)
def test_what_hypothesis_makes_of_sound_inputs_is_refused_or_taken(which: int, one: int, patches: list[Patch]) -> None:
    target = TARGETS[which]
    whole = bytearray(target.sound[one % len(target.sound)])
    for at, length, instead in patches:
        whole[at : at + length] = instead
    target.feed(bytes(whole))


def test_the_same_seed_makes_the_same_inputs() -> None:
    sound = [b"one sound input", b"and another"]

    def made(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [malformed(rng, sound) for _ in range(200)]

    assert made(7) == made(7) != made(8)
    assert len(set(made(7))) > 150


@pytest.mark.parametrize("wound", WOUNDS, ids=lambda wound: str(wound.__name__))
@pytest.mark.parametrize("data", [b"", b"x", b'{"version":1,"isr":[1,2,3]}'])
def test_a_wound_can_be_done_to_anything(wound: Wound, data: bytes) -> None:
    rng = random.Random(3)
    for _ in range(100):
        wound(rng, bytearray(data))


_kept: list[bytes] = []


def crash(data: bytes) -> str:
    raise KeyError(data[0] if data else 0)


def hang(_data: bytes) -> str:
    while True:
        pass


def keep_pages(_data: bytes) -> str:
    _kept.append(b"x" * 32_768)
    return "kept"


def keep_objects(_data: bytes) -> str:
    _kept.append([])  # type: ignore[arg-type]
    return "kept"


@pytest.mark.parametrize(
    ("fault", "inputs", "found"),
    [
        (crash, 10, "planted: KeyError"),
        (hang, 10, "planted: Hang: more than 0.05 s of processor time"),
        (keep_pages, 2_000, "KiB more"),
        (keep_objects, 8_000, "objects more"),
    ],
)
def test_the_campaign_finds_what_it_is_for(fault: Callable[[bytes], str], inputs: int, found: str) -> None:
    try:
        with pytest.raises(Failure, match=found):
            campaign.campaign(inputs, 1, [Target("planted", [b"sound"], fault)], limit_s=0.05, growth_kib=4_096)
    finally:
        _kept.clear()


def test_memory_that_was_freed_is_no_growth() -> None:
    before = campaign.Memory.now()
    large = b"x" * (20 << 20)
    del large  # once such a block was freed, glibc keeps twice as much of what is freed later
    small = [b"x" * (1 << 20) for _ in range(30)]
    del small
    assert campaign.Memory.now().resident_kib - before.resident_kib < 8 << 10


def test_the_command_prints_its_figures_and_fails_with_the_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert campaign.main(["--inputs", "500"]) == 0
    assert "500 malformed inputs in" in capsys.readouterr().out
    monkeypatch.setattr(campaign, "targets", lambda: [Target("planted", [b"sound"], crash)])
    assert campaign.main(["--inputs", "10", "--seed", "5"]) == 1
    told = capsys.readouterr().err
    assert "seed 5: planted: KeyError" in told
    assert "input: " in told

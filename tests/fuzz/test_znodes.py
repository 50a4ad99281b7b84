"""A thousandth of the campaign against a whole controller, and what it must find if it is there."""

from __future__ import annotations

import random

import pytest

from controller.core import loading
from controller.core.handlers import topic_creation
from controller.zookeeper import codecs_columns
from tests.fuzz import znodes
from tests.fuzz.campaign import Failure
from tests.fuzz.senseless import senseless


def test_a_thousand_values_of_no_sense_cost_only_themselves() -> None:
    figures = znodes.campaign(1_000, 1)
    assert figures.inputs == figures.kinds.total() == 1_000
    assert set(figures.kinds) == set(znodes.KINDS)
    assert figures.quarantined > 50
    assert "1,000 values in" in znodes.lines(figures)[0]


def test_the_same_seed_makes_the_same_values() -> None:
    def made(seed: int) -> list[bytes | None]:
        rng = random.Random(seed)
        return [senseless(rng, znodes.SOUND_TOPIC) for _ in range(200)]

    assert made(7) == made(7) != made(8)


@pytest.mark.parametrize(
    ("where", "name", "instead", "number"),
    [
        (loading, "sound_states", lambda columns: (columns, {}), 160215742132725),
        (loading, "sound_topics", lambda columns: (columns, {}), 214192146929019),
        (loading, "topic_name_fault", lambda _name: None, 160215742132725),
        (codecs_columns, "registration_fault", lambda _registration: None, 17762970155972),
        (topic_creation, "name_fault", lambda _name: None, 160215742132725),
    ],
    ids=["states", "topics", "topic names", "registrations", "names from clients"],
)
def test_a_check_that_is_missing_is_found(
    where: object, name: str, instead: object, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the round in which a campaign of 20,000 values found it."""
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(Failure, match=r"round \d+: "):
        znodes.Round(number, znodes.INPUTS_A_ROUND).run(znodes.Figures())


def test_growth_between_rounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    monkeypatch.setattr(znodes, "GROWTH_FROM", 400)
    monkeypatch.setattr(znodes.Round, "_check_repaired", lambda self: kept.append([[] for _ in range(5_001)]))
    with pytest.raises(Failure, match="objects more after 400 inputs"):
        znodes.campaign(400, 1)


def test_the_command_prints_its_figures_and_fails_with_the_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert znodes.main(["--inputs", "96"]) == 0
    assert "96 values in 1 clusters" in capsys.readouterr().out
    monkeypatch.setattr(topic_creation, "name_fault", lambda _name: None)
    assert znodes.main(["--inputs", "2000", "--seed", "1"]) == 1
    assert "seed 1: round " in capsys.readouterr().err

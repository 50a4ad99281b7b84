"""The fuzz target of corrupted log directories: some inputs, and planted faults that it must find."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from controller.storage.health import Health
from tests.fuzz.campaign import Failure, watched
from tests.fuzz.directories import Directories, fed, fuzz, main, memory_folder

INPUTS = 150
SEED = 20


@pytest.fixture(scope="module")
def target() -> Iterator[Directories]:
    with TemporaryDirectory(prefix="camerlengo-fuzz-", dir=memory_folder()) as folder:
        yield Directories(Path(folder))


def test_a_start_with_corrupted_directories_holds_its_invariants(target: Directories) -> None:
    figures = fuzz(INPUTS, SEED, target)
    outcomes = {outcome for _, outcome in figures.outcomes}
    assert {"started", "started with warnings", "refused: NoLogDirectory", "one directory offline"} <= outcomes


def no_joins(*_arguments: object) -> None:
    """Segments are not compared."""


def silent(_health: Health, _warning: str) -> None:
    """Nothing is said."""


@pytest.mark.parametrize(
    ("where", "planted", "known"),
    [
        ("controller.storage.opening.check_joins", no_joins, "cc08534a5405122f"),
        ("controller.storage.health.Health.warn", silent, "c4660287327fb3f3"),
        ("controller.broker.logs._refuse_duplicates", no_joins, "7ee18d65c9f4aca0"),
    ],
)
def test_a_planted_fault_is_found(
    target: Directories, monkeypatch: pytest.MonkeyPatch, where: str, planted: object, known: str
) -> None:
    """The known input comes first; others follow in case it is drawn otherwise by now."""
    monkeypatch.setattr(where, planted)
    rng = random.Random(SEED)
    inputs = [bytes.fromhex(known), *(rng.randbytes(8) for _ in range(1_000))]
    with pytest.raises(Failure, match=r"input: [0-9a-f]{16}"), watched(60.0):
        all(fed(target, data, 60.0) for data in inputs)


def test_an_input_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "878d972f9a451da1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1

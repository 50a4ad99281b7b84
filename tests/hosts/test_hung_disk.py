"""A disk that does not answer: the shutdown ends in time all the same, and says what it left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from controller.storage.device_pools import DevicePools
from controller.storage.devices import Device, DeviceLimits
from tests.broker.test_upkeep import PATHS, Kept


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_shutdown_closes_the_directories_that_it_can_and_names_the_others(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(None, PATHS)
    assert len(kept.logs.directories) > 1
    hung = kept.logs.directories[0]
    for number, directory in enumerate(kept.logs.directories):
        directory.device = Device(f"8:{number}")
    monkeypatch.setattr(type(hung), "close", _hanging_in(hung.path, stuck, type(hung).close))
    pools = DevicePools(DeviceLimits())
    kept.log_maintenance.close_logs(pools)
    others = [directory.path for directory in kept.logs.directories[1:]]
    done = threading.Event()
    left: list[str] = []

    def close() -> None:
        left.extend(pools.close(0.5))
        done.set()

    threading.Thread(target=close, daemon=True).start()
    assert done.wait(20.0)
    assert left == [f"device 8:0: clean shutdown of {hung.path}"]
    assert any("the next start recovers it" in note for note in kept.trace.notes("warning"))
    for path in others:
        assert ".kafka_cleanshutdown" in kept.disk.names(path)
    assert ".kafka_cleanshutdown" not in kept.disk.names(hung.path)


def _hanging_in(path: str, until: threading.Event, close: object) -> object:
    def run(directory: object) -> None:
        if getattr(directory, "path", None) == path:
            until.wait()
        else:
            assert callable(close)
            close(directory)

    return run


def test_a_process_that_is_stuck_at_its_deadline_shows_its_stacks_and_ends() -> None:
    program = (
        "import threading; from controller.hosts.process import exit_at_deadline;"
        "exit_at_deadline(0.1); threading.Thread(target=threading.Event().wait, name='stuck').start();"
        "threading.Event().wait()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert ended.stderr.count("Thread 0x") + ended.stderr.count("Current thread") >= 2
    assert "wait" in ended.stderr

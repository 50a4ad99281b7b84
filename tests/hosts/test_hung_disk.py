"""A disk that does not answer: the shutdown ends in time all the same, and says what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.hosts.network import LoopScheduler, NetworkThread
from controller.machine.disk import MemoryDisk
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchPartition, FetchPartitionData, FetchRequest, FetchResponse, FetchTopic
from controller.protocol.framing import joined
from controller.storage.device_pools import DevicePools
from controller.storage.devices import DeviceLimits
from controller.storage.disk import ANY_DEVICE, Device, NotCached
from tests.broker.leading import Holder, offsets
from tests.broker.test_cold_reads import holder
from tests.broker.test_upkeep import PATHS, Kept
from tests.hosts.hung_device import CONFIGS, CREATED, RATE, THREADS, unavailable
from tests.programs import needs_programs

WAIT_S = 30.0
DEVICE_TIMEOUT_S = 0.5


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


class OnLoop:
    """A broker in memory whose requests run on a network's loop, and its jobs on the threads of a device."""

    def __init__(self, broker: Holder, network: NetworkThread, pools: DevicePools) -> None:
        self._broker = broker
        self._network = network
        self._errors: list[Exception] = []
        self._turns = LoopScheduler(network, self._errors.append, pools)

    def call(self, what: Callable[[], Any]) -> Any:
        async def on_loop() -> Any:
            return what()

        return self._network.run(on_loop(), WAIT_S)

    def fetch(self, partition: int) -> Answer:
        answer = Answer()
        self.call(lambda: self._begin(partition, answer))
        return answer

    def _begin(self, partition: int, answer: Answer) -> None:
        asked = FetchPartition(partition, fetch_offset=1, partition_max_bytes=1 << 20)
        frame = encode_request(
            RequestHeader(ApiKey.FETCH, 11, 1, "c"), FetchRequest(0, 1, (FetchTopic("t", (asked,)),))
        )
        steps = self._broker.broker.begin(frame, answer)
        if steps is not None:
            self._turns.work(steps, lambda: None)

    def produce(self, partition: int) -> Any:
        return self.call(lambda: self._broker.produce(acks=1, numbers=[partition]))


class Answer:
    def __init__(self) -> None:
        self.there = threading.Event()
        self._data = b""

    def __call__(self, parts: Any) -> None:
        self._data = bytes(joined([one if isinstance(one, bytes | memoryview) else one.read() for one in parts]))
        self.there.set()

    def partition(self) -> FetchPartitionData:
        assert self.there.wait(WAIT_S)
        response = decode_response(ApiKey.FETCH, 11, self._data)[1]
        assert isinstance(response, FetchResponse)
        return response.responses[0].partitions[0]


def test_partitions_of_a_hung_device_time_out_and_others_are_served(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:

    def require_cached(_disk: MemoryDisk, path: str, length: int) -> None:
        """Nothing of partition 0 is in memory, and no read of it returns."""

        def read_in(at_least: int = 0) -> None:
            stuck.wait()

        if "/t-0/" in path:
            raise NotCached(ANY_DEVICE, read_in, length, f"read of {path}")

    monkeypatch.setattr(MemoryDisk, "require_cached", require_cached)
    notes: list[str] = []
    pools = DevicePools(DeviceLimits(threads=1, limit_ms=DEVICE_TIMEOUT_S * 1_000.0), note=notes.append)
    network = NetworkThread()
    network.start()
    try:
        those = OnLoop(holder(2), network, pools)
        hung, behind = those.fetch(0), those.fetch(0)
        for _ in range(50):
            assert those.produce(1)
            assert offsets(those.fetch(1).partition())[:4] == [1, 2, 3, 4]
        for answer in (hung, behind, those.fetch(0)):  # the last is refused at once, or waits no longer than the others
            assert answer.partition().error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [note.split(":")[0] for note in notes] == ["device memory does not answer, what needs it is refused"], (
            notes
        )
        assert pools.stats()[0].is_hung
        assert pools.close(0.1) == []  # what was answered is not waited for
    finally:
        stuck.set()
        network.stop()


@needs_programs
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can")
@pytest.mark.parametrize("kinds", [tuple(CONFIGS), ("appended", "deleted"), ("followed",), ("created",)])
def test_a_fuse_file_system_that_stops_answering_holds_up_its_own_partitions_alone(kinds: tuple[str, ...]) -> None:
    """In a process of its own, whose mount ends with it: see `tests.hosts.hung_device`."""
    command = [sys.executable, "-m", "tests.hosts.hung_device", "--seconds", "2", "--kinds", ",".join(kinds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "blocked" not in found
    for kind in kinds:  # all of them answered, without an error
        assert found["while it hangs" if kind == "read" else f"while {kind}"]["requests"] == int(2 * 2 * RATE)
        if kind in ("rolled", "synced", "appended"):
            assert found[f"answers while {kind}"]["answers"].keys() == {"KAFKA_STORAGE_ERROR"}
        elif kind == "followed":  # its leader goes on without it
            assert found["answers while followed"]["answers"].keys() == {"NONE"}
    if "created" in kinds:
        assert found["created-first"]["led"] == CREATED // 2
        assert found["created-next"]["led"] == CREATED, "the directory that had no answer is avoided"
    if "read" in kinds:
        assert found["errors"] == ["KAFKA_STORAGE_ERROR"] * (THREADS + 1)
        assert found["error later"] == "KAFKA_STORAGE_ERROR"
    assert found["session kept"]
    assert found["exit status"] == 0
    if kinds != ("followed",):  # a follower refuses nobody, and the broker stops before its job is overdue
        assert "does not answer, what needs it is refused: " in found["log"]
    assert "; the next start recovers it" in found["log"]
    assert "camerlengo-hung" not in Path("/proc/mounts").read_text()
    for server in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert b"tests.hosts.fuse_folder" not in server.read_bytes(), os.fspath(server)
        except FileNotFoundError:
            continue

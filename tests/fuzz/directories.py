"""Corrupted log directories against a broker's start: `python -m tests.fuzz.directories --inputs N --seed S`.

An input is one log directory with two partitions, closed cleanly or not, and one to three things that are done to its
files: deleted, truncated, extended, garbled, emptied, renamed, copied, exchanged, replaced by a directory; stray files
added; checkpoints and meta.properties edited. A broker starts with up to 32 such directories, each with its own damage.
It refuses a directory with a typed error that names a file in it, and starts again without that directory, or it takes
the directory offline with such a cause, or it serves the directory. Then:

- no handler raises, and what fails later is LogOffline;
- what it serves by Fetch is contiguous and every CRC holds. Where bytes inside a `.log` file were changed in place
  below the recovery point, a reader may meet them: that is counted as `damage met by the reader`;
- records that had been flushed are missing only where the log says so;
- damage to indexes and snapshots alone, which are built again from the log, keeps nothing from starting;
- it takes a record, closes, and the next start is clean and has the same offsets.

`--replay HEX` repeats one start and prints what was done to each directory.

For speed the directories lie in a file system in memory if there is one, syncs do nothing, what the disk leaves to its
threads is done at once, and files that did not change are kept from start to start.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from controller.broker.broker import Broker
from controller.broker.log_maintenance import NoLogDirectory, opening_notes
from controller.broker.log_manager import LogManager
from controller.broker.settings import BadSettings, BrokerSettings
from controller.hosts.broker_id import kept_broker_id, unreadable
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import CONSUMER, FetchPartition, FetchRequest, FetchTopic
from controller.storage import CorruptBatch, LogDirectory, LogOffline, LogSettings, PartitionLog, headers_of
from controller.storage.checkpoints import CLEAN_SHUTDOWN, TopicPartition
from controller.storage.disk_files import CachedFile, FileDisk
from controller.storage.errors import DuplicateLogs
from tests.broker.harness import BROKER, BROKER_EPOCH, TOPIC_ID, ReadConfigs, live, settings
from tests.broker.leading import CONTROLLER, REPLICAS, VERSION, Holder
from tests.fuzz.campaign import (
    CALM_DOWN,
    CPU_LIMIT_S,
    GROWTH_LIMIT_KIB,
    Failure,
    Figures,
    Memory,
    exit_status,
    fuzz_parser,
    lines,
    refuse_growth,
    watched,
)
from tests.fuzz.crash import Crash
from tests.fuzz.directory_damage import Sound, damage
from tests.storage.batches import batch

SLOTS = 32
"""Log directories at most in one start."""
LARGE = tuple(range(SLOTS))
SMALL = tuple(range(SLOTS, 2 * SLOTS, 2))
"""Each directory has one of the partitions LARGE, with three segments. The first half of the directories have one of
SMALL too, which has one segment, and in every second of them no records."""
SIZES = (1, 2, 5, *[SLOTS] * 7)
LOG = LogSettings(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
META = b"version=0\nbroker.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
EPOCH = 50
FAR = 100
"""An offset so far above the end comes from a checkpoint, and not from the names of segments."""
GROWTH_FROM = 5_000
"""Of fewer inputs the caches of names and numbers are still filling."""
TRASH = f"t-0.{1:032x}-delete"


class QuickFile(CachedFile):
    __slots__ = ()

    def sync(self) -> None:
        """Nothing can crash here."""


class QuickDisk(FileDisk):
    """Files without syncs, and without threads, which would take longer than what they do."""

    def __init__(self) -> None:
        super().__init__()
        self._closing.begin = lambda: None  # type: ignore[method-assign]

    def open(self, path: str) -> QuickFile:
        return QuickFile(path, self.descriptors)

    def read(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.read(fd, 1 << 20)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    def _write_beside(self, path: str, data: bytes, durable: bool) -> None:
        fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.replace(path + ".tmp", path)

    def sync_names(self, directory: str) -> None:
        """Nothing can crash here."""

    def sync_all(self, directories: Sequence[str]) -> None:
        """As `sync_names`."""

    def replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        self._replace(path, data, durable=False)

    def replace_soon(self, path: str, data: bytes) -> None:
        self._replace(path, data, durable=False)

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        self.derive(path, content)


DISK = QuickDisk()


class Started(Holder):
    """A broker over directories of real files. Raises what refuses the start, with no directory locked."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths_given = list(paths)
        super().__init__()

    def start(self) -> None:
        self.paths = self.paths_given
        self.settings = kept_broker_id(settings_of(self.paths))
        self.logs = LogManager(DISK, self.paths, lambda _topic: LOG, self.clock.wall_ms, unreadable(self.paths))
        try:
            opening_notes(self.logs)
        except NoLogDirectory:
            unlock(self.logs)
            raise
        self.configs = ReadConfigs(self.settings, self.trace)
        self.broker = Broker(
            self.settings,
            self.identity,
            self.events,
            lambda: False,
            self.clock,
            self.trace,
            self.peers,
            self.logs,
            configs=self.configs,
        )

    def become_leader(self, numbers: Sequence[int], epoch: int, *, is_new: bool = True) -> dict[int, ErrorCode]:
        """UpdateMetadata and LeaderAndIsr for these partitions; each one's error."""
        known = tuple(
            UpdateMetadataPartitionState(number, 1, BROKER, epoch, (BROKER,), VERSION, REPLICAS) for number in numbers
        )
        topics = (UpdateMetadataTopicState("t", known, TOPIC_ID),)
        brokers = live(*REPLICAS)
        self.ask(ApiKey.UPDATE_METADATA, UpdateMetadataRequest(CONTROLLER, 1, topics, brokers, BROKER_EPOCH))
        states = tuple(
            LeaderAndIsrPartitionState(number, 1, BROKER, epoch, (BROKER,), VERSION, REPLICAS, is_new=is_new)
            for number in numbers
        )
        topic = LeaderAndIsrTopicState("t", states, TOPIC_ID)
        response = self.ask(ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest(CONTROLLER, 1, (topic,), (), BROKER_EPOCH))
        return {
            each.partition_index: ErrorCode(each.error_code) for one in response.topics for each in one.partition_errors
        }

    def fetch_from(self, offsets: Mapping[int, int]) -> dict[int, tuple[ErrorCode, bytes | memoryview]]:
        """Each partition's error and records, from its offset on."""
        parts = tuple(FetchPartition(number, offset, 1 << 20, -1, -1, 0) for number, offset in offsets.items())
        request = FetchRequest(0, 1, (FetchTopic("t", parts),), CONSUMER, 1 << 24)
        answer = self.begin(ApiKey.FETCH, request, 12).value()
        return {
            data.partition_index: (ErrorCode(data.error_code), data.records or b"")
            for topic in answer.responses
            for data in topic.partitions
        }

    def produce_to(self, numbers: Sequence[int], count: int = 1, producer: tuple[int, int, int] = (-1, -1, -1)) -> None:
        """Crash for an answer that is neither a success nor a storage error."""
        answer = self.produce(count, numbers=numbers, producer=producer).value()
        for topic in answer.responses:
            for result in topic.partition_responses:
                if result.error_code not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
                    raise Crash(f"Produce is answered {result}\n{self.trace.notes('error')[-1:]}")


def settings_of(paths: Sequence[str]) -> BrokerSettings:
    return replace(SETTINGS, log_dirs=tuple(paths))


SETTINGS = settings()


def unlock(logs: LogManager) -> None:
    for directory in logs.directories:
        directory.unlock()


def sound_directories(folder: Path) -> list[tuple[Sound, Sound]]:
    """Of each slot the one that was closed cleanly and the one that was not."""
    return list(zip(_sound(folder, clean=True), _sound(folder, clean=False), strict=True))


def _sound(folder: Path, *, clean: bool) -> list[Sound]:
    paths = [folder / f"{'clean' if clean else 'killed'}{number:02}" for number in range(SLOTS)]
    broker = Started([str(path) for path in paths])
    for turn, epoch in enumerate((1, 4, 6)):
        for numbers in (LARGE, SMALL):  # one after the other, so that each directory has the same
            broker.become_leader(numbers, epoch)
        for number in range(5):
            broker.produce_to(LARGE, 1 + number % 2, (7, 0, 2 * turn) if number == 3 else (-1, -1, -1))
        broker.produce_to(SMALL[::2], 2)
    for directory in broker.logs.directories:
        for (_, number), log in directory.logs.items():
            if number in LARGE and number % 2:
                log.delete_records_before(2, 9)
            log.flush()
        directory.checkpoint_recovery_points()
        directory.checkpoint_log_start_offsets()
    flushed = [
        {key: (log.segment_offsets[0], log.log_end_offset) for key, log in one.logs.items()}
        for one in broker.logs.directories
    ]
    if not clean:
        for _ in range(5):
            broker.produce_to([*LARGE, *SMALL[::2]])
    broker.logs.write_high_watermarks(broker.broker.replicas.high_watermarks())
    if clean:
        broker.logs.close()
    else:
        unlock(broker.logs)
    return [
        _sound_directory(path, known, has_trash=number % 4 == 0)
        for number, (path, known) in enumerate(zip(paths, flushed, strict=True))
    ]


def _sound_directory(path: Path, flushed: Mapping[TopicPartition, tuple[int, int]], *, has_trash: bool) -> Sound:
    (path / "meta.properties").write_bytes(META)
    if has_trash:
        trash = path / TRASH
        trash.mkdir()
        (trash / f"{0:020d}.log").write_bytes(batch())
    files = {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
    shutil.rmtree(path)
    return Sound(path, files, flushed)


class Directories:
    """`feed` takes the inputs of one start to their end; `story` says what was done to each."""

    name = "log directories"

    def __init__(self, folder: Path) -> None:
        self._sound = sound_directories(folder)
        self._reference = folder / "reference"
        self._reference.mkdir()
        (self._reference / "meta.properties").write_bytes(META)
        self._given: list[Sound] = []

    def story(self, only: Sequence[Sound] = ()) -> list[str]:
        return [f"{one.root.name}: {'; '.join(one.done.steps)}" for one in only or self._given]

    def feed(self, data: bytes) -> list[str]:
        """The outcome of each directory. Crash, or whatever the broker raised."""
        rng = random.Random(data)
        slots = sorted(rng.sample(range(SLOTS), rng.choice(SIZES)))
        self._given = [rng.choice(self._sound[slot]) for slot in slots]
        for one in self._given:
            one.restore()
        for one in self._given:
            damage(one, [other for other in self._given if other is not one], rng)
        given = {one.path: one for one in self._given}
        while given:
            try:
                broker = Started(list(given))
            except (BadSettings, NoLogDirectory, DuplicateLogs) as error:
                for one in self._refused(error, list(given.values())):
                    _names_a_file(str(error), one)
                    one.outcome = f"refused: {type(error).__name__}"
                    del given[one.path]
                continue
            try:
                Judged(broker, given, is_new=rng.random() < 0.2).judge()
            finally:
                unlock(broker.logs)
            break
        for one in self._given:
            if one.done.derived_only and not one.outcome.startswith("started"):
                raise Crash(f"{one.outcome}, though the log has everything\n{self.story([one])}")
        return [one.outcome for one in self._given]

    def _refused(self, error: Exception, given: Sequence[Sound]) -> Sequence[Sound]:
        """The directories without which the broker may start; all of them, if none can be used."""
        if isinstance(error, NoLogDirectory):
            return given
        if isinstance(error, DuplicateLogs):
            return [one for one in given if one.path in error.directories][-1:]
        wrong = [one for one in given if one.path in str(error) and self._is_refused(one)]
        if not wrong:
            raise Crash(f"{error}, though each directory named may be used with a sound one")
        return wrong

    def _is_refused(self, one: Sound) -> bool:
        try:
            kept_broker_id(settings_of([one.path, str(self._reference)]))
        except BadSettings:
            return True
        return False


class Judged:
    """A broker that has started, over directories each with its own damage."""

    def __init__(self, broker: Started, given: Mapping[str, Sound], *, is_new: bool) -> None:
        self._broker = broker
        self._given = given
        self._is_new = is_new
        self._offline = {one.path for one in broker.logs.directories if one.health.cause is not None}
        self._met: set[str] = set()

    def judge(self) -> None:
        """Sets the outcome of each directory."""
        broker = self._broker
        seen: dict[TopicPartition, str] = {}
        for directory in broker.logs.directories:
            self._look_for_silent_losses(directory)
            if directory.health.cause is None and os.path.lexists(f"{directory.path}/{CLEAN_SHUTDOWN}"):
                raise Crash(f"{directory.path}: after the start the mark of a clean shutdown is still there")
            for key in directory.logs:
                if seen.setdefault(key, directory.path) != directory.path:
                    raise Crash(f"{key} is served though it is in {seen[key]} and {directory.path}")
        numbers = sorted({number for one in self._given.values() for _, number in one.flushed})
        errors = broker.become_leader(numbers, EPOCH, is_new=self._is_new)
        for number, error in errors.items():
            if error not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID):
                raise Crash(f"LeaderAndIsr is answered {error.name} for t-{number}")
        led = [number for number, error in errors.items() if error is ErrorCode.NONE]
        if led:
            broker.produce_to(led)
            self._read(led)
        self._start_again()
        faults = [note for note in broker.trace.notes("error") if "Traceback" in note]
        if faults:
            raise Crash(faults[0])
        for directory in broker.logs.directories:
            self._given[directory.path].outcome = self._outcome(directory)

    def _outcome(self, directory: LogDirectory) -> str:
        if directory.health.cause is not None:
            _names_a_file(str(directory.health.cause), self._given[directory.path])
            return "offline" if directory.path in self._offline else "offline later"
        if directory.path in self._met:
            return "damage met by the reader"
        warned = directory.health.warnings or any(log.cut_bytes for log in directory.logs.values())
        return "started with warnings" if warned else "started"

    def _look_for_silent_losses(self, directory: LogDirectory) -> None:
        sound = self._given[directory.path]
        if not directory.was_clean and any("recovery-point" in step for step in sound.done.steps):
            return  # a log that was never flushed has no recovery point either
        for key, log in directory.logs.items():
            start, end = sound.flushed.get(key, (0, 0))
            # A start that is not clean can't tell a first segment that is missing from one that retention has deleted.
            begins = start if directory.was_clean else end + FAR
            lost = log.log_end_offset < end or log.segment_offsets[0] > begins
            if lost and not directory.health.warnings and not log.cut_bytes and directory.health.cause is None:
                left = f"{log.segment_offsets[0]} to {log.log_end_offset}"
                raise Crash(f"{key} in {sound.root.name}: {start} to {end} were flushed, {left} are left, unsaid")

    def _read(self, led: Sequence[int]) -> None:
        """Everything from each log's start to its end by Fetch, and with it what was just produced."""
        logs: dict[int, PartitionLog] = {}
        for number in led:
            log = self._broker.logs.get("t", number)
            assert log is not None
            logs[number] = log
        at = {number: log.log_start_offset for number, log in logs.items()}
        first = set(at)
        while True:
            at = {
                number: offset
                for number, offset in at.items()
                if offset < logs[number].log_end_offset and logs[number].health.cause is None
            }
            if not at:
                return
            for number, (error, records) in self._broker.fetch_from(at).items():
                if error is ErrorCode.KAFKA_STORAGE_ERROR:
                    continue
                log, offset = logs[number], at[number]
                if error is not ErrorCode.NONE:
                    bounds = f"{log.log_start_offset} to {log.log_end_offset}"
                    said = self._broker.trace.notes("error")[-1:]
                    raise Crash(f"Fetch of t-{number} from {offset} of {bounds}: {error.name} {said}")
                try:
                    at[number] = _next_offset(records, offset, is_first=number in first)
                except CorruptBatch as fault:
                    directory = log.health.directory
                    if not self._given[directory].done.in_place:
                        raise Crash(f"t-{number} in {directory} from {offset}: {fault}") from None
                    self._met.add(directory)
                    del at[number]
            first.clear()

    def _start_again(self) -> None:
        """Those directories in which everything was sound: clean, and with the same offsets."""
        logs = self._broker.logs
        offsets = {
            one.path: {key: (log.log_start_offset, log.log_end_offset) for key, log in one.logs.items()}
            for one in logs.directories
        }
        with suppress(LogOffline):  # the outcome of its directory
            logs.close()
        sound = [one.path for one in logs.directories if one.health.cause is None and one.path not in self._met]
        again = LogManager(DISK, sound, lambda _topic: LOG, self._broker.clock.wall_ms)
        try:
            for one in again.directories:
                if not one.was_clean or one.health.cause is not None:
                    raise Crash(f"the next start of {one.path}: {one.health.cause}")
                for key, log in one.logs.items():
                    before, after = offsets[one.path].get(key), (log.log_start_offset, log.log_end_offset)
                    if before != after:
                        raise Crash(f"{key} in {one.path}: {before}, and after a clean restart {after}")
        finally:
            unlock(again)


def _next_offset(records: bytes | memoryview, at: int, *, is_first: bool) -> int:
    """CorruptBatch: they do not follow upon each other from `at` on."""
    headers = headers_of(records)
    if not headers:
        raise CorruptBatch(0, f"nothing at {at}")
    for header in headers:
        if not (header.base_offset <= at < header.next_offset if is_first else header.base_offset == at):
            raise CorruptBatch(0, f"{header.base_offset} to {header.last_offset}, expected {at}")
        at, is_first = header.next_offset, False
    return at


def _names_a_file(text: str, sound: Sound) -> None:
    if sound.path not in text:
        raise Crash(f"names no file in {sound.path}: {text}")


def fuzz(inputs: int, seed: int, target: Directories, *, limit_s: float = CPU_LIMIT_S) -> Figures:
    """The same inputs for the same seed; those of the last start may be more than asked for. Failure, with the start
    and what was done."""
    rng = random.Random(seed)
    figures = Figures()
    began_s = time.perf_counter()
    with watched(limit_s):
        while figures.inputs < inputs:
            began = time.perf_counter()
            for outcome in (outcomes := fed(target, rng.randbytes(8), limit_s)):
                figures.outcomes[target.name, outcome] += 1
            took_ms = (time.perf_counter() - began) * 1_000.0
            if took_ms > figures.slowest_ms:
                figures.slowest_ms, figures.slowest = took_ms, f"{len(outcomes)} directories"
            figures.inputs += len(outcomes)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            if figures.before is None and figures.inputs * CALM_DOWN >= inputs >= GROWTH_FROM:
                figures.before = Memory.now()
    figures.seconds = time.perf_counter() - began_s
    figures.after = Memory.now()
    refuse_growth(figures, GROWTH_LIMIT_KIB)
    return figures


def fed(target: Directories, data: bytes, limit_s: float = CPU_LIMIT_S) -> list[str]:
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        return target.feed(data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        what = "\n".join(target.story())
        raise Failure(f"{type(error).__name__}: {error}\nstart: {data.hex()}\n{what}") from error


def memory_folder() -> str | None:
    """A file system in memory, where there is one: syncs cost nothing there."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = fuzz_parser("directories", __doc__)
    parser.add_argument("--replay", metavar="HEX", help="one start, as a failure prints it")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="camerlengo-fuzz-", dir=memory_folder()) as folder:
        target = Directories(Path(folder))
        if given.replay is not None:
            try:
                print("\n".join(target.feed(bytes.fromhex(given.replay))))
            finally:
                print("\n".join(target.story()))
            return 0
        gc.freeze()  # what is there stays, and need not be looked at again
        return exit_status(given.seed, lambda: [*lines(fuzz(given.inputs, given.seed, target))])


if __name__ == "__main__":
    sys.exit(main())

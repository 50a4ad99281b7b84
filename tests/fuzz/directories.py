"""Corrupted log directories against a broker's start: `python -m tests.fuzz.directories --inputs N --seed S`.

Each input is a number from which a log directory is drawn (closed cleanly or not) and one to three things that are done
to its files: deleted, truncated, extended, garbled, emptied, renamed, copied, exchanged, replaced by a directory; stray
files added; checkpoints and meta.properties edited. A broker with these directories then either starts or refuses with
a typed error that names a file. If it starts:

- no handler raises, and what fails later is LogOffline;
- what it serves by Fetch is contiguous and every CRC holds. Where bytes inside a `.log` file were changed in place
  below the recovery point, a reader may meet them: that is counted as `damage met by the reader`;
- records that had been flushed are missing only where the log says so;
- damage to indexes and snapshots alone, which are built again from the log, keeps nothing from starting;
- it takes a record, closes, and the next start is clean and has the same offsets.

`--replay HEX` repeats one input and prints what was done.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controller.broker.broker import Broker
from controller.broker.configs.settings import BadSettings
from controller.broker.logs import Logs
from controller.broker.upkeep import NoLogDirectory, told_of_opening
from controller.hosts.broker_id import kept_broker_id, unreadable
from controller.protocol.errors import ErrorCode
from controller.storage import CorruptBatch, LogOffline, LogSettings, headers_of
from controller.storage.checkpoints import TopicPartition
from controller.storage.disk_files import FileDisk
from controller.storage.errors import DuplicateLogs
from tests.broker.harness import settings
from tests.broker.leading import Holder, fetched, produced
from tests.fuzz.campaign import CALM_DOWN, CPU_LIMIT_S, Failure, Figures, Memory, lines, refuse_growth, watched
from tests.fuzz.crash import Crash
from tests.storage.batches import batch

PARTITIONS = 3
LOG = LogSettings(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
META = b"version=0\nbroker.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
EPOCH = 50
GROWTH_FROM = 5_000
"""Of fewer inputs the caches of names and numbers are still filling."""
TRASH = "t-0.00000000000000000000000000000001-delete"


@dataclass(frozen=True)
class Template:
    """A sound tree: files by their paths, and each log's start and end as they were flushed."""

    name: str
    files: Mapping[str, bytes]
    flushed: Mapping[TopicPartition, tuple[int, int]]
    clean: bool


@dataclass
class Damage:
    """What was done. `in_place`: bytes within a `.log` file are others now. `derived_only`: to files that are built
    again from the log, and to no others."""

    steps: list[str] = field(default_factory=list)
    in_place: bool = False
    derived_only: bool = True


DISK = FileDisk()
"""One for all inputs: each has threads that end with the process."""


class Started(Holder):
    """A broker over directories of real files."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths_given = list(paths)
        super().__init__(PARTITIONS)

    def start(self) -> None:
        self.paths = self.paths_given
        self.settings = kept_broker_id(settings(log_dirs=",".join(self.paths)))
        self.logs = Logs(DISK, self.paths, lambda _topic: LOG, self.clock.wall_ms, unreadable(self.paths))
        self.warnings = [note.message for note in told_of_opening(self.logs) if note.level == "warning"]
        self.broker = Broker(
            self.settings, self.identity, self.events, lambda: False, self.clock, self.trace, self.peers, self.logs
        )


def templates(folder: Path) -> list[Template]:
    return [
        _template(folder / f"{clean}-{disks}", clean=clean, disks=disks) for clean in (True, False) for disks in (1, 2)
    ]


def _template(folder: Path, *, clean: bool, disks: int) -> Template:
    paths = [str(folder / f"d{number}") for number in range(disks)]
    broker = Started(paths)
    broker.begin_leading((1,), leader_epoch=1)
    for epoch in (1, 4, 6):
        broker.begin_leading((1,), leader_epoch=epoch)
        for number in range(7):
            broker.produce(1 + number % 2, numbers=(0,), producer=(7, 0, -1) if number == 3 else (-1, -1, -1))
        broker.produce(2, numbers=(1,))
    broker.log(0).delete_records_before(2, 9)
    flushed = {}
    for number in range(PARTITIONS):
        log = broker.log(number)
        log.flush()
        flushed["t", number] = (log.segment_offsets[0], log.log_end_offset)
    for directory in broker.logs.directories:
        directory.checkpoint_recovery_points()
        directory.checkpoint_log_start_offsets()
    if not clean:
        for _ in range(5):
            broker.produce(numbers=(0, 1))
    broker.logs.write_high_watermarks(broker.broker.replicas.high_watermarks())
    if clean:
        broker.logs.close()
    else:
        for directory in broker.logs.directories:
            directory.unlock()
    for path in paths:
        Path(path, "meta.properties").write_bytes(META)
    trash = Path(paths[0], TRASH)
    trash.mkdir()
    (trash / f"{0:020d}.log").write_bytes(batch())
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    shutil.rmtree(folder)
    return Template(f"{'clean' if clean else 'killed'}, {disks}", files, flushed, clean)


# What is done to the files

ODD_NAMES = (
    "x.log",
    "1.log",
    "\u0663.log",
    "99999999999999999999.log",
    f"{2**63 - 1:020d}.log",
    f"{5:020d}.log",
    f"{5:020d}.log.swap",
    f"{0:020d}.log.cleaned",
    f"{0:020d}.index.swap",
    f"{0:020d}.log.deleted",
    f"{3:020d}.snapshot",
    f"{9:020d}.index",
    f"{9:020d}.timeindex",
    f"{0:020d}.txnindex",
    "3.snapshot",
    "leader-epoch-checkpoint.tmp",
    ".lock",
    ".kafka_cleanshutdown",
    "t-0",
    "t-7",
    "t-00",
    "t--1",
    "t-0-stray",
    "t-1.0123456789abcdef0123456789abcdef-future",
    "t-2.0123456789abcdef0123456789abcdef-delete",
    "lost+found",
    "meta.properties",
)
NUMBERS = ("0", "-1", "1", "2", "7", "12", "9223372036854775807", "9223372036854775808", "1" * 5_000, "x", "\u0663", "")
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".log.swap", ".log.cleaned", ".log.deleted", ".tmp")


def damage(root: Path, rng: random.Random) -> Damage:
    done = Damage()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        files = files_in(root)
        if not files:
            break
        path = rng.choice(files)
        step = rng.choice(STEPS)
        done.derived_only &= step in ONE_FILE and path.suffix in (".index", ".timeindex", ".snapshot")
        try:
            step(root, path, rng, done)
        except OSError as error:  # an earlier step has put something else there
            done.steps.append(f"({step.__name__} {path.name}: {error.strerror})")
    return done


def files_in(root: Path, ends: tuple[str, ...] = ("",)) -> list[Path]:
    """Those whose names end so; no links."""
    found = []
    for folder, _, names in sorted(os.walk(root)):
        found += [f"{folder}/{name}" for name in sorted(names) if name.endswith(ends)]
    return [Path(path) for path in found if not os.path.islink(path)]


def _said(done: Damage, what: str, root: Path, path: Path, more: object = "") -> None:
    done.steps.append(f"{what} {path.relative_to(root)} {more}".rstrip())


def _changed(done: Damage, path: Path) -> None:
    done.in_place = done.in_place or ".log" in path.name


def delete(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    path.unlink()
    _said(done, "delete", root, path)


def delete_directory(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    if path.parent.parent != root:
        shutil.rmtree(path.parent)
        _said(done, "delete directory", root, path.parent)


def truncate(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    size = rng.randint(0, path.stat().st_size)
    os.truncate(path, size)
    _said(done, "truncate", root, path, size)


def empty(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    os.truncate(path, 0)
    _said(done, "empty", root, path)


def extend(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    more = rng.choice((bytes(rng.randint(1, 200)), rng.randbytes(rng.randint(1, 200)), path.read_bytes()))
    with path.open("ab") as file:
        file.write(more)
    _said(done, "extend", root, path, len(more))


def garble(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(min(rng.choice((1, 1, 4, 16)), len(data))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    _changed(done, path)
    _said(done, "garble", root, path)


def zero(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    data = bytearray(path.read_bytes())
    begin = rng.randint(0, len(data))
    end = rng.randint(begin, len(data))
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    _changed(done, path)
    _said(done, "zero", root, path, (begin, end))


def overwrite(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 8, 24, 100))))
    _changed(done, path)
    _said(done, "overwrite", root, path)


def rename(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    new = path.with_name(rng.choice((rng.choice(ODD_NAMES), _sibling(path, rng), path.name + rng.choice(SUFFIXES))))
    path.rename(new)
    _said(done, "rename", root, path, new.name)


def copy(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    new = path.with_name(rng.choice((rng.choice(ODD_NAMES), _sibling(path, rng), path.name + rng.choice(SUFFIXES))))
    new.write_bytes(path.read_bytes())
    _said(done, "copy", root, path, new.name)


def _sibling(path: Path, rng: random.Random) -> str:
    """A segment's file of another base offset or kind."""
    stem = path.name.partition(".")[0]
    base = int(stem) if stem.isdecimal() else 0
    return f"{max(base + rng.choice((-3, -1, 0, 0, 1, 2, 6)), 0):020d}{rng.choice(SUFFIXES)}"


def exchange(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    """Preferably with a file of the same kind, of any partition."""
    other = rng.choice(files_in(root, (path.suffix,)) or [path])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)
    _said(done, "exchange", root, path, other.relative_to(root))


def become_directory(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "within").write_bytes(b"x")
    _said(done, "directory in place of", root, path)


def become_file(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    if path.parent.parent != root:
        shutil.rmtree(path.parent)
        path.parent.write_bytes(rng.randbytes(rng.choice((0, 9))))
        _said(done, "file in place of", root, path.parent)


def become_link(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    path.unlink()
    path.symlink_to(rng.choice((path.name, "nowhere", "..")))
    _said(done, "link in place of", root, path)


def forbid(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    rng.choice((path, path.parent)).chmod(0)
    _said(done, "forbid", root, path)


def rename_directory(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    directory = path.parent
    if directory.parent != root:
        new = directory.with_name(
            rng.choice(("t-5", "t-1", "t-05", "t-0.1-stray", f"t-0.{'1' * 32}-delete", "other-0"))
        )
        directory.rename(new)
        _said(done, "rename directory", root, directory, new.name)


def copy_directory(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    """To another name, or to another log directory."""
    directory = path.parent
    if directory.parent != root:
        folder = rng.choice(sorted(one for one in root.iterdir() if one.is_dir()))
        new = folder / rng.choice((directory.name, "t-5", "t-2"))
        if not new.exists():
            shutil.copytree(directory, new, symlinks=True)
            _said(done, "copy directory", root, directory, new.relative_to(root))


def stray(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    new = path.with_name(rng.choice(ODD_NAMES))
    if rng.random() < 0.3:
        new.mkdir(exist_ok=True)
        (new / "within").write_bytes(b"x")
    else:
        new.write_bytes(rng.choice((b"", b"x", rng.randbytes(70), batch(base_offset=5))))
    _said(done, "stray", root, new)


def edit_text(root: Path, path: Path, rng: random.Random, done: Damage) -> None:
    """A checkpoint or meta.properties, word by word."""
    path = rng.choice(files_in(root, ("checkpoint", ".properties", "metadata")) or [path])
    rows = path.read_text(errors="replace").split("\n")
    row = rng.randrange(len(rows))
    words = rows[row].split(" ")
    kind = rng.randrange(5)
    if kind == 0:
        del rows[row]
    elif kind == 1:
        rows.insert(row, rows[row])
    elif kind == 2:
        rows[row] += " 3"
    else:
        words[rng.randrange(len(words))] = rng.choice(NUMBERS)
        rows[row] = " ".join(words)
    path.write_text("\n".join(rows))
    _said(done, "edit", root, path, rows[row : row + 1])


STEPS = (
    delete,
    delete,
    delete_directory,
    truncate,
    truncate,
    empty,
    extend,
    garble,
    garble,
    zero,
    overwrite,
    rename,
    rename,
    copy,
    exchange,
    become_directory,
    become_file,
    become_link,
    forbid,
    rename_directory,
    copy_directory,
    stray,
    stray,
    edit_text,
    edit_text,
    edit_text,
)

ONE_FILE = (delete, truncate, empty, extend, garble, zero, overwrite)


# The broker


class Directories:
    """`feed` takes an input to its end; `replay` tells what was done."""

    name = "log directories"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates = templates(folder / "templates")
        self.done = Damage()
        self.template = self._templates[0]

    def feed(self, data: bytes) -> str:
        """The outcome. Crash, or whatever the broker raised."""
        rng = random.Random(data)
        root = self._folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        self.template = rng.choice(self._templates)
        for name in dict.fromkeys(os.path.dirname(name) for name in self.template.files):
            os.makedirs(f"{root}/{name}")
        for name, content in self.template.files.items():
            fd = os.open(f"{root}/{name}", os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(fd, content)
            os.close(fd)
        paths = sorted(str(path) for path in root.iterdir())
        self.done = damage(root, rng)
        try:
            outcome = self._judged(root, paths)
        except LogOffline as offline:
            _names_a_file(str(offline.cause), root)
            outcome = "offline later"
        if self.done.derived_only and not outcome.startswith("started"):
            raise Crash(f"{outcome}, though the log has everything")
        return outcome

    def _judged(self, root: Path, paths: Sequence[str]) -> str:
        try:
            broker = Started(paths)
        except (BadSettings, NoLogDirectory, DuplicateLogs) as error:
            _names_a_file(str(error), root)
            return f"refused: {type(error).__name__}"
        try:
            outcome = self._served(broker, root)
        finally:
            for directory in broker.logs.directories:
                directory.unlock()
        faults = [note for note in broker.trace.notes("error") if "Traceback" in note]
        if faults:
            raise Crash(faults[0])
        return outcome

    def _served(self, broker: Started, root: Path) -> str:
        offline = [one for one in broker.logs.directories if one.health.cause is not None]
        for directory in offline:
            _names_a_file(str(directory.health.cause), root)
        self._look_for_silent_losses(broker)
        errors = self._lead(broker)
        met = False
        for number, error in enumerate(errors):
            if error is ErrorCode.NONE:
                met = self._read(broker, number) or met
        if met:
            return "damage met by the reader"
        if any(one.health.cause is not None for one in broker.logs.directories):
            return "one directory offline" if offline else "offline later"
        ends = {key: log.log_end_offset for one in broker.logs.directories for key, log in one.logs.items()}
        starts = {key: log.log_start_offset for one in broker.logs.directories for key, log in one.logs.items()}
        broker.logs.close()
        again = Started(broker.paths)
        try:
            if any(not one.was_clean or one.health.cause is not None for one in again.logs.directories):
                raise Crash(f"the next start: {[one.health.cause for one in again.logs.directories]}")
            for one in again.logs.directories:
                for key, log in one.logs.items():
                    before, after = (starts.get(key), ends.get(key)), (log.log_start_offset, log.log_end_offset)
                    if before != after:
                        raise Crash(f"{key}: {before}, and after a clean restart {after}")
        finally:
            for one in again.logs.directories:
                one.unlock()
        return "started with warnings" if broker.warnings else "started"

    def _look_for_silent_losses(self, broker: Started) -> None:
        for one in broker.logs.directories:
            for key, log in one.logs.items():
                start, end = self.template.flushed.get(key, (0, 0))
                if not self.template.clean and any("recovery-point" in step for step in self.done.steps):
                    continue  # a log that was never flushed has no recovery point either
                lost = log.log_end_offset < end or (self.template.clean and log.segment_offsets[0] > start)
                if lost and not one.health.warnings and not log.cut_bytes and one.health.cause is None:
                    left = f"{log.segment_offsets[0]} to {log.log_end_offset}"
                    raise Crash(f"{key}: {start} to {end} were flushed, {left} are left, and nothing is said")

    def _lead(self, broker: Started) -> list[ErrorCode]:
        broker.hear((1,), leader_epoch=EPOCH)
        errors = broker.lead((1,), leader_epoch=EPOCH)
        for error in errors:
            if error not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID):
                raise Crash(f"LeaderAndIsr is answered {error.name}")
        return errors

    def _read(self, broker: Started, number: int) -> bool:
        """Everything from the log's start to its end by Fetch, then a record more. Whether a reader met damage."""
        log = broker.log(number)
        answer = produced(broker.produce(numbers=(number,)))
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
            raise Crash(f"Produce is answered {answer}\n{broker.trace.notes('error')[-1:]}")
        at, first = log.log_start_offset, True
        while at < log.log_end_offset and log.health.cause is None:
            data = fetched(broker.fetch(at, numbers=(number,)))
            if data.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                break
            if data.error_code != ErrorCode.NONE:
                raise Crash(f"Fetch from {at} of {log.log_start_offset} to {log.log_end_offset}: {data.error_code}")
            records = data.records or b""
            assert isinstance(records, bytes | memoryview)
            try:
                headers = headers_of(records)
            except CorruptBatch as error:
                if self.done.in_place:
                    return True
                raise Crash(f"t-{number} from {at}: {error}") from None
            if not headers:
                raise Crash(f"t-{number}: nothing at {at}, the log ends at {log.log_end_offset}")
            for header in headers:
                sound = header.base_offset <= at < header.next_offset if first else header.base_offset == at
                if not sound:
                    if self.done.in_place:
                        return True
                    raise Crash(f"t-{number}: {header.base_offset} to {header.last_offset}, expected {at}")
                at, first = header.next_offset, False
        return False


def _names_a_file(text: str, root: Path) -> None:
    if str(root) not in text:
        raise Crash(f"names no file: {text}")


def fuzz(inputs: int, seed: int, target: Directories, *, limit_s: float = CPU_LIMIT_S) -> Figures:
    """The same inputs for the same seed. Failure, with the input and what was done."""
    rng = random.Random(seed)
    figures = Figures()
    started = time.perf_counter()
    with watched(limit_s):
        for number in range(inputs):
            began = time.perf_counter()
            figures.outcomes[target.name, fed(target, rng.randbytes(8), limit_s)] += 1
            took_ms = (time.perf_counter() - began) * 1_000.0
            if took_ms > figures.slowest_ms:
                figures.slowest_ms, figures.slowest = took_ms, f"{target.template.name}: {target.done.steps}"
            if number == inputs // CALM_DOWN and inputs >= GROWTH_FROM:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                figures.before = Memory.now()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    figures.inputs, figures.seconds = inputs, time.perf_counter() - started
    figures.after = Memory.now()
    refuse_growth(figures, 32 << 10)
    return figures


def fed(target: Directories, data: bytes, limit_s: float = CPU_LIMIT_S) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        return target.feed(data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        what = "; ".join(target.done.steps)
        raise Failure(
            f"{type(error).__name__}: {error}\ninput: {data.hex()} ({target.template.name}): {what}"
        ) from error


def memory_folder() -> str | None:
    """A file system in memory, where there is one: syncs cost nothing there."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.directories", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="HEX", help="one input, as a failure prints it")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="camerlengo-fuzz-", dir=memory_folder()) as folder:
        target = Directories(Path(folder))
        if given.replay is not None:
            try:
                print(target.feed(bytes.fromhex(given.replay)))
            finally:
                print("\n".join([target.template.name, *target.done.steps]))
            return 0
        try:
            figures = fuzz(given.inputs, given.seed, target)
        except Failure as failure:
            print(f"seed {given.seed}: {failure}", file=sys.stderr)
            return 1
    print("\n".join(lines(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

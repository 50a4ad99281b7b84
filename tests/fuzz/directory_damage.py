"""What is done to a log directory's files, drawn from a seed, and how they come to be sound again: for
`tests/fuzz/directories.py`."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from controller.storage.checkpoints import TopicPartition
from tests.storage.batches import batch

MODIFIED_NS = 1_600_000_000 * 10**9
"""When each file of a sound directory was modified; what has another time is written again for the next start."""


@dataclass
class Damage:
    """What was done to a directory. `in_place`: bytes within a `.log` file are others now. `derived_only`: to files
    that are built again from the log, and to no others."""

    steps: list[str] = field(default_factory=list)
    in_place: bool = False
    derived_only: bool = True


class Sound:
    """A sound log directory: files by their paths within it, and each log's start and end as they were flushed. `done`
    and `outcome` are those of the present start."""

    def __init__(
        self, path: Path, files: Mapping[str, bytes], flushed: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        self.path = str(path)
        self.root = path
        self.flushed = flushed
        self.names = [f"{path}/{name}" for name in sorted(files)]
        self.done = Damage()
        self.outcome = ""
        self._files: dict[str, dict[str, bytes]] = {"": {}}
        for name, content in files.items():
            above, _, last = name.rpartition("/")
            self._files.setdefault(above, {})[last] = content
        self._written: dict[tuple[str, str], tuple[int, int, int, int]] = {}

    def restore(self) -> None:
        """Removes, writes and writes again what is not as it was."""
        self.done, self.outcome = Damage(), ""
        for above, files in self._files.items():
            directory = f"{self.path}/{above}" if above else self.path
            _make_directory(directory)
            there = set()
            for entry in os.scandir(directory):
                name = entry.name
                if not above and name in self._files:
                    continue
                if name in files and _identity(entry.stat(follow_symlinks=False)) == self._written.get((above, name)):
                    there.add(name)
                elif entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            for name in files.keys() - there:
                self._written[above, name] = _write(f"{directory}/{name}", files[name])


def _make_directory(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        os.mkdir(path)
        return
    if not stat.S_ISDIR(mode):
        os.unlink(path)
        os.mkdir(path)
    elif not mode & 0o700:
        os.chmod(path, 0o755)


def _write(path: str, content: bytes) -> tuple[int, int, int, int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, content)
        os.utime(fd, ns=(MODIFIED_NS, MODIFIED_NS))
        return _identity(os.fstat(fd))
    finally:
        os.close(fd)


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


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
    "t-00",
    "t-98",
    "t--1",
    "t-0-stray",
    "t-1.0123456789abcdef0123456789abcdef-future",
    "t-2.0123456789abcdef0123456789abcdef-delete",
    "lost+found",
    "meta.properties",
)
NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "7",
    "12",
    "1000000",
    "9223372036854775807",
    "9223372036854775808",
    "1" * 5_000,
    "x",
    "\u0663",
    "",
)
SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".log.swap", ".log.cleaned", ".log.deleted", ".tmp")


def damage(sound: Sound, others: Sequence[Sound], rng: random.Random) -> None:
    """One to three steps. `others`: further directories of the same start, which a step may touch as well."""
    done = sound.done
    wanted = len(done.steps) + rng.choice((1, 1, 1, 2, 3))
    for _ in range(STEPS_MAX):  # a step may find nothing to do
        if len(done.steps) >= wanted:
            break
        files = files_in(sound.path) if done.steps else sound.names
        if not files:
            break
        path = Path(rng.choice(files))
        step = rng.choice(STEPS)
        done.derived_only &= step in ONE_FILE and path.suffix in (".index", ".timeindex", ".snapshot")
        other = rng.choice(others) if others and rng.random() < 0.1 else sound
        try:
            if step in TWO_FILES:
                step(sound, path, rng, other)
                if other is not sound:
                    other.done.steps.append(f"(of {sound.root.name}: {done.steps[-1:]})")
                    other.done.in_place = done.in_place = done.in_place or other.done.in_place
                    other.done.derived_only = False
            else:
                step(sound, path, rng, sound)
        except OSError as error:  # an earlier step has put something else there
            done.steps.append(f"({step.__name__} {path.name}: {error.strerror})")


def files_in(directory: str, ends: tuple[str, ...] = ("",)) -> list[str]:
    """The paths of those whose names end so, at any depth; no links."""
    found, within = [], []
    for entry in sorted(os.scandir(directory), key=attrgetter("name")):
        if entry.is_dir(follow_symlinks=False):
            within.append(entry.path)
        elif not entry.is_symlink() and entry.name.endswith(ends):
            found.append(entry.path)
    return [*found, *(path for one in within for path in files_in(one, ends))]


def _said(sound: Sound, what: str, path: Path, more: object = "") -> None:
    sound.done.steps.append(f"{what} {path.relative_to(sound.root)} {more}".rstrip())


def _changed(sound: Sound, path: Path) -> None:
    sound.done.in_place |= ".log" in path.name


def delete(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    path.unlink()
    _said(sound, "delete", path)


def delete_directory(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    if path.parent != sound.root:
        shutil.rmtree(path.parent)
        _said(sound, "delete directory", path.parent)


def truncate(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    size = rng.randint(0, path.stat().st_size)
    os.truncate(path, size)
    _said(sound, "truncate", path, size)


def empty(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    os.truncate(path, 0)
    _said(sound, "empty", path)


def extend(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    more = rng.choice((bytes(rng.randint(1, 200)), rng.randbytes(rng.randint(1, 200)), path.read_bytes()))
    with path.open("ab") as file:
        file.write(more)
    _said(sound, "extend", path, len(more))


def garble(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(min(rng.choice((1, 1, 4, 16)), len(data))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    _changed(sound, path)
    _said(sound, "garble", path)


def zero(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    data = bytearray(path.read_bytes())
    begin = rng.randint(0, len(data))
    end = rng.randint(begin, len(data))
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    _changed(sound, path)
    _said(sound, "zero", path, (begin, end))


def overwrite(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    path.write_bytes(rng.randbytes(rng.choice((1, 8, 24, 100))))
    _changed(sound, path)
    _said(sound, "overwrite", path)


def rename(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    new = path.with_name(rng.choice((rng.choice(ODD_NAMES), _sibling(path, rng), path.name + rng.choice(SUFFIXES))))
    path.rename(new)
    _said(sound, "rename", path, new.name)


def copy(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    new = path.with_name(rng.choice((rng.choice(ODD_NAMES), _sibling(path, rng), path.name + rng.choice(SUFFIXES))))
    new.write_bytes(path.read_bytes())
    _said(sound, "copy", path, new.name)


def _sibling(path: Path, rng: random.Random) -> str:
    """A segment's file of another base offset or kind."""
    stem = path.name.partition(".")[0]
    base = int(stem) if stem.isdecimal() else 0
    return f"{max(base + rng.choice((-3, -1, 0, 0, 1, 2, 6)), 0):020d}{rng.choice(SUFFIXES)}"


def exchange(sound: Sound, path: Path, rng: random.Random, other: Sound) -> None:
    """Preferably with a file of the same kind, of any partition."""
    with_path = Path(rng.choice(files_in(other.path, (path.suffix,)) or [str(path)]))
    one, two = path.read_bytes(), with_path.read_bytes()
    path.write_bytes(two)
    with_path.write_bytes(one)
    _said(sound, "exchange", path, with_path)


def become_directory(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "within").write_bytes(b"x")
    _said(sound, "directory in place of", path)


def become_file(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    if path.parent != sound.root:
        shutil.rmtree(path.parent)
        path.parent.write_bytes(rng.randbytes(rng.choice((0, 9))))
        _said(sound, "file in place of", path.parent)


def become_link(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    path.unlink()
    path.symlink_to(rng.choice((path.name, "nowhere", "..")))
    _said(sound, "link in place of", path)


def forbid(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    rng.choice((path, path.parent)).chmod(0)
    _said(sound, "forbid", path)


def rename_directory(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    directory = path.parent
    if directory != sound.root:
        new = directory.with_name(
            rng.choice(("t-99", "t-98", "t-05", "t-0.1-stray", f"t-0.{'1' * 32}-delete", "other-0"))
        )
        directory.rename(new)
        _said(sound, "rename directory", directory, new.name)


def copy_directory(sound: Sound, path: Path, rng: random.Random, other: Sound) -> None:
    """To another name, or to another log directory."""
    directory = path.parent
    if directory != sound.root:
        new = other.root / rng.choice((directory.name, "t-97", "t-98"))
        if not new.exists():
            shutil.copytree(directory, new, symlinks=True)
            _said(sound, "copy directory", directory, new)


def stray(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    new = path.with_name(rng.choice(ODD_NAMES))
    if rng.random() < 0.3:
        new.mkdir(exist_ok=True)
        (new / "within").write_bytes(b"x")
    else:
        new.write_bytes(rng.choice((b"", b"x", rng.randbytes(70), batch(base_offset=5))))
    _said(sound, "stray", new)


def edit_text(sound: Sound, path: Path, rng: random.Random, _other: Sound) -> None:
    """A checkpoint or meta.properties, word by word."""
    path = Path(rng.choice(files_in(sound.path, ("checkpoint", ".properties", "metadata")) or [str(path)]))
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
    _said(sound, "edit", path, rows[row : row + 1])


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

STEPS_MAX = 20
TWO_FILES = (exchange, copy_directory)
ONE_FILE = (delete, truncate, empty, extend, garble, zero, overwrite)

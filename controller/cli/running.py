"""Discovery of what runs: each `camerlengo cluster` and `camerlengo broker` announces itself in a file, where other
commands find it.

The file is locked for as long as its process lives, so that one whose process was killed is known to be stale, and is
removed: a process id in a file that is locked is that of the process that wrote it. Files are in a folder of the user's
own: below $XDG_RUNTIME_DIR, or in the temporary directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from controller.cli.main import UsageError


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster that runs now, by the process that runs it. `zookeeper_config`: the file with the settings by which its
    ZooKeeper is reached, if it takes any."""

    pid: int
    zookeeper_connect: str
    zookeeper_config: Path | None = None


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker's process. `file`: its announcement, which is open until the caller closes it."""

    pid: int
    broker_id: int
    zookeeper_connect: str
    file: IO[str]

    def has_ended(self) -> bool:
        return not _is_locked(self.file)

    def end(self) -> tuple[bool, str | None]:
        """After it has ended: whether it noted a shutdown, and why its controlled part was not granted."""
        self.file.seek(0)
        content = json.load(self.file)
        return "end" in content, content.get("end")


def folder() -> Path:
    """Return where what this user runs announces itself."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "camerlengo"
    return Path(tempfile.gettempdir()) / f"camerlengo-{os.getuid()}"


class Announcement:
    """The file of this process, of a `kind`, from the first `put` to the end of the block. A folder that can't be used
    costs a warning."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._place = folder() / f"{kind}-{os.getpid()}.json"
        self._file: IO[str] | None = None
        self._content: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._file is not None:
            self._place.unlink(missing_ok=True)
            self._file.close()

    def put(self, content: dict[str, Any]) -> None:
        """Announce `content`, or replace what was announced before."""
        self._content = content
        if self._file is not None:
            self._write(self._file)
            return
        try:
            self._place.parent.mkdir(mode=0o700, exist_ok=True)
            _require_own(self._place.parent)
            partial = self._place.with_suffix(".part")
            file = partial.open("w", encoding="utf-8")
        except OSError as error:
            print(
                f"camerlengo {self._kind}: other commands cannot find this {self._kind} by default: {error}",
                file=sys.stderr,
            )
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        self._write(file)
        partial.replace(self._place)  # locked before it can be seen
        self._file = file

    def note_end(self, failure: str | None) -> None:
        """Tell who has the file open that this process shut down, and what was not granted to it."""
        if self._file is not None:
            self._content = {**self._content, "end": failure}
            self._write(self._file)

    def _write(self, file: IO[str]) -> None:
        file.seek(0)
        json.dump(self._content, file)
        file.truncate()
        file.flush()


@contextlib.contextmanager
def announced(zookeeper_connect: str, zookeeper_config: Path | None = None) -> Iterator[None]:
    """Announce a cluster of this process while the block runs."""
    with Announcement("cluster") as announcement:
        content: dict[str, Any] = {"pid": os.getpid(), "zookeeper.connect": zookeeper_connect}
        if zookeeper_config is not None:
            content["zookeeper.config"] = str(zookeeper_config.absolute())
        announcement.put(content)
        yield


def running() -> list[Running]:
    """Return the clusters that run now, by process id."""
    found = []
    for file, content in _announcements("cluster"):
        file.close()
        with contextlib.suppress(KeyError, TypeError, ValueError):
            config = content.get("zookeeper.config")
            place = None if config is None else Path(config)
            found.append(Running(int(content["pid"]), str(content["zookeeper.connect"]), place))
    return sorted(found, key=lambda each: each.pid)


def running_brokers() -> list[RunningBroker]:
    """Return the brokers that run now, by cluster and id. Their files stay open."""
    found = []
    for file, content in _announcements("broker"):
        try:
            connect = str(content["zookeeper.connect"])
            found.append(RunningBroker(int(content["pid"]), int(content["broker.id"]), connect, file))
        except (KeyError, TypeError, ValueError):
            file.close()
    return sorted(found, key=lambda each: (each.zookeeper_connect, each.broker_id, each.pid))


def the_running(otherwise: str) -> Running:
    """Return the one cluster that runs. UsageError, naming the options that say it `otherwise`,
    if none does or several do."""
    clusters = running()
    if not clusters:
        raise UsageError(f"expected {otherwise}: no `camerlengo cluster` of this user is running on this machine")
    if len(clusters) > 1:
        several = "".join(f"\n  --zookeeper {each.zookeeper_connect}  (process {each.pid})" for each in clusters)
        raise UsageError(f"expected {otherwise}: {len(clusters)} clusters are running on this machine:{several}")
    return clusters[0]


def _announcements(kind: str) -> Iterator[tuple[IO[str], Any]]:
    """The open file and the content of each announcement whose process lives; the others are removed."""
    try:
        _require_own(folder())
        places = sorted(folder().glob(f"{kind}-*.json"))
    except OSError:
        return
    for place in places:
        try:
            file = place.open("r+", encoding="utf-8")
        except OSError:
            continue
        try:
            if _is_locked(file):
                yield file, json.load(file)
                continue
            place.unlink(missing_ok=True)
        except (OSError, ValueError):
            pass
        file.close()


def _is_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _require_own(place: Path) -> None:
    """PermissionError for a folder that others may have made or may write to."""
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{place} is not a directory that only this user can write to")

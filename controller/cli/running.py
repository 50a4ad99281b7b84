"""Discovery of running clusters: each `camerlengo cluster` announces itself in a file, where other commands find it.

The file is locked for as long as its process lives, so that one whose process was killed is known to be stale, and is
removed. Files are in a folder of the user's own: below $XDG_RUNTIME_DIR, or in the temporary directory.
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

from controller.cli.main import UsageError


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster that runs now, by the process that runs it."""

    pid: int
    zookeeper_connect: str


def folder() -> Path:
    """Return where clusters of this user announce themselves."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "camerlengo"
    return Path(tempfile.gettempdir()) / f"camerlengo-{os.getuid()}"


@contextlib.contextmanager
def announced(zookeeper_connect: str) -> Iterator[None]:
    """Announce a cluster of this process while the block runs. A folder that can't be used costs a warning."""
    place = folder() / f"cluster-{os.getpid()}.json"
    try:
        place.parent.mkdir(mode=0o700, exist_ok=True)
        _require_own(place.parent)
        partial = place.with_suffix(".part")
        file = partial.open("w", encoding="utf-8")
    except OSError as error:
        print(f"camerlengo cluster: other commands cannot find this cluster by default: {error}", file=sys.stderr)
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": os.getpid(), "zookeeper.connect": zookeeper_connect}, file)
        file.flush()
        partial.replace(place)  # locked before it can be seen
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def running() -> list[Running]:
    """Return the clusters that run now, by process id."""
    try:
        _require_own(folder())
        places = sorted(folder().glob("cluster-*.json"))
    except OSError:
        return []
    found = [each for place in places if (each := _read(place)) is not None]
    return sorted(found, key=lambda each: each.pid)


def zookeeper_of_running(otherwise: str) -> str:
    """Return zookeeper.connect of the one cluster that runs. UsageError, naming the options that say it `otherwise`,
    if none does or several do."""
    clusters = running()
    if not clusters:
        raise UsageError(f"expected {otherwise}: no `camerlengo cluster` of this user is running on this machine")
    if len(clusters) > 1:
        several = "".join(f"\n  --zookeeper {each.zookeeper_connect}  (process {each.pid})" for each in clusters)
        raise UsageError(f"expected {otherwise}: {len(clusters)} clusters are running on this machine:{several}")
    return clusters[0].zookeeper_connect


def _read(place: Path) -> Running | None:
    """None for a file whose process has ended, which is removed, and for one that is not ours to read."""
    try:
        with place.open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = json.load(file)
                return Running(int(content["pid"]), str(content["zookeeper.connect"]))
            place.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _require_own(place: Path) -> None:
    """PermissionError for a folder that others may have made or may write to."""
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{place} is not a directory that only this user can write to")

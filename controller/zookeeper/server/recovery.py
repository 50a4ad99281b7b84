"""What a ZooKeeper server reads at its start: the newest complete snapshot, and the log from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from controller.zookeeper.memory.database import DataTree
from controller.zookeeper.server.files import DataDirectory
from controller.zookeeper.server.log import (
    LOG_MAGIC,
    SNAPSHOT_MAGIC,
    DamagedDataFile,
    Frames,
    log_name,
    read_frames,
    zxid_of,
)
from controller.zookeeper.server.transactions import (
    GROUPS,
    SNAPSHOTS,
    DurableState,
    LoggedTransaction,
    SessionRecord,
    SnapshotEnd,
    SnapshotHead,
    SnapshotNodes,
)

SNAPSHOT_PREFIX: Final = "snapshot."
TEMPORARY: Final = ".tmp"


class Recovered(NamedTuple):
    """The state of a data directory, and where its log goes on."""

    tree: DataTree
    sessions: dict[int, SessionRecord]
    zxid: int
    last_session: int
    log: str
    """The file to append to."""
    salt: int | None
    """That file's; None if it has to be begun."""
    replayed: int
    """Transactions that came after the snapshot."""
    replayed_bytes: int
    snapshot_bytes: int
    warnings: list[str]


def snapshot_name(zxid: int) -> str:
    return f"{SNAPSHOT_PREFIX}{zxid:016x}"


def recover(directory: DataDirectory) -> Recovered:
    """Read a data directory, and cut an incomplete group of transactions from the end of its log.

    Raises OSError; DamagedDataFile if something is missing or damaged that cannot be the end of an unsynced write.
    """
    warnings: list[str] = []
    names = directory.names()
    for name in names:
        if name.endswith(TEMPORARY):
            directory.remove(name)  # a snapshot that a crash interrupted
    state, snapshot_bytes = _newest_snapshot(directory, names, warnings)
    logs = [name for name in names if zxid_of(name) is not None]
    first = max((at for at, name in enumerate(logs) if (zxid_of(name) or 0) <= state.zxid + 1), default=0)
    salt: int | None = None
    replayed = replayed_bytes = end = 0
    for at, name in enumerate(logs[first:], first):
        data = directory.read(name)
        frames = _frames_of(directory, name, data, is_last=at == len(logs) - 1, warnings=warnings)
        if frames is None:
            salt = None
            continue
        if frames.zxid > state.zxid + 1:
            raise DamagedDataFile(
                str(directory.path / name), 0, f"transaction 0x{state.zxid + 1:x}, found 0x{frames.zxid:x}"
            )
        salt, end = frames.salt, frames.size
        replayed_bytes += frames.size
        replayed += _replay(str(directory.path / name), frames, state)
    log = logs[-1] if logs else log_name(state.zxid + 1)
    if state.zxid < state.through:
        raise DamagedDataFile(
            str(directory.path / log),
            end,
            f"transactions up to 0x{state.through:x}, since a snapshot has effects of them, found 0x{state.zxid:x}",
        )
    try:
        tree = state.tree()
    except KeyError as error:
        raise DamagedDataFile(
            str(directory.path / log), end, f"a znode {error.args[0]}, the parent of another"
        ) from error
    return Recovered(
        tree,
        state.sessions,
        state.zxid,
        state.last_session,
        log,
        salt,
        replayed,
        replayed_bytes,
        snapshot_bytes,
        warnings,
    )


def _newest_snapshot(directory: DataDirectory, names: Sequence[str], warnings: list[str]) -> tuple[DurableState, int]:
    for name in reversed(names):
        if zxid_of(name, SNAPSHOT_PREFIX) is None:
            continue
        data = directory.read(name)
        try:
            return _read_snapshot(str(directory.path / name), data), len(data)
        except DamagedDataFile as error:
            warnings.append(f"passed over a damaged snapshot: {error}")
    return DurableState(), 0


def _read_snapshot(name: str, data: bytes) -> DurableState:
    frames = read_frames(name, data, SNAPSHOT_MAGIC)
    if frames is None:
        raise DamagedDataFile(name, 0, "a header with a valid CRC")
    if frames.size != len(data):
        raise DamagedDataFile(name, frames.size, "a frame with a valid CRC")
    state = DurableState()
    state.nodes.clear()
    end: SnapshotEnd | None = None
    for offset, payload in frames.payloads:
        try:
            item = SNAPSHOTS.decode(payload)
        except msgspec.DecodeError as error:
            raise DamagedDataFile(name, offset, f"a part of a snapshot: {error}") from error
        if isinstance(item, SnapshotHead):
            state.zxid, state.last_session = item.zxid, item.last_session
            state.sessions = {each.id: each for each in item.sessions}
        elif isinstance(item, SnapshotNodes):
            state.put(item.nodes)
        else:
            end = item
    if end is None:
        raise DamagedDataFile(name, len(data), "the last frame of a snapshot")
    state.through = end.through
    return state


def _frames_of(
    directory: DataDirectory, name: str, data: bytes, *, is_last: bool, warnings: list[str]
) -> Frames | None:
    """Return the frames of a log. What follows the last valid one is cut off, in the last file alone."""
    where = str(directory.path / name)
    frames = read_frames(where, data, LOG_MAGIC)
    size = 0 if frames is None else frames.size
    if size == len(data) and frames is not None:
        return frames
    if not is_last:
        raise DamagedDataFile(where, size, "a frame with a valid CRC, since a later log file exists")
    if size < len(data):
        warnings.append(
            f"{where}: cut off {len(data) - size} bytes from offset {size}:"
            " an incomplete group of transactions, which no client had a reply for"
        )
        directory.truncate(name, size)
    return frames


def _replay(name: str, frames: Frames, state: DurableState) -> int:
    """Apply the transactions of a file that the state has not; return their number."""
    expected = frames.zxid
    replayed = 0
    for offset, transaction in _transactions(name, frames):
        if transaction.zxid != expected:
            raise DamagedDataFile(name, offset, f"transaction 0x{expected:x}, found 0x{transaction.zxid:x}")
        expected += 1
        if transaction.zxid > state.zxid:
            state.replay(transaction)
            replayed += 1
    return replayed


def _transactions(name: str, frames: Frames) -> Iterator[tuple[int, LoggedTransaction]]:
    for offset, payload in frames.payloads:
        try:
            group = GROUPS.decode(payload)
        except msgspec.DecodeError as error:
            raise DamagedDataFile(name, offset, f"a group of transactions: {error}") from error
        for transaction in group:
            yield offset, transaction

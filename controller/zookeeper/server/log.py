"""The write-ahead log of a ZooKeeper server: the format of its files, how they are read, and the group commit.

A file is a header and frames. Header: 8 bytes that name the kind of file, a random salt (4 bytes), a zxid (8) and a
CRC-32 of these. Frame: `ZKgp`, the payload's length (4), a CRC-32 over length and payload that starts with the salt
(4), the payload. Numbers are big-endian. A znode's data can hold a frame's bytes, but not with the salt of its file.

The frames of a log are groups of transactions, each group written and synced before the next is begun. So a crash of
the machine can leave at most the last frame incomplete, and no client was answered for it.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from controller.zookeeper.server.files import AppendedFile, DataDirectory

LOG_MAGIC: Final = b"ZKpylog1"
SNAPSHOT_MAGIC: Final = b"ZKpysnp1"
_FRAME_MAGIC: Final = b"ZKgp"
_HEADER: Final = Struct("!8sIq")
_CRC: Final = Struct("!I")
_FRAME: Final = Struct("!4sII")
HEADER_SIZE: Final = _HEADER.size + _CRC.size
_LOG_PREFIX: Final = "log."
_PACK: Final = msgspec.msgpack.Encoder()


class DamagedDataFile(Exception):
    """A file of the data directory is not what a server wrote. The message names file, offset and what was expected."""

    def __init__(self, name: str, offset: int, expected: str) -> None:
        super().__init__(f"{name}, offset {offset}: expected {expected}")


class Frames(NamedTuple):
    """What a file holds: its salt and zxid, the (offset, payload) of each frame, and the size up to the last one."""

    salt: int
    zxid: int
    payloads: list[tuple[int, bytes]]
    size: int


def log_name(zxid: int) -> str:
    """Return the name of the log file whose first transaction is `zxid`."""
    return f"{_LOG_PREFIX}{zxid:016x}"


def zxid_of(name: str, prefix: str = _LOG_PREFIX) -> int | None:
    """Return the zxid in a file's name, None if it is not the name of such a file."""
    digits = name.removeprefix(prefix)
    try:
        return int(digits, 16) if name.startswith(prefix) and len(digits) == 16 else None
    except ValueError:
        return None


def header(magic: bytes, zxid: int, salt: int) -> bytes:
    packed = _HEADER.pack(magic, salt, zxid)
    return packed + _CRC.pack(zlib.crc32(packed))


def frame(payload: bytes, salt: int) -> bytes:
    length = len(payload)
    return _FRAME.pack(_FRAME_MAGIC, length, _checksum(length, payload, salt)) + payload


def new_salt() -> int:
    return int.from_bytes(os.urandom(4))


def _checksum(length: int, payload: bytes, salt: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_CRC.pack(length), salt))


def _payload_at(data: bytes, offset: int, salt: int) -> bytes | None:
    """Return the payload of the frame at `offset`, None if there is no valid one."""
    start = offset + _FRAME.size
    if start > len(data):
        return None
    magic, length, checksum = _FRAME.unpack_from(data, offset)
    if magic != _FRAME_MAGIC or length > len(data) - start:
        return None
    payload = data[start : start + length]
    return payload if _checksum(length, payload, salt) == checksum else None


def read_frames(name: str, data: bytes, magic: bytes) -> Frames | None:
    """Return what a file holds up to its end, or up to an incomplete last frame; None for an incomplete header alone.

    Raises DamagedDataFile if anything valid follows what is not.
    """
    whole = _HEADER.size
    if len(data) < HEADER_SIZE or _CRC.unpack_from(data, whole)[0] != zlib.crc32(data[:whole]):
        if len(data) <= HEADER_SIZE:
            return None
        raise DamagedDataFile(name, 0, "a header with a valid CRC")
    found, salt, zxid = _HEADER.unpack_from(data)
    if found != magic:
        raise DamagedDataFile(name, 0, f"{magic!r}, found {found!r}")
    payloads: list[tuple[int, bytes]] = []
    offset = HEADER_SIZE
    while (payload := _payload_at(data, offset, salt)) is not None:
        payloads.append((offset, payload))
        offset += _FRAME.size + len(payload)
    later = offset
    while (later := data.find(_FRAME_MAGIC, later + 1)) != -1:
        if _payload_at(data, later, salt) is not None:
            raise DamagedDataFile(name, offset, f"a frame with a valid CRC, since there is one at {later}")
    return Frames(salt, zxid, payloads, offset)


class _Roll(NamedTuple):
    """Begin a new file with the transaction `zxid`."""

    zxid: int


class TransactionLog:
    """Writes transactions to the newest log file, in order, and says how far they are durable.

    With `fsync`, a thread writes and syncs all transactions that came while it synced those before: one group. Then
    `on_durable(zxid)` is called, on that thread. Without, each transaction is handed to the system when it comes.
    After the first error nothing more is written; `on_failure` is called once, on the thread that met the error.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        fsync: bool,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.groups = 0
        """How many groups were written."""
        self._directory = directory
        self._fsync = fsync
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._file: AppendedFile | None = None
        self._salt = 0
        self._zxid = 0
        self._failed = False
        self._changed = threading.Condition()
        self._pending: list[bytes | _Roll] = []
        self._idle = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def open(self, zxid: int, salt: int | None, name: str) -> None:
        """Append to file `name`, which has `salt`, or begin it if that is None; `zxid` is the last transaction's.

        Raises OSError.
        """
        self._zxid = zxid
        if salt is None:
            self._begin(name, zxid + 1)
        else:
            self._salt = salt
            self._file = self._directory.open(name)
            if self._fsync:
                self._file.sync()  # what a killed server wrote and did not sync is served from now on
        if self._fsync:
            self._thread = threading.Thread(target=self._run, name="zookeeper-log", daemon=True)
            self._thread.start()

    def append(self, transaction: bytes) -> bool:
        """Log the next transaction. Return whether that is done; if not, `on_durable` says when it is."""
        if self._thread is None:
            return self._attempt([transaction])
        self._put(transaction)
        return False

    def roll(self, zxid: int) -> None:
        """Begin a new file with the transaction `zxid`, which is the next."""
        if self._thread is None:
            self._attempt([_Roll(zxid)])
        else:
            self._put(_Roll(zxid))

    def sync(self) -> None:
        """Put on the disk what was handed to the system. Raises OSError."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Write and sync what is pending."""
        if self._thread is not None:
            with self._changed:
                self._closing = True
                self._changed.notify()
            self._thread.join()
            self._thread = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, item: bytes | _Roll) -> None:
        with self._changed:
            self._pending.append(item)
            if self._idle:
                self._idle = False
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending:
                    if self._closing:
                        return
                    self._idle = True
                    self._changed.wait()
                pending, self._pending = self._pending, []
            if not self._attempt(pending):
                return

    def _attempt(self, items: list[bytes | _Roll]) -> bool:
        if self._failed:
            return False
        try:
            self._write(items)
        except Exception as error:  # noqa: BLE001 - clients would wait for a thread that has ended
            self._failed = True
            self._on_failure(error)
            return False
        if self._fsync:
            self._on_durable(self._zxid)
        return True

    def _write(self, items: list[bytes | _Roll]) -> None:
        group: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                group.append(item)
                continue
            self._write_group(group)
            group = []
            assert self._file is not None
            if not self._fsync:
                self._file.sync()  # the new file's name must not outlast what comes before it
            self._file.close()
            self._begin(log_name(item.zxid), item.zxid)
        self._write_group(group)

    def _write_group(self, group: list[bytes]) -> None:
        if not group:
            return
        assert self._file is not None
        self._file.append(frame(_PACK.encode([msgspec.Raw(each) for each in group]), self._salt))
        if self._fsync:
            self._file.sync()
        self.groups += 1
        self._zxid += len(group)

    def _begin(self, name: str, zxid: int) -> None:
        self._salt = new_salt()
        self._file = self._directory.open(name)
        self._file.append(header(LOG_MAGIC, zxid, self._salt))
        if self._fsync:
            self._file.sync()
            self._directory.sync_names()

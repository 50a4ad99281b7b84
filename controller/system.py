"""Calls of the operating system that Linux, macOS and Windows have under different names, or not at all.

Callers import nothing of one system alone (`fcntl`, `resource`, `msvcrt`), so that they run on all three.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

OPEN_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""For every `os.open`: children do not inherit the descriptor, and bytes are not changed."""
MAY_MOVE_OPEN_FILES: Final = sys.platform != "win32"
"""False: a file that is open, and a directory above it, can be neither renamed nor removed nor replaced."""
OPEN_MAX: Final = 10_240
"""The most descriptors that macOS lets a process ask for, whatever the hard limit says."""


def descriptor_limit() -> int | None:
    """Return how many descriptors the process may have (the soft limit), None if there is no limit."""
    if sys.platform == "win32":
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one. Raises OSError or ValueError if the system refuses."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if sys.platform == "darwin" and not 0 <= hard <= OPEN_MAX:
            hard = OPEN_MAX
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def try_lock(fd: int) -> bool:
    """Lock an open file exclusively, until it is closed. Return False if it is locked through another descriptor."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def sync_data(fd: int) -> None:
    """Put a file's bytes and length on the disk. `fd` must be open for writing on Windows."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # its fsync leaves the bytes in the drive's cache
        except OSError:  # a file system without it
            os.fsync(fd)
    elif sys.platform == "win32":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_file(path: str) -> None:
    """`sync_data` of a file that is not open."""
    fd = os.open(path, OPEN_FLAGS | (os.O_RDONLY if MAY_MOVE_OPEN_FILES else os.O_RDWR))
    try:
        sync_data(fd)
    finally:
        os.close(fd)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Put the names in a directory on the disk. Windows has no call for that, and its file system journals names."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: str) -> bool:
    """Put the whole file system of a directory on the disk. Return False where the system has no call for that."""
    if sys.platform != "linux":
        return False
    import ctypes  # rarely needed, and slow to import

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)
    return True


def allow_reuse(sock: socket.socket) -> None:
    """Let a socket be bound to an address on which closed connections still wait for their end (TIME_WAIT).

    Windows lets it without an option; there, SO_REUSEADDR would share the port with sockets that listen.
    """
    if sys.platform != "win32":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


_position = threading.Lock()
"""Where reads and writes share a position, one of them at a time."""


def read_at(fd: int, length: int, position: int) -> bytes:
    """Read at a position, as `os.pread`."""
    if sys.platform == "win32":
        with _position:
            os.lseek(fd, position, os.SEEK_SET)
            return os.read(fd, length)
    else:
        return os.pread(fd, length, position)


def append(fd: int, data: bytes | bytearray | memoryview) -> int:
    """Write at the end of a file that was opened with O_APPEND, as `os.write`."""
    if sys.platform == "win32":
        with _position:
            return os.write(fd, data)
    else:
        return os.write(fd, data)

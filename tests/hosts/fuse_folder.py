"""A FUSE file system that shows a directory, and stops answering when its process is stopped (SIGSTOP).

    python -m tests.hosts.fuse_folder KERNEL FOLDER

serves the file system on the descriptor KERNEL of /dev/fuse. It writes back: what is written goes to the page cache
first, as with a local disk. Only the kernel may change the folder meanwhile. `mounted_folder` mounts it in the calling
process's mount namespace. When the server's process ends, however that happens, the kernel aborts the connection:
whatever waits for it gets an error, and no process is left that can't be killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from controller.labs.tiers.fuse import (
    ATTRIBUTES,
    ATTRIBUTES_OUT,
    ENTRY,
    FILE_MODE,
    FOREVER_S,
    FSYNC,
    GETATTR,
    INIT,
    IO_IN,
    KEEP_CACHE,
    LOOKUP,
    OPEN,
    OPEN_OUT,
    PAGE,
    READ,
    RELEASE,
    SETATTR,
    WRITE,
    WRITE_OUT,
    KernelConnection,
    init_answer,
    mount,
)

MKDIR, UNLINK, RMDIR, RENAME, STATFS = 9, 10, 11, 12, 17
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, CREATE, RENAME2 = 27, 28, 29, 30, 35, 45
STATFS_OUT = struct.Struct("<QQQQQIIII6I")
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
DIRENT = struct.Struct("<QQII")
NUMBER, TWO_NUMBERS, FOUR_NUMBERS, HANDLE = (struct.Struct(each) for each in ("<Q", "<II", "<IIII", "<QI"))
SET_SIZE, SET_MTIME = 1 << 3, 1 << 5
READ_AHEAD = 128 * 1024
MAX_WRITE_PAGES = 32
ROOT = 1
PR_SET_PDEATHSIG, MNT_DETACH = 1, 2


class Folder:
    """The kernel's requests, carried out in a directory, one after the other. There is no FLUSH: the kernel would wait
    for it when a process ends, and a local disk has nothing like it."""

    def __init__(self, kernel: int, folder: str) -> None:
        self._connection = KernelConnection(kernel)
        self._paths = {ROOT: folder}
        self._nodes = {folder: ROOT}
        self._removed_nodes: set[int] = set()
        self._answers: Mapping[int, Callable[[int, bytes], bytes]] = {
            INIT: lambda _node, _body: init_answer(READ_AHEAD, MAX_WRITE_PAGES),
            LOOKUP: lambda node, body: self._entry(self._child(node, body)),
            GETATTR: lambda node, _: (
                ATTRIBUTES_OUT.pack(FOREVER_S, 0, 0) + self._attributes(os.lstat(self._paths[node]))
            ),
            SETATTR: self._set_attributes,
            MKDIR: self._make_directory,
            CREATE: self._create,
            UNLINK: lambda node, body: self._removed(os.unlink, node, body),
            RMDIR: lambda node, body: self._removed(os.rmdir, node, body),
            RENAME: lambda node, body: self._rename(node, NUMBER.unpack_from(body)[0], body[NUMBER.size :]),
            RENAME2: lambda node, body: self._rename(node, NUMBER.unpack_from(body)[0], body[2 * NUMBER.size :]),
            OPEN: lambda node, body: OPEN_OUT.pack(self._open(self._paths[node], body), KEEP_CACHE, 0),
            READ: self._read,
            WRITE: self._write,
            FSYNC: self._sync,
            RELEASE: self._release,
            OPENDIR: lambda _node, _body: OPEN_OUT.pack(0, 0, 0),
            READDIR: self._names,
            RELEASEDIR: lambda _node, _body: b"",
            FSYNCDIR: lambda _node, _body: b"",
            STATFS: self._space,
        }

    def serve(self) -> None:
        """Return when the file system is unmounted."""
        for opcode, unique, node, _, body in self._connection.requests():
            handler = self._answers.get(opcode)
            try:
                if handler is None:
                    raise OSError(errno.ENOSYS, "")
                self._connection.answer(unique, handler(node, body))
            except OSError as error:
                self._connection.answer(unique, error=error.errno or errno.EIO)

    def _child(self, node: int, body: bytes) -> str:
        return f"{self._paths[node]}/{os.fsdecode(body.split(bytes(1), 1)[0])}"

    def _entry(self, path: str) -> bytes:
        found = os.lstat(path)
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = len(self._paths) + ROOT
            self._paths[node] = path
        return ENTRY.pack(node, 0, FOREVER_S, FOREVER_S, 0, 0) + self._attributes(found)

    def _attributes(self, found: os.stat_result) -> bytes:
        times = [divmod(each, 10**9) for each in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
        seconds, parts = zip(*times, strict=True)
        owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, PAGE, 0)
        return ATTRIBUTES.pack(found.st_ino, found.st_size, found.st_blocks, *seconds, *parts, *owner)

    def _set_attributes(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, *_ = SETATTR_IN.unpack_from(body)
        path = self._paths[node]
        if valid & SET_SIZE:
            os.truncate(path, size)
        if valid & SET_MTIME and node not in self._removed_nodes:
            os.utime(path, ns=(os.lstat(path).st_atime_ns, mtime * 10**9 + mtime_ns))
        return self._attributes_of(node)

    def _attributes_of(self, node: int) -> bytes:
        """An empty file's, if it was removed and may still be open: the kernel knows the size by itself."""
        if node in self._removed_nodes:
            attributes = ATTRIBUTES.pack(node, *[0] * 8, FILE_MODE, 0, 0, 0, 0, PAGE, 0)
        else:
            attributes = self._attributes(os.lstat(self._paths[node]))
        return ATTRIBUTES_OUT.pack(FOREVER_S, 0, 0) + attributes

    def _make_directory(self, node: int, body: bytes) -> bytes:
        mode, umask = TWO_NUMBERS.unpack_from(body)
        path = self._child(node, body[TWO_NUMBERS.size :])
        os.mkdir(path, mode & ~umask)
        return self._entry(path)

    def _create(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[FOUR_NUMBERS.size :])
        handle = self._open(path, body, os.O_CREAT)
        return self._entry(path) + OPEN_OUT.pack(handle, KEEP_CACHE, 0)

    def _open(self, path: str, body: bytes, also: int = 0) -> int:
        # The kernel reads what surrounds what it writes back, and has found out where that goes.
        return os.open(path, os.O_RDWR | also | TWO_NUMBERS.unpack_from(body)[0] & (os.O_EXCL | os.O_TRUNC), 0o644)

    def _removed(self, remove: Callable[[str], None], node: int, body: bytes) -> bytes:
        path = self._child(node, body)
        remove(path)
        node_removed = self._nodes.pop(path, None)
        if node_removed is not None:
            self._removed_nodes.add(node_removed)
        return b""

    def _rename(self, node: int, into: int, names: bytes) -> bytes:
        old, new, *_ = names.split(bytes(1))
        before, after = self._child(node, old), self._child(into, new)
        os.rename(before, after)
        for path, number in list(self._nodes.items()):
            if path == before or path.startswith(before + "/"):
                del self._nodes[path]
                self._paths[number] = after + path[len(before) :]
                self._nodes[self._paths[number]] = number
        return b""

    def _read(self, _node: int, body: bytes) -> bytes:
        handle, at, nbytes, *_ = IO_IN.unpack_from(body)
        return os.pread(handle, nbytes, at)

    def _write(self, _node: int, body: bytes) -> bytes:
        handle, at, nbytes, *_ = IO_IN.unpack_from(body)
        return WRITE_OUT.pack(os.pwrite(handle, body[IO_IN.size : IO_IN.size + nbytes], at), 0)

    def _sync(self, _node: int, body: bytes) -> bytes:
        os.fdatasync(HANDLE.unpack_from(body)[0])
        return b""

    def _release(self, _node: int, body: bytes) -> bytes:
        os.close(HANDLE.unpack_from(body)[0])
        return b""

    def _names(self, node: int, body: bytes) -> bytes:
        _, begin, nbytes, *_ = IO_IN.unpack_from(body)
        data = b""
        for number, name in enumerate(sorted(os.listdir(self._paths[node])), 1):
            entry = DIRENT.pack(number, number, len(os.fsencode(name)), 0) + os.fsencode(name)
            entry += bytes(-len(entry) % 8)
            if number > begin:
                if len(data) + len(entry) > nbytes:
                    break
                data += entry
        return data

    def _space(self, _node: int, _body: bytes) -> bytes:
        found = os.statvfs(self._paths[ROOT])
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return STATFS_OUT.pack(*counts, found.f_bsize, found.f_namemax, found.f_frsize, 0, *[0] * 6)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def mounted_folder(folder: Path, mounted: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server of the file system, which shows `folder` at `mounted` in this process's mount namespace from here on,
    and to no other process but its children. Raises OSError."""
    kernel = os.open("/dev/fuse", os.O_RDWR)
    try:
        mount(kernel, str(mounted))
        words = [sys.executable, "-m", "tests.hosts.fuse_folder", str(kernel), str(folder)]
        server = subprocess.Popen(words, pass_fds=[kernel], preexec_fn=_end_with_parent)
    finally:
        os.close(kernel)
    try:
        yield server
    finally:
        server.kill()  # a process that is stopped, too; with its descriptor the connection ends
        server.wait()
        ctypes.CDLL(None).umount2(os.fsencode(mounted), MNT_DETACH)


if __name__ == "__main__":
    Folder(int(sys.argv[1]), sys.argv[2]).serve()

"""The in-process part as on macOS or Windows: what those systems lack is taken away from this interpreter.

    python -m tests.other_systems darwin|win32 [STEP...]

takes it away, runs the steps (all by default), and prints a line for each. It shows that no call is made which a system
does not have, and that files and ports are used as it allows; it does not replace a run on that system.

The standard library and other packages are imported before `sys.platform` is changed: their own ways on a system are
theirs. Files: no name with a character that Windows refuses; no open file or directory above one is renamed, replaced
or removed; a directory can't be opened. Ports: two sockets can't be bound to one, whatever their options.
"""

from __future__ import annotations

import argparse
import asyncio
import builtins
import errno
import fcntl
import importlib
import io
import os
import select
import selectors
import shutil
import socket
import sys
import tempfile
import time
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = (
    "concurrent.futures confluent_kafka crc32c cramjam kazoo.client loguru msgspec numpy subprocess tenacity"
    " transitions"
)
"""What the steps use, imported while the system is still this one."""

LINUX_ALONE: Mapping[str, str] = {
    "os": "copy_file_range eventfd fdatasync getresuid memfd_create pidfd_open posix_fadvise posix_fallocate preadv2 "
    "pwritev2 sched_getaffinity sched_setaffinity splice O_DIRECT O_PATH O_TMPFILE",
    "select": "epoll",
    "selectors": "EpollSelector",
    "socket": "AF_NETLINK AF_PACKET AF_VSOCK MSG_MORE SO_BINDTODEVICE TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT",
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo",
    "time": "CLOCK_BOOTTIME",
}
POSIX_ALONE: Mapping[str, str] = {
    "os": "WNOHANG chown chroot confstr fchdir fchmod fchown fork forkpty fstatvfs getegid geteuid getgid getgroups "
    "getloadavg getpgid getpriority getsid getuid initgroups kill killpg lchown lockf major mkfifo mknod nice openpty "
    "pathconf posix_openpt posix_spawn pread preadv pwrite pwritev readv register_at_fork sendfile set_blocking "
    "setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp ttyname umask uname wait wait3 wait4 waitid "
    "waitpid writev O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC",
    "select": "poll",
    "selectors": "PollSelector",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 alarm pause "
    "pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait",
    "socket": "AF_UNIX CMSG_LEN SCM_RIGHTS SO_REUSEPORT fromfd recv_fds send_fds sethostname",
    "time": "clock_getres clock_gettime clock_settime pthread_getcpuclockid tzset",
}
POSIX_MODULES = "fcntl grp posix pty pwd resource syslog termios tty"
LINUX_PLACES = ("/proc", "/dev/shm", "/sys")
FULL_SYNC = 51
BEGAN_AS = sys.platform
REFUSED = frozenset('<>"|?*:\\')
"""Characters that no name on Windows has."""


class _Absent:
    """An attribute of a class that the class does not have."""

    def __get__(self, _instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__}: not on this system")


def become(platform: str) -> None:
    """Take away what `platform` ("darwin" or "win32") does not have."""
    for name in PACKAGES.split():
        importlib.import_module(name)
    windows = platform == "win32"
    for absent in (LINUX_ALONE, POSIX_ALONE) if windows else (LINUX_ALONE,):
        for module, names in absent.items():
            for name in names.split():
                vars(sys.modules[module]).pop(name, None)
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc, assignment]
    _bind_each_port_once()
    _refuse_files(windows)
    if not windows:
        _sync_with_fcntl()
    else:
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        for name in POSIX_MODULES.split():
            sys.modules[name] = None  # type: ignore[assignment]
        sys.modules["msvcrt"] = _msvcrt()
        for name in ("sendmsg", "recvmsg", "recvmsg_into"):
            setattr(socket.socket, name, _Absent())
        socket.socketpair = _socketpair  # type: ignore[assignment]
        os.O_BINARY = 0  # type: ignore[attr-defined]
        _default_loop_as_on_windows()
    sys.platform = platform


def _sync_with_fcntl() -> None:
    control = fcntl.fcntl

    def with_full_sync(fd: int, command: int, *args: Any) -> Any:
        return os.fsync(fd) if command == FULL_SYNC else control(fd, command, *args)

    fcntl.F_FULLFSYNC = FULL_SYNC  # type: ignore[attr-defined]
    fcntl.fcntl = with_full_sync  # type: ignore[assignment]


def _msvcrt() -> types.ModuleType:
    made = types.ModuleType("msvcrt")
    flock = fcntl.flock

    def locking(fd: int, mode: int, _length: int) -> None:
        assert mode == made.LK_NBLCK
        try:
            flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    made.LK_NBLCK, made.locking = 2, locking  # type: ignore[attr-defined]
    return made


def _socketpair(*_: object) -> tuple[socket.socket, socket.socket]:
    """As the standard library's for Windows: over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


def _bind_each_port_once() -> None:
    bound: weakref.WeakSet[socket.socket] = weakref.WeakSet()
    bind = socket.socket.bind

    def bind_once(self: socket.socket, address: Any) -> None:
        if address[1] and any(one.fileno() != -1 and one.getsockname()[1] == address[1] for one in bound):
            raise OSError(errno.EADDRINUSE, "Address already in use")
        # Without this Linux refuses a port on which closed connections wait for their end; Windows does not.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind(self, address)
        bound.add(self)

    socket.socket.bind = bind_once  # type: ignore[assignment, method-assign]


def _default_loop_as_on_windows() -> None:
    absent = asyncio.AbstractEventLoop

    class ProactorLike(asyncio.SelectorEventLoop):
        """Windows' default loop watches no sockets."""

    for loop, names in (
        (ProactorLike, "add_reader remove_reader add_writer remove_writer"),
        (asyncio.SelectorEventLoop, "add_signal_handler remove_signal_handler"),
    ):
        for name in names.split():
            setattr(loop, name, getattr(absent, name))
    asyncio.get_event_loop_policy()._loop_factory = ProactorLike  # type: ignore[attr-defined]


def _refuse_files(windows: bool) -> None:
    """Replace the calls that take a path by ones that refuse what the system would."""
    listdir, readlink = os.listdir, os.readlink

    def check(path: Any) -> str | None:
        if isinstance(path, int):
            return None
        text = os.path.abspath(os.fsdecode(path))
        if text.startswith(LINUX_PLACES):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", text)
        if windows and REFUSED & set(text):
            raise OSError(errno.EINVAL, "Invalid argument", text)
        return text

    def check_unused(path: Any) -> None:
        text = os.path.realpath(check(path) or "")
        for fd in listdir("/proc/self/fd"):
            try:
                used = readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            if used == text or used.startswith(text + "/"):
                raise PermissionError(errno.EACCES, "the file is used by a process", text)

    def checked(call: Callable[..., Any], paths: int, *, moves: bool = False) -> Callable[..., Any]:
        def replaced(*args: Any, **keywords: Any) -> Any:
            for path in args[:paths]:
                (check_unused if moves and windows else check)(path)
            return call(*args, **keywords)

        return replaced

    open_file = os.open

    def open_no_directory(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if windows and os.path.isdir(check(path) or ""):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_file(path, flags, *args, **keywords)

    rename = checked(os.rename, 2, moves=True)

    def rename_to_new(source: Any, target: Any) -> None:
        if windows and os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", target)
        rename(source, target)

    removed = checked(os.unlink, 1, moves=True)
    for module, name, call in (
        (os, "open", open_no_directory),
        (os, "rename", rename_to_new),
        (os, "replace", checked(os.replace, 2, moves=True)),
        (os, "unlink", removed),
        (os, "remove", removed),
        (os, "rmdir", checked(os.rmdir, 1, moves=True)),
        (os, "mkdir", checked(os.mkdir, 1)),
        (os, "listdir", checked(listdir, 1)),
        (os, "stat", checked(os.stat, 1)),
        (io, "open", opened := checked(io.open, 1)),
        (builtins, "open", opened),
    ):
        setattr(module, name, call)


# -- steps


def refusals() -> None:
    """What another system would refuse is refused here."""
    if sys.platform == BEGAN_AS:
        return
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        _assert_refused(lambda: socket.create_server(server.getsockname()))
        _assert_refused(lambda: os.listdir("/proc"))
        assert not hasattr(os, "posix_fadvise")
        assert not hasattr(select, "epoll")
        if sys.platform == "win32":
            _assert_refused(lambda: Path(folder, "a:b").write_text(""))
            _assert_refused(lambda: os.open(folder, os.O_RDONLY))
            assert not hasattr(os, "sendfile")
            assert not hasattr(server, "sendmsg")
            _assert_refused(lambda: importlib.import_module("resource"))
            for move in (Path.unlink, lambda path: path.replace(f"{folder}/new")):
                path = Path(folder, "open")
                with path.open("w"):
                    _assert_refused(lambda path=path, move=move: move(path))


def _assert_refused(call: Callable[[], object]) -> None:
    try:
        call()
    except (OSError, ImportError):
        return
    raise AssertionError(f"allowed: {call}")


def cluster() -> None:
    """Three brokers, a record with acks=all, a kill of the controller, a restart at the same address."""
    from controller.testing import Kafka

    with Kafka(brokers=3) as kafka:
        _write_kill_and_read(kafka)


def directory() -> None:
    """As `cluster`, with records in a directory; then topics are deleted, and the logs closed and opened again."""
    from camerlengo import Kafka

    with tempfile.TemporaryDirectory() as folder:
        with Kafka(brokers=3, directory=folder, settings={"log.segment.bytes": 1_024}) as kafka:
            _write_kill_and_read(kafka)
            _delete(kafka, "payments")
            names = [path.name for path in Path(folder).glob("*/payments*")]
            assert all(name.endswith("-delete") for name in names), names
        _split_a_segment(Path(folder))


def _write_kill_and_read(kafka: Any) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    kafka.create_topic("payments", replication_factor=3, config={"file.delete.delay.ms": 50})
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "reconnect.backoff.ms": 5}
    producer = Producer({**settings, "acks": "all", "linger.ms": 0})
    values = [bytes([number]) * 700 for number in range(8)]
    for value in values[:4]:
        producer.produce("payments", value, partition=0)
        assert producer.flush(30) == 0
    killed = kafka.broker(kafka.controller)
    address = killed.address
    killed.kill()
    for value in values[4:]:
        producer.produce("payments", value, partition=0)
        assert producer.flush(30) == 0
    killed.start()
    kafka.wait_until_healthy()
    assert killed.address == address
    consumer = Consumer({**settings, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition("payments", 0, 0)])
    read = [message.value() for message in consumer.consume(len(values), 30)]
    consumer.close()
    assert read == values, read


def _delete(kafka: Any, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)

    def gone() -> bool:
        try:
            kafka.leader(topic)
        except KeyError:
            return True
        return False

    kafka.wait_until(gone, "it is deleted")


def _split_a_segment(folder: Path) -> None:
    """The calls of `FileDisk` on files that are open, and a directory that another has."""
    from controller.storage.disk_files import FileDisk
    from controller.storage.errors import AlreadyLocked

    disk = FileDisk()
    inside = f"{folder}/split"
    disk.make_directory(inside)
    lock = disk.lock(f"{inside}/.lock")
    try:
        disk.lock(f"{inside}/.lock")
        raise AssertionError("two have the directory")
    except AlreadyLocked:
        lock.release()
    for number in range(2):
        opened = disk.open(f"{inside}/{number}")
        opened.append(b"data")
        opened.sync()
        assert opened.read_at(1, 3) == b"ata"
    disk.replace(f"{inside}/0", b"other")
    disk.rename(f"{inside}/0", f"{inside}/1")
    assert disk.read(f"{inside}/1") == b"other"
    kept = disk.open(f"{inside}/2")
    kept.append(b"kept")
    disk.sync_all([inside] * 10)
    disk.rename(inside, f"{inside}-renamed")
    disk.remove(f"{inside}-renamed/1")
    disk.remove(f"{inside}-renamed/2")
    disk.remove(f"{inside}-renamed/.lock")
    disk.remove(f"{inside}-renamed")
    assert not disk.is_directory(f"{inside}-renamed")
    disk.stop()


def zookeeper() -> None:
    """A server, a client over TCP whose session ends while it is cut off."""
    from kazoo.client import KazooClient

    from controller.zookeeper.server.server import ZooKeeperServer

    with ZooKeeperServer() as server:
        client = KazooClient(server.connect_string, timeout=5)
        client.start()
        client.create("/a/b", b"1", makepath=True)
        assert client.get("/a/b")[0] == b"1"
        server.drop_connection(client.client_id[0])
        assert client.retry(client.get, "/a/b")[0] == b"1"
        client.stop()
        client.close()


def zookeeper_directory() -> None:
    """A server with a data directory, which a second one may not have, is started again with its data."""
    from kazoo.client import KazooClient

    from controller.zookeeper.server.files import DataDirectoryInUse
    from controller.zookeeper.server.server import ZooKeeperServer

    with tempfile.TemporaryDirectory() as folder:
        for version in range(3):
            with ZooKeeperServer(data_dir=folder) as server:
                client = KazooClient(server.connect_string)
                client.start()
                client.ensure_path("/kept")
                assert client.set("/kept", b"").version == version + 1
                client.stop()
                client.close()
                try:
                    ZooKeeperServer(data_dir=folder).start()
                    raise AssertionError("two have the directory")
                except DataDirectoryInUse:
                    pass


def connection() -> None:
    """The brokers' own connection to a ZooKeeper server."""
    from controller.zookeeper.blocking import ThreadClock, wait
    from controller.zookeeper.kazoo_connection import KazooConnection
    from controller.zookeeper.operations import Create
    from controller.zookeeper.server.server import ZooKeeperServer

    with ZooKeeperServer() as server:
        broker = KazooConnection(server.connect_string, ThreadClock())
        assert wait(broker.start(), 30) > 0
        wait(broker.multi([Create("/b", b"1")]), 30)
        wait(broker.close(), 30)


def fake_kazoo() -> None:
    """An ephemeral znode goes with its session."""
    from controller.zookeeper.fake_kazoo import fake_kazoo

    client = fake_kazoo()
    client.start()
    client.create("/lock", ephemeral=True)
    client.zookeeper.expire(client)
    until_s = time.monotonic() + 30
    while client.zookeeper.paths() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert client.zookeeper.paths() == ()
    client.stop()
    client.close()


def simulator() -> None:
    """A seed, which gives the same run on each system."""
    from camerlengo import Simulation

    world = Simulation(brokers=3, seed=7)
    world.run_until(lambda: len(world.registered) == 3)
    assert world.answer(world.create_topic("payments", partitions=6, replication_factor=3)) == "done"
    world.run_until_rest()
    world.kill(world.controller or 1)
    world.run_until(lambda: world.controller is None)
    world.run_until_rest()
    print(f"trace {world.trace_hash}", flush=True)


STEPS: Mapping[str, Callable[[], None]] = {
    step.__name__: step
    for step in (refusals, cluster, directory, zookeeper, zookeeper_directory, connection, fake_kazoo, simulator)
}


def run_steps(names: Sequence[str]) -> int:
    """Run the steps, all if there are no names, with deprecations in our code as errors. Return how many failed."""
    warnings.filterwarnings("error", category=DeprecationWarning, module="camerlengo|controller|statemachines")
    failed = 0
    for name in names or STEPS:
        try:
            STEPS[name]()
            print(f"{name}: ok", flush=True)
        except Exception:  # noqa: BLE001 - the other steps run too
            failed += 1
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the in-process part with what another system has.")
    parser.add_argument("platform", choices=["darwin", "win32", sys.platform])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"some of {', '.join(STEPS)}; all by default")
    arguments = parser.parse_args()
    if arguments.platform != sys.platform:
        become(arguments.platform)
    return run_steps(arguments.steps)


if __name__ == "__main__":
    raise SystemExit(main())

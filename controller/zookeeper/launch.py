"""Child processes that do not outlive this one, however it ends.

`finally` and `atexit` do not run under SIGKILL, so the death of a parent has to be seen by someone else. On Linux the
kernel does it: a few lines of Python run in the new process first, ask to be killed when the parent is gone
(PR_SET_PDEATHSIG, which survives exec and reaches a process that is stopped), and become the program. Elsewhere a
watchdog process holds the other end of a pipe and kills the child when the pipe breaks.

Two traps decide the shape. The signal comes when the *thread* that forked ends, not the process, so all children are
started by one thread that lives as long as the process. And the parent may be gone before the child has asked, so the
child compares its parent afterwards. Knows nothing of what it starts.
"""

from __future__ import annotations

import contextlib
import enum
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

STOP_GRACE_SECONDS = 10.0

_BECOME = """\
import ctypes, os, signal, sys
parent, failures, *argv = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
try:
    if libc.prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):
        os._exit(1)
    os.set_inheritable(int(failures), False)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(argv[0], argv)
except OSError as error:
    os.write(int(failures), str(error.errno).encode())
    os._exit(127)
"""
"""argv: the parent's pid, the pipe that reports a failure, then the program. 1 is PR_SET_PDEATHSIG. Python ignores two
signals, and exec would pass that on."""

_WATCH = """\
import os, select, signal, sys
child = int(sys.argv[1])
while not select.select([0], [], [], 1.0)[0]:
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        sys.exit()
try:
    os.kill(child, signal.SIGKILL)
except ProcessLookupError:
    pass
"""
"""argv: the child's pid; its standard input is the pipe that breaks with the parent."""


class Guard(enum.Enum):
    """The mechanism that ends a child when its parent dies."""

    KERNEL = "kernel"
    WATCHDOG = "watchdog"


GUARD = Guard.KERNEL if sys.platform == "linux" else Guard.WATCHDOG

Process = subprocess.Popen[bytes]
Stream = int | IO[bytes] | None
_Start = Callable[[], Process]


def launch(
    argv: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    guard: Guard = GUARD,
) -> Process:
    """Starts `argv` in a session of its own (Ctrl-C in a terminal is the parent's alone), to be killed when this
    process ends. The streams are subprocess's; `env` None inherits. Raises OSError if `argv[0]` is not found.

    The pid is the program's own: what starts first replaces itself, and has done so when this returns.
    """

    def start() -> Process:
        if guard is Guard.KERNEL:
            return _start_under_kernel(argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env)
        process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=True
        )
        _watch(process)
        return process

    return _launcher().run(start)


def _start_under_kernel(argv: Sequence[str], **options: Any) -> Process:
    """Waits until the new process has become the program: one that was stopped (SIGSTOP) a moment earlier would not
    have asked to be killed yet, and would outlive its parent."""
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*_python(_BECOME), str(os.getpid()), str(write_end), *argv],
            pass_fds=(write_end,),
            start_new_session=True,
            **options,
        )
    finally:
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            failure = pipe.read()  # at an end when exec closes the other one
    if failure:
        process.wait()
        raise OSError(int(failure), os.strerror(int(failure)), argv[0])
    return process


def stop(process: Process, grace_seconds: float = STOP_GRACE_SECONDS) -> int:
    """Asks the process to end, stopped or not, and kills it if it has not after `grace_seconds`. Its exit status."""
    process.terminate()
    resume(process)
    try:
        return process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def kill(process: Process) -> int:
    """SIGKILL, and its exit status."""
    process.kill()
    return process.wait()


def pause(process: Process) -> None:
    """SIGSTOP: the process keeps its sockets and does nothing. Returns once each of its threads stands still, which is
    some time after the signal was sent: until then one of them may still answer. A process that ended has stopped too.
    """
    process.send_signal(signal.SIGSTOP)
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return
    with contextlib.suppress(ChildProcessError):  # another thread has seen it end
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def resume(process: Process) -> None:
    process.send_signal(signal.SIGCONT)


def _python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def _watch(process: Process) -> None:
    """The pipe's end is kept with the process, so that it breaks when this one ends, and at the latest then."""
    watchdog = subprocess.Popen(
        [*_python(_WATCH), str(process.pid)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    _launcher().watchdogs = [*(dog for dog in _launcher().watchdogs if dog.poll() is None), watchdog]


class _Launcher:
    """The thread that forks. A daemon: it ends with the process, and the children with it."""

    def __init__(self) -> None:
        self.watchdogs: list[Process] = []
        self._work: queue.SimpleQueue[tuple[Future[Process], _Start]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="launcher", daemon=True).start()

    def run(self, start: _Start) -> Process:
        future: Future[Process] = Future()
        self._work.put((future, start))
        return future.result()

    def _serve(self) -> None:
        while True:
            future, start = self._work.get()
            try:
                future.set_result(start())
            except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
                future.set_exception(error)


_lock = threading.Lock()
_launchers: list[_Launcher] = []


def _launcher() -> _Launcher:
    with _lock:
        if not _launchers:
            _launchers.append(_Launcher())
        return _launchers[0]


# A forked copy of this process has no launcher thread: it makes its own.
os.register_at_fork(after_in_child=_launchers.clear)

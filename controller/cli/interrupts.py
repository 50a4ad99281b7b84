"""The end of a command on SIGINT and SIGTERM: soon, without a traceback, and with no child process left behind.

`install` is the first thing that the program does. Before a command runs, a signal ends the process at once. While
one runs, a signal kills every descendant process and then raises `Interrupted` in the main thread, so that `with` and
`finally` blocks remove temporary files. A thread that the signal's arrival wakes ends the process after `GRACE_S` if
the main thread has not: it may be blocked in a C function, or something may have swallowed the exception. A second
signal ends the process at once.

A broker handles its signals itself, as controlled shutdowns. This module imports only what Python's own start has
loaded, or little more, since a signal that arrives before `install` is Python's to handle.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_S = 1.2
_SIGNALLED = 128
_ROUNDS = 200
_PAUSE_S = 0.005

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived while a command ran."""


class _State:
    received: int | None = None
    running = False


_state = _State()


def install() -> None:
    """Handle the signals from now on, also where the process was started with them ignored, as a shell does with its
    background jobs."""
    for number in SIGNALS:
        signal.signal(number, _handle)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(readable,), name="interrupts", daemon=True).start()


def received() -> int | None:
    """Return the signal that interrupted the command, or None."""
    return _state.received


@contextmanager
def unwinding() -> Iterator[None]:
    """Within it a signal raises `Interrupted`; outside it a signal ends the process at once."""
    _state.running = True
    try:
        yield
    finally:
        _state.running = False


def end(status: int) -> NoReturn:
    """Kill all descendant processes and end this one, without anything that Python does at its exit."""
    kill_descendants()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


def status_of(number: int) -> int:
    """Return the exit status that a shell gives to a process which that signal ended."""
    return _SIGNALLED + number


def _handle(number: int, _frame: FrameType | None) -> None:
    if _state.received is not None or not _state.running:
        kill_descendants()
        os._exit(status_of(_state.received or number))
    _state.received = number
    _silence()
    kill_descendants()
    raise Interrupted


def _silence() -> None:
    """From now on things fail because their processes were killed: no thread and no logger reports that."""
    threading.excepthook = lambda _arguments: None
    sys.unraisablehook = lambda _arguments: None
    with suppress(Exception):
        import logging
        import warnings

        logging.disable()
        warnings.simplefilter("ignore")


def _watch(readable: int) -> None:
    while signals := os.read(readable, 64):
        ours = [number for number in signals if signal.getsignal(number) is _handle]
        if ours:
            time.sleep(GRACE_S)
            kill_descendants()
            os._exit(status_of(_state.received or ours[0]))


# -- processes


def kill_descendants() -> None:
    """SIGKILL to all processes below this one, and wait until none is left. Orphans below it count."""
    if not descendants():
        return
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for _ in range(_ROUNDS):
        alive = descendants()
        if not alive:
            return
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def descendants() -> list[int]:
    """Return the ids of all processes below this one, children before grandchildren, without zombies."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for pid in found:  # grows during the loop
        found += children.get(pid, [])
    return found[1:]


def _processes() -> Iterator[tuple[int, int]]:
    """Yield (process, parent) of all live processes."""
    if not sys.platform.startswith("linux"):
        yield from _processes_by_ps()
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it has ended
            if state not in (b"Z", b"X"):
                yield int(name), int(parent)


def _processes_by_ps() -> Iterator[tuple[int, int]]:
    import subprocess

    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
        listing, _ = ps.communicate()
    for line in listing.splitlines():
        pid, parent, state = line.split()[:3]
        if not state.startswith("Z") and int(pid) != ps.pid:
            yield int(pid), int(parent)


@contextmanager
def signals_held() -> Iterator[None]:
    """Start worker processes within it: signals wait, here and in the workers, until these call `begin_worker`."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def begin_worker() -> None:
    """Make this worker process leave signals to its parent and, on Linux, die with it."""
    from multiprocessing import get_start_method, parent_process

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    # `is_alive` asks a pipe, which another worker that was forked after this one keeps open.
    is_forked = get_start_method() == "fork"
    if parent is not None and (os.getppid() != parent.pid if is_forked else not parent.is_alive()):
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        with suppress(Exception):  # a signal may arrive while ctypes itself is imported
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

"""What `launch` starts is gone when its parent is, however the parent ends, and hears nothing from the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controller.zookeeper import launch
from controller.zookeeper.launch import Guard
from tests.processes import eventually
from tests.zookeeper.processes import gone

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
GUARDS = list(Guard) if sys.platform == "linux" else [Guard.WATCHDOG]

PARENT = """
import sys, time
from controller.zookeeper import launch
child = launch.launch([sys.executable, "-c", "import time; time.sleep(600)"], guard=launch.Guard(sys.argv[1]))
if sys.argv[2] == "stopped":
    launch.pause(child)
print(child.pid, flush=True)
time.sleep(600)
"""


def stands_still(process: launch.Process) -> bool:
    """What the kernel tells its parent now: nothing, unless each of its threads has stopped."""
    pid, status = os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)
    return pid == process.pid and os.WIFSTOPPED(status)


@pytest.mark.parametrize("child_is", ["running", "stopped"])
@pytest.mark.parametrize("guard", GUARDS)
def test_a_child_dies_with_a_parent_that_is_killed(guard: Guard, child_is: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, guard.value, child_is], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
    eventually(lambda: gone(child), f"process {child} gone")


def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    """PR_SET_PDEATHSIG is tied to the thread that forks."""
    started: list[launch.Process] = []
    thread = threading.Thread(target=lambda: started.append(launch.launch(SLEEPER)))
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(0.3)
    assert launch.kill(started[0]) == -signal.SIGKILL


def test_a_forked_copy_of_this_process_can_launch_too() -> None:
    launch.kill(launch.launch(SLEEPER))
    pid = os.fork()
    if pid == 0:
        process = launch.launch(SLEEPER)
        launch.kill(process)
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_child_is_in_a_session_of_its_own_with_signals_as_they_were_at_first() -> None:
    program = "import os,signal; print(os.getsid(0) == os.getpid(), open('/proc/self/status').read())"
    process = launch.launch([sys.executable, "-I", "-c", program], stdout=subprocess.PIPE)
    output, _ = process.communicate()
    assert output.startswith(b"True")
    cat = launch.launch(["cat", "/proc/self/status"], stdout=subprocess.PIPE)
    status, _ = cat.communicate()
    ignored = next(line for line in status.decode().splitlines() if line.startswith("SigIgn"))
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_a_paused_child_stands_still_when_pause_returns() -> None:
    busy = launch.launch([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(200):
            launch.pause(busy)
            assert stands_still(busy)
            launch.resume(busy)
    finally:
        launch.kill(busy)


def test_a_child_that_has_ended_can_be_paused() -> None:
    ended = launch.launch([sys.executable, "-c", ""])
    eventually(lambda: gone(ended.pid), "the child ended")
    launch.pause(ended)  # not waited for yet: a zombie
    assert ended.wait() == 0
    launch.pause(ended)


def test_stop_ends_a_paused_child_and_kills_one_that_will_not_end() -> None:
    paused = launch.launch(SLEEPER)
    launch.pause(paused)
    assert launch.stop(paused) == -signal.SIGTERM

    deaf_program = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    deaf = launch.launch([sys.executable, "-c", deaf_program], stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    deaf.stdout.readline()
    assert launch.stop(deaf, grace_seconds=0.1) == -signal.SIGKILL
    deaf.stdout.close()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    for program in ("no-such-program", str(tmp_path / "nothing"), str(tmp_path)):
        with pytest.raises(OSError, match=r"No such file|Permission denied") as caught:
            launch.launch([program])
        assert caught.value.filename == program

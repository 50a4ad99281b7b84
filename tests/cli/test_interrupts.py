"""Every command is interrupted, at several moments: it ends with 130 or 143, without a traceback, and nothing of it is
left.

A program in the command's process sends the signal at a moment that is counted and not timed: the so-manieth import,
process started, file opened, connection made (Python's audit events), or answer of Java to a named function. What the
command started is known by a variable of its environment. `--every-moment` tries more moments than the suite has time
for; with `-s` each says how long it took from the signal to the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.cli.main import COMMANDS
from tests.processes import eventually

LIMIT_S = 120.0
ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests/data/kafka-2.8.2/logs"
TREE = ROOT / "tests/data/kafka-2.8.2/znodes-after-admin.txt"
MARK = "CAMERLENGO_TEST_OF_INTERRUPTS"

PROGRAM = """
import os, sys
event, wanted, number, *words = sys.argv[1:]
left = int(wanted)

def look(name, _arguments):
    global left
    if name == event and left:
        left -= 1
        if not left:
            open("signalled", "w").close()
            os.kill(os.getpid(), int(number))

def answered(self, buffer):
    frame = sys._getframe(1)
    while frame is not None and f"answer in {frame.f_code.co_qualname}" != event:
        frame = frame.f_back
    if frame is not None:
        look(event, ())
    return readinto(self, buffer)

import controller.cli.main
if event.startswith("answer in "):
    from socket import SocketIO
    readinto, SocketIO.readinto = SocketIO.readinto, answered
sys.argv = ["camerlengo", *words]
sys.addaudithook(look)
sys.exit(controller.cli.main.main())
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """The `number`th time that an event is seen. `always`: also without --every-moment."""

    event: str
    number: int
    always: bool = False

    def __str__(self) -> str:
        return f"{self.event} {self.number}"


IMPORTS = [Moment("import", 1), Moment("import", 30, always=True), Moment("import", 250)]
LAUNCHED = [Moment("subprocess.Popen", 1), Moment("subprocess.Popen", 2), Moment("subprocess.Popen", 3)]

COMMAND_LINES: dict[str, tuple[list[str], list[Moment]]] = {
    "zookeeper": (["zookeeper"], [LAUNCHED[0], Moment("socket.connect", 2, always=True)]),
    "broker": (["broker", "--override", "zookeeper.connect=127.0.0.1:9", "--override", "broker.id=1"], []),
    "cluster": (["cluster"], [*LAUNCHED, Moment("subprocess.Popen", 4, always=True), Moment("socket.connect", 30)]),
    "stop": (["stop"], []),
    "state": (["state", "--zookeeper", "127.0.0.1:9"], [Moment("socket.connect", 1, always=True)]),
    "explain": (["explain", "--zookeeper", "127.0.0.1:9"], [Moment("socket.connect", 1)]),
    "pause": (["pause", "--zookeeper", "127.0.0.1:9"], [Moment("socket.connect", 1)]),
    "whatif": (
        ["whatif", "--tree", str(TREE)],
        [Moment("subprocess.Popen", 1, always=True), Moment("socket.connect", 1), Moment("socket.connect", 3)],
    ),
    "analyze": (
        ["analyze", str(LOGS), "--report", "out"],
        [LAUNCHED[0], Moment("socket.connect", 1, always=True), Moment("shutil.rmtree", 3)],
    ),
    "list": (["list"], [Moment("open", 20)]),
    "chaos": (
        ["chaos", "broker-kill"],
        [*LAUNCHED, Moment("subprocess.Popen", 4, always=True), Moment("socket.connect", 60)],
    ),
    "simulate": (["simulate", "broker-kill", "--seeds", "1..500"], [Moment("open", 300)]),
    "simulate swarm": (
        ["simulate", "swarm", "--seeds", "1..2000", "--jobs", "2"],
        [Moment("os.fork", 1), Moment("os.fork", 2, always=True)],
    ),
    "campaign": (
        ["campaign", "swarm", "--seeds", "1..2000", "--report", "out"],
        [
            LAUNCHED[0],
            Moment("socket.connect", 1, always=True),
            Moment("answer in SparkSession.__init__", 2, always=True),
            Moment("answer in run_campaign", 2),
            Moment("os.scandir", 12),
        ],
    ),
    "bench": (["bench", "loading"], [Moment("subprocess.Popen", 1, always=True), Moment("socket.connect", 3)]),
    "lab": (["lab", "tiers", "--quick"], [Moment("os.fork", 1), Moment("os.fork", 2, always=True)]),
}
CASES = [(name, moment) for name, (_, moments) in COMMAND_LINES.items() for moment in (*IMPORTS, *moments)]


def test_every_command_is_interrupted() -> None:
    assert {name.split()[0] for name in COMMAND_LINES} == set(COMMANDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "moment" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-moment")
        chosen = [(name, moment) for name, moment in CASES if every or moment.always]
        metafunc.parametrize(("name", "moment"), chosen, ids=str)


def marked(mark: str) -> list[str]:
    """The command lines of the processes that live and have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"{entry.name}: {words[:200]}")
            except OSError:
                continue  # it has ended
    return found


def test_it_ends_with_the_signals_status_says_nothing_of_it_and_leaves_nothing(
    name: str, moment: Moment, tmp_path: Path
) -> None:
    number = signal.SIGTERM if moment.number % 2 else signal.SIGINT
    words, _ = COMMAND_LINES[name]
    mark = uuid.uuid4().hex
    with (tmp_path / "said").open("wb") as said:
        command = subprocess.run(
            [sys.executable, "-c", PROGRAM, moment.event, str(moment.number), str(int(number)), *words],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARK: mark, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            timeout=LIMIT_S,
            check=False,
        )
    ended_s = time.time()
    left = marked(mark)
    print(f"{name}, {moment}: {ended_s - (tmp_path / 'signalled').stat().st_mtime:.2f} s")
    text = (tmp_path / "said").read_text(errors="replace")
    assert left == []
    assert "Traceback" not in text, text
    assert "Exception ignored" not in text, text
    in_order = number is signal.SIGTERM and name in ("zookeeper", "cluster") and moment.event != "import"
    assert command.returncode == (0 if in_order else 128 + number), text
    expected = {"said", "signalled", "out", f"camerlengo-{os.getuid()}"}
    assert {path.name for path in tmp_path.iterdir()} <= expected, "temporary files are left"


KILLED = """
import os, signal, time
from multiprocessing import Process
from controller.cli.interrupts import begin_worker

def begin_late(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    begin_worker()
    time.sleep(100)

for target, given in ((begin_late, os.getpid()), (time.sleep, 100)):
    Process(target=target, args=(given,)).start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_process_ends_with_a_command_that_was_killed_before_it_began() -> None:
    mark = uuid.uuid4().hex
    environment = os.environ | {MARK: mark, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, cwd=ROOT, check=False)
    try:
        eventually(lambda: len(marked(mark)) == 1, "the other process alone is left")
    finally:
        for left in marked(mark):
            os.kill(int(left.partition(":")[0]), signal.SIGKILL)


def test_a_worker_process_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    words = [sys.executable, "-m", "controller.cli", "simulate", "swarm", "--seeds", "1..2000", "--jobs", "2"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=os.environ | {MARK: mark}, cwd=ROOT) as command:
        eventually(lambda: len(marked(mark)) >= 3, "the workers run")
        command.kill()
    eventually(lambda: marked(mark) == [], "they are gone")

"""Kill a ZooKeeper server in Python with SIGKILL while clients write, and check what each restart has kept.

    python -m tests.zookeeper.kill_server --kills 200 --seed 1

Each client owns a subtree and sends up to 16 writes ahead. After a kill it knows which were answered; of the others, in
the order in which they were sent, the server must have kept the first few or none: the subtree has to be exactly one
of these states, with data, version and mzxid of each node. Two nodes are written in multis alone. All clients create
sequential nodes below one parent, whose numbers must never come back. Each has an ephemeral node that it must keep,
since it reconnects in time. A visitor creates ephemeral nodes in sessions that it closes. The server takes a snapshot
every 60 transactions, so many kills interrupt one; some kills come while it starts. Prints one JSON line of figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, NodeExistsError, OperationTimeoutError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from controller.system import HeldPorts
from controller.zookeeper.embedded import four_letter_word
from controller.zookeeper.launch import launch

DEADLINE_S = 120.0
SNAPSHOT_TRANSACTIONS = 60
AHEAD = 16
NAMES = 6
SESSION_TIMEOUT_S = 60.0
VISIT_TIMEOUT_S = 2.0
_LOST = (ConnectionLoss, OperationTimeoutError)


class Wrong(AssertionError):
    """The server has lost or invented something."""


class Known(NamedTuple):
    """A node as its client knows it; `mzxid` None if the write was not answered."""

    data: bytes
    version: int
    mzxid: int | None


Model = dict[str, Known]


class Operation(NamedTuple):
    """One write of a client and its effect. `answered` judges the answer."""

    pending: Any
    apply: Callable[[Model, Any], None] = lambda _model, _result: None
    answered: Callable[[Any], None] = lambda _result: None


class Server:
    """The server's process, on one port and one directory."""

    def __init__(self, directory: Path) -> None:
        self.ports = HeldPorts(1)
        (self.port,) = self.ports.numbers
        self.data = directory / "data"
        self.incarnation = 0
        self.stderr = directory / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        self.incarnation += 1  # before a client can read from it
        options = {
            "port": self.port,
            "data": self.data,
            "tick-ms": 200,
            "min-session-timeout-ms": 400,
            "max-session-timeout-ms": 120_000,
            "snapshot-transactions": SNAPSHOT_TRANSACTIONS,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with self.stderr.open("ab") as stderr:
            self._process = launch(
                [sys.executable, "-m", "controller.zookeeper.server", *words], stdout=subprocess.PIPE, stderr=stderr
            )

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith(b"zookeeper.connect="):
            raise Wrong(f"the server did not start: {self.stderr.read_text()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def zxid(self) -> int:
        answer = four_letter_word(self.port, "srvr", DEADLINE_S)
        return int(answer.partition("Zxid: ")[2].split()[0], 16)


class Sequence:
    """The numbers that sequential creates were answered with, by all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.numbers: set[int] = set()
        self.greatest = -1

    def now(self) -> int:
        with self._lock:
            return self.greatest

    def add(self, number: int, asked_after: int) -> None:
        with self._lock:
            if number in self.numbers:
                raise Wrong(f"sequence number {number} was given twice")
            if number <= asked_after:
                raise Wrong(f"sequence number {number} was given after {asked_after}")
            self.numbers.add(number)
            self.greatest = max(self.greatest, number)


class Worker(threading.Thread):
    """A client that writes, and compares after each loss of its connection."""

    def __init__(self, number: int, server: Server, sequence: Sequence, seed: str) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.root = f"/w{number}"
        self.failure: BaseException | None = None
        self.verified = 0
        """The server's incarnation that this client has compared last."""
        self.stopping = False
        self.acknowledged = self.unanswered = self.unanswered_kept = 0
        self.client = KazooClient(
            f"127.0.0.1:{server.port}",
            timeout=SESSION_TIMEOUT_S,
            connection_retry=KazooRetry(max_tries=-1, delay=0.02, backoff=1, max_jitter=0.0, max_delay=0.05),
        )
        self._server = server
        self._sequence = sequence
        self._random = Random(seed)
        self._lost = threading.Event()
        self._model: Model = {}
        self._expected: Model = {}
        """The model with all that was sent."""
        self._sent: deque[Operation] = deque()
        self._resolved: list[tuple[Operation, Any]] = []
        self._client_id: tuple[int, bytes] | None = None

    def run(self) -> None:
        try:
            self.client.add_listener(self._changed)
            self.client.start(DEADLINE_S)
            self._client_id = self.client.client_id
            self._retried(lambda: self.client.ensure_path("/seq"))
            self._retried(lambda: self.client.ensure_path(self.root))
            self._retried(lambda: self.client.ensure_path("/alive"))
            if not self._retried(lambda: self.client.exists(f"/alive{self.root}")):
                self.client.create(f"/alive{self.root}", ephemeral=True)
            self._verify()
            while not self.stopping:
                if self._lost.is_set():
                    self._verify()
                self._step()
            self._verify()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.failure = error

    def _changed(self, state: str) -> None:
        if state == KazooState.LOST and not self.stopping:
            self.failure = Wrong(f"{self.root}: the session was lost")
        if state != KazooState.CONNECTED:
            self._lost.set()

    def _retried(self, read: Callable[[], Any]) -> Any:
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                return read()
            except _LOST:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def _step(self) -> None:
        self._send()
        while len(self._sent) >= AHEAD or (self._sent and self._sent[0].pending.ready()):
            self._take()

    def _send(self) -> None:
        client, expected, random = self.client, self._expected, self._random
        data = random.randbytes(random.randrange(40))
        path = f"{self.root}/n-{random.randrange(NAMES)}"
        drawn = random.random()
        if drawn < 0.15:
            asked_after = self._sequence.now()

            def numbered(name: str) -> None:
                self._sequence.add(int(name.rpartition("-")[2]), asked_after)

            self._sent.append(Operation(client.create_async("/seq/s-", data, sequence=True), answered=numbered))
            return
        if drawn < 0.35:
            pair = (f"{self.root}/left", f"{self.root}/right")
            transaction = client.transaction()
            exists = pair[0] in expected
            again = exists and random.random() < 0.2
            for each in pair:
                if again:
                    transaction.delete(each)
                if exists and not again:
                    transaction.set_data(each, data)
                else:
                    transaction.create(each, data)
            pending = transaction.commit_async()

            def both(model: Model, results: Any) -> None:
                for at, each in enumerate(pair):
                    if exists and not again:
                        mzxid = None if results is None else results[at].mzxid
                        model[each] = Known(data, model[each].version + 1 if each in model else 0, mzxid)
                    else:
                        model[each] = Known(data, 0, None)

            operation = Operation(pending, both)
        elif path not in expected:

            def created(model: Model, made: Any) -> None:
                model[path] = Known(data, 0, None if made is None else made[1].czxid)

            operation = Operation(client.create_async(path, data, include_data=True), created)
        elif drawn < 0.55:
            operation = Operation(client.delete_async(path), lambda model, _: _forget(model, path))
        else:

            def written(model: Model, stat: Any) -> None:
                version = model[path].version + 1 if path in model else 0
                model[path] = Known(data, version, None if stat is None else stat.mzxid)

            operation = Operation(client.set_async(path, data), written)
        operation.apply(expected, None)
        self._sent.append(operation)

    def _take(self) -> None:
        operation = self._sent.popleft()
        try:
            result = operation.pending.get(timeout=DEADLINE_S)
        except Exception as error:  # noqa: BLE001 - judged in `_verify`
            result = error
        if isinstance(result, list) and any(isinstance(each, Exception) for each in result):
            result = next(each for each in result if isinstance(each, Exception))
        self._resolved.append((operation, result))
        if isinstance(result, Exception):
            self._lost.set()
        elif not self._lost.is_set():
            self._settle()

    def _settle(self) -> None:
        """Apply to the model what was answered."""
        for operation, result in self._resolved:
            self._answered(self._model, operation, result)
        self._resolved.clear()

    def _answered(self, model: Model, operation: Operation, result: Any) -> None:
        operation.apply(model, result)
        operation.answered(result)
        self.acknowledged += 1

    def _verify(self) -> None:
        while self._sent:
            self._take()
        found = self._retried(self._found)
        model = dict(self._model)
        lost: list[Operation] = []
        late: list[tuple[Operation, Any]] = []
        for operation, result in self._resolved:
            if isinstance(result, _LOST):
                lost.append(operation)
            elif isinstance(result, Exception):
                if not lost or isinstance(result, SessionExpiredError):
                    raise Wrong(f"{self.root}: a write that can't fail was answered with {result!r}")
            elif lost:
                late.append((operation, result))  # sent over the next connection
            else:
                self._answered(model, operation, result)
        for kept in range(len(lost) + 1):
            state = dict(model)
            for operation in lost[:kept]:
                operation.apply(state, None)
            for operation, result in late:
                operation.apply(state, result)
            if _agree(state, found):
                break
        else:
            raise Wrong(f"{self.root}: expected {model} and the first of {len(lost)} unanswered writes, found {found}")
        for operation, result in late:
            self._answered({}, operation, result)
        self.unanswered += len(lost)
        self.unanswered_kept += kept
        self._resolved.clear()
        self._model = found
        self._expected = dict(found)

    def _found(self) -> Model:
        """Read the subtree. What was lost before is read now, so a loss from now on starts it again."""
        self._lost.clear()
        incarnation = self._server.incarnation
        client_id = self.client.client_id
        if client_id is None:
            raise ConnectionLoss("not connected yet")
        if client_id != self._client_id:
            raise Wrong(f"{self.root}: the session is {client_id}, expected {self._client_id}")
        found: Model = {}
        for name in self.client.get_children(self.root):
            data, stat = self.client.get(f"{self.root}/{name}")
            found[f"{self.root}/{name}"] = Known(data, stat.version, stat.mzxid)
        alive = self.client.exists(f"/alive{self.root}")
        if alive is None or alive.ephemeralOwner != client_id[0]:
            raise Wrong(f"{self.root}: its ephemeral node is {alive}")
        self.verified = incarnation
        return found


def _forget(model: Model, path: str) -> None:
    model.pop(path, None)


def _agree(expected: Model, found: Model) -> bool:
    if expected.keys() != found.keys():
        return False
    for path, known in expected.items():
        seen = found[path]
        if known[:2] != seen[:2] or known.mzxid not in (None, seen.mzxid):
            return False
    return True


class Visitor(threading.Thread):
    """Opens sessions one after the other, each with an ephemeral node, and closes them."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="visitor", daemon=True)
        self.stopping = False
        self.visits = 0
        self._server = server

    def run(self) -> None:
        while not self.stopping:
            client = KazooClient(f"127.0.0.1:{self._server.port}", timeout=VISIT_TIMEOUT_S)
            try:
                client.start(2 * VISIT_TIMEOUT_S)
                client.create("/visitors/v-", ephemeral=True, sequence=True, makepath=True)
                self.visits += 1
            except (*_LOST, KazooTimeoutError, SessionExpiredError, NodeExistsError):
                continue  # the server was killed; an ephemeral node that it may have made goes with its session
            finally:
                client.stop()
                client.close()


def run(kills: int, seed: int, clients: int = 4) -> dict[str, Any]:
    """Kill the server `kills` times; return figures. Raises Wrong."""
    random = Random(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory))
        sequence = Sequence()
        workers = [Worker(number, server, sequence, f"{seed}-{number}") for number in range(clients)]
        visitor = Visitor(server)
        while_starting = interrupted = 0
        try:
            server.spawn()
            server.wait_ready()
            for worker in workers:
                worker.start()
            visitor.start()
            done = 0
            while done < kills:
                _wait(workers, lambda: all(each.verified == server.incarnation for each in workers))
                time.sleep(random.uniform(0.02, 0.5))
                seen_zxid = max(each.client.last_zxid for each in workers)
                server.kill()
                done += 1
                interrupted += any(server.data.glob("snapshot.*.tmp"))
                server.spawn()
                while done < kills and random.random() < 0.2:
                    time.sleep(random.uniform(0.0, 1.0))
                    server.kill()
                    done += 1
                    while_starting += 1
                    server.spawn()
                server.wait_ready()
                if (zxid := server.zxid()) < seen_zxid:
                    raise Wrong(f"the server's zxid is 0x{zxid:x}, a client has seen 0x{seen_zxid:x}")
            _wait(workers, lambda: all(each.verified == server.incarnation for each in workers))
            visitor.stopping = True
            for worker in workers:
                worker.stopping = True
            for thread in (*workers, visitor):
                thread.join(DEADLINE_S)
            _wait(workers, lambda: not workers[0].client.get_children("/visitors"), "the visitors' nodes are gone")
            names = [name for name in workers[0].client.get_children("/seq") if name.startswith("s-")]
            missing = sequence.numbers - {int(name.rpartition("-")[2]) for name in names}
            if missing:
                raise Wrong(f"sequential nodes that were acknowledged are missing: {sorted(missing)[:5]}")
        finally:
            visitor.stopping = True
            for worker in workers:
                worker.stopping = True
                worker.client.stop()
                worker.client.close()
            server.kill()
            server.ports.release()
        warnings = server.stderr.read_text().splitlines()
        return {
            "kills": kills,
            "while starting": while_starting,
            "acknowledged": sum(each.acknowledged for each in workers),
            "unanswered": sum(each.unanswered for each in workers),
            "of these kept": sum(each.unanswered_kept for each in workers),
            "sequence numbers": len(sequence.numbers),
            "visits": visitor.visits,
            "snapshots interrupted": interrupted,
            "cut off": sum("cut off" in line for line in warnings),
            "other lines on stderr": sum("cut off" not in line for line in warnings),
            "seconds": round(time.monotonic() - began),
        }


def _wait(
    workers: Iterable[Worker], condition: Callable[[], bool], what: str = "all clients have compared their nodes"
) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure
        if condition():
            return
        if time.monotonic() > until:
            states = [(each.root, each.verified, each.client.client_state) for each in workers]
            raise Wrong(f"not within {DEADLINE_S:g} s: {what}: {states}")
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(run(arguments.kills, arguments.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The processes that `camerlengo bench controller` measures and needs: a standby controller, and brokers.

    python -m tests.benchmarks.controller_worker controller HOST:PORT

stands by, and takes over when /controller is gone, with its real threads, sockets and ZooKeeper connection and no
broker beside it. For each line on its standard input it prints one JSON object, when that has happened:

    standby             it no longer leads, or not yet
    failover            a failover has ended, and brokers have answered all that it sent
    gone                a change of brokers has been handled, and all is answered
    shutdown BROKER     a controlled shutdown, requested now, is answered

Times are of the machine's monotonic clock, in ms, to compare them with those of other processes.

    python -m tests.benchmarks.controller_worker brokers NUMBER

serves brokers that acknowledge at once: they receive a request, parse its header and send a response without errors. It
prints their ports as one JSON object, by broker id, and ends with its standard input.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.clock import Coro
from controller.core.channels import ControllerChannels
from controller.core.controller import Controller
from controller.core.event_loop import EventQueue
from controller.core.events import BrokerChange, ControlledShutdownRequested, Event, Startup
from controller.core.leadership import ControllerSettings
from controller.hosts.event_thread import ControllerEventThread
from controller.hosts.network import NetworkThread
from controller.hosts.peers import SocketPeers, socket_channels
from controller.hosts.process import term_holds
from controller.protocol.client import ApiVersion, ApiVersionsResponse
from controller.protocol.codec import SUPPORTED, ApiKey, RequestHeader, encode_response, read_request_header
from controller.protocol.control import (
    ControlledShutdownResponse,
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from controller.protocol.framing import SIZE_BYTES, frame_size, framed
from controller.protocol.schema import ResponseValue
from controller.trace import FailoverCompleted, FailoverPhase, Noted, RequestAnswered, TraceEvent
from controller.zookeeper.blocking import wait
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import SetData
from controller.zookeeper.row_writes import RowsWritten

BROKER_ID = 0
"""Not among the cluster's brokers: what a broker does with the requests is not measured."""
SESSION_TIMEOUT_MS = 30_000
LIMIT_S = 600.0
LOOK_S = 0.005
QUEUE_LIMIT = 1_000
REQUEST_TIMEOUT_MS = 120_000


def now_ms() -> float:
    return time.monotonic() * 1_000.0


@dataclass(frozen=True, slots=True)
class Note:
    """What happened: an event that was handled to its end, rows that were written, an entry of the trace."""

    at_ms: float
    what: object


class Notes:
    """Everything that happened, in its order. Threads add; the main thread reads."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._more = threading.Condition()

    def add(self, what: object) -> None:
        note = Note(now_ms(), what)
        with self._more:
            self._notes.append(note)
            self._more.notify_all()

    def forget(self) -> None:
        with self._more:
            self._notes.clear()

    def of(self, kind: type) -> list[Note]:
        with self._more:
            return [note for note in self._notes if isinstance(note.what, kind)]

    def wait_for(self, kind: type) -> Note:
        """The first of its kind. TimeoutError."""
        with self._more:
            found = lambda: next((note for note in self._notes if isinstance(note.what, kind)), None)  # noqa: E731
            note = self._more.wait_for(found, LIMIT_S)
        if note is None:
            raise TimeoutError(f"no {kind.__name__} in {LIMIT_S:g} s")
        return note


@dataclass(frozen=True, slots=True)
class RowsAcknowledged:
    rows: int


class NotingTrace:
    enabled = False

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def emit(self, event: TraceEvent) -> None:
        if isinstance(event, FailoverPhase | FailoverCompleted | RequestAnswered):
            self._notes.add(event)
        elif isinstance(event, Noted) and event.level == "error":
            print(event.message, file=sys.stderr, flush=True)


class NotingClient(ZooKeeperClient):
    """Notes when rows were acknowledged."""

    notes: Notes

    async def commit_rows(self, leadership: Leadership, rows: Sequence[SetData]) -> RowsWritten:
        written = await super().commit_rows(leadership, rows)
        self.notes.add(RowsAcknowledged(len(rows)))
        return written


class Worker:
    """What the event thread drives, with all that belongs to it."""

    def __init__(self, hosts: str) -> None:
        self.notes = Notes()
        self._network = NetworkThread()
        clock = self._network.clock
        trace = NotingTrace(self.notes)
        self._thread = ControllerEventThread(clock, trace, self._tripped)
        self.events = EventQueue(QUEUE_LIMIT, threading.Lock(), self._thread.wake)
        self._client = NotingClient(KazooConnection(hosts, clock, SESSION_TIMEOUT_MS), clock, self.events)
        self._client.notes = self.notes

        peers = SocketPeers(self._network, str(BROKER_ID), lambda host, port: (host, port))

        def channels() -> ControllerChannels:
            return socket_channels(
                peers,
                clock,
                self.events,
                trace,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                may_send=lambda: term_holds(self.controller),
            )

        self.controller = Controller(
            broker_id=BROKER_ID,
            zookeeper=self._client,
            channels=channels,
            clock=clock,
            trace=trace,
            settings=ControllerSettings(),
            register=_not_registered,
            events=self.events,
            rng=random.Random(1),
        )

    def _tripped(self, error: BaseException) -> None:
        print(f"the event thread ended: {error!r}", file=sys.stderr, flush=True)

    def process(self, event: Event) -> Coro[None]:
        async def noted() -> None:
            await self.controller.process(event)
            self.notes.add(event)

        return noted()

    def start(self) -> None:
        self._network.start()
        wait(self._client.start(), LIMIT_S)
        self._thread.start(self)
        self.events.put(Startup())
        self.notes.wait_for(Startup)

    def stop(self) -> None:
        self._thread.stop(1.0)
        wait(self._client.close(), LIMIT_S)
        self._network.stop()

    # -- what is asked for

    def standby(self) -> dict[str, Any]:
        _look_until(lambda: not self.controller.active)
        self.notes.forget()
        return {}

    def failover(self) -> dict[str, Any]:
        ended = self.notes.wait_for(FailoverCompleted)
        answered_ms = self._all_answered()
        assert isinstance(ended.what, FailoverCompleted)
        phases = [note.what for note in self.notes.of(FailoverPhase)]
        self.notes.forget()
        return {
            "ended_ms": ended.at_ms,
            "answered_ms": answered_ms,
            "partitions": ended.what.partitions,
            "duration_ms": ended.what.duration_ms,
            "phases": [(phase.phase, phase.duration_ms, phase.items) for phase in phases],  # type: ignore[attr-defined]
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024.0,
        }

    def gone(self) -> dict[str, Any]:
        self.notes.wait_for(BrokerChange)
        answered_ms = self._all_answered()
        writes = [(note.at_ms, note.what.rows) for note in self.notes.of(RowsAcknowledged)]  # type: ignore[attr-defined]
        self.notes.forget()
        return {"writes": writes, "answered_ms": answered_ms}

    def shutdown(self, broker: int) -> dict[str, Any]:
        responded = threading.Event()
        answers: list[tuple[float, ControlledShutdownResponse]] = []

        def respond(response: ControlledShutdownResponse) -> None:
            answers.append((now_ms(), response))
            responded.set()

        asked_ms = now_ms()
        self.events.put(ControlledShutdownRequested(broker, -1, respond))
        if not responded.wait(LIMIT_S):
            raise TimeoutError(f"no answer to the controlled shutdown in {LIMIT_S:g} s")
        [(at_ms, response)] = answers
        answered_ms = self._all_answered()
        self.notes.forget()
        return {
            "asked_ms": asked_ms,
            "succeeded_ms": at_ms,
            "error": response.error_code,
            "remaining": len(response.remaining_partitions),
            "answered_ms": answered_ms,
        }

    def _all_answered(self) -> float:
        _look_until(lambda: not self.controller.unanswered and not len(self.events))
        answers = self.notes.of(RequestAnswered)
        return answers[-1].at_ms if answers else now_ms()


async def _not_registered() -> int:
    return 0


def _look_until(holds: Callable[[], bool]) -> None:
    """Between measurements, never in one."""
    deadline_ms = now_ms() + LIMIT_S * 1_000.0
    while not holds():
        if now_ms() > deadline_ms:
            raise TimeoutError(f"not so in {LIMIT_S:g} s")
        time.sleep(LOOK_S)


def serve_controller(hosts: str) -> None:
    # As a broker's process does before it starts.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    worker = Worker(hosts)
    worker.start()
    print("{}", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        asked: dict[str, Callable[..., dict[str, Any]]] = {
            "standby": worker.standby,
            "failover": worker.failover,
            "gone": worker.gone,
            "shutdown": worker.shutdown,
        }
        print(json.dumps(asked[what](*map(int, numbers))), flush=True)
    worker.stop()


PIECE_BYTES = 1 << 20
HEADER_BYTES = 128
"""More than the header of any request of a controller takes."""
CONTROL = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)
SERVED = frozenset({*CONTROL, ApiKey.API_VERSIONS})


def answer(header: RequestHeader) -> ResponseValue:
    """No error, of the whole and of any part."""
    if header.api_key is ApiKey.API_VERSIONS:
        return ApiVersionsResponse(
            0, tuple(ApiVersion(key, SUPPORTED[key].first, SUPPORTED[key].last) for key in CONTROL)
        )
    if header.api_key is ApiKey.LEADER_AND_ISR:
        return LeaderAndIsrResponse(0)
    if header.api_key is ApiKey.STOP_REPLICA:
        return StopReplicaResponse(0)
    return UpdateMetadataResponse(0)


class AcknowledgingBroker:
    """One broker: a port on loopback, and a thread a connection, which mostly waits for bytes to throw away."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        room = memoryview(bytearray(PIECE_BYTES))
        with connection:
            while _fill(connection, room[:SIZE_BYTES]):
                left = frame_size(bytes(room[:SIZE_BYTES]))
                head = min(left, HEADER_BYTES)
                if not _fill(connection, room[:head]):
                    return
                header, _ = read_request_header(bytes(room[:head]), SERVED)
                left -= head
                while left:
                    got = connection.recv_into(room[: min(left, PIECE_BYTES)])
                    if not got:
                        return
                    left -= got
                connection.sendall(framed(encode_response(header, answer(header))))


def _fill(connection: socket.socket, room: memoryview) -> bool:
    """False when the other end closed the connection first."""
    got = 0
    while got < len(room):
        try:
            count = connection.recv_into(room[got:])
        except ConnectionResetError:
            return False
        if not count:
            return False
        got += count
    return True


def serve_brokers(brokers: int) -> None:
    serving = {broker: AcknowledgingBroker() for broker in range(1, brokers + 1)}
    print(json.dumps({broker: one.port for broker, one in serving.items()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "brokers":
        serve_brokers(int(sys.argv[2]))
    else:
        serve_controller(sys.argv[2])

"""The transactional clients of a run on real processes: writers by number, what they did, and where they are to stop.

Each life of a client is a process (`transaction_client.py`), so that it can die within a transaction, and stand still.
The same changes and the same history as in simulation (`controller/simulator/transactional_client.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.chaos.client import Connect
from controller.chaos.client_process import ClientLife, ClientProcess, Event, StopsOfClient, Undo
from controller.chaos.clock import ScenarioClock
from controller.scenarios.faults import ChangeProducer, HostFailure
from controller.scenarios.records.history import ACKNOWLEDGED, SendLog, TransactionalLogs
from controller.scenarios.records.transaction_history import ABORTED, COMMITTED
from controller.scenarios.records.workload import PartitionName, TransactionWorkload

CLIENT = "controller.chaos.transaction_client"
END_S = 90.0


class TransactionEvents:
    """Takes the events of one client's transactions into its log."""

    def __init__(self, log: SendLog) -> None:
        assert log.transactions is not None
        self.log = log
        self.transactions = log.transactions

    def take(self, event: Event) -> None:
        log, transactions = self.log, self.transactions
        match event:
            case ["initialised", asked_ms, answered_ms]:
                transactions.initialised(asked_ms, answered_ms)
            case ["began", at_ms]:
                transactions.began(at_ms)
            case ["sent", number, rows, at_ms]:
                for place, key in rows:
                    log.sent(key, place, at_ms, number)
            case ["delivered", sequence, offset, at_ms]:
                log.ended(sequence, ACKNOWLEDGED, at_ms, offset=offset)
            case ["committing", number, at_ms]:
                transactions.committing(number, at_ms)
            case ["ended", number, committed, at_ms]:
                transactions.ended(number, COMMITTED if committed else ABORTED, at_ms)


class TransactionalSetup(TransactionalLogs):
    """What all transactional clients of a run share, and their logs."""

    def __init__(
        self,
        connect: Connect,
        workload: TransactionWorkload,
        partitions: Sequence[PartitionName],
        places: Sequence[int],
        clock: ScenarioClock,
        folder: Path,
        common: Mapping[str, object],
    ) -> None:
        super().__init__()
        self.workload = workload
        self.clock = clock
        self.folder = folder
        self.lock = threading.Lock()
        self._connect = connect
        self._partitions = tuple(partitions)
        self._places = list(places)
        self._common = common

    def config(self, name: str, log: SendLog) -> dict[str, object]:
        """The configuration of the program for a client with that transactional id."""
        workload = self.workload
        producer = {
            **self._common,
            **self._connect,
            "client.id": name,
            "transactional.id": name,
            "transaction.timeout.ms": workload.timeout_ms,
            "message.timeout.ms": workload.timeout_ms,
            "request.timeout.ms": 3_000,
            # librdkafka looks for a group's coordinator again when a connection opens or closes, and may wait for that
            # without end (send_offsets_to_transaction): idle ones close.
            "connections.max.idle.ms": 2_000,
            "socket.timeout.ms": min(5_000, workload.timeout_ms),
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 200,
        }
        return {
            "producer": producer,
            "number": log.producer,
            "partitions": self._partitions,
            "places": self._places,
            "each": workload.partitions,
            "records": workload.records,
            "abort_every": workload.abort_every,
            "pause_ms": 1000.0 * max(workload.writers, 1) / workload.rate_per_s,
            "zero_ms": self.clock.zero_ms,
            "seed": log.producer,
            "group": False,
            "only_init": False,
        }

    def end_open(self, name: str) -> None:
        """Have the coordinator abort what a dead client with that transactional id left open."""
        with self.lock:
            log = self.new(name)
        events = TransactionEvents(log)
        process = ClientProcess(
            CLIENT, self.config(name, log) | {"only_init": True}, self.folder / f"{name}.log", events.take
        )
        if not process.wait(END_S):
            process.kill()
            raise HostFailure(f"{name} was not initialised in {END_S:g} s")


class _WriterLife(ClientLife):
    def __init__(self, writer: RealWriter) -> None:
        setup, name = writer.setup, writer.name
        with setup.lock:
            log = setup.new(name)
        self._events = TransactionEvents(log)
        super().__init__(CLIENT, setup.config(name, log), setup.folder / f"{name}.log", setup.lock, writer.stops)

    def take(self, event: Event) -> None:
        self._events.take(event)


class RealWriter:
    """One transactional producer, over its lives, which share its transactional id. Begins at once."""

    def __init__(self, number: int, setup: TransactionalSetup) -> None:
        self.setup = setup
        self.name = f"writer-{number}"
        self.stops = StopsOfClient()
        self._former: list[_WriterLife] = []
        self._life = _WriterLife(self)
        self._unended: str | None = None

    def change(self, fault: ChangeProducer) -> Undo | None:
        """Carry out a change. Return what ends it; None if it makes no sense now."""
        life = self._life
        if fault.how == "start":
            self._begin()
            return lambda: None
        if not life.process.is_running:
            return None
        if fault.how in ("pause", "resume"):
            return life.stand_still() if fault.how == "pause" else life.go_on()
        if fault.how == "replace":
            life.give_way()
            self._former.append(life)
            self._life = _WriterLife(self)
            return life.process.resume
        life.process.kill()
        return self._begin

    def _begin(self) -> None:
        if not self._life.process.is_running:
            self._life = _WriterLife(self)

    def stop(self) -> None:
        """Ask it to end once its transaction has."""
        for life in self._former:
            life.process.kill()
        self._life.process.resume()
        self.stops.release()
        self._life.process.leave()

    def join(self) -> None:
        """Wait until it has ended, at most END_S: `error` says if it has not."""
        process = self._life.process
        if not process.wait(END_S):
            self._unended = f"{self.name}: its transaction did not end in {END_S:g} s"
        elif process.status != 0:
            self.setup.end_open(self.name)  # it was dead before

    @property
    def error(self) -> str | None:
        error = self._life.process.error
        if self._unended is not None:
            return self._unended
        return None if error is None else f"{self.name} {error}"

    def close(self) -> None:
        for life in [*self._former, self._life]:
            life.process.kill()

"""All real clients of a chaos run that write and read records, from the first record to the history of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.chaos.consuming import ConsumingClient, FinalReader
from controller.chaos.producing import DELIVERY_TIMEOUT_MS, ProducingClient
from controller.scenarios.host import HostFailure
from controller.scenarios.records.history import FinalRead, History, acknowledged_ends, history_of
from controller.scenarios.records.workload import PartitionName, RecordWorkload

JOIN_S = DELIVERY_TIMEOUT_MS / 1000 + 10


class RecordClients:
    """Begins at once. HostFailure, with the extra to install, where confluent-kafka is missing."""

    def __init__(
        self,
        bootstrap: str,
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
        now_ms: Callable[[], float],
    ) -> None:
        self._bootstrap = bootstrap
        self._partitions = tuple(partitions)
        self._now_ms = now_ms
        self._final: FinalReader | None = None
        self._finals: list[FinalRead] = []
        try:
            self._consumers = [
                ConsumingClient(number, bootstrap, self._partitions, now_ms) for number in range(workload.consumers)
            ]
            self._producers = [
                ProducingClient(number, bootstrap, workload, self._partitions, now_ms)
                for number in range(workload.producers)
            ]
        except ImportError as error:
            raise HostFailure("records need confluent-kafka: pip install 'camerlengo[chaos]'") from error

    def quiesce(self, deadline_ms: float) -> None:
        """Blocks until every operation has ended, and all was read once more or `deadline_ms` passed with that. The
        consumers go on meanwhile: what they have not read yet they may read too."""
        self._stop_producers()
        expected = acknowledged_ends(len(self._partitions), [producer.log for producer in self._producers])
        self._final = FinalReader(self._bootstrap, self._partitions, expected, self._now_ms)
        self._finals = self._final.read(deadline_ms)
        self.close()

    def _stop_producers(self) -> None:
        for producer in self._producers:
            producer.stop()
        if not all(producer.join(JOIN_S) for producer in self._producers):
            raise HostFailure(f"a producer did not come to its end in {2 * JOIN_S:g} s")

    def close(self) -> None:
        """Ends the clients, whatever is unfinished. Safe to call twice."""
        for producer in self._producers:
            producer.stop()
        for producer in self._producers:
            producer.join(0.5)
        for consumer in self._consumers:
            consumer.stop()

    def history(self) -> History:
        """After `close` or `quiesce`: until then the logs are the clients' threads'."""
        reads = [consumer.log for consumer in self._consumers]
        if self._final is not None:
            reads.append(self._final.log)
        sends = [producer.log for producer in self._producers]
        clients: list[ProducingClient | ConsumingClient] = [*self._producers, *self._consumers]
        errors = [client.error for client in clients if client.error is not None]
        return history_of(self._partitions, sends, reads, self._finals, errors)

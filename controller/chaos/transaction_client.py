"""A transactional client as a program: a real producer that writes transactions, and reports its events.

`python -m controller.chaos.transaction_client CONFIG`; `RealWriter` starts it. With `group` in its configuration it is
a member of a consumer group that consumes, transforms and produces in transactions; with `only_init` it ends what a
former client with its transactional id left open, and itself. Every event is written before what follows from it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from controller.chaos.client_process import EventPipe, SignalsTaken, configuration
from controller.chaos.group_member import MemberProgram
from controller.scenarios.records.payload import Payload, encode_payload, key_bytes

LIMIT_S = 30.0
"""How long one call of the client library may wait."""
RECORD_BYTES = 64
ADDED_S = 0.04
"""The client library adds partitions a few milliseconds after the first record is produced."""
LINGER_MS = 100
"""Records are sent no sooner, unless the producer is flushed: until then the coordinator has the partitions alone."""
MOST_IN_A_TRANSACTION = 100
INITIALISED, PARTITIONS_ADDED, SENT, ENDING = "initialised", "partitions-added", "sent", "ending"


class Fatal(Exception):
    """The producer can't go on: it was fenced."""


class Stops:
    """Where the client is to stop in a transaction, as its parent says on standard input: `hold STAGE`, `release`."""

    def __init__(self, events: EventPipe) -> None:
        self._events = events
        self._wanted = ""
        self._go_on = threading.Event()
        threading.Thread(target=self._listen, name="stops", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, stage = line.strip().partition(" ")
            self._wanted = stage if word == "hold" else ""
            self._go_on.set() if word == "release" else self._go_on.clear()

    def wanted(self, stage: str) -> bool:
        return self._wanted == stage

    def at(self, stage: str) -> None:
        if self._wanted == stage:
            self._events.write("stage", stage)
            if stage != ENDING:
                self._go_on.wait()
            self._wanted = ""


class ClientTransactionCalls:
    """The transactions of one client. Raises Fatal where the library calls an error so."""

    def __init__(self, config: Mapping[str, Any], events: EventPipe, stops: Stops) -> None:
        self._config = {**config["producer"], "linger.ms": LINGER_MS}
        self._partitions = [tuple(one) for one in config["partitions"]]
        self._zero_ms = float(config["zero_ms"])
        self._number = int(config["number"])
        self._abort_every = int(config["abort_every"])
        self._events = events
        self._stops = stops
        self._begun = 0
        self._sequence = 0
        self._producer: Any = None

    def now_ms(self) -> float:
        return round(time.monotonic() * 1000 - self._zero_ms, 3)

    def init(self) -> None:
        """A new producer of the client library, and a new incarnation."""
        self._producer = Producer(self._config)
        asked_ms = self.now_ms()
        self._call(lambda: self._producer.init_transactions(LIMIT_S))
        self._events.write("initialised", asked_ms, self.now_ms())

    def _call(self, request: Callable[[], Any]) -> Any:
        """Ask until it is answered. Raises Fatal, and KafkaException where the transaction is to be aborted."""
        while True:
            try:
                return request()
            except KafkaException as raised:
                error = raised.args[0]
                if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                    raise Fatal(error.name()) from raised
                if not error.retriable():
                    raise

    def run(self, keys: Mapping[int, Sequence[int]], send_offsets: Callable[[int, Any], None] | None = None) -> bool:
        """One transaction with a record of each of those keys to each place. Return whether it was committed."""
        number = self._begun
        self._call(self._producer.begin_transaction)
        self._begun += 1
        self._events.write("began", self.now_ms())
        self._stops.at(INITIALISED)
        try:
            self._send(number, keys)
            if self._stops.wanted(PARTITIONS_ADDED):
                self._producer.poll(ADDED_S)
                self._stops.at(PARTITIONS_ADDED)
            if self._producer.flush(LIMIT_S):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if send_offsets is not None:
                send_offsets(number, self._producer)
            self._stops.at(SENT)
            if self._abort_every and (number + 1) % self._abort_every == 0:
                self._abort(number)
                return False
            self._events.write("committing", number, self.now_ms())
            self._stops.at(ENDING)
            self._call(lambda: self._producer.commit_transaction(LIMIT_S))
        except KafkaException:
            self._abort(number)
            return False
        self._events.write("ended", number, True, self.now_ms())
        return True

    def offsets(self, offsets: Sequence[Any], metadata: Any) -> None:
        self._call(lambda: self._producer.send_offsets_to_transaction(list(offsets), metadata, LIMIT_S))

    def _abort(self, number: int) -> None:
        try:
            self._call(lambda: self._producer.abort_transaction(LIMIT_S))
        except KafkaException as raised:
            raise Fatal(raised.args[0].name()) from raised
        self._producer.poll(0)
        self._events.write("ended", number, False, self.now_ms())

    def _send(self, number: int, keys: Mapping[int, Sequence[int]]) -> None:
        now_ms = self.now_ms()
        rows = [(place, key) for place, those in keys.items() for key in those]
        self._events.write("sent", number, rows, now_ms)
        for place, key in rows:
            topic, partition = self._partitions[place]
            value = encode_payload(Payload(self._number, key, self._sequence, now_ms), RECORD_BYTES)
            report = partial(self._delivered, self._sequence)
            self._sequence += 1
            self._producer.produce(topic, value, key_bytes(key), partition=partition, on_delivery=report)

    def _delivered(self, sequence: int, error: Any, message: Any) -> None:
        if error is None:
            offset = message.offset()
            self._events.write("delivered", sequence, -1 if offset is None else offset, self.now_ms())


class WriterProgram:
    """Writes transactions until it is asked to leave."""

    def __init__(self, config: dict[str, Any], events: EventPipe, signals: SignalsTaken) -> None:
        self._transactions = ClientTransactionCalls(config, events, Stops(events))
        self._signals = signals
        self._events = events
        self._config = config
        self._rng = random.Random(config["seed"])

    def run(self) -> None:
        config = self._config
        while True:
            try:
                self._transactions.init()
                while not self._signals.leaving and not config["only_init"]:
                    due_s = time.monotonic() + config["pause_ms"] / 1000 * self._rng.uniform(0.5, 1.5)
                    self._transactions.run(self._drawn())
                    time.sleep(max(due_s - time.monotonic(), 0))
                return
            except Fatal as error:
                self._events.write("fenced", str(error))
                if self._signals.superseded:
                    return
                time.sleep(0.05)

    def _drawn(self) -> dict[int, list[int]]:
        places, config = self._config["places"], self._config
        drawn = self._rng.sample(places, min(len(places), self._rng.randint(1, config["each"])))
        return {place: [self._rng.randrange(64) for _ in range(config["records"])] for place in drawn}


class TransformingMember(MemberProgram):
    """A member that writes a record for each that it consumes, and commits its offsets in the same transaction."""

    def __init__(self, config: dict[str, Any], events: EventPipe, signals: SignalsTaken) -> None:
        self._transactions = ClientTransactionCalls(config, events, Stops(events))
        self._ready = False
        self._outputs: list[int] = config["places"]
        self._read_rows: list[tuple[int, int, int]] = []
        self._taken = 0
        super().__init__({**config, "partitions": config["inputs"]}, events, signals)

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self._read_rows, self._taken = [], 0
        super()._assigned(consumer, partitions)

    def _was_read(self, place: int, offset: int, key: int) -> None:
        self._read_rows.append((place, offset, key))

    def _revoked(self, _consumer: Any, _partitions: Sequence[Any]) -> None:
        """What was read and not consumed is for the next owner: a transaction can't be begun here."""
        self._give_up()

    def _give_up(self) -> None:
        self._read_rows, self._taken = [], 0
        super()._give_up()

    def _commit(self) -> None:
        rows = self._read_rows[self._taken : self._taken + MOST_IN_A_TRANSACTION]
        generation = self._named()[1]
        if not rows or generation < 0:
            return
        keys: dict[int, list[int]] = {}
        offsets: dict[int, int] = {}
        for place, offset, key in rows:
            keys.setdefault(self._outputs[place % len(self._outputs)], []).append(key)
            offsets[place] = offset + 1
        try:
            if not self._ready:
                self._transactions.init()
                self._ready = True
            self._events.write("consuming", self._taken, self._taken + len(rows))
            committed = self._transactions.run(keys, partial(self._send_offsets, offsets))
        except Fatal as error:
            self._events.write("fenced", str(error))
            self._ready = committed = False
            if self._signals.superseded:
                self._signals.leaving = True
        if committed:
            self._taken += len(rows)
        else:
            self._begin_again()

    def _send_offsets(self, offsets: Mapping[int, int], number: int, _producer: Any) -> None:
        member_id, generation = self._named()
        self._events.write(
            "sending-offsets", number, member_id, generation, list(offsets.items()), self._transactions.now_ms()
        )
        named = [TopicPartition(*self._partitions[place], offset) for place, offset in offsets.items()]
        self._transactions.offsets(named, self._consumer.consumer_group_metadata())
        self._events.write("offsets-sent", number)

    def _begin_again(self) -> None:
        """From the committed offsets, with a reader of its own, if it still has its assignment."""
        partitions = self._consumer.assignment()
        self._give_up()
        if partitions and self._named()[1] >= 0:
            self._assigned(self._consumer, partitions)


if __name__ == "__main__":
    given = configuration(sys.argv)
    kind = TransformingMember if given["group"] else WriterProgram
    kind(given, EventPipe(), SignalsTaken()).run()

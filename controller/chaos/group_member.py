"""A member of a consumer group as a program: a real consumer that subscribes, reads, commits, and reports its events.

`python -m controller.chaos.group_member CONFIG`; `RealMember` starts it. It goes on from the offsets that it fetched,
and commits what it has read four times a second and before its partitions go to others. Every event is written before
what follows from it: a read before the commit of its offset, a commit before it is sent.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from controller.chaos.client_process import EventPipe, SignalsTaken, configuration
from controller.scenarios.records.payload import ForeignRecord, decode_payload

COMMIT_EACH_S = 0.25
POLL_S = 0.05
ASK_S = 5.0
_BATCH = 500
_METADATA = b"CGMDv2:"
"""How librdkafka begins a group's metadata: then the generation, and the names of the group and of the member."""
_GENERATION = struct.Struct("=i")
_OUT_OF_THE_GROUP = (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)


def generation_of(metadata: bytes) -> int:
    """The generation in a consumer's group metadata. Raises ValueError if it is of another format."""
    if not metadata.startswith(_METADATA) or len(metadata) < len(_METADATA) + _GENERATION.size:
        raise ValueError(f"group metadata: expected {_METADATA!r} and a generation, found {metadata[:16]!r}")
    return int(_GENERATION.unpack_from(metadata, len(_METADATA))[0])


class MemberProgram:
    """`config`: `client` (librdkafka's settings), `partitions` as [topic, number], `zero_ms` of the scenario."""

    def __init__(self, config: dict[str, Any], events: EventPipe, signals: SignalsTaken) -> None:
        self._events = events
        self._signals = signals
        self._partitions = [tuple(one) for one in config["partitions"]]
        self._places = {name: place for place, name in enumerate(self._partitions)}
        self._zero_ms = float(config["zero_ms"])
        self._positions: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._number = 0
        self._next_commit_s = 0.0
        self._consumer: Any = Consumer(config["client"])
        self._consumer.subscribe(
            sorted({topic for topic, _ in self._partitions}),
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def run(self) -> None:
        while not self._signals.leaving:
            for message in self._consumer.consume(_BATCH, POLL_S):
                error = message.error()
                if error is None:
                    self._read(message)
                elif self._ends(error):
                    return
            if time.monotonic() >= self._next_commit_s:
                self._next_commit_s = time.monotonic() + COMMIT_EACH_S
                self._commit()
        self._consumer.close()  # revokes, commits and leaves

    def _now_ms(self) -> float:
        return round(time.monotonic() * 1000 - self._zero_ms, 3)

    def _named(self) -> tuple[str, int]:
        return self._consumer.memberid() or "", generation_of(self._consumer.consumer_group_metadata())

    def _ends(self, error: Any) -> bool:
        """Whether the error ends a client in whose place another is. Other errors are temporary."""
        if error.code() in _OUT_OF_THE_GROUP or (error.fatal() and error.code() == KafkaError._FATAL):
            self._former(error.name())
            return bool(self._signals.superseded) or error.fatal()
        return False

    def _former(self, error: str) -> None:
        now_ms = self._now_ms()
        self._events.write("former", self._named()[0], error, now_ms, now_ms)

    # -- rebalances

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        member_id, generation = self._named()
        places = sorted(self._places[one.topic, one.partition] for one in partitions)
        self._events.write("assigned", member_id, generation, places, self._now_ms())
        self._positions, self._sent = {}, {}
        starts = []
        for one in self._committed(partitions):
            place = self._places[one.topic, one.partition]
            offset = max(one.offset, 0)
            self._positions[place] = self._sent[place] = offset
            starts.append(TopicPartition(one.topic, one.partition, offset))
        consumer.assign(starts)

    def _committed(self, partitions: Sequence[Any]) -> Sequence[Any]:
        """The group's offsets; asked for until they are answered, or the client is to end."""
        while partitions and not self._signals.leaving:
            sent_ms = self._now_ms()
            try:
                answered: list[Any] = self._consumer.committed(list(partitions), ASK_S)
            except KafkaException:
                continue
            if any(one.error is not None for one in answered):
                time.sleep(POLL_S)
                continue
            offsets = {self._places[one.topic, one.partition]: max(one.offset, -1) for one in answered}
            self._events.write("fetched", list(offsets.items()), sent_ms, self._now_ms())
            return answered
        return []

    def _revoked(self, _consumer: Any, _partitions: Sequence[Any]) -> None:
        self._commit()
        self._give_up()

    def _lost(self, _consumer: Any, _partitions: Sequence[Any]) -> None:
        self._give_up()
        if self._signals.superseded:
            os._exit(0)  # another is in its place; it leaves nothing

    def _give_up(self) -> None:
        self._positions, self._sent = {}, {}
        self._events.write("gave-up", self._now_ms())

    # -- records and offsets

    def _read(self, message: Any) -> None:
        place, offset = self._places[message.topic(), message.partition()], message.offset()
        if place not in self._positions:
            return  # of an assignment that was given up
        producer = sequence = key = -1
        with suppress(ForeignRecord):
            producer, key, sequence, _ = decode_payload(message.value())
        self._events.write("read", place, offset, producer, sequence, key, self._now_ms())
        self._positions[place] = offset + 1
        self._was_read(place, offset, key)

    def _was_read(self, place: int, offset: int, key: int) -> None:
        """For a member that does more with a record than to commit its offset."""

    def _commit(self) -> None:
        due = {place: at for place, at in self._positions.items() if at > self._sent.get(place, 0)}
        member_id, generation = self._named()
        if not due or generation < 0:
            return
        self._number += 1
        self._events.write("committing", self._number, member_id, generation, list(due.items()), self._now_ms())
        offsets = [TopicPartition(*self._partitions[place], at) for place, at in due.items()]
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as raised:
            error = raised.args[0]
            if not error.name().startswith("_"):  # the coordinator's own
                results = [(place, error.name()) for place in due]
                self._events.write("committed", self._number, results, self._now_ms())
            if self._ends(error):
                os._exit(0)
            return
        results = []
        for one in answered:
            place = self._places[one.topic, one.partition]
            name = "" if one.error is None else one.error.name()
            if not name.startswith("_"):
                results.append((place, name))
            if not name:
                self._sent[place] = due[place]
        self._events.write("committed", self._number, results, self._now_ms())


if __name__ == "__main__":
    MemberProgram(configuration(sys.argv), EventPipe(), SignalsTaken()).run()

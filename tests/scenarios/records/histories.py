"""Histories for tests: a sound one with faults planted in it, and random ones of a cluster that errs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from controller.scenarios.records.checks import RecordEvidence
from controller.scenarios.records.delivery_audit import DeliveryAudit
from controller.scenarios.records.history import (
    ACKNOWLEDGED,
    FAILED,
    FINAL,
    FOREIGN,
    INDETERMINATE,
    FinalRead,
    History,
    Reached,
    ReadLog,
    SendLog,
    history_of,
)
from controller.scenarios.records.workload import RecordWorkload

PARTITIONS = (("t", 0), ("t", 1))

Entry = tuple[int, int, int]
"""Producer, sequence, key: what a log holds at an offset."""


@dataclass
class Story:
    """A history being made: operations, what each partition holds in the end, what was read before."""

    producers: int = 2
    sends: list[SendLog] = field(default_factory=list)
    logs: list[list[Entry]] = field(default_factory=lambda: [[] for _ in PARTITIONS])
    consumers: list[ReadLog] = field(default_factory=lambda: [ReadLog(0), ReadLog(1)])
    reached: list[Reached] = field(default_factory=lambda: [Reached.END for _ in PARTITIONS])
    start: int = 0
    troubles: list[str] = field(default_factory=list)
    final: bool = True

    def __post_init__(self) -> None:
        self.sends = [SendLog(producer) for producer in range(self.producers)]

    def send(self, producer: int, key: int, outcome: int = ACKNOWLEDGED, *, write: int = 1, tell: bool = True) -> int:
        """Sends a record, written `write` times; the sequence."""
        log = self.logs[key % len(PARTITIONS)]
        at_ms = float(len(self.sends[producer].key))
        sequence = self.sends[producer].sent(key, key % len(PARTITIONS), at_ms)
        offset = len(log) if tell and write else -1
        log += [(producer, sequence, key)] * write
        if outcome != INDETERMINATE:
            self.sends[producer].ended(sequence, outcome, at_ms + 5.0, offset=offset)
        return sequence

    def read(self, consumer: int, partition: int, offset: int, high_watermark: int = -1) -> None:
        entry = self.logs[partition][offset]
        self.consumers[consumer].read(partition, offset, *entry, 50.0, high_watermark)

    def history(self) -> History:
        final = ReadLog(FINAL)
        finals = []
        for partition, log in enumerate(self.logs):
            shown = len(log) if self.reached[partition] is Reached.END else len(log) // 2
            for offset in range(self.start, shown):
                final.read(partition, offset, *log[offset], 100.0)
            finals.append(FinalRead(self.start, len(log), self.reached[partition]))
        if not self.final:
            return history_of(PARTITIONS, self.sends, self.consumers, troubles=self.troubles)
        return history_of(PARTITIONS, self.sends, [*self.consumers, final], finals, self.troubles)


def sound(records: int = 20) -> Story:
    """Two producers, two keys each, everything acknowledged, written once and read by both consumers."""
    story = Story()
    for number in range(records):
        story.send(number % 2, number % 4)
    for consumer in (0, 1):
        for partition, log in enumerate(story.logs):
            for offset in range(len(log)):
                story.read(consumer, partition, offset)
    return story


def evidence(
    story: Story | History,
    workload: RecordWorkload | None = None,
    led: Sequence[tuple[str, int]] | None = PARTITIONS,
) -> RecordEvidence:
    history = story.history() if isinstance(story, Story) else story
    return RecordEvidence(workload or RecordWorkload(), DeliveryAudit(history), None if led is None else frozenset(led))


def random_story(rng: Random, records: int) -> Story:
    """Producers and consumers of a cluster that loses, repeats, reorders and invents, each now and then."""
    story = Story()
    for number in range(records):
        outcome = rng.choices((ACKNOWLEDGED, INDETERMINATE, FAILED), (8, 2, 1))[0]
        write = rng.choices((1, 0, 2), (12, 1, 1))[0]
        if outcome == FAILED:
            write = rng.choices((0, 1), (8, 1))[0]
        story.send(rng.randrange(2), rng.randrange(5), outcome, write=write, tell=rng.random() < 0.9)
        for consumer in (0, 1):
            partition = rng.randrange(len(PARTITIONS))
            if story.logs[partition] and rng.random() < 0.5:
                offset = rng.randrange(len(story.logs[partition]))
                story.read(consumer, partition, offset, rng.choice((-1, offset + 1, offset)))
        if rng.random() < 0.1:
            _err(rng, story.logs[rng.randrange(len(PARTITIONS))], number)
    story.reached = [rng.choices((Reached.END, Reached.PART), (5, 1))[0] for _ in PARTITIONS]
    story.start = rng.choices((0, 2), (5, 1))[0]
    return story


def _err(rng: Random, log: list[Entry], number: int) -> None:
    match rng.randrange(4):
        case 0 if log:
            del log[rng.randrange(len(log)) :]  # the tail is truncated
        case 1 if len(log) > 1:
            at = rng.randrange(len(log) - 1)
            log[at], log[at + 1] = log[at + 1], log[at]
        case 2:
            log.append((FOREIGN, -1, -1))
        case _:
            log.append((rng.randrange(3), number * rng.choice((0, 1)), rng.randrange(5)))

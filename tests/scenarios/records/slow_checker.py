"""The checkers' rules once more, the obvious way: dictionaries and loops, an object at a time."""

from __future__ import annotations

from collections import defaultdict

from controller.scenarios.records.history import ACKNOWLEDGED, FINAL, History, Reached


class Slow:
    """Each method gives the same rows as the function of its name in `delivery_audit.py`."""

    def __init__(self, history: History) -> None:
        self.history = history
        reads, sends = history.reads, history.sends
        self.send = {(int(sends.producer[i]), int(sends.sequence[i])): i for i in range(len(sends))}
        self.final: list[dict[int, int]] = [{} for _ in history.partitions]
        for row in range(len(reads)):
            if reads.reader[row] == FINAL:
                self.final[int(reads.partition[row])][int(reads.offset[row])] = row
        self.complete = [final.reached is Reached.END for final in history.finals] or [False for _ in self.final]
        self.start = [final.start_offset for final in history.finals] or [0 for _ in self.final]

    def name(self, row: int) -> tuple[int, int]:
        return int(self.history.reads.producer[row]), int(self.history.reads.sequence[row])

    def at_home(self, send: int) -> list[int]:
        """Offsets at which the send's record is, in its own partition."""
        partition = int(self.history.sends.partition[send])
        return [
            offset for offset, row in sorted(self.final[partition].items()) if self.send.get(self.name(row)) == send
        ]

    def missing(self) -> list[int]:
        sends = self.history.sends
        return [
            send
            for send in range(len(sends))
            if sends.outcome[send] == ACKNOWLEDGED
            and not self.at_home(send)
            and (sends.offset[send] < 0 or sends.offset[send] >= self.start[int(sends.partition[send])])
        ]

    def lost(self) -> set[int]:
        return {send for send in self.missing() if self.complete[int(self.history.sends.partition[send])]}

    def unaccounted(self) -> set[int]:
        return {send for send in self.missing() if not self.complete[int(self.history.sends.partition[send])]}

    def misplaced(self) -> set[int]:
        sends = self.history.sends
        found = set()
        for send in range(len(sends)):
            offset, partition = int(sends.offset[send]), int(sends.partition[send])
            if sends.outcome[send] != ACKNOWLEDGED or offset < 0 or not self.at_home(send):
                continue
            if offset not in self.at_home(send) and (offset in self.final[partition] or self.complete[partition]):
                found.add(send)
        return found

    def overtaken(self) -> set[int]:
        found = set()
        for log in self.final:
            seen: set[tuple[int, int]] = set()
            latest: dict[int, int] = defaultdict(lambda: -1)
            for _, row in sorted(log.items()):
                name = self.name(row)
                if name not in self.send or name in seen:
                    continue
                seen.add(name)
                if name[1] < latest[name[0]]:
                    found.add(row)
                latest[name[0]] = max(latest[name[0]], name[1])
        return found

    def repeated(self) -> set[int]:
        found = set()
        for log in self.final:
            seen: set[tuple[int, int]] = set()
            for _, row in sorted(log.items()):
                if self.name(row) in self.send and self.name(row) in seen:
                    found.add(row)
                seen.add(self.name(row))
        return found

    def unexplained(self) -> set[int]:
        sends, reads = self.history.sends, self.history.reads
        found = set()
        for partition, log in enumerate(self.final):
            for row in log.values():
                send = self.send.get(self.name(row))
                if send is None or sends.partition[send] != partition or sends.key[send] != reads.key[row]:
                    found.add(row)
        return found

    def vanished(self) -> set[int]:
        reads = self.history.reads
        found = set()
        for row in range(len(reads)):
            partition, offset = int(reads.partition[row]), int(reads.offset[row])
            end = self.final[partition].get(offset)
            if reads.reader[row] == FINAL:
                continue
            if end is not None:
                gone = self.name(end) != self.name(row)
            else:
                gone = self.complete[partition] and offset >= self.start[partition]
            if gone:
                found.add(row)
        return found

    def beyond_high_watermark(self) -> set[int]:
        reads = self.history.reads
        return {row for row in range(len(reads)) if 0 <= reads.high_watermark[row] <= reads.offset[row]}

    def after_a_gap(self) -> set[int]:
        reads = self.history.reads
        found, last = set(), dict[tuple[int, int], int]()
        for row in range(len(reads)):
            key = (int(reads.reader[row]), int(reads.partition[row]))
            begin = self.start[key[1]] if key[0] == FINAL else int(reads.offset[row])
            if reads.offset[row] > last.get(key, begin - 1) + 1:
                found.add(row)
            last[key] = int(reads.offset[row])
        return found


RULES = (
    "lost",
    "unaccounted",
    "misplaced",
    "overtaken",
    "repeated",
    "unexplained",
    "vanished",
    "beyond_high_watermark",
    "after_a_gap",
)

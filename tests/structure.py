"""Figures of the code's structure, and the limits that keep them from growing.

    python -m tests.structure

prints each figure beside its limit. A limit is lowered in the commit that makes the figure smaller.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType

from controller.core.channels import ControllerChannels, ControlRequest
from tests.simulator.test_incidents_in_worlds import produce, state, world

ROOT = Path(__file__).parents[1]
PACKAGES = ("controller", "statemachines")
BENCHMARKS = "tests/benchmarks"
"""The benchmarks were part of the packages once: they count, so that moving lines there lowers no figure."""
STANDS_FOR = ("controller/simulator/", "controller/machine/", "controller/scenarios/", "controller/zookeeper/memory/")
"""Files that do not count for a path: they stand for the network, disks, clients and ZooKeeper."""

REPLACED = re.compile(r"\b(told|tells|whoever|nobody|befalls?|struck|doomed|trouble|mend(s|ed)?|hears? of)\b")
"""Words for which the field has a term, or plain English a better one."""

FORMER_FORMATS = frozenset({"FORMER_WORDS:", "FORMER_ERROR_KEY ="})
"""Lines that name the words of files written by earlier versions, which are still read."""

SHARED_NAMES: Mapping[str, str] = {
    "ReplicaState": "a state of the replica machine, and the tagged field of Fetch 15 that Kafka's schema calls so",
}
"""Names that several public classes have, and why."""


def sources(folders: Sequence[str] = (*PACKAGES, BENCHMARKS)) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def lines(folders: Sequence[str] = (*PACKAGES, BENCHMARKS)) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(folders))


def files(folders: Sequence[str] = (*PACKAGES, BENCHMARKS)) -> int:
    return len(list(sources(folders)))


@cache
def shared_class_names() -> set[str]:
    """Names that more than one public class has."""
    found: dict[str, int] = defaultdict(int)
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name] += 1
    return {name for name, count in found.items() if count > 1}


def lines_with_replaced_words() -> int:
    text = (line for path in sources() for line in path.read_text().splitlines())
    return sum(bool(REPLACED.search(line)) for line in text if not line.startswith(tuple(FORMER_FORMATS)))


def lines_with_replaced_words_in_docs() -> int:
    """Code spans apart: they name steps of scenarios, tests and planted faults."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = (line for page in pages for line in re.sub(r"`[^`\n]+`", "", page.read_text()).splitlines())
    return sum(bool(REPLACED.search(line)) for line in text)


def median_file_lines() -> float:
    return statistics.median(len(path.read_text().splitlines()) for path in sources())


def _files_called(action: Callable[[], None]) -> set[str]:
    """The product's files of which a function was called, directly or not."""
    found: set[str] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(None)
    own = {Path(name).relative_to(ROOT) for name in found if Path(name).is_relative_to(ROOT)}
    own = {path for path in own if path.parts[0] in PACKAGES}
    return {str(path) for path in own if not str(path).startswith(STANDS_FOR)}


def files_of_a_produce() -> set[str]:
    """From a produce with acks=all to its acknowledgement, in a cluster of three brokers."""
    made = world(3, 3, seed=1)
    leader = state(made).leader

    def acknowledged() -> None:
        asked = produce(made, leader, b"value")
        made.run_until(lambda: asked.done)
        assert asked.result().responses[0].partition_responses[0].error_code == 0

    return _files_called(acknowledged)


def files_of_a_brokers_death() -> set[str]:
    """From the watch that fires to the first LeaderAndIsr on the wire."""
    made = world(3, 3, seed=1)
    dead = next(broker for broker in state(made).isr if broker != made.controller)
    sent: list[int] = []
    made.kill(dead)
    made.run_until(lambda: dead not in made.registered)
    send = ControllerChannels.send

    def noted(self: ControllerChannels, broker: int, request: ControlRequest) -> None:
        send(self, broker, request)
        sent.append(request.api_key)

    def until_sent() -> None:
        ControllerChannels.send = noted  # type: ignore[method-assign]
        try:
            made.run_until(lambda: 4 in sent)
        finally:
            ControllerChannels.send = send  # type: ignore[method-assign]

    return _files_called(until_sent)


FIGURES: Mapping[str, tuple[Callable[[], float], float]] = {
    "lines of the packages and benchmarks": (lines, 121_300),
    "files of the packages and benchmarks": (files, 461),
    "lines of the packages": (lambda: lines(PACKAGES), 108_800),
    "files of the packages": (lambda: files(PACKAGES), 423),
    "public classes that share a name": (lambda: len(shared_class_names()), 1),
    "lines of the packages with replaced words": (lines_with_replaced_words, 0),
    "lines of README and docs with replaced words": (lines_with_replaced_words_in_docs, 0),
    "files passed by a produce with acks=all": (lambda: len(files_of_a_produce()), 25),
    "files passed by a broker's death": (lambda: len(files_of_a_brokers_death()), 25),
}
"""Each figure, and what it may not exceed."""


def main() -> int:
    exceeded = False
    for name, (figure, limit) in FIGURES.items():
        found = figure()
        exceeded |= found > limit
        print(f"{name:<50} {found:>8,} {'>' if found > limit else '<='} {limit:,}")
    print(f"{'median lines of a file':<50} {median_file_lines():>8,}")
    return int(exceeded)


if __name__ == "__main__":
    raise SystemExit(main())

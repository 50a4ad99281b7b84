"""`camerlengo state`: a cluster as its ZooKeeper shows it, or as a file of its znodes does, as text or as JSON.

Reads only. docs/state.md has the fields of the JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.values import number, output_file
from controller.cli.zookeeper_options import NoEvents, add_config_option, connection_for
from controller.clock import Clock, spawn
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.cluster_state import (
    PAUSE_MS,
    ClusterPartitions,
    ClusterState,
    NoKafkaCluster,
    RegisteredBroker,
    Tree,
    TreeFileError,
    cluster_state,
    load,
    read_cluster_tree,
    save,
)
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import ZooKeeperError

FORMAT = 1

PROBLEMS = (
    "unreadable",
    "offline",
    "leader_outside_isr",
    "isr_outside_assignment",
    "under_replicated",
    "off_preferred",
)
"""Masks of PartitionTable, worst first."""


def problems_of(table: ClusterPartitions, row: int) -> list[str]:
    """The names of the masks that hold of one partition."""
    return [mask for mask in PROBLEMS if getattr(table, mask)[row]]


def summary(state: ClusterState) -> dict[str, int]:
    table = state.partitions
    counts = {mask: int(getattr(table, mask).sum()) for mask in PROBLEMS}
    return {
        "brokers_live": len(state.brokers),
        "brokers_known": len(state.brokers) + len(state.absent_brokers),
        "topics": len(table.assignments.names),
        "partitions": len(table),
        **counts,
        "could_move": int(table.could_move.sum()),
        "reassigning": len(table.reassigning()),
        "deleting": len(state.deletions),
        "damaged_znodes": len(state.damaged),
    }


def document(state: ClusterState) -> dict[str, Any]:
    """The whole state, in plain lists, dictionaries, numbers and strings."""
    controller = state.controller
    live = {broker.broker_id for broker in state.brokers}
    return {
        "format": FORMAT,
        "cluster_id": state.cluster_id,
        "controller_epoch": state.controller_epoch,
        "controller": controller
        and {
            "broker_id": controller.broker_id,
            "live": controller.broker_id in live,
            "timestamp_ms": controller.timestamp_ms,
        },
        "summary": summary(state),
        "brokers": [
            *map(_broker_object, state.brokers),
            *({"id": broker_id, "live": False} for broker_id in state.absent_brokers),
        ],
        "topics": _topic_objects(state.partitions),
        "pending": {
            "deletions": list(state.deletions),
            "reassignments": [
                {"topic": topic, "partition": partition, "replicas": list(replicas)}
                for (topic, partition), replicas in state.reassignments.items()
            ],
            "preferred_elections": [
                {"topic": topic, "partition": partition} for topic, partition in state.preferred_elections
            ],
            "isr_changes": state.isr_changes,
        },
        "damaged": [{"path": damage.path, "why": damage.why} for damage in state.damaged],
    }


def _broker_object(broker: RegisteredBroker) -> dict[str, Any]:
    known = broker.registration
    described: dict[str, Any] = {
        "id": broker.broker_id,
        "live": True,
        "broker_epoch": broker.broker_epoch,
        "session": f"0x{broker.session:x}",
    }
    if known is not None:
        described |= {
            "rack": known.rack,
            "endpoints": [
                {
                    "listener": endpoint.listener,
                    "security_protocol": endpoint.security_protocol,
                    "host": endpoint.host,
                    "port": endpoint.port,
                }
                for endpoint in known.endpoints
            ],
            "jmx_port": known.jmx_port,
            "version": known.version,
            "timestamp_ms": known.timestamp_ms,
        }
    return described


def _topic_objects(table: ClusterPartitions) -> list[dict[str, Any]]:
    held = table.assignments
    topics: list[dict[str, Any]] = []
    for index, name in enumerate(held.names):
        rows = range(int(held.starts[index]), int(held.starts[index + 1]))
        topics.append(
            {
                "name": name,
                "topic_id": held.topic_ids[index],
                "readable": bool(held.present[index]),
                "partitions": [_partition(table, row) for row in rows],
            }
        )
    return topics


def _partition(table: ClusterPartitions, row: int) -> dict[str, Any]:
    partition = table.partition(row)
    described: dict[str, Any] = {
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
        "assignment": list(partition.assignment),
        "controller_epoch": partition.controller_epoch,
        "zk_version": partition.zk_version,
        "problems": problems_of(table, row),
    }
    if partition.adding or partition.removing:
        described |= {"adding": list(partition.adding), "removing": list(partition.removing)}
    return described


PARTITIONS_SHOWN = 500
"""In a cluster with more, the topics are listed without their partitions; --json has them all."""
PROBLEMS_SHOWN = 40

_WORDS = {
    "unreadable": "damaged",
    "offline": "offline",
    "leader_outside_isr": "leader not in the ISR",
    "isr_outside_assignment": "ISR not within the assignment",
    "under_replicated": "under-replicated",
    "off_preferred": "off preferred leader",
}


def state_lines(state: ClusterState) -> Iterator[str]:
    yield from _summary(state)
    yield from _section("brokers", _brokers(state))
    yield from _section("damaged znodes", (f"{damage.path}: {damage.why}" for damage in state.damaged))
    yield from _section("partitions with problems", _problems(state.partitions))
    yield from _section("pending", _pending(state))
    yield from _section("topics", _topics(state.partitions))


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    """Nothing at all of a section that has nothing to say."""
    for place, line in enumerate(body):
        if place == 0:
            yield ""
            yield title
        yield f"  {line}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest word; the last one runs on."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "-"


def _summary(state: ClusterState) -> Iterator[str]:
    table = state.partitions
    topics = len(table.assignments.names)
    known = len(state.brokers) + len(state.absent_brokers)
    moved, could_move = int(table.off_preferred.sum()), int(table.could_move.sum())
    absent = f" (not registered: {_ids(state.absent_brokers)})" if state.absent_brokers else ""
    rows = [
        ("cluster", state.cluster_id or "no id"),
        ("controller", _controller(state)),
        ("brokers", f"{len(state.brokers)} of {known} live{absent}"),
        ("partitions", f"{len(table)} in {topics} topic{'' if topics == 1 else 's'}"),
        ("offline", str(int(table.offline.sum()))),
        ("under-replicated", str(int(table.under_replicated.sum()))),
        ("off preferred leader", f"{moved} ({could_move} could move back now)" if moved else "0"),
        ("reassigning", str(len(table.reassigning()))),
        ("topics being deleted", str(len(state.deletions))),
        ("damaged znodes", str(len(state.damaged))),
    ]
    yield from _table(rows)


def _controller(state: ClusterState) -> str:
    epoch = "no epoch" if state.controller_epoch is None else f"epoch {state.controller_epoch}"
    if state.controller is None:
        return f"none ({epoch})"
    broker_id = state.controller.broker_id
    live = any(broker.broker_id == broker_id for broker in state.brokers)
    return f"broker {broker_id}, {epoch}{'' if live else ' (not registered)'}"


def _brokers(state: ClusterState) -> Iterator[str]:
    if not state.brokers and not state.absent_brokers:
        return
    rows = [("id", "epoch", "rack", "leads", "in ISR of", "endpoints")]
    controller = state.controller.broker_id if state.controller else None
    for broker in state.brokers:
        rows.append(_broker(broker, state.partitions, broker.broker_id == controller))
    for broker_id in state.absent_brokers:
        leads, in_sync = _shares(state.partitions, broker_id)
        rows.append((str(broker_id), "-", "-", leads, in_sync, "not registered"))
    yield from _table(rows)


def _broker(
    broker: RegisteredBroker, table: ClusterPartitions, is_controller: bool
) -> tuple[str, str, str, str, str, str]:
    known = broker.registration
    rack, endpoints = "?", "damaged registration"
    if known is not None:
        rack = known.rack or "-"
        endpoints = " ".join(endpoint.connection_string() for endpoint in known.endpoints)
    if is_controller:
        endpoints += "  (controller)"
    return (str(broker.broker_id), str(broker.broker_epoch), rack, *_shares(table, broker.broker_id), endpoints)


def _shares(table: ClusterPartitions, broker_id: int) -> tuple[str, str]:
    leads = int((table.states.leader == broker_id).sum())
    return str(leads), str(int((table.states.isr == broker_id).any(axis=1).sum()))


def _problems(table: ClusterPartitions) -> Iterator[str]:
    """The worst first."""
    order: list[int] = []
    seen = np.zeros(len(table), dtype=np.bool_)
    for mask in PROBLEMS:
        rows = np.flatnonzero(getattr(table, mask) & ~seen)
        seen[rows] = True
        order += rows.tolist()
    if order:
        yield from _table([_HEADER, *(_row(table, row, with_topic=True) for row in order[:PROBLEMS_SHOWN])])
    if len(order) > PROBLEMS_SHOWN:
        yield f"... and {len(order) - PROBLEMS_SHOWN} more (--json lists them all)"


_HEADER = ("partition", "leader", "epoch", "ISR", "assignment", "")


def _row(table: ClusterPartitions, row: int, *, with_topic: bool) -> tuple[str, str, str, str, str, str]:
    partition = table.partition(row)
    there = bool(table.states.present[row])
    leader = "none" if partition.leader < 0 else str(partition.leader)
    notes = [_WORDS[mask] for mask in problems_of(table, row)]
    if not there and not table.unreadable[row]:
        notes.append("no state yet")
    notes += [f"adding {_ids(partition.adding)}"] if partition.adding else []
    notes += [f"removing {_ids(partition.removing)}"] if partition.removing else []
    return (
        f"{partition.topic}-{partition.partition}" if with_topic else str(partition.partition),
        leader if there else "?",
        str(partition.leader_epoch) if there else "?",
        _ids(partition.isr) if there else "?",
        _ids(partition.assignment),
        ", ".join(notes),
    )


def _pending(state: ClusterState) -> Iterator[str]:
    table = state.partitions
    for topic in state.deletions:
        yield f"delete topic {topic}"
    for row in table.reassigning():
        partition = table.partition(row)
        name = f"{partition.topic}-{partition.partition}"
        yield f"reassign {name}: adding {_ids(partition.adding)}, removing {_ids(partition.removing)}"
    for (name, partition_id), replicas in state.reassignments.items():
        yield f"asked for: reassign {name}-{partition_id} to {_ids(replicas)}"
    for name, partition_id in state.preferred_elections:
        yield f"asked for: elect the preferred leader of {name}-{partition_id}"
    if state.isr_changes:
        yield f"{state.isr_changes} ISR change notification(s) not yet taken up"


def _topics(table: ClusterPartitions) -> Iterator[str]:
    held = table.assignments
    show_partitions = len(table) <= PARTITIONS_SHOWN
    for index, name in enumerate(held.names):
        rows = range(int(held.starts[index]), int(held.starts[index + 1]))
        if not held.present[index]:
            yield f"{name}: damaged"
            continue
        yield f"{name}: {_topic(table, rows)}"
        if show_partitions and rows:
            listed = [_HEADER, *(_row(table, row, with_topic=False) for row in rows)]
            yield from (f"  {line}" for line in _table(listed))


def _topic(table: ClusterPartitions, rows: range) -> str:
    at = slice(rows.start, rows.stop)
    factors = sorted(set((table.assignments.assignment[at] >= 0).sum(axis=1).tolist()))
    words = [f"{len(rows)} partitions" if len(rows) != 1 else "1 partition"]
    if factors:
        words.append(f"{'-'.join(map(str, factors[:: max(1, len(factors) - 1)]))} replicas each")
    counts = ((_WORDS[mask], int(getattr(table, mask)[at].sum())) for mask in PROBLEMS)
    return ", ".join([*words, *(f"{count} {word}" for word, count in counts if count)])


_CLOSE_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A Kafka cluster as its ZooKeeper shows it: controller, brokers, partitions, and what is offline,"
        " under-replicated or off its preferred leader. Nothing is written and no watch is set."
    )
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON document (docs/state.md)")
    parser.add_argument("--save", metavar="FILE", type=output_file, help="also write the znodes to FILE")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the source of a cluster's state, shared by all commands that read one with `read_source`."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--zookeeper",
        metavar="HOSTS",
        help="HOST:PORT[,HOST:PORT...][/chroot] to read from (default: the running `camerlengo cluster`)",
    )
    source.add_argument(
        "--tree", metavar="FILE", type=Path, help="file written by `state --save`, or a listing of znodes"
    )
    add_config_option(parser)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=number(0, 86_400), default=15.0, help="connection timeout (15)"
    )
    parser.add_argument(
        "--pause-ms",
        metavar="MS",
        type=number(0, 86_400_000),
        default=PAUSE_MS,
        help=f"pause after each 500 znodes ({PAUSE_MS:g})",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        tree, state = read_source(arguments)
    except CouldNotRead as error:
        return _could_not_run(str(error))
    if arguments.save is not None:
        _save(tree, arguments.save)
    print_text(_json(state) if arguments.json else "\n".join(state_lines(state)))
    return 0


def read_source(arguments: argparse.Namespace) -> tuple[Tree, ClusterState]:
    """Read the source named by the options of `add_source_options`.

    Raises:
        UsageError: the file is not a tree of a Kafka cluster. The message names the source.
        CouldNotRead: ZooKeeper cannot be reached, or has no Kafka cluster. The message names the source.
    """
    if arguments.tree is not None:
        tree = _load(arguments.tree)
        try:
            return tree, cluster_state(tree)
        except NoKafkaCluster as error:
            raise UsageError(f"{arguments.tree}: {error}") from error
    clock = ThreadClock()
    connection = connection_for(arguments, clock, "--zookeeper HOSTS or --tree FILE")
    try:
        tree = _read(connection, clock, arguments.timeout, arguments.pause_ms)
        return tree, cluster_state(tree)
    except (CouldNotRead, NoKafkaCluster) as error:
        raise CouldNotRead(f"{arguments.zookeeper}: {error}") from error


def _json(state: ClusterState) -> str:
    return msgspec.json.format(msgspec.json.encode(document(state)), indent=2).decode("utf-8")


def print_text(text: str) -> None:
    """A reader that has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _could_not_run(why: str) -> int:
    print(f"camerlengo state: {why}", file=sys.stderr)
    return COULD_NOT_RUN


class CouldNotRead(Exception):
    """ZooKeeper was not reached in time, would not answer, or keeps no Kafka cluster."""


def _load(path: Path) -> Tree:
    try:
        return load(path)
    except TreeFileError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _save(tree: Tree, path: Path) -> None:
    try:
        save(tree, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _read(connection: KazooConnection, clock: Clock, timeout_seconds: float, pause_ms: float) -> Tree:
    client = ZooKeeperClient(connection, clock, NoEvents())
    try:
        wait(client.start(), timeout_seconds)
        return _read_while_answered(client, clock, timeout_seconds, pause_ms)
    except TimeoutError as error:
        raise CouldNotRead(f"no ZooKeeper answered within {timeout_seconds:g} s") from error
    except ZooKeeperError as error:
        raise CouldNotRead(str(error)) from error
    finally:
        with contextlib.suppress(TimeoutError):  # the session ends by itself then
            wait(client.close(), _CLOSE_SECONDS)


def _read_while_answered(client: ZooKeeperClient, clock: Clock, timeout_seconds: float, pause_ms: float) -> Tree:
    """A client that is cut off waits for ever: it is given up on (TimeoutError) once nothing comes for that long."""
    counts = [0]
    reading = spawn(read_cluster_tree(client, clock, pause_ms, progress=counts.append))
    while True:
        known = len(counts)
        try:
            return wait(reading, timeout_seconds)
        except TimeoutError:
            if len(counts) == known:
                raise

"""The state of a cluster as a JSON document: what `camerlengo state --json` prints (docs/state.md has its fields)."""

from __future__ import annotations

from typing import Any

from controller.zookeeper.cluster_state import ClusterState, LiveBroker, PartitionTable

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


def problems_of(table: PartitionTable, row: int) -> list[str]:
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
            *map(_broker, state.brokers),
            *({"id": broker_id, "live": False} for broker_id in state.absent_brokers),
        ],
        "topics": _topics(state.partitions),
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


def _broker(broker: LiveBroker) -> dict[str, Any]:
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


def _topics(table: PartitionTable) -> list[dict[str, Any]]:
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


def _partition(table: PartitionTable, row: int) -> dict[str, Any]:
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

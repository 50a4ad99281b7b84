"""Requests to one specific broker, to read its metadata: a real client sends requests to any broker."""

from __future__ import annotations

from controller.hosts.ask import ask_metadata
from controller.scenarios.host import PartitionView

TIMEOUT_S = 5.0


def metadata_of(host: str, port: int, timeout_s: float = TIMEOUT_S) -> dict[tuple[str, int], PartitionView]:
    """The broker's view of every partition. Raises what `ask_metadata` raises."""
    return {
        (topic.name or "", partition.partition_index): PartitionView(
            partition.leader_id, tuple(partition.isr_nodes), tuple(partition.replica_nodes), partition.leader_epoch
        )
        for topic in ask_metadata((host, port), timeout_s).topics
        for partition in topic.partitions
    }

"""The ISR that a leader wants for a partition: the current one, without lagging replicas and with caught-up ones.

In a broker without logs no replica can lag, and the metadata decides; with logs, the followers' fetches do. Decisions
alone: `isr_changes.py` sends the requests to the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.partition import Partition

InSync: TypeAlias = Callable[[Partition, int], bool]
WantedIsr: TypeAlias = Callable[[Partition], tuple[int, ...]]
"""Of a partition that this broker leads, the ISR that it should have: never without the leader."""


def live_followers(metadata: MetadataCache) -> InSync:
    """Return a check whether a replica is live and not shutting down, by metadata of the leader's own epoch."""

    def live(partition: Partition, broker: int) -> bool:
        snapshot = metadata.snapshot
        state = snapshot.topics.get(partition.topic, {}).get(partition.index)
        return (
            state is not None
            and state.leader_epoch == partition.leader_epoch
            and broker in snapshot.brokers
            and broker not in state.offline_replicas
        )

    return live


def by_metadata(metadata: MetadataCache) -> WantedIsr:
    """Return the policy that treats every live replica as in sync; the controller removes the others from the ISR."""
    live = live_followers(metadata)

    def wanted(partition: Partition) -> tuple[int, ...]:
        joining = (one for one in partition.replicas if one not in partition.isr and live(partition, one))
        return (*partition.isr, *joining)

    return wanted


def by_replication(metadata: MetadataCache, now_ms: Callable[[], float], lag_max_ms: float) -> WantedIsr:
    """Return the policy that follows the followers' fetches. It removes a replica that has not been caught up for
    `lag_max_ms`. It adds one that has all committed records, is fetching, and is live by the metadata: of a replica
    that has just failed, only its last fetch is known here."""
    live = live_followers(metadata)

    def wanted(partition: Partition) -> tuple[int, ...]:
        leading, log = partition.leading, partition.log
        if leading is None or log is None:
            return partition.isr
        at_ms = now_ms()
        if leading.keeps_isr(log.log_end_offset, partition.high_watermark, at_ms, lag_max_ms):
            return partition.isr
        behind = leading.behind(log.log_end_offset, at_ms, lag_max_ms)
        caught_up = leading.caught_up(partition.high_watermark, at_ms, lag_max_ms)
        staying = tuple(broker for broker in partition.isr if broker not in behind)
        return (*staying, *(broker for broker in caught_up if live(partition, broker)))

    return wanted

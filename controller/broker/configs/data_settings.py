"""The broker's settings that records need: replication, fetches, waiting requests, upkeep of logs, connections.

Pure, as `settings.py`, which they are part of. Settings of the logs themselves are `controller.storage.settings`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.broker.configs import setting_types as types
from controller.broker.configs.setting_types import INT_MAX, LONG_MAX, Setting
from controller.storage.settings import BROKER_NAMES, LogSettings

QUEUED_REQUESTS = 4

DATA_SETTINGS: Mapping[str, Setting] = {
    # Kafka's name: (our field, Kafka's default unless a comment says otherwise, type)
    "replica.lag.time.max.ms": ("replica_lag_time_max_ms", "30000", types.integer(1)),
    "replica.socket.timeout.ms": ("replica_socket_timeout_ms", "30000", types.integer(1)),
    "replica.fetch.wait.max.ms": ("replica_fetch_wait_max_ms", "500", types.integer(0)),
    "replica.fetch.min.bytes": ("replica_fetch_min_bytes", "1", types.integer(0)),
    "replica.fetch.max.bytes": ("replica_fetch_max_bytes", "1048576", types.integer(1)),
    "replica.fetch.response.max.bytes": ("replica_fetch_response_max_bytes", "10485760", types.integer(1)),
    "replica.fetch.backoff.ms": ("replica_fetch_backoff_ms", "1000", types.integer(0)),
    "num.replica.fetchers": ("num_replica_fetchers", "1", types.integer(1)),
    "replica.high.watermark.checkpoint.interval.ms": (
        "replica_high_watermark_checkpoint_interval_ms",
        "5000",
        types.integer(1),
    ),
    "fetch.max.bytes": ("fetch_max_bytes", "57671680", types.integer(1024)),
    "max.incremental.fetch.session.cache.slots": (
        "max_incremental_fetch_session_cache_slots",
        "1000",
        types.integer(0),
    ),
    "fetch.purgatory.purge.interval.requests": (
        "fetch_purgatory_purge_interval_requests",
        "1000",
        types.integer(1),
    ),
    "producer.purgatory.purge.interval.requests": (
        "producer_purgatory_purge_interval_requests",
        "1000",
        types.integer(1),
    ),
    "delete.records.purgatory.purge.interval.requests": (
        "delete_records_purgatory_purge_interval_requests",
        "1",
        types.integer(1),
    ),
    "log.flush.scheduler.interval.ms": (
        "log_flush_scheduler_interval_ms",
        str(LONG_MAX),
        types.integer(1, LONG_MAX),
    ),
    "log.flush.offset.checkpoint.interval.ms": (
        "log_flush_offset_checkpoint_interval_ms",
        "60000",
        types.integer(1),
    ),
    "log.flush.start.offset.checkpoint.interval.ms": (
        "log_flush_start_offset_checkpoint_interval_ms",
        "60000",
        types.integer(1),
    ),
    "log.retention.check.interval.ms": (
        "log_retention_check_interval_ms",
        "300000",
        types.integer(1, LONG_MAX),
    ),
    "log.segment.delete.delay.ms": ("log_segment_delete_delay_ms", "60000", types.integer(1, LONG_MAX)),
    "connections.max.idle.ms": ("connections_max_idle_ms", "600000", types.integer(-1, LONG_MAX)),
    "max.connections": ("max_connections", str(INT_MAX), types.integer(0)),
    "camerlengo.request.stall.timeout.ms": ("request_stall_timeout_ms", "30000", types.integer(1)),
    "camerlengo.request.entries.max": ("request_entries_max", "100000", types.integer(2_000)),
    "camerlengo.producer.ids.max": ("producer_ids_max", "500000", types.integer(1)),
    "camerlengo.topic.partitions.max": ("topic_partitions_max", "10000", types.integer(1)),
    "camerlengo.request.partitions.max": ("request_partitions_max", "20000", types.integer(1)),
    "camerlengo.response.max.bytes": ("response_max_bytes", "16777216", types.integer(1024)),
    "camerlengo.log.open.files.max": ("log_open_files_max", "-1", types.integer(-1)),
    "queued.max.request.bytes": ("queued_max_request_bytes", "-1", types.integer(-1, LONG_MAX)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Values in the units of their names. `log`: what a log goes by whose topic says nothing else."""

    log: LogSettings
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    replica_fetch_wait_max_ms: int
    replica_fetch_min_bytes: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_backoff_ms: int
    num_replica_fetchers: int
    replica_high_watermark_checkpoint_interval_ms: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    fetch_purgatory_purge_interval_requests: int
    producer_purgatory_purge_interval_requests: int
    delete_records_purgatory_purge_interval_requests: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    log_segment_delete_delay_ms: int
    """How long the files of a deleted partition stay at most. A segment that retention takes goes at once."""
    connections_max_idle_ms: int
    """-1: for ever."""
    max_connections: int
    request_stall_timeout_ms: int
    """How long a request that has begun to arrive may bring no byte before its connection is closed."""
    request_entries_max: int
    """Elements of all arrays of one client request together: names, partitions, resources."""
    producer_ids_max: int
    """Producer ids that all partitions here remember together."""
    topic_partitions_max: int
    """Partitions that a client may give one topic."""
    request_partitions_max: int
    """Partitions that a client may create with one request."""
    response_max_bytes: int
    """Of a DescribeConfigs response; a fetch has fetch.max.bytes."""
    log_open_files_max: int
    """-1: a sixth of the descriptors that the process may have."""
    queued_max_request_bytes: int
    """Of all connections' requests together that were read and not answered; -1: `QUEUED_REQUESTS` of the largest
    there may be, where Kafka has no limit."""


def log_settings(given: Mapping[str, str]) -> tuple[LogSettings, list[str]]:
    """What the names and values say of logs, and a sentence for each value that is wrong."""
    texts = {name: given[name].strip() for name in BROKER_NAMES if name in given}
    if "log.flush.interval.ms" not in texts and "log.flush.scheduler.interval.ms" in given:
        # As in Kafka: who asks for looks at what is to be flushed, and for nothing else, wants it flushed then.
        texts["log.flush.interval.ms"] = given["log.flush.scheduler.interval.ms"].strip()
    problems: list[str] = []
    for name, text in texts.items():
        try:
            LogSettings.from_broker({name: text})
        except ValueError as error:
            problems.append(str(error))
    return (LogSettings() if problems else LogSettings.from_broker(texts)), problems


def data_problems(settings: DataSettings, socket_request_max_bytes: int) -> list[str]:
    """What contradicts another setting."""
    problems: list[str] = []
    queued = settings.queued_max_request_bytes
    if 0 <= queued < socket_request_max_bytes:
        problems.append(
            f"queued.max.request.bytes={queued}: expected -1, or "
            f"socket.request.max.bytes={socket_request_max_bytes} or more"
        )
    if settings.replica_fetch_wait_max_ms > settings.replica_socket_timeout_ms:
        problems.append(
            f"replica.socket.timeout.ms={settings.replica_socket_timeout_ms}: expected "
            f"replica.fetch.wait.max.ms={settings.replica_fetch_wait_max_ms} or more"
        )
    if settings.replica_fetch_wait_max_ms > settings.replica_lag_time_max_ms:
        problems.append(
            f"replica.fetch.wait.max.ms={settings.replica_fetch_wait_max_ms}: expected at most "
            f"replica.lag.time.max.ms={settings.replica_lag_time_max_ms}, or ISRs shrink at idle"
        )
    return problems

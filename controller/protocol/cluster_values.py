"""The values of what is asked about the cluster as a whole, and about where a broker keeps its logs: finalized
features, blocks of producer ids, log directories.

As in `control_values`: a value holds the fields of all its versions, under Kafka's names, with defaults for those that
a version lacks. Only values live here.
"""

from __future__ import annotations

from dataclasses import dataclass

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3
UNKNOWN_SIZE = -1
"""The size of a volume that was not determined."""


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A `max_version_level` below 1 asks for the feature's deletion. Version 0 says `allow_downgrade`, later ones an
    `upgrade_type`."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = UPGRADE


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest:
    feature_updates: tuple[FeatureUpdate, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdatedFeature:
    feature: str
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateFeaturesResponse:
    error_code: int
    error_message: str | None = None
    results: tuple[UpdatedFeature, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsRequest:
    broker_id: int
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AllocateProducerIdsResponse:
    """The ids from `producer_id_start` on, so many as `producer_id_len` says."""

    error_code: int
    producer_id_start: int = 0
    producer_id_len: int = 0
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    """`topics` None: all that there are."""

    topics: tuple[DescribableLogDirTopic, ...] | None


@dataclass(frozen=True, slots=True)
class DescribedReplica:
    """`offset_lag`: how many records the log lacks of what is known to be committed. `is_future_key`: it is still being
    moved to this directory."""

    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool = False


@dataclass(frozen=True, slots=True)
class DescribedReplicas:
    name: str
    partitions: tuple[DescribedReplica, ...]


@dataclass(frozen=True, slots=True)
class DescribedLogDir:
    error_code: int
    log_dir: str
    topics: tuple[DescribedReplicas, ...] = ()
    total_bytes: int = UNKNOWN_SIZE
    usable_bytes: int = UNKNOWN_SIZE


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse:
    """`error_code` is of the request as a whole, from version 3 on."""

    results: tuple[DescribedLogDir, ...]
    error_code: int = 0
    throttle_time_ms: int = 0

"""The table of checks for the documentation, beside Kafka's: `python -m tests.broker.access_table`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from controller.broker.security.acls import AclOperation, ResourceType
from controller.broker.security.table import (
    ACCESS,
    ERRORS,
    Check,
    Each,
    Special,
    operation_title,
    resource_title,
)
from controller.protocol.codec import ApiKey

Pair: TypeAlias = tuple[AclOperation, ResourceType]
"""An operation on a resource of the type."""
TOPIC, GROUP, CLUSTER, TRANSACTION = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
READ_GROUP, READ_TOPIC = (AclOperation.READ, GROUP), (AclOperation.READ, TOPIC)
DESCRIBE_TOPIC, WRITE_TOPIC = (AclOperation.DESCRIBE, TOPIC), (AclOperation.WRITE, TOPIC)
WRITE_TRANSACTION = (AclOperation.WRITE, TRANSACTION)
ALTER_CLUSTER, DESCRIBE_CLUSTER = (AclOperation.ALTER, CLUSTER), (AclOperation.DESCRIBE, CLUSTER)
CLUSTER_ACTION = (AclOperation.CLUSTER_ACTION, CLUSTER)
CREATE = ((AclOperation.CREATE, CLUSTER), (AclOperation.CREATE, TOPIC))
ALTER_CONFIGS = ((AclOperation.ALTER_CONFIGS, TOPIC), (AclOperation.ALTER_CONFIGS, CLUSTER))
DESCRIBE_CONFIGS = ((AclOperation.DESCRIBE_CONFIGS, TOPIC), (AclOperation.DESCRIBE_CONFIGS, CLUSTER))

KAFKA: Mapping[ApiKey, tuple[Pair, ...]] = {
    ApiKey.PRODUCE: (WRITE_TRANSACTION, WRITE_TOPIC),
    ApiKey.FETCH: (CLUSTER_ACTION, READ_TOPIC),
    ApiKey.LIST_OFFSETS: (DESCRIBE_TOPIC,),
    ApiKey.METADATA: (DESCRIBE_TOPIC, *CREATE),
    ApiKey.LEADER_AND_ISR: (CLUSTER_ACTION,),
    ApiKey.STOP_REPLICA: (CLUSTER_ACTION,),
    ApiKey.UPDATE_METADATA: (CLUSTER_ACTION,),
    ApiKey.CONTROLLED_SHUTDOWN: (CLUSTER_ACTION,),
    ApiKey.OFFSET_COMMIT: (READ_GROUP, READ_TOPIC),
    ApiKey.OFFSET_FETCH: ((AclOperation.DESCRIBE, GROUP), DESCRIBE_TOPIC),
    ApiKey.FIND_COORDINATOR: ((AclOperation.DESCRIBE, GROUP), (AclOperation.DESCRIBE, TRANSACTION)),
    ApiKey.JOIN_GROUP: (READ_GROUP,),
    ApiKey.HEARTBEAT: (READ_GROUP,),
    ApiKey.LEAVE_GROUP: (READ_GROUP,),
    ApiKey.SYNC_GROUP: (READ_GROUP,),
    ApiKey.DESCRIBE_GROUPS: ((AclOperation.DESCRIBE, GROUP),),
    ApiKey.LIST_GROUPS: (DESCRIBE_CLUSTER, (AclOperation.DESCRIBE, GROUP)),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (*CREATE, (AclOperation.DESCRIBE_CONFIGS, TOPIC)),
    ApiKey.DELETE_TOPICS: (DESCRIBE_TOPIC, (AclOperation.DELETE, TOPIC)),
    ApiKey.DELETE_RECORDS: ((AclOperation.DELETE, TOPIC),),
    ApiKey.INIT_PRODUCER_ID: (WRITE_TRANSACTION, (AclOperation.IDEMPOTENT_WRITE, CLUSTER), WRITE_TOPIC),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (CLUSTER_ACTION, DESCRIBE_TOPIC),
    ApiKey.ADD_PARTITIONS_TO_TXN: (WRITE_TRANSACTION, WRITE_TOPIC),
    ApiKey.ADD_OFFSETS_TO_TXN: (WRITE_TRANSACTION, READ_GROUP),
    ApiKey.END_TXN: (WRITE_TRANSACTION,),
    ApiKey.WRITE_TXN_MARKERS: (CLUSTER_ACTION,),
    ApiKey.TXN_OFFSET_COMMIT: (WRITE_TRANSACTION, READ_GROUP, READ_TOPIC),
    ApiKey.DESCRIBE_ACLS: (DESCRIBE_CLUSTER,),
    ApiKey.CREATE_ACLS: (ALTER_CLUSTER,),
    ApiKey.DELETE_ACLS: (ALTER_CLUSTER,),
    ApiKey.DESCRIBE_CONFIGS: DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS: ALTER_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: (ALTER_CLUSTER,),
    ApiKey.DESCRIBE_LOG_DIRS: (DESCRIBE_CLUSTER,),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: ((AclOperation.ALTER, TOPIC),),
    ApiKey.DELETE_GROUPS: ((AclOperation.DELETE, GROUP),),
    ApiKey.ELECT_LEADERS: (ALTER_CLUSTER,),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (ALTER_CLUSTER,),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (DESCRIBE_CLUSTER,),
    ApiKey.OFFSET_DELETE: ((AclOperation.DELETE, GROUP), READ_TOPIC),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ((AclOperation.DESCRIBE_CONFIGS, CLUSTER),),
    ApiKey.ALTER_CLIENT_QUOTAS: ((AclOperation.ALTER_CONFIGS, CLUSTER),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (DESCRIBE_CLUSTER,),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (ALTER_CLUSTER,),
    ApiKey.ALTER_ISR: (CLUSTER_ACTION,),
    ApiKey.UPDATE_FEATURES: (ALTER_CLUSTER,),
}
"""What the handlers of Kafka 2.8.2's KafkaApis ask the authorizer. Without what is asked only to list the operations
that a client may do (KIP-430), which is the same here."""

DIFFERENCES: Mapping[ApiKey, tuple[str, str]] = {
    ApiKey.FETCH: (
        "a consumer gets no fetch session while there is an authorizer",
        "each fetch then names all its partitions, so that a revoked topic is checked again without a look at sessions",
    ),
    ApiKey.METADATA: (
        "a topic that is asked for by an id and may not be described is UNKNOWN_TOPIC_ID; 2.8 answers no ids",
        "whether an id exists is then not shown, as for a name",
    ),
    ApiKey.LEADER_AND_ISR: (
        "refused on other listeners than `control.plane.listener.name`, if that is set",
        "a firewall can then keep clients from acting as the controller, without ACLs too",
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        "without an authorizer refused on other listeners than that of the brokers, where there are several",
        "a marker with the epoch 2^31-1 would make a partition refuse the real coordinator for ever",
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        "a resource of a kind that is not known needs DescribeConfigs on the Cluster; Kafka answers INVALID_REQUEST",
        "what is not known is denied before it is looked at",
    ),
    ApiKey.ALTER_CONFIGS: (
        "loggers and kinds that are not known need AlterConfigs on the Cluster; Kafka answers INVALID_REQUEST",
        "the same",
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        "denied with CLUSTER_AUTHORIZATION_FAILED from version 3 on; Kafka 2.8 has 0 to 2, and an empty answer",
        "version 3 is Kafka 3.0's, and so is its error",
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: ("ClusterAction on the Cluster", "the API is Kafka 3.0's (KIP-730)"),
}
"""What differs, and why; also where the operations are the same. StopReplica and UpdateMetadata are as LeaderAndIsr,
IncrementalAlterConfigs as AlterConfigs."""
NOT_HERE = (
    "Envelope (ClusterAction on Cluster), DescribeCluster, DescribeProducers (Read on Topic), UnregisterBroker, and"
    " Create-, Renew-, Expire- and DescribeDelegationToken (Describe on DelegationToken)"
)
"""APIs of Kafka 2.8.2's KafkaApis that are not answered here."""


def rows_of(key: ApiKey) -> list[tuple[str, str, str]]:
    """(operation, resource, error) for each check."""
    return [row for check in ACCESS[key] for row in _rows(check)]


def _rows(check: Check) -> tuple[tuple[str, str, str], ...]:
    if isinstance(check, Special):
        return check.says
    which = " of each" if isinstance(check, Each) else ""
    resource = resource_title(check.resource_type) + which
    return ((operation_title(check.operation), resource, ERRORS[check.resource_type].name),)


def pairs_of(key: ApiKey) -> set[Pair]:
    """What a row says, in Kafka's terms: `Cluster, or Describe on each Topic` is of two operations."""
    operations = {operation_title(one): one for one in AclOperation}
    kinds = {resource_title(one): one for one in ResourceType}
    found: set[Pair] = set()
    for operation, resource, _ in rows_of(key):
        for part in resource.split(", or "):
            other, kind = re.findall(r"^(?:(\w+) on (?:each|some) )?(\w+)", part)[0]
            found.add((operations[other or operation], kinds[kind]))
    return found


def _named(pairs: Iterable[Pair]) -> str:
    return "; ".join(f"{operation_title(operation)} {resource_title(kind)}" for operation, kind in pairs) or "none"


def documentation() -> list[str]:
    """The tables in Markdown."""
    lines = ["| API | operation | resource | answered with | Kafka 2.8.2 |", "| --- | --- | --- | --- | --- |"]
    for key in ACCESS:
        kafka = _named(KAFKA[key]) if key in KAFKA else "no such API"
        for at, row in enumerate(rows_of(key) or [("none", "", "")]):
            lines.append(f"| {'' if at else _title(key)} | {' | '.join(row)} | {'' if at else kafka} |")
    lines += ["", "| differs from Kafka 2.8.2 | here | why |", "| --- | --- | --- |"]
    lines += [f"| {_title(key)} | {here} | {why} |" for key, (here, why) in DIFFERENCES.items()]
    return [*lines, "", f"Not answered here: {NOT_HERE}."]


def _title(key: ApiKey) -> str:
    return key.name.title().replace("_", "")


if __name__ == "__main__":
    print("\n".join(documentation()))

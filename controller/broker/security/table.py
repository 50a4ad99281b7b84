"""Which operation on which resource each API needs: the one table that requests are checked by. Pure.

The rules are those of Kafka 2.8's KafkaApis. A row is a list of checks, in their order. `Whole` is about the request:
if it is denied, everything that was asked is answered with the resource's error. `Each` is about the elements of one of
its arrays: those that are denied are answered with the error and do not reach the handler, so that nothing of them can
change. What neither can say is a `Special`, a function in `special_checks.py`, with its words for the documentation.

`docs/security.md` has the table, beside Kafka's, as `python -m tests.broker.access_table` writes it. An API without a
row is a failing test, and is refused by a broker with an authorizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from controller.broker.security.acls import AclOperation, ResourceType
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode

ERRORS: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""What a denied operation on a resource of the type is answered with."""


class Whole(msgspec.Struct, frozen=True):
    """`name_in`: the request's field with the resource's name, which is not checked if it is null; None: the
    cluster."""

    operation: AclOperation
    resource_type: ResourceType = ResourceType.CLUSTER
    name_in: str | None = None


class Each(msgspec.Struct, frozen=True):
    """`array`: the request's field; `name_in`: the field of its elements with the name, None if they are names;
    `answered_in`: the response's array with an element for each."""

    operation: AclOperation
    resource_type: ResourceType
    array: str
    name_in: str | None
    answered_in: str


class Special(msgspec.Struct, frozen=True):
    """`name` of a function of `special_checks.py`; `says`: (operation, resource, error) for each row of the
    documentation."""

    name: str
    says: tuple[tuple[str, str, str], ...]


Check: TypeAlias = Whole | Each | Special

_CLUSTER_ACTION = (Whole(AclOperation.CLUSTER_ACTION),)
_ALTER_CLUSTER = (Whole(AclOperation.ALTER),)
_DESCRIBE_CLUSTER = (Whole(AclOperation.DESCRIBE),)
_READ_GROUP = Whole(AclOperation.READ, ResourceType.GROUP, "group_id")
_WRITE_TRANSACTION = Whole(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id")


def _topics(operation: AclOperation, array: str = "topics", name: str = "name", answered_in: str = "topics") -> Each:
    return Each(operation, ResourceType.TOPIC, array, name, answered_in)


_DESCRIBE_TOPICS = _topics(AclOperation.DESCRIBE)
_TOPIC, _GROUP, _CLUSTER, _TRANSACTION = "Topic", "Group", "Cluster", "TransactionalId"


def _says(operation: str, resource: str, error: str | None = None) -> tuple[str, str, str]:
    kinds = {"Topic": "TOPIC", "Group": "GROUP", "Cluster": "CLUSTER", "TransactionalId": "TRANSACTIONAL_ID"}
    kind = resource.replace(",", "").split()[0]
    return operation, resource, error or f"{kinds[kind]}_AUTHORIZATION_FAILED"


def _configs(operation: str) -> tuple[Check, ...]:
    says = (_says(operation, "Topic of the resource"), _says(operation, "Cluster for brokers and their loggers"))
    return (Special(f"{'describe' if operation == 'DescribeConfigs' else 'alter'}_configs", says),)


ACCESS: Mapping[ApiKey, tuple[Check, ...]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (
            Special("produce", (_says("Write", "TransactionalId of transactional records"),)),
            _topics(AclOperation.WRITE, "topic_data", answered_in="responses"),
        ),
        ApiKey.FETCH: (
            Special(
                "fetch",
                (
                    _says("ClusterAction", "Cluster for followers", "TOPIC_AUTHORIZATION_FAILED"),
                    _says("Read", "Topic for consumers"),
                ),
            ),
        ),
        ApiKey.LIST_OFFSETS: (_DESCRIBE_TOPICS,),
        ApiKey.METADATA: (
            Special(
                "metadata",
                (
                    _says("Describe", _TOPIC),
                    _says("Create", "Cluster, or Topic, if it would be created", "TOPIC_AUTHORIZATION_FAILED"),
                    _says("Describe", "Topic, of all topics", "left out"),
                ),
            ),
        ),
        ApiKey.LEADER_AND_ISR: _CLUSTER_ACTION,
        ApiKey.STOP_REPLICA: _CLUSTER_ACTION,
        ApiKey.UPDATE_METADATA: _CLUSTER_ACTION,
        ApiKey.CONTROLLED_SHUTDOWN: _CLUSTER_ACTION,
        ApiKey.OFFSET_COMMIT: (_READ_GROUP, _topics(AclOperation.READ)),
        ApiKey.OFFSET_FETCH: (
            Whole(AclOperation.DESCRIBE, ResourceType.GROUP, "group_id"),
            Special("offset_fetch", (_says("Describe", _TOPIC), _says("Describe", "Topic, of all topics", "left out"))),
        ),
        ApiKey.FIND_COORDINATOR: (
            Special("find_coordinator", (_says("Describe", _GROUP), _says("Describe", _TRANSACTION))),
        ),
        ApiKey.JOIN_GROUP: (_READ_GROUP,),
        ApiKey.HEARTBEAT: (_READ_GROUP,),
        ApiKey.LEAVE_GROUP: (_READ_GROUP,),
        ApiKey.SYNC_GROUP: (_READ_GROUP,),
        ApiKey.DESCRIBE_GROUPS: (
            Each(AclOperation.DESCRIBE, ResourceType.GROUP, "groups", None, "groups"),
            Special("group_operations", ()),
        ),
        ApiKey.LIST_GROUPS: (Special("list_groups", (_says("Describe", "Cluster, or Group of each", "left out"),)),),
        ApiKey.SASL_HANDSHAKE: (),
        ApiKey.API_VERSIONS: (),
        ApiKey.CREATE_TOPICS: (
            Special(
                "create_topics",
                (
                    _says("Create", "Cluster, or Topic", "TOPIC_AUTHORIZATION_FAILED"),
                    _says("DescribeConfigs", "Topic, for its configs in the response"),
                ),
            ),
        ),
        ApiKey.DELETE_TOPICS: (
            Special("delete_topics", (_says("Describe", "Topic that is named by id"), _says("Delete", _TOPIC))),
        ),
        ApiKey.DELETE_RECORDS: (_topics(AclOperation.DELETE),),
        ApiKey.INIT_PRODUCER_ID: (
            Special(
                "init_producer_id",
                (
                    _says("Write", "TransactionalId, if there is one"),
                    _says("IdempotentWrite", "Cluster, or Write on some Topic"),
                ),
            ),
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (
            Special(
                "offset_for_leader_epoch",
                (_says("ClusterAction", "Cluster, or Describe on each Topic", "TOPIC_AUTHORIZATION_FAILED"),),
            ),
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: (
            _WRITE_TRANSACTION,
            Special("add_partitions", (_says("Write", "Topic of each; if one is denied none is added"),)),
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: (_WRITE_TRANSACTION, _READ_GROUP),
        ApiKey.END_TXN: (_WRITE_TRANSACTION,),
        ApiKey.WRITE_TXN_MARKERS: _CLUSTER_ACTION,
        ApiKey.TXN_OFFSET_COMMIT: (_WRITE_TRANSACTION, _READ_GROUP, _topics(AclOperation.READ)),
        ApiKey.DESCRIBE_ACLS: _DESCRIBE_CLUSTER,
        ApiKey.CREATE_ACLS: _ALTER_CLUSTER,
        ApiKey.DELETE_ACLS: _ALTER_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS: _configs("DescribeConfigs"),
        ApiKey.ALTER_CONFIGS: _configs("AlterConfigs"),
        ApiKey.ALTER_REPLICA_LOG_DIRS: _ALTER_CLUSTER,
        ApiKey.DESCRIBE_LOG_DIRS: _DESCRIBE_CLUSTER,
        ApiKey.SASL_AUTHENTICATE: (),
        ApiKey.CREATE_PARTITIONS: (_topics(AclOperation.ALTER, answered_in="results"),),
        ApiKey.DELETE_GROUPS: (Each(AclOperation.DELETE, ResourceType.GROUP, "groups_names", None, "results"),),
        ApiKey.ELECT_LEADERS: _ALTER_CLUSTER,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs("AlterConfigs"),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER_CLUSTER,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE_CLUSTER,
        ApiKey.OFFSET_DELETE: (
            Whole(AclOperation.DELETE, ResourceType.GROUP, "group_id"),
            Special("offset_delete", (_says("Read", _TOPIC),)),
        ),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (Whole(AclOperation.DESCRIBE_CONFIGS),),
        ApiKey.ALTER_CLIENT_QUOTAS: (Whole(AclOperation.ALTER_CONFIGS),),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE_CLUSTER,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER_CLUSTER,
        ApiKey.ALTER_ISR: _CLUSTER_ACTION,
        ApiKey.UPDATE_FEATURES: _ALTER_CLUSTER,
        ApiKey.ALLOCATE_PRODUCER_IDS: _CLUSTER_ACTION,
    }
)
"""The checks of each API; none for those that every client may ask before it is authenticated."""

_TITLES = {kind: kind.name.title().replace("_", "") for kind in ResourceType}


def operation_title(operation: AclOperation) -> str:
    """Kafka's spelling in ACLs and logs: ClusterAction."""
    return operation.name.title().replace("_", "")


def resource_title(resource_type: ResourceType) -> str:
    """Kafka's spelling in ACLs and logs: TransactionalId."""
    return _TITLES[resource_type]

"""The znode paths of a Kafka 2.8 cluster: every path is spelled here and nowhere else. Does no I/O.

Below a chroot the paths are the same: the connection adds the prefix. `path_fault` and its kin are the rules that every
ZooKeeper client and server has for a znode's path (PathUtils). A client checks before it sends: a server would answer a
bad path with an error that does not name the fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from controller.zookeeper.codecs import id_in_digits
from controller.zookeeper.operations import ACL, OPEN_ACL, PERM_ALL, PERM_CREATE, PERM_DELETE, PERM_READ, PERM_WRITE

_PLAIN_BYTES = bytes(range(0x20, 0x7F)) + b"\n"
_FORBIDDEN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff]")


def validate_path(path: str) -> None:
    """Raises ValueError, naming the path and what is wrong with it."""
    if (
        isinstance(path, str)
        and path.startswith("/")
        and "//" not in path
        and "/." not in path
        and path.isascii()
        and path.isprintable()
        and not path.endswith("/")
    ):
        return  # nearly every path
    if not isinstance(path, str):
        raise ValueError(f"znode path {path!r}: expected a str")
    if not path.startswith("/"):
        raise ValueError(f"znode path {path!r}: must begin with /")
    if path == "/":
        return
    if path.endswith("/"):
        raise ValueError(f"znode path {path!r}: must not end with /")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise ValueError(f"znode path {path!r}: a name in it is {name!r}")
    if (match := _FORBIDDEN.search(path)) is not None:
        raise ValueError(f"znode path {path!r}: the character {match[0]!r} is not allowed")


def validate_paths(paths: Sequence[str]) -> None:
    """As `validate_path`, for many at once: looked at one by one only if all together they might hold a bad one."""
    if not paths:
        return
    lines = "\n".join(paths)
    plain = (
        lines.startswith("/")
        and not lines.endswith("/")
        and lines.count("\n") == lines.count("\n/") == len(paths) - 1
        and "/\n" not in lines
        and "//" not in lines
        and "/." not in lines
        and not lines.encode("utf-8", "surrogatepass").translate(None, delete=_PLAIN_BYTES)
    )
    if not plain:
        for path in paths:
            validate_path(path)


def validate_new_path(path: str, sequential: bool) -> None:
    """As `validate_path`, for a create: a sequential one's path is only the head of the name."""
    validate_path(path + "0" if sequential else path)


CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"

CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CONSUMERS = "/consumers"
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
ISR_CHANGE_PREFIX = "isr_change_"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"

ADMIN = "/admin"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
CONTROLLER_PAUSE = "/admin/camerlengo_pause"
"""Ours alone: see `codecs.PauseZnode`."""

CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
CONFIG_TOPICS = "/config/topics"
CONFIG_CLIENTS = "/config/clients"
CONFIG_USERS = "/config/users"
CONFIG_BROKERS = "/config/brokers"
CONFIG_IPS = "/config/ips"
CONFIG_BROKER_DEFAULT = "/config/brokers/<default>"

ACLS = "/kafka-acl"
ACL_CHANGES = "/kafka-acl-changes"
EXTENDED_ACLS = "/kafka-acl-extended"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
EXTENDED_ACL_CHANGES = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX = "acl_changes_"
ACL_RESOURCE_TYPES = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken")

PERSISTENT_PATHS: tuple[str, ...] = (
    CONSUMERS,
    BROKERS,
    BROKER_IDS,
    BROKER_TOPICS,
    CONFIG,
    CONFIG_CHANGES,
    ADMIN,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGE_NOTIFICATION,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    CONFIG_TOPICS,
    CONFIG_CLIENTS,
    CONFIG_USERS,
    CONFIG_BROKERS,
    CONFIG_IPS,
)
"""What a 2.8 broker makes sure of at each start, parents first and in its order (a real cluster's czxids show it)."""

SECURED_PATHS: tuple[str, ...] = (
    CONTROLLER,
    CONTROLLER_EPOCH,
    CLUSTER,
    CLUSTER_ID,
    *(path for path in PERSISTENT_PATHS if path != CONSUMERS),
    ACLS,
    ACL_CHANGES,
    EXTENDED_ACLS,
    PREFIXED_ACLS,
    EXTENDED_ACL_CHANGES,
)
"""What zookeeper.set.acl keeps others from writing, where it exists; what is below is made with the same ACLs."""
SENSITIVE_PATHS = (CONFIG_USERS, CONFIG_BROKERS, "/delegation_token/tokens")
"""Where passwords may be: with zookeeper.set.acl others can't read what begins so."""
_CREATOR_ALL, _WORLD_READS = ACL(PERM_ALL, "auth", ""), ACL(PERM_READ, "world", "anyone")


def secure_acl(path: str) -> tuple[ACL, ...]:
    """The ACL of a znode that is made with zookeeper.set.acl. ZkData.defaultAcls of Kafka 2.8: all for the creator, for
    others reading unless it is sensitive, and everything on /consumers, where old consumers write."""
    if path == CONSUMERS:
        return OPEN_ACL
    return (_CREATOR_ALL,) if path.startswith(SENSITIVE_PATHS) else (_CREATOR_ALL, _WORLD_READS)


def is_open_to_all(path: str, acl: Sequence[ACL]) -> bool:
    """Whether everyone who reaches ZooKeeper may change the znode, or read it though it is sensitive."""
    forbidden = PERM_WRITE | PERM_CREATE | PERM_DELETE | (PERM_READ if path.startswith(SENSITIVE_PATHS) else 0)
    return any(one.scheme == "world" and one.permissions & forbidden for one in acl)


_TOPIC = re.compile(r"/brokers/topics/([^/]+)(?:/.*)?")
_PARTITION_STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(0|[1-9][0-9]*)/state")
_BROKER = re.compile(r"/brokers/ids/(0|[1-9][0-9]*)")


def broker(broker_id: int) -> str:
    """A live broker's ephemeral registration."""
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    """A topic's znode: its id and the assignment of its partitions."""
    return f"{BROKER_TOPICS}/{name}"


def partitions(name: str) -> str:
    """The parent of a topic's partition znodes; holds nothing."""
    return f"{BROKER_TOPICS}/{name}/partitions"


def partition(name: str, partition_id: int) -> str:
    """The parent of a partition's state; holds nothing."""
    return f"{BROKER_TOPICS}/{name}/partitions/{partition_id}"


def partition_state(name: str, partition_id: int) -> str:
    """A partition's leader, leader epoch and ISR."""
    return f"{BROKER_TOPICS}/{name}/partitions/{partition_id}/state"


def partition_states(name: str, partition_ids: list[int]) -> list[str]:
    """As `partition_state`, for many partitions of one topic."""
    head = f"{BROKER_TOPICS}/{name}/partitions/"
    return [f"{head}{partition_id}/state" for partition_id in partition_ids]


def config_topic(name: str) -> str:
    return f"{CONFIG_TOPICS}/{name}"


def config_broker(broker_id: int) -> str:
    return f"{CONFIG_BROKERS}/{broker_id}"


def delete_topic(name: str) -> str:
    """The request to delete a topic; empty."""
    return f"{DELETE_TOPICS}/{name}"


_ONE_OF_MANY = tuple(
    f"{parent}/"
    for parent in (
        BROKER_IDS,
        BROKER_TOPICS,
        CONFIG_TOPICS,
        CONFIG_BROKERS,
        CONFIG_CHANGES,
        ISR_CHANGE_NOTIFICATION,
        LOG_DIR_EVENT_NOTIFICATION,
        DELETE_TOPICS,
    )
)


def is_one_of_many(path: str) -> bool:
    """Return whether the znode belongs to one of many topics, partitions, brokers or notifications.

    If a reader has no access to such a znode, only that one item is affected.
    """
    return path.startswith(_ONE_OF_MANY)


def child(parent: str, name: str) -> str:
    return f"/{name}" if parent == "/" else f"{parent}/{name}"


def topic_of(path: str) -> str | None:
    """The topic that a path under /brokers/topics belongs to (the topic's own znode or anything below); None for
    any other path."""
    match = _TOPIC.fullmatch(path)
    return match[1] if match else None


def partition_of(path: str) -> tuple[str, int] | None:
    """(topic, partition) of a partition's state znode; None for any other path."""
    match = _PARTITION_STATE.fullmatch(path)
    number = id_in_digits(match[2]) if match else None
    return (match[1], number) if match and number is not None else None


def broker_of(path: str) -> int | None:
    """The broker id of a registration's path; None for any other path."""
    match = _BROKER.fullmatch(path)
    return id_in_digits(match[1]) if match else None

"""Admin clients on three broker processes: topics made, grown and deleted, configs that take effect, records deleted,
offsets by time, partitions moved, leaders elected, log directories and features shown.

Each operation with both clients, where a client has it: confluent-kafka has no call for reassignments, log directories
and features, and kafka-python's deletions by id are of topics that both can see.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient
from kafka.admin import OffsetSpec as PythonSpec
from kazoo.client import KazooClient

from controller.hosts.local_cluster import LocalCluster
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import FeatureZnode, decode_feature, encode_feature
from tests.clients.asking import answers_of_all
from tests.processes import eventually

DEADLINE_S = 60.0
QUIET = {"log_level": 2}
OK = 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {
        "replica.fetch.wait.max.ms": "100",
        "controlled.shutdown.enable": "false",
        "auto.leader.rebalance.enable": "false",
    }
    with LocalCluster(brokers=3, session_timeout_ms=10_000, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})


@pytest.fixture(scope="module")
def python_admin(cluster: LocalCluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    yield client
    client.close()


def create(cluster: LocalCluster, admin: AdminClient, topic: str, **config: str) -> None:
    """One partition, three replicas, and whichever broker a client asks next knows of it."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    made(cluster, admin, NewTopic(topic, 1, 3, config=named))


def made(cluster: LocalCluster, admin: AdminClient, topic: NewTopic) -> None:
    admin.create_topics([topic])[topic.topic].result(DEADLINE_S)
    eventually(lambda: known_to_all(cluster, topic.topic), "every broker knows it")


def known_to_all(cluster: LocalCluster, topic: str) -> bool:
    """A client may ask any broker, and whoever answered CreateTopics waited for itself alone."""
    return all(topic in [one.name for one in answer.topics] for answer in answers_of_all(cluster))


def described(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return found


def alter(admin: AdminClient, topic: str, name: str, value: str | None) -> None:
    _alter(admin, ResourceType.TOPIC, topic, name, value)


def alter_broker(admin: AdminClient, number: int, name: str, value: str | None) -> None:
    _alter(admin, ResourceType.BROKER, str(number), name, value)


def _alter(admin: AdminClient, kind: ResourceType, of: str, name: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(kind, of, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def produced(cluster: LocalCluster, topic: str, *timestamps: int, size: int = 5, key: bytes | None = None) -> list[int]:
    """One record of so many bytes a timestamp, each with acks=all and without another try; the error code of each."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "retries": 0, **QUIET})
    errors: list[int] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        errors.append(OK if error is None else error.code())

    for timestamp in timestamps:
        producer.produce(topic, b"x" * size, key, partition=0, timestamp=timestamp, on_delivery=delivered)
        assert producer.flush(DEADLINE_S) == 0
    return errors


def ends(cluster: LocalCluster, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", **QUIET})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S, cached=False)
        return low, high
    finally:
        consumer.close()


def test_a_topics_config_is_what_it_was_made_with_and_a_bad_one_is_named(
    cluster: LocalCluster, admin: AdminClient
) -> None:
    create(cluster, admin, "made", retention_ms="123456", message_timestamp_type="LogAppendTime")
    found = described(admin, "made")
    assert found["retention.ms"].value == "123456"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["message.timestamp.type"].value == "LogAppendTime"
    assert found["segment.bytes"].is_default
    assert "log.retention.ms" in found["retention.ms"].synonyms
    with pytest.raises(KafkaException) as refused:
        create(cluster, admin, "bad", segment_bytes="13")
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "segment.bytes" in refused.value.args[0].str()
    with pytest.raises(KafkaException) as refused:
        alter(admin, "made", "retention.ms", "soon")
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert "Not a number of type LONG" in refused.value.args[0].str()


def test_min_insync_replicas_takes_effect_on_producers(cluster: LocalCluster, admin: AdminClient) -> None:
    create(cluster, admin, "careful", min_insync_replicas="4")
    assert produced(cluster, "careful", 1) == [KafkaError.NOT_ENOUGH_REPLICAS], "from the first record on"
    alter(admin, "careful", "min.insync.replicas", "3")
    eventually(lambda: produced(cluster, "careful", 1) == [OK], "three are enough")
    alter(admin, "careful", "min.insync.replicas", "4")
    eventually(lambda: produced(cluster, "careful", 1) == [KafkaError.NOT_ENOUGH_REPLICAS], "four again")
    alter(admin, "careful", "min.insync.replicas", None)
    eventually(lambda: produced(cluster, "careful", 1) == [OK], "the default is one")
    eventually(lambda: described(admin, "careful")["min.insync.replicas"].is_default, "every broker shows it")


def test_a_brokers_config_changes_while_it_runs(cluster: LocalCluster, admin: AdminClient) -> None:
    """Each broker is asked for its own; what is for all, any."""
    for number in (1, 2, 3):
        resource = ConfigResource(ResourceType.BROKER, str(number))
        found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        assert found["broker.id"].value == str(number)
        assert found["broker.id"].is_read_only
    create(cluster, admin, "small")
    try:
        for number in (1, 2, 3):
            alter_broker(admin, number, "message.max.bytes", "300")
        eventually(lambda: produced(cluster, "small", 1, size=400) == [KafkaError.MSG_SIZE_TOO_LARGE], "too large now")
        assert produced(cluster, "small", 1) == [OK]
    finally:
        for number in (1, 2, 3):
            alter_broker(admin, number, "message.max.bytes", None)
    eventually(lambda: produced(cluster, "small", 1, size=400) == [OK], "and no more")


def test_deleted_records_are_gone_from_every_replica(cluster: LocalCluster, admin: AdminClient) -> None:
    create(cluster, admin, "shrunk")
    assert produced(cluster, "shrunk", 1, 2, 3, 4, 5) == [OK] * 5
    ((_, future),) = admin.delete_records([TopicPartition("shrunk", 0, 3)]).items()
    assert future.result(DEADLINE_S).low_watermark == 3
    assert ends(cluster, "shrunk") == (3, 5)
    ((_, future),) = admin.delete_records([TopicPartition("shrunk", 0, 6)]).items()
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_by_time(cluster: LocalCluster, admin: AdminClient) -> None:
    create(cluster, admin, "timed")
    assert produced(cluster, "timed", 1_000, 2_000, 3_000) == [OK] * 3

    def offset(spec: OffsetSpec) -> int:
        ((_, future),) = admin.list_offsets({TopicPartition("timed", 0): spec}).items()
        found: int = future.result(DEADLINE_S).offset
        return found

    times = {time: offset(OffsetSpec.for_timestamp(time)) for time in (1, 1_000, 1_001, 3_000, 3_001)}
    assert times == {1: 0, 1_000: 0, 1_001: 1, 3_000: 2, 3_001: -1}
    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 3)


def test_kafka_python_does_all_of_it_too(cluster: LocalCluster, python_admin: KafkaAdminClient) -> None:
    partition = PythonPartition("pythonic", 0)
    python_admin.create_topics(
        {"pythonic": {"num_partitions": 1, "replication_factor": 3, "configs": {"retention.ms": "123456"}}}
    )
    eventually(lambda: known_to_all(cluster, "pythonic"), "every broker knows it")
    python_admin.alter_configs(
        [PythonResource(ConfigResourceType.TOPIC, "pythonic", {"cleanup.policy": ("APPEND", "compact")})]
    )
    asked = PythonResource(ConfigResourceType.TOPIC, "pythonic")
    found = python_admin.describe_configs([asked])
    told = found["TOPIC"]["pythonic"] if "TOPIC" in found else found["topic"]["pythonic"]
    assert told["retention.ms"]["value"] == "123456"
    assert told["cleanup.policy"]["value"] == "delete,compact"
    assert produced(cluster, "pythonic", 1_000, 2_000, 3_000, key=b"k") == [OK] * 3
    listed = python_admin.list_partition_offsets({partition: 1_500})
    assert listed[partition].offset == 1
    assert python_admin.list_partition_offsets({partition: PythonSpec.LATEST})[partition].offset == 3
    deleted = python_admin.delete_records({partition: 2})
    assert deleted[partition]["low_watermark"] == 2
    assert ends(cluster, "pythonic") == (2, 3)


def test_a_partition_moves_under_its_producers(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    """kafka-python asks; confluent-kafka has no such request, and produces, reads and sees who the replicas are."""
    partition = PythonPartition("moving", 0)
    made(cluster, admin, NewTopic("moving", 1, replica_assignment=[[1, 2]]))
    assert produced(cluster, "moving", *range(1, 21)) == [OK] * 20

    def replicas() -> tuple[int, list[int]]:
        found = admin.list_topics("moving", DEADLINE_S).topics["moving"].partitions[0]
        return found.leader, list(found.replicas)

    def all_say(leader: int) -> bool:
        told = [topic for answer in answers_of_all(cluster) for topic in answer.topics if topic.name == "moving"]
        return [topic.partitions[0].leader_id for topic in told] == [leader] * 3

    assert python_admin.alter_partition_reassignments({partition: [3, 1]}) == {partition: None}
    assert set(produced(cluster, "moving", *range(21, 26))) <= {OK, KafkaError.NOT_LEADER_FOR_PARTITION}
    eventually(lambda: python_admin.list_partition_reassignments() == {}, "it has arrived")
    eventually(lambda: replicas() == (1, [3, 1]), "and everybody knows; who led and is of the target leads on")
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("moving", 0)]).result(DEADLINE_S)
    eventually(lambda: replicas() == (3, [3, 1]), "until the new first replica is asked for")
    removed = cluster.folder / "logs-2" / "moving-0"
    eventually(lambda: not removed.exists(), "what was removed is deleted")
    eventually(lambda: all_say(3), "and every broker knows")
    assert produced(cluster, "moving", *range(26, 31)) == [OK] * 5
    low, high = ends(cluster, "moving")
    assert (low, high >= 25) == (0, True)
    ((_, error),) = python_admin.alter_partition_reassignments({partition: None}).items()
    assert error.errno == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    ((_, error),) = python_admin.alter_partition_reassignments({partition: [1, 9]}).items()
    assert error.errno == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_leaders_are_elected_on_request(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    """Another order of the replicas makes another broker the preferred leader; both clients ask for it in turn."""
    made(cluster, admin, NewTopic("led", 2, replica_assignment=[[1, 2, 3], [2, 3, 1]]))

    def leaders() -> list[int]:
        found = admin.list_topics("led", DEADLINE_S).topics["led"].partitions
        return [found[number].leader for number in (0, 1)]

    def prefer(first: int, *others: int) -> None:
        partition = PythonPartition("led", 0)
        assert python_admin.alter_partition_reassignments({partition: [first, *others]}) == {partition: None}
        eventually(lambda: python_admin.list_partition_reassignments() == {}, "another order is there at once")

    def elect(kind: ElectionType, *numbers: int) -> dict[int, int]:
        asked = [TopicPartition("led", number) for number in numbers]
        errors = admin.elect_leaders(kind, asked).result(DEADLINE_S)
        return {one.partition: OK if error is None else error.code() for one, error in errors.items()}

    eventually(lambda: leaders() == [1, 2], "as they were made")
    prefer(2, 1, 3)
    assert leaders() == [1, 2], "an order moves nobody"
    assert elect(ElectionType.PREFERRED, 0, 1, 7) == {
        0: OK,
        1: KafkaError.ELECTION_NOT_NEEDED,
        7: KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    eventually(lambda: leaders() == [2, 2], "the preferred one leads")
    assert elect(ElectionType.UNCLEAN, 0) == {0: KafkaError.ELECTION_NOT_NEEDED}
    prefer(3, 1, 2)
    answer = python_admin.elect_leaders(0, {"led": [0, 1]}, raise_errors=False)
    eventually(lambda: leaders() == [3, 2], f"kafka-python was answered {answer}")
    assert produced(cluster, "led", 1) == [OK]


def test_each_client_makes_grows_and_deletes_topics_that_the_other_sees(
    admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    def seen(topic: str) -> tuple[int, int]:
        """How many partitions each client is shown."""
        theirs = admin.list_topics(timeout=DEADLINE_S).topics
        others = [found for found in python_admin.describe_topics() if found["name"] == topic]
        return (
            len(theirs[topic].partitions) if topic in theirs else 0,
            len(others[0]["partitions"]) if others else 0,
        )

    admin.create_topics([NewTopic("theirs", 1, 2)])["theirs"].result(DEADLINE_S)
    python_admin.create_topics({"others": {"num_partitions": 1, "replication_factor": 2}})
    eventually(lambda: (seen("theirs"), seen("others")) == ((1, 1), (1, 1)), "made")
    admin.create_partitions([NewPartitions("others", 3)])["others"].result(DEADLINE_S)
    python_admin.create_partitions({"theirs": 2})
    eventually(lambda: (seen("theirs"), seen("others")) == ((2, 2), (3, 3)), "grown")
    with pytest.raises(KafkaException) as refused:
        admin.create_partitions([NewPartitions("others", 2)])["others"].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    admin.delete_topics(["others"])["others"].result(DEADLINE_S)
    python_admin.delete_topics(["theirs"])
    eventually(lambda: (seen("theirs"), seen("others")) == ((0, 0), (0, 0)), "deleted")


def test_a_topics_id_is_the_same_for_all_and_goes_with_it(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    def identified() -> str | None:
        (found,) = python_admin.describe_topics(["known"])
        return found["topic_id"] if found["error_code"] == OK else None

    def made_again() -> bool:
        try:
            create(cluster, admin, "known")
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    create(cluster, admin, "known")
    first = uuid.UUID(identified())
    told = admin.describe_topics(TopicCollection(["known"]))["known"].result(DEADLINE_S)
    assert uuid.UUID(int=_id_bits(told.topic_id)) == first
    (deleted,) = python_admin.delete_topics([first])["topics"]
    assert (deleted["error_code"], uuid.UUID(deleted["topic_id"])) == (OK, first)
    eventually(lambda: "known" not in python_admin.list_topics(), "by its id alone")
    eventually(made_again, "its replicas are deleted, and its znodes")
    eventually(lambda: identified() not in (None, str(first)), "another topic of that name")


def _id_bits(of: object) -> int:
    """confluent-kafka's UUID has its two halves, signed."""
    halves = (of.get_most_significant_bits(), of.get_least_significant_bits())  # type: ignore[attr-defined]
    high, low = (int(half) % 2**64 for half in halves)
    return (high << 64) | low


def test_who_is_there_is_told_to_both(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    theirs, others = admin.describe_cluster().result(DEADLINE_S), python_admin.describe_cluster()
    assert sorted(node.id for node in theirs.nodes) == sorted(one["broker_id"] for one in others["brokers"])
    assert (theirs.cluster_id, theirs.controller.id) == (others["cluster_id"], others["controller_id"])
    assert len(theirs.nodes) == len(cluster.brokers)


def test_a_whole_config_is_replaced_and_single_settings_are_reset(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(cluster, admin, "replaced", retention_ms="5", flush_ms="6")
    whole = ConfigResource(ResourceType.TOPIC, "replaced", set_config={"retention.ms": "7", "segment.ms": "8"})
    with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
        admin.alter_configs([whole])[whole].result(DEADLINE_S)

    def shown() -> tuple[str | None, str | None, bool]:
        """By whichever broker was asked; one hears of it after another."""
        found = described(admin, "replaced")
        set_to = [None if found[name].is_default else found[name].value for name in ("retention.ms", "segment.ms")]
        return set_to[0], set_to[1], found["flush.ms"].is_default

    eventually(lambda: shown() == ("7", "8", True), "what is named is set, and what is not is gone")

    def reset() -> bool:
        """The client asks some broker first whether there is anything to reset."""
        try:
            python_admin.reset_configs([PythonResource(ConfigResourceType.TOPIC, "replaced", ["segment.ms"])])
        except ValueError:
            return False
        return True

    eventually(reset, "a broker that knows of the config is asked")
    eventually(lambda: shown() == ("7", None, True), "what was reset has its default, and nothing else")


def test_kafka_python_is_told_where_replicas_lie_and_how_large_they_are(
    cluster: LocalCluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(cluster, admin, "lying")
    assert produced(cluster, "lying", 1, size=1_000) == [OK]

    def lying() -> dict[int, tuple[str, list[int]]]:
        found = python_admin.describe_log_dirs({"lying": [0]})
        return {
            one["broker"]: (directory["log_dir"], [part["partition_size"] for part in topic["partitions"]])
            for one in found
            for directory in one["log_dirs"]
            for topic in directory["topics"]
        }

    there = lying()
    assert {broker: where for broker, (where, _) in there.items()} == {
        number: str(cluster.folder / f"logs-{number}") for number in (1, 2, 3)
    }
    assert {len(sizes) == 1 and sizes[0] > 1_000 for _, sizes in there.values()} == {True}


def test_kafka_python_takes_a_feature_out_and_can_finalize_none_that_brokers_lack(
    cluster: LocalCluster, python_admin: KafkaAdminClient
) -> None:
    """As a cluster of Kafka's left it."""
    levels = {"min_version_level": 1, "max_version_level": 3}
    client = KazooClient(cluster.zookeeper.connect_string)
    client.start()
    try:
        client.set(paths.FEATURE, encode_feature(FeatureZnode(features={"left": levels, "kept": levels})))
        refused = python_admin.update_features({"new": 1})
        assert "not supported by any broker" in refused["new"]
        assert "takes a downgrade" in python_admin.update_features({"left": 0})["left"]
        assert python_admin.update_features({"left": ("SAFE_DOWNGRADE", 0)}) == {"left": "OK"}
        assert decode_feature(paths.FEATURE, client.get(paths.FEATURE)[0]).features == {"kept": levels}
    finally:
        client.stop()
        client.close()

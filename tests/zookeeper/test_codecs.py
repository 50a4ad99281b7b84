"""Every znode of a real 2.8.2 cluster is read and written back to the same bytes; older, newer and damaged ones."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.zookeeper import codecs, paths
from controller.zookeeper.cluster_state import load
from controller.zookeeper.codecs import NOTHING_KEPT
from controller.zookeeper.operations import DamagedZnode

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
Codec = tuple[Callable[[str, bytes | None], Any], Callable[[Any], bytes]]

EXACT: dict[str, Codec] = {
    paths.CONTROLLER: (codecs.decode_controller, codecs.encode_controller),
    paths.CONTROLLER_EPOCH: (codecs.decode_controller_epoch, codecs.encode_controller_epoch),
    paths.CLUSTER_ID: (codecs.decode_cluster_id, codecs.encode_cluster_id),
    paths.FEATURE: (codecs.decode_feature, codecs.encode_feature),
    paths.PRODUCER_ID_BLOCK: (codecs.decode_producer_id_block, codecs.encode_producer_id_block),
    paths.REASSIGN_PARTITIONS: (codecs.decode_reassignments, codecs.encode_reassignments),
    paths.PREFERRED_ELECTION: (codecs.decode_preferred_election, codecs.encode_preferred_election),
}
BELOW: dict[str, Codec] = {
    paths.BROKER_IDS: (codecs.decode_broker_registration, codecs.encode_broker_registration),
    paths.CONFIG_CHANGES: (codecs.decode_config_change, codecs.encode_config_change),
    paths.CONFIG: (codecs.decode_config, codecs.encode_config),
    paths.ISR_CHANGE_NOTIFICATION: (codecs.decode_isr_change_notification, codecs.encode_isr_change_notification),
    paths.LOG_DIR_EVENT_NOTIFICATION: (codecs.decode_log_dir_event, codecs.encode_log_dir_event),
}
TOPIC: Codec = (codecs.decode_topic_assignment, codecs.encode_topic_assignment)
STATE: Codec = (codecs.decode_partition_state, codecs.encode_partition_state)


def codec_of(path: str) -> Codec:
    if path in EXACT:
        return EXACT[path]
    if paths.partition_of(path):
        return STATE
    if paths.topic_of(path):
        return TOPIC
    return next(codec for parent, codec in BELOW.items() if path.startswith(parent + "/"))


def real_znodes() -> list[tuple[str, bytes]]:
    """Of both trees, and the short-lived ones of the same session as ZooKeeper's transaction log has them."""
    rows = [row for name in ("znodes.txt", "znodes-after-admin.txt") for row in load(DATA / name).nodes.values()]
    return [(row.path, row.data) for row in rows if row.data] + [
        (paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"tmp1","partition":1,"replicas":[1,2,3]}]}'),
        (
            paths.ISR_CHANGE_NOTIFICATION + "/isr_change_0000000000",
            b'{"version":1,"partitions":[{"topic":"proof","partition":1},{"topic":"tmp1","partition":3}]}',
        ),
        (
            paths.PREFERRED_ELECTION,
            b'{"version":1,"partitions":[{"topic":"__consumer_offsets","partition":5},{"topic":"proof","partition":0}]}',
        ),
        (
            paths.topic("tmp1"),
            b'{"partitions":{"0":[3,1],"1":[1,2,3]},"topic_id":"7J4s9cs7RkuJaV_xmswZqQ","adding_replicas":{"1":[3]},'
            b'"removing_replicas":{},"version":3}',
        ),
        (
            paths.partition_state("tmp1x", 2),
            b'{"controller_epoch":2,"leader":-1,"version":1,"leader_epoch":1,"isr":[1]}',
        ),
    ]


def test_every_real_znode_is_written_with_the_same_bytes() -> None:
    znodes = real_znodes()
    assert len(znodes) > 50
    for path, data in znodes:
        decode, encode = codec_of(path)
        value = decode(path, data)
        assert encode(value) == data, path
        if not isinstance(value, int):  # and so it is when made anew, with nothing to go by but its public fields
            assert encode(dataclasses.replace(value, kept=NOTHING_KEPT)) == data, path


@pytest.mark.parametrize("data", [None, b"", b"null", b"[]", b"{", b'{"leader":1', b"{}", b'\xff{"a":1}'])
def test_what_is_no_object_of_the_right_kind_is_damaged_and_named(data: bytes | None) -> None:
    for path, (decode, _encode) in {**EXACT, "/brokers/topics/t": TOPIC, paths.partition_state("t", 0): STATE}.items():
        with pytest.raises(DamagedZnode) as caught:
            decode(path, data)
        assert path in str(caught.value)


REGISTRATION = paths.broker(7)
OLDER: list[tuple[bytes, codecs.BrokerRegistration]] = [
    (
        b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"2233345666"}',
        codecs.BrokerRegistration(
            7, (codecs.BrokerEndpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),), None, 9999, 2233345666, 1
        ),
    ),
    (
        b'{"version":2,"host":"h","port":9092,"jmx_port":9999,"timestamp":2233345666,'
        b'"endpoints":["PLAINTEXT://h:9092","SSL://h:9093"]}',
        codecs.BrokerRegistration(
            7,
            (
                codecs.BrokerEndpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),
                codecs.BrokerEndpoint("SSL", "SSL", "h", 9093),
            ),
            None,
            9999,
            2233345666,
            2,
        ),
    ),
    (
        b'{"version":3,"host":null,"port":-1,"jmx_port":-1,"endpoints":["SSL://[::1]:9093"],"rack":"dc1"}',
        codecs.BrokerRegistration(7, (codecs.BrokerEndpoint("SSL", "SSL", "::1", 9093),), "dc1", -1, 0, 3),
    ),
    (
        b'{"version":4,"endpoints":["CLIENT://:9092"],"rack":null,"listener_security_protocol_map":{"CLIENT":"SASL_SSL"}}',
        codecs.BrokerRegistration(7, (codecs.BrokerEndpoint("CLIENT", "SASL_SSL", "", 9092),), None, -1, 0, 4),
    ),
]


@pytest.mark.parametrize(("data", "expected"), OLDER)
def test_registrations_of_older_brokers_are_read(data: bytes, expected: codecs.BrokerRegistration) -> None:
    value = codecs.decode_broker_registration(REGISTRATION, data)
    assert value == expected
    assert codecs.encode_broker_registration(value).count(b'"rack"') == data.count(b'"rack":"dc1"')


def test_a_registration_of_several_listeners_in_a_rack_is_laid_out_as_kafka_does() -> None:
    registration = codecs.BrokerRegistration(
        7,
        (
            codecs.BrokerEndpoint("INTERNAL", "SSL", "::1", 9093),
            codecs.BrokerEndpoint("EXTERNAL", "PLAINTEXT", "h", 9092),
        ),
        rack="r1",
        timestamp_ms=5,
    )
    data = codecs.encode_broker_registration(registration)
    assert data == (
        b'{"features":{},"listener_security_protocol_map":{"INTERNAL":"SSL","EXTERNAL":"PLAINTEXT"},'
        b'"endpoints":["INTERNAL://[::1]:9093","EXTERNAL://h:9092"],"rack":"r1","jmx_port":-1,"port":9092,"host":"h",'
        b'"version":5,"timestamp":"5"}'
    )
    assert codecs.decode_broker_registration(REGISTRATION, data) == registration
    assert registration.endpoint("EXTERNAL") == registration.endpoints[1]
    assert registration.endpoint("NONE") is None


TOLERATED: list[tuple[str, bytes, Any]] = [
    (paths.CONTROLLER, b"3", codecs.ControllerZnode(3, 0, 0)),
    (paths.CONTROLLER, b'{"brokerid":3}', codecs.ControllerZnode(3, 0)),
    (
        paths.CONTROLLER,
        b'{"version":2,"brokerid":3,"timestamp":5,"kraftControllerEpoch":-1}',
        codecs.ControllerZnode(3, 5, 2),
    ),
    (paths.CLUSTER_ID, b'{"version":1,"id":"x"}', codecs.ClusterId("x")),
    (paths.topic("t"), b'{"version":1,"partitions":{"0":[1]}}', codecs.TopicAssignment(None, {0: (1,)}, version=1)),
    (paths.topic("t"), b'{"version":4,"partitions":{},"topic_id":null}', codecs.TopicAssignment(None, {}, version=4)),
    (
        paths.partition_state("t", 0),
        b'{"isr":[],"leader":-1,"leader_epoch":0,"controller_epoch":0}',
        codecs.PartitionStateZnode(-1, 0, (), 0),
    ),
    (paths.config_topic("t"), b"{}", codecs.ConfigZnode({})),
    (paths.PRODUCER_ID_BLOCK, b'{"broker":1,"block_start":0,"block_end":999}', codecs.ProducerIdBlock(1, 0, 999)),
    (
        paths.child(paths.CONFIG_CHANGES, "config_change_1"),
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
        codecs.ConfigChange("topics/t", 1),
    ),
]


@pytest.mark.parametrize(("path", "data", "expected"), TOLERATED)
def test_what_older_and_newer_writers_leave_out_or_add_is_tolerated(path: str, data: bytes, expected: Any) -> None:
    decode, _ = codec_of(path)
    assert decode(path, data) == expected


def test_a_config_znode_that_holds_nothing_sets_nothing() -> None:
    assert codecs.decode_config("/config/topics/t", None).config == {}
    assert codecs.decode_config("/config/topics/t", b"").config == {}


DAMAGED: list[tuple[str, bytes]] = [
    (REGISTRATION, b'{"version":5,"endpoints":["nonsense"]}'),
    (REGISTRATION, b'{"version":5,"endpoints":["A://h:70000"]}'),
    (REGISTRATION, b'{"version":5,"endpoints":"A://h:1"}'),
    (REGISTRATION, b'{"version":1,"host":"h"}'),
    (REGISTRATION, b'{"version":5,"endpoints":[],"timestamp":"soon"}'),
    ("/brokers/ids/seven", b'{"version":5,"endpoints":[]}'),
    (paths.CONTROLLER, b'{"brokerid":-2}'),
    (paths.CONTROLLER, b"99999999999"),
    (paths.CONTROLLER, "\u0663".encode()),
    (paths.CONTROLLER_EPOCH, b"9" * 5000),
    (paths.CONTROLLER, b'{"brokerid":3,"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"),
    (paths.CONTROLLER, b'{"brokerid":3,"timestamp":"1_0"}'),
    (REGISTRATION, b'{"version":5,"endpoints":["A://h:%s"]}' % (b"9" * 5000)),
    (paths.broker(2**31), b'{"version":5,"endpoints":[]}'),
    (paths.CONTROLLER_EPOCH, b"-1"),
    (paths.CONTROLLER_EPOCH, b" 1"),
    (paths.CONTROLLER_EPOCH, b"2147483648"),
    (paths.FEATURE, b'{"status":2}'),
    (paths.PRODUCER_ID_BLOCK, b'{"broker":1,"block_start":"9","block_end":"1"}'),
    (paths.topic("t"), b'{"partitions":{"-1":[1]}}'),
    (paths.topic("t"), b'{"partitions":{"x":[1]}}'),
    (paths.topic("t"), b'{"partitions":{"0":[-1]}}'),
    (paths.topic("t"), b'{"partitions":{"0":[true]}}'),
    (paths.topic("t"), b'{"partitions":{"0":[1]},"adding_replicas":[]}'),
    (paths.topic("t"), b'{"partitions":{"0":[1]},"x":"\xff"}'),
    (paths.config_topic("t"), b'{"config":{"a":1}}'),
    (paths.REASSIGN_PARTITIONS, b'{"partitions":[{"topic":"t"}]}'),
    (paths.child(paths.ISR_CHANGE_NOTIFICATION, "isr_change_1"), b'{"partitions":{}}'),
    (paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, "log_dir_event_1"), b'{"event":1}'),
]


@pytest.mark.parametrize(("path", "data"), DAMAGED)
def test_a_damaged_znode_is_refused_by_its_path(path: str, data: bytes) -> None:
    decode, _ = codec_of(path)
    with pytest.raises(DamagedZnode) as caught:
        decode(path, data)
    assert caught.value.path == path
    assert caught.value.data == data
    assert path in str(caught.value)


def test_a_topic_keeps_what_is_not_known_of_it_in_its_place() -> None:
    """KAFKA-12835, and for any field: order, spacing within values and unknown ones stay."""
    path = paths.topic("t")
    data = b'{"observers":{"0":[ 9 ]},"version":3,"partitions":{"1":[2],"0":[1]},"topic_id":"JUNfP4VSTOWZ_6Tfc-zTPA"}'
    topic = codecs.decode_topic_assignment(path, data)
    assert topic.kept.unknown() == {"observers": b'{"0":[ 9 ]}'}
    assert codecs.encode_topic_assignment(topic) == data
    grown = dataclasses.replace(topic, partitions={**topic.partitions, 2: (3,)})
    assert codecs.encode_topic_assignment(grown) == (
        b'{"observers":{"0":[ 9 ]},"version":3,"partitions":{"1":[2],"0":[1],"2":[3]},'
        b'"topic_id":"JUNfP4VSTOWZ_6Tfc-zTPA"}'
    )
    moving = dataclasses.replace(topic, adding={0: (4,)}, topic_id=None)
    assert codecs.encode_topic_assignment(moving) == (
        b'{"observers":{"0":[ 9 ]},"version":3,"partitions":{"1":[2],"0":[1]},"adding_replicas":{"0":[4]}}'
    )


def test_a_state_with_unknown_fields_keeps_them_through_a_new_leader() -> None:
    path = paths.partition_state("t", 0)
    data = b'{"leader_recovery_state":1,"controller_epoch":2,"leader":3,"version":1,"leader_epoch":2,"isr":[3,2]}'
    state = dataclasses.replace(codecs.decode_partition_state(path, data), leader=2, leader_epoch=3)
    assert codecs.encode_partition_state(state) == data.replace(b'leader":3', b'leader":2').replace(
        b'leader_epoch":2', b'leader_epoch":3'
    )


ids = st.integers(0, 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=6)
names = st.text("abcXYZ09._-", min_size=1, max_size=8)
replicas = st.lists(ids, max_size=4).map(tuple)
assignments = st.dictionaries(ids, replicas, max_size=4)
endpoints = st.builds(
    codecs.BrokerEndpoint,
    st.text("ABC_", min_size=1, max_size=5),
    st.sampled_from(["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
    st.sampled_from(["", "h", "10.0.0.1", "::1", "fe80::1%eth0", "a-b.c_d"]),
    st.integers(-1, 65535),
)
features = st.dictionaries(names, st.dictionaries(names, ids, max_size=2), max_size=2)
partitions = st.lists(st.tuples(names, ids), max_size=4).map(tuple)
VALUES: list[tuple[str, st.SearchStrategy[Any]]] = [
    (
        REGISTRATION,
        st.builds(
            codecs.BrokerRegistration,
            st.just(7),
            st.lists(endpoints, max_size=3, unique_by=lambda endpoint: endpoint.listener).map(tuple),
            st.none() | texts,
            st.integers(-1, 65535),
            st.integers(0, 2**62),
            st.just(5),
            features,
        ),
    ),
    (paths.CONTROLLER, st.builds(codecs.ControllerZnode, ids, st.integers(0, 2**62))),
    (paths.CONTROLLER_EPOCH, ids),
    (paths.CLUSTER_ID, st.builds(codecs.ClusterId, texts)),
    (paths.FEATURE, st.builds(codecs.FeatureZnode, st.sampled_from([0, 1]), features)),
    (paths.PRODUCER_ID_BLOCK, st.builds(codecs.ProducerIdBlock, ids, st.just(5000), st.integers(5000, 2**62))),
    (paths.topic("t"), st.builds(codecs.TopicAssignment, st.none() | names, assignments, assignments, assignments)),
    (
        paths.partition_state("t", 0),
        st.builds(codecs.PartitionStateZnode, st.integers(-1, 2**31 - 1), ids, replicas, ids),
    ),
    (paths.config_topic("t"), st.builds(codecs.ConfigZnode, st.dictionaries(texts, texts, max_size=3))),
    (paths.child(paths.CONFIG_CHANGES, "config_change_1"), st.builds(codecs.ConfigChange, texts)),
    (paths.child(paths.ISR_CHANGE_NOTIFICATION, "isr_change_1"), st.builds(codecs.IsrChangeZnode, partitions)),
    (paths.child(paths.LOG_DIR_EVENT_NOTIFICATION, "log_dir_event_1"), st.builds(codecs.LogDirEvent, ids, ids)),
    (paths.PREFERRED_ELECTION, st.builds(codecs.PreferredElection, partitions)),
    (
        paths.REASSIGN_PARTITIONS,
        st.builds(codecs.Reassignments, st.dictionaries(st.tuples(names, ids), replicas, max_size=3)),
    ),
]


@pytest.mark.parametrize(("path", "values"), VALUES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_value_survives_and_is_written_again_the_same(
    path: str, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    decode, encode = codec_of(path)
    value = data.draw(values)
    written = encode(value)
    assert decode(path, written) == value
    assert encode(decode(path, written)) == written


@pytest.mark.parametrize(("path", "values"), [item for item in VALUES if item[0] != paths.CONTROLLER_EPOCH])
@settings(max_examples=40)
@given(data=st.data())
def test_unknown_fields_survive_anywhere(path: str, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    decode, encode = codec_of(path)
    fields = list(msgspec.json.decode(encode(data.draw(values)), type=dict[str, msgspec.Raw]).items())
    json = st.recursive(
        st.none() | st.booleans() | ids | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=4
    )
    added = data.draw(st.dictionaries(texts.map(lambda text: f"new_{text}"), json, min_size=1, max_size=2))
    mixed = data.draw(st.permutations([*fields, *added.items()]))
    written = msgspec.json.encode(dict(mixed))
    value = decode(path, written)
    assert encode(value) == written
    assert set(value.kept.unknown()) == set(added)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_damaged(data: bytes) -> None:
    for path, _ in VALUES:
        decode, encode = codec_of(path)
        with contextlib.suppress(DamagedZnode):
            encode(decode(path, data))

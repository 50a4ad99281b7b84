"""Every znode of a real 2.8.2 cluster is read and written back to the same bytes; older, newer and damaged ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.zookeeper import codecs, paths
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.tree import load
from controller.zookeeper.znode_json import NOTHING_KEPT

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

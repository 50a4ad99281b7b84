"""Long values that a client, a znode or a directory chooses are not remembered: caches are bounded in bytes as well."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from controller.broker.records.fetch_sessions import FetchSessionCache, SessionRefused
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.protocol import SUPPORTED, decode_request, encode_request
from controller.protocol.client import MetadataRequest, MetadataRequestTopic
from controller.protocol.codec import ApiKey, RequestHeader
from controller.protocol.fetch import INITIAL_SESSION_EPOCH, NO_SESSION, FetchPartition, FetchRequest, FetchTopic
from controller.storage.checkpoints import EpochStart, encode_epochs
from controller.storage.recovery import NEW, open_files
from controller.storage.settings import LogSettings
from controller.zookeeper.paths import validate_path, validate_paths
from tests.broker.harness import BrokerUnderTest, metadata

LONG = 30_000
KEPT_BYTES_MAX = 300_000
"""Ten such values; each feeder is called fifty times."""


def tagged_fields() -> Callable[[int], object]:
    def feed(number: int) -> None:
        header = RequestHeader(ApiKey.FETCH, 12, number, "x")
        request = FetchRequest(0, 0, (), cluster_id=f"{number:0{LONG}}")
        decode_request(encode_request(header, request), SUPPORTED)

    return feed


def metadata_answers() -> Callable[[int], object]:
    broker = BrokerUnderTest()
    broker.ask(ApiKey.UPDATE_METADATA, metadata(("t", 0, 1)))

    def feed(number: int) -> None:
        topics = tuple(MetadataRequestTopic(f"{number * 10 + one:0{LONG}}") for one in range(10))
        broker.ask(ApiKey.METADATA, MetadataRequest(topics), 8)

    return feed


def fetch_sessions() -> Callable[[int], object]:
    sessions = FetchSessionCache(1_000, VirtualClock())

    def feed(number: int) -> None:
        topic = FetchTopic(f"{number:0{LONG}}", (FetchPartition(0, 0, 1),))
        whole = FetchRequest(0, 0, (topic,), session_epoch=INITIAL_SESSION_EPOCH)
        assert sessions.begin(whole).response([]).session_id == NO_SESSION
        small = FetchRequest(0, 0, (FetchTopic("t", topic.partitions),), session_epoch=INITIAL_SESSION_EPOCH)
        known = sessions.begin(small).response([]).session_id
        assert known != NO_SESSION
        with pytest.raises(SessionRefused):
            sessions.begin(replace(whole, session_id=known, session_epoch=1))

    return feed


def znode_paths() -> Callable[[int], object]:
    def feed(number: int) -> None:
        validate_path(f"/{number:0{LONG}}")
        validate_paths([f"/{number:0{LONG}}", "/a"])

    return feed


def directories() -> Callable[[int], object]:
    disk = MemoryDisk()

    def feed(number: int) -> None:
        names = [f"{number * 1_000 + one:020d}.index" for one in range(300)]
        disk.make_directory("d")
        for name in names:
            disk.replace(f"d/{name}", b"", durable=False)
        open_files(disk, "d", LogSettings(), NEW, 0)

    return feed


def leader_epochs() -> Callable[[int], object]:
    def feed(number: int) -> None:
        encode_epochs([EpochStart(1_000_000 * number + one, one) for one in range(1_000)])

    return feed


FEEDERS = (tagged_fields, metadata_answers, fetch_sessions, znode_paths, directories, leader_epochs)


@pytest.mark.parametrize("feeder", FEEDERS, ids=lambda feeder: str(feeder.__name__))
def test_long_values_are_not_remembered(feeder: Callable[[], Callable[[int], object]]) -> None:
    feed = feeder()
    for number in range(10):
        feed(number)  # compiles, and fills what is filled once
    # Twice: what other threads of this process allocate meanwhile is counted too, but not each time.
    kept = min(_kept(feed, range(10, 60)), _kept(feed, range(60, 110)))
    assert kept < KEPT_BYTES_MAX


def _kept(feed: Callable[[int], object], numbers: range) -> int:
    """Return the bytes that are still allocated after `feed` was called with the numbers."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in numbers:
            feed(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

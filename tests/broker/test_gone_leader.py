"""What a follower does again and again while its leader is gone: the same, and no more than it has to."""

from __future__ import annotations

import pytest

from controller.broker import fetcher
from controller.broker.fetcher import Fetcher
from controller.core.channels import PeerUnreachable
from controller.protocol import encode_request_body
from controller.protocol.control import UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataRequest
from tests.broker.fetching import BACKOFF_MS, EPOCH, LEADER, ME, OTHER, Follower, data
from tests.broker.harness import live
from tests.storage.batches import batch


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What fetchers have encoded, each time that they did."""
    bodies: list[bytes] = []

    def encode(*asked: object) -> bytes:
        bodies.append(encode_request_body(*asked))  # type: ignore[arg-type]
        return bodies[-1]

    monkeypatch.setattr(fetcher, "encode_request_body", encode)
    return bodies


def in_vain(follower: Follower, times: int) -> None:
    for _ in range(times):
        follower.peers.asked[-1][3].fail(PeerUnreachable("refused"))
        follower.later(BACKOFF_MS)


def test_a_leader_that_is_gone_is_asked_in_the_same_bytes_which_are_made_twice(encoded: list[bytes]) -> None:
    """Once for a leader that might have answered, when nothing was kept, and once for all that follow."""
    follower = Follower(count=3)
    follower.follow()
    in_vain(follower, 5)
    assert len({body for _, _, body, _ in follower.peers.asked}) == 1
    assert (follower.count, len(encoded)) == (6, 2)


def test_what_is_another_meanwhile_is_asked_for_as_it_is_now(encoded: list[bytes]) -> None:
    follower = Follower(count=2)
    follower.follow()
    in_vain(follower, 3)
    follower.filled(EPOCH)
    follower.fetchers.logs_changed()
    in_vain(follower, 1)
    assert follower.fetched() == [(1, 0), (0, 1)]
    follower.fetchers.leave([follower.partitions[1]])
    in_vain(follower, 2)
    assert follower.fetched() == [(0, 1)]
    assert len(encoded) == 4


def test_once_a_leader_has_answered_nothing_is_kept_of_what_was_asked_in_vain(encoded: list[bytes]) -> None:
    follower = Follower()
    follower.follow()
    in_vain(follower, 3)
    follower.answer_fetch(data(0, batch(1, leader_epoch=EPOCH), high_watermark=1))
    follower.answer_fetch(data(0, high_watermark=1))
    assert (follower.log().log_end_offset, follower.count) == (1, 6)
    assert len(encoded) == 4
    (fetcher,) = follower.fetchers._fetchers.values()
    assert fetcher._link._unanswered is None
    assert fetcher._session._unanswered is None


def test_only_of_brokers_whose_metadata_is_another_object_a_new_address_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    right = Fetcher.endpoint_changed

    def endpoint_changed(self: Fetcher) -> None:
        looked.append(self._link.leader)
        right(self)

    monkeypatch.setattr(Fetcher, "endpoint_changed", endpoint_changed)
    follower = Follower(count=2)
    follower.follow(0)
    follower.follow(1, leader=OTHER)
    brokers = live(ME, LEADER, OTHER)

    def told(*brokers: UpdateMetadataBroker) -> list[int]:
        looked.clear()
        follower.metadata.update(UpdateMetadataRequest(1, 1, (), brokers))
        follower.fetchers.leaders_changed()
        return sorted(looked)

    assert told(*brokers) == [LEADER, OTHER]
    assert told(*brokers) == []
    moved = UpdateMetadataBroker(LEADER, (UpdateMetadataEndpoint(7_777, "127.0.0.1", "PLAINTEXT"),))
    assert told(*brokers[:1], moved, *brokers[2:]) == [LEADER]
    assert follower.peers.closed == [9090 + LEADER]
    assert told(*brokers[:1], *brokers[2:]) == [], "one that the metadata has lost stays where it was"
    assert told(*brokers) == [LEADER]

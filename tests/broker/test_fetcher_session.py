"""A fetch session from the follower's side (KIP-227)."""

from __future__ import annotations

import pytest

from controller.broker.fetcher_session import EPOCH_MAX, FetchSession, SessionRequest
from controller.broker.fetcher_states import Key
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    FetchPartition,
    FetchPartitionData,
    FetchResponse,
    FetchTopic,
    FetchTopicData,
    ForgottenTopic,
)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def asked(key: Key, offset: int = 0) -> FetchPartition:
    return FetchPartition(key[1], offset, 1_000)


def answer(session_id: int, *keys: Key, error: int = 0) -> FetchResponse:
    topics = tuple(FetchTopicData(topic, (FetchPartitionData(index, 0, 0, b""),)) for topic, index in keys)
    return FetchResponse(topics, error, session_id)


def begun(session_id: int = 7) -> tuple[FetchSession, dict[Key, FetchPartition]]:
    session, wanted = FetchSession(), {A0: asked(A0), A1: asked(A1), B0: asked(B0)}
    first = session.next(wanted)
    topics = (FetchTopic("a", (wanted[A0], wanted[A1])), FetchTopic("b", (wanted[B0],)))
    assert first == SessionRequest(0, 0, topics, ())
    assert session.answered(answer(session_id, A0, A1, B0))
    return session, wanted


def test_within_a_session_only_what_changed_is_named() -> None:
    session, wanted = begun()
    assert session.next(wanted) == SessionRequest(7, 1, (), ())
    assert session.answered(answer(7, A1))
    wanted[A1] = asked(A1, 5)
    assert session.next(wanted) == SessionRequest(7, 2, (FetchTopic("a", (wanted[A1],)),), ())
    assert session.answered(answer(7))
    del wanted[A0], wanted[B0]
    wanted["c", 3] = asked(("c", 3))
    forgotten = (ForgottenTopic("a", (0,)), ForgottenTopic("b", (0,)))
    assert session.next(wanted) == SessionRequest(7, 3, (FetchTopic("c", (wanted["c", 3],)),), forgotten)


def test_the_same_question_of_a_new_leader_epoch_is_named_again() -> None:
    """An equal question is not the same one: whoever asks it may be another."""
    session, wanted = begun()
    wanted[A0] = asked(A0)
    assert session.next(wanted).topics == (FetchTopic("a", (wanted[A0],)),)


def test_a_leader_without_room_for_a_session_is_asked_in_full_each_time() -> None:
    session, wanted = begun(session_id=0)
    assert session.next(wanted).session_epoch == 0
    assert len(session.next(wanted).topics) == 2


@pytest.mark.parametrize(
    ("response", "next_id"),
    [
        (answer(0, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), 0),
        (answer(0, error=ErrorCode.INVALID_FETCH_SESSION_EPOCH), 7),
        (answer(7, ("unknown", 0)), 7),
    ],
)
def test_a_session_that_is_over_is_begun_again_in_full(response: FetchResponse, next_id: int) -> None:
    """With the old session's id where it may still be there: epoch 0 closes it."""
    session, wanted = begun()
    session.next(wanted)
    assert not session.answered(response)
    again = session.next(wanted)
    assert (again.session_id, again.session_epoch, len(again.topics), again.forgotten) == (next_id, 0, 2, ())


def test_a_session_of_an_unanswered_request_is_closed_by_the_next() -> None:
    session, wanted = begun()
    session.next(wanted)
    session.lost()
    again = session.next(wanted)
    assert (again.session_id, again.session_epoch, len(again.topics)) == (7, 0, 2)
    assert session.answered(answer(8, A0))
    assert session.next(wanted) == SessionRequest(8, 1, (), ())


def test_when_the_last_partition_is_forgotten_the_leader_ends_the_session() -> None:
    session, _ = begun()
    assert session.next({}).forgotten == (ForgottenTopic("a", (0, 1)), ForgottenTopic("b", (0,)))
    assert session.answered(answer(0))
    assert session.next({A0: asked(A0)}).session_epoch == 0


def test_session_epochs_begin_anew_after_their_last() -> None:
    session, wanted = begun()
    session._epoch = EPOCH_MAX
    assert session.next(wanted).session_epoch == EPOCH_MAX
    assert session.answered(answer(7))
    assert session.next(wanted).session_epoch == 1

"""A fetch session from the follower's side (KIP-227)."""

from __future__ import annotations

import pytest

from controller.broker.fetcher_state import EPOCH_MAX, FetchSessionHandler, Key, SessionRequest
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
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


def begun(session_id: int = 7) -> tuple[FetchSessionHandler, dict[Key, FetchPartition]]:
    session, wanted = FetchSessionHandler(), {A0: asked(A0), A1: asked(A1), B0: asked(B0)}
    for key, question in wanted.items():
        session.want(key, question)
    topics = (FetchTopic("a", (wanted[A0], wanted[A1])), FetchTopic("b", (wanted[B0],)))
    assert session.next() == SessionRequest(0, 0, topics, ())
    assert session.answered(answer(session_id, A0, A1, B0))
    return session, wanted


def test_within_a_session_only_what_changed_is_named() -> None:
    session, wanted = begun()
    assert session.next() == SessionRequest(7, 1, (), ())
    assert session.answered(answer(7, A1))
    later = asked(A1, 5)
    session.want(A1, later)
    session.want(A0, wanted[A0])
    assert session.next() == SessionRequest(7, 2, (FetchTopic("a", (later,)),), ())
    assert session.answered(answer(7))
    for key in (A0, B0, ("never", 1)):
        session.forget(key)
    session.want(("c", 3), asked(("c", 3)))
    forgotten = (ForgottenTopic("a", (0,)), ForgottenTopic("b", (0,)))
    assert session.next() == SessionRequest(7, 3, (FetchTopic("c", (asked(("c", 3)),)),), forgotten)
    assert [*session.sent] == [A1, ("c", 3)]


def test_the_same_question_of_a_new_leader_epoch_is_named_again() -> None:
    """An equal question is not the same one: whoever asks it may be another."""
    session, _ = begun()
    session.want(A0, asked(A0))
    assert session.next().topics == (FetchTopic("a", (asked(A0),)),)


def test_what_is_forgotten_and_wanted_again_before_the_next_request_is_named() -> None:
    session, wanted = begun()
    session.forget(A0)
    session.want(A0, wanted[A0])
    assert session.next() == SessionRequest(7, 1, (FetchTopic("a", (wanted[A0],)),), ())
    session.want(("c", 3), asked(("c", 3)))
    session.forget(("c", 3))
    assert session.answered(answer(7))
    assert session.next() == SessionRequest(7, 2, (), ())


def test_a_leader_without_room_for_a_session_is_asked_in_full_each_time() -> None:
    session, wanted = begun(session_id=0)
    session.want(A0, asked(A0, 5))
    again = session.next()
    assert (again.session_id, again.session_epoch) == (0, 0)
    assert again.topics == (FetchTopic("a", (wanted[A1], asked(A0, 5))), FetchTopic("b", (wanted[B0],)))
    session.forget(A1)
    assert session.next().topics == (FetchTopic("b", (wanted[B0],)), FetchTopic("a", (asked(A0, 5),)))


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
    session, _ = begun()
    session.next()
    assert not session.answered(response)
    again = session.next()
    assert (again.session_id, again.session_epoch, len(again.topics), again.forgotten) == (next_id, 0, 2, ())


def test_a_session_of_an_unanswered_request_is_closed_by_the_next() -> None:
    session, wanted = begun()
    session.forget(A0)
    session.next()
    session.lost()
    again = session.next()
    topics = (FetchTopic("a", (wanted[A1],)), FetchTopic("b", (wanted[B0],)))
    assert again == SessionRequest(7, 0, topics, ())
    assert session.answered(answer(8, A1))
    assert session.next() == SessionRequest(8, 1, (), ())


def test_when_the_last_partition_is_forgotten_the_leader_ends_the_session() -> None:
    session, _ = begun()
    for key in (A0, A1, B0):
        session.forget(key)
    assert session.next().forgotten == (ForgottenTopic("a", (0, 1)), ForgottenTopic("b", (0,)))
    assert session.answered(answer(0))
    session.want(A0, asked(A0))
    assert session.next().session_epoch == 0


def test_session_epochs_begin_anew_after_their_last() -> None:
    session, _ = begun()
    session._epoch = EPOCH_MAX
    assert session.next().session_epoch == EPOCH_MAX
    assert session.answered(answer(7))
    assert session.next().session_epoch == 1

"""A follower's side of a fetch session (KIP-227): the leader keeps what is followed, and is told only what changed.

Pure: what is wanted in, a request's fields out, a response in. Rules: Kafka 2.8's FetchSessionHandler. A leader may
have no room for a session; then every fetch is a full one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.broker.following.fetcher_states import Key
from controller.few import Few
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

EPOCH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The fields of a FetchRequest that a session makes."""

    session_id: int
    session_epoch: int
    topics: tuple[FetchTopic, ...]
    forgotten: tuple[ForgottenTopic, ...]


class FetchSession:
    """`sent`: the question that the leader was last asked for each partition, in the order in which they came or
    changed. What is told by `want` and `forget` goes with the next request."""

    __slots__ = ("_changes", "_epoch", "_id", "_in_vain", "sent")

    def __init__(self) -> None:
        self.sent: Few[Key, FetchPartition] = Few()
        self._changes: dict[Key, FetchPartition | None] | None = None
        self._id = NO_SESSION
        self._epoch = INITIAL_SESSION_EPOCH
        self._in_vain: SessionRequest | None = None
        """From when a request was lost until one is answered: the last that named all."""

    def want(self, key: Key, question: FetchPartition) -> None:
        """The same object as before changes nothing."""
        if self._changes is None:
            self._changes = {}
        if key in self._changes or self.sent.get(key) is not question:
            self._changes[key] = question

    def forget(self, key: Key) -> None:
        if key in self.sent:
            if self._changes is None:
                self._changes = {}
            self._changes[key] = None
        elif self._changes is not None:
            self._changes.pop(key, None)

    def next(self) -> SessionRequest:
        """The same object for each attempt at a leader that is gone, while nothing is another."""
        in_vain = self._in_vain
        if in_vain is not None and not self._changes and in_vain.session_id == self._id:
            return in_vain
        changed: list[tuple[Key, FetchPartition]] = []
        forgotten: dict[str, list[int]] = {}
        changes, self._changes = self._changes, None
        for key, question in (changes or {}).items():
            # Taken out first: what changed goes to the end of a full request, as an answer has room for so much and is
            # filled in the order of the questions.
            self.sent.pop(key)
            if question is not None:
                self.sent[key] = question
                changed.append((key, question))
            else:
                forgotten.setdefault(key[0], []).append(key[1])
        if self._epoch == INITIAL_SESSION_EPOCH:
            request = SessionRequest(self._id, self._epoch, by_topic(self.sent.items()), ())
            if in_vain is not None:
                self._in_vain = request
            return request
        gone = tuple(ForgottenTopic(topic, tuple(indexes)) for topic, indexes in forgotten.items())
        return SessionRequest(self._id, self._epoch, by_topic(changed), gone)

    def answered(self, response: FetchResponse) -> bool:
        """False: the session is over, what the response says of partitions does not count, and the next request is a
        full one."""
        self._in_vain = None
        if response.error_code != ErrorCode.NONE:
            known = response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_again(self._id if known else NO_SESSION)
            return False
        named = [(topic.topic, one.partition_index) for topic in response.responses for one in topic.partitions]
        if any(key not in self.sent for key in named):
            self._begin_again(self._id)
            return False
        if response.session_id == NO_SESSION:
            self._begin_again(NO_SESSION)
        elif self._epoch == INITIAL_SESSION_EPOCH:
            self._id, self._epoch = response.session_id, INITIAL_SESSION_EPOCH + 1
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1
        return True

    def lost(self) -> None:
        """A request was not answered: nobody knows whether the leader has it. The next one closes the session there
        and opens another."""
        self._begin_again(self._id)
        self._in_vain = self._in_vain or _NONE_YET

    def _begin_again(self, session_id: int) -> None:
        self._id, self._epoch = session_id, INITIAL_SESSION_EPOCH


_NONE_YET = SessionRequest(-1, INITIAL_SESSION_EPOCH, (), ())
"""No session has that id."""


def by_topic(partitions: Iterable[tuple[Key, FetchPartition]]) -> tuple[FetchTopic, ...]:
    """Grouped, in the order of each topic's first."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, _), asked in partitions:
        topics.setdefault(topic, []).append(asked)
    return tuple(FetchTopic(topic, tuple(partitions)) for topic, partitions in topics.items())

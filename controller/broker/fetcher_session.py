"""A follower's side of a fetch session (KIP-227): the leader keeps what is followed, and is told only what changed.

Pure: what is wanted in, a request's fields out, a response in. Rules: Kafka 2.8's FetchSessionHandler. A leader may
have no room for a session; then every fetch is a full one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.broker.fetcher_states import Key
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
    """`asked`: what the leader was last asked for each partition that it is asked for now."""

    def __init__(self) -> None:
        self.asked: Mapping[Key, FetchPartition] = {}
        self._id = NO_SESSION
        self._epoch = INITIAL_SESSION_EPOCH

    def next(self, wanted: Mapping[Key, FetchPartition]) -> SessionRequest:
        """The next request for exactly these. A question that is the same object as before has not changed."""
        before, self.asked = self.asked, dict(wanted)
        if self._epoch == INITIAL_SESSION_EPOCH:
            return SessionRequest(self._id, self._epoch, by_topic(wanted.items()), ())
        changed = [(key, asked) for key, asked in wanted.items() if before.get(key) is not asked]
        gone: dict[str, list[int]] = {}
        for topic, index in before:
            if (topic, index) not in wanted:
                gone.setdefault(topic, []).append(index)
        forgotten = tuple(ForgottenTopic(topic, tuple(indexes)) for topic, indexes in gone.items())
        return SessionRequest(self._id, self._epoch, by_topic(changed), forgotten)

    def answered(self, response: FetchResponse) -> bool:
        """False: the session is over, what the response says of partitions does not count, and the next request is a
        full one."""
        if response.error_code != ErrorCode.NONE:
            known = response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._begin_again(self._id if known else NO_SESSION)
            return False
        if any(
            (topic.topic, one.partition_index) not in self.asked
            for topic in response.responses
            for one in topic.partitions
        ):
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

    def _begin_again(self, session_id: int) -> None:
        self._id, self._epoch, self.asked = session_id, INITIAL_SESSION_EPOCH, {}


def by_topic(partitions: Iterable[tuple[Key, FetchPartition]]) -> tuple[FetchTopic, ...]:
    """Grouped, in the order of each topic's first."""
    topics: dict[str, list[FetchPartition]] = {}
    for (topic, _), asked in partitions:
        topics.setdefault(topic, []).append(asked)
    return tuple(FetchTopic(topic, tuple(partitions)) for topic, partitions in topics.items())

"""The partitions of one fetcher: which are fetched, which are first to be compared with the leader's, which wait.

Whatever is the same as at the last fetch is not looked at for the next one: a leader may have thousands of partitions,
most of them idle. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.broker.following.fetcher_session import FetchSession
from controller.broker.following.fetcher_states import Followed, Key
from controller.few import Few


class FetcherQueue:
    """`session` is told what to fetch. `max_bytes`, `tells_epoch`: as `Followed.question` has them."""

    __slots__ = ("_disagreeing", "_followed", "_max_bytes", "_session", "_tells_epoch", "_waiting")

    def __init__(self, session: FetchSession, max_bytes: int, tells_epoch: bool) -> None:
        self._session = session
        self._max_bytes = max_bytes
        self._tells_epoch = tells_epoch
        self._followed: Few[Key, Followed] = Few()
        self._waiting: dict[Key, Followed] | None = None  # these two are made when there is one
        self._disagreeing: dict[Key, Followed] | None = None

    @property
    def is_empty(self) -> bool:
        return not len(self._followed)

    @property
    def disagreeing(self) -> Mapping[Key, Followed]:
        """Those due whose logs may hold what the leader's has not."""
        return self._disagreeing or {}

    @property
    def has_questions(self) -> bool:
        """There is something to fetch."""
        aside = (len(self._waiting) if self._waiting else 0) + (len(self._disagreeing) if self._disagreeing else 0)
        return len(self._followed) > aside

    @property
    def is_all_asked(self) -> bool:
        """There is something to fetch, and nothing else."""
        return not self._waiting and not self._disagreeing and len(self._followed) > 0

    def add(self, followed: Followed) -> None:
        self.remove(followed.key)
        self._followed[followed.key] = followed
        self.ask(followed)

    def remove(self, key: Key) -> None:
        if self._followed.pop(key) is not None:
            self._put_aside(key)

    def clear(self) -> None:
        for key in tuple(self._followed):
            self.remove(key)

    def follows(self, followed: Followed) -> bool:
        return self._followed.get(followed.key) is followed

    def asked(self, key: Key) -> Followed | None:
        """Whose question the last fetch had for the partition, if it is followed still and its log is as it was."""
        followed, question = self._followed.get(key), self._session.sent.get(key)
        if followed is None or question is None or not followed.has_asked(question):
            return None
        return followed

    def ask(self, followed: Followed) -> None:
        """With the next request, as its log is now."""
        key = followed.key
        if self._followed.get(key) is not followed or (self._waiting and key in self._waiting):
            return
        if followed.agreed:
            if self._disagreeing:
                self._disagreeing.pop(key, None)
            self._session.want(key, followed.question(self._max_bytes, self._tells_epoch))
        else:
            self._session.forget(key)
            if self._disagreeing is None:
                self._disagreeing = {}
            self._disagreeing[key] = followed

    def ask_all(self) -> None:
        """For what changes without the fetcher: a log's start, by its own retention; and after a fault."""
        for followed in self._followed.values():
            self.ask(followed)

    def delay(self, followed: Followed, until_ms: float) -> None:
        if self.follows(followed):
            self._put_aside(followed.key)
            followed.ready_ms = until_ms
            if self._waiting is None:
                self._waiting = {}
            self._waiting[followed.key] = followed

    def take_up(self, now_ms: float, is_held: Callable[[Followed], bool], hold_ms: float) -> None:
        """Those whose time has come; who is held still waits for so long again."""
        if not self._waiting:
            return
        for followed in [one for one in self._waiting.values() if one.ready_ms <= now_ms]:
            if is_held(followed):
                followed.ready_ms = now_ms + hold_ms
                continue
            del self._waiting[followed.key]
            self.ask(followed)
        if not self._waiting:
            self._waiting = None

    def all(self) -> tuple[Followed, ...]:
        return self._followed.values()

    def next_due_ms(self) -> float | None:
        """None if nothing waits."""
        return min((one.ready_ms for one in self._waiting.values()), default=None) if self._waiting else None

    def _put_aside(self, key: Key) -> None:
        if self._waiting:
            self._waiting.pop(key, None)
        if self._disagreeing:
            self._disagreeing.pop(key, None)
        self._session.forget(key)

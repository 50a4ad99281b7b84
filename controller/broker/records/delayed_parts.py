"""A request about several partitions that waits for something in each of them, and is answered as a whole.

Each part is looked at whenever its partition has news, and is final once it awaits nothing. What is still awaited when
the time is up is settled as it stands.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from controller.broker.partition import Partition
from controller.timer.operation import DelayedOperation


class Awaited(Protocol):
    @property
    def partition(self) -> Partition:
        """Whose news it is waited for."""


class Part(Protocol):
    """One partition's result, which is final once nothing is `awaited`."""

    @property
    def awaited(self) -> Awaited | None: ...


P = TypeVar("P", bound=Part)


class DelayedParts(DelayedOperation, Generic[P]):
    """`parts`: by topic, as the request has them."""

    __slots__ = ("_parts", "_waiting")

    def __init__(self, timeout_ms: int, parts: Sequence[tuple[str, Sequence[P]]]) -> None:
        super().__init__(timeout_ms)
        self._parts = parts
        self._waiting = [part for _, those in parts for part in those if part.awaited is not None]

    def keys(self) -> list[tuple[str, int]]:
        return [one.partition.key for part in self._waiting if (one := part.awaited) is not None]

    def try_complete(self) -> bool:
        for part in self._waiting:
            if part.awaited is not None:
                self.look_at(part)
        self._waiting = [part for part in self._waiting if part.awaited is not None]
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        for part in self._waiting:
            if part.awaited is not None:
                self.give_up(part)
        self.answer()

    @abstractmethod
    def look_at(self, part: P) -> None:
        """Settles it if what it waits for has come, or can come no more."""

    @abstractmethod
    def give_up(self, part: P) -> None:
        """Settles it: the time is up."""

    @abstractmethod
    def answer(self) -> None:
        """Once, when nothing is awaited any more."""

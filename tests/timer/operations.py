"""Operations for the purgatory's tests: their condition is a switch, and they count their answers."""

from __future__ import annotations

from collections.abc import Callable

from controller.timer.purgatory import DelayedOperation


class Switched(DelayedOperation):
    """Completes once `on` is set. `told` is called by `on_complete`, `looked` by `try_complete` after its look."""

    __slots__ = ("answers", "expirations", "looked", "looks", "name", "on", "told")

    def __init__(self, name: str = "operation", timeout_ms: int = 1_000, *, on: bool = False) -> None:
        super().__init__(timeout_ms)
        self.name = name
        self.on = on
        self.looks = 0
        self.answers = 0
        self.expirations = 0
        self.told: Callable[[], None] | None = None
        self.looked: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return self.name

    def try_complete(self) -> bool:
        self.looks += 1
        holds = self.on
        if self.looked is not None:
            self.looked()
        return holds and self.force_complete()

    def on_complete(self) -> None:
        self.answers += 1
        if self.told is not None:
            self.told()

    def on_expiration(self) -> None:
        self.expirations += 1

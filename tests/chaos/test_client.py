"""The chaos run's client around confluent-kafka: what an interrupt becomes."""

from __future__ import annotations

import signal

import pytest

from controller.chaos.client import interruptible


def test_an_interrupt_that_came_while_the_client_was_in_c_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


def test_an_interrupt_whose_place_another_error_took_is_one_still() -> None:
    """As create_topics does with the interrupt that comes while it reads a topic's config."""

    def call() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("expected a name") from None

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        call()
    assert signal.getsignal(signal.SIGINT) is handler


def test_any_other_fault_of_the_client_stays_what_it_is() -> None:
    with pytest.raises(SystemError, match="of its own"), interruptible():
        raise SystemError("of its own")

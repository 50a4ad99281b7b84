"""The event queue: order, coalescing, the limit, and no caller without an answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from controller.core.event_loop import EventQueue
from controller.core.events import (
    BrokerChange,
    BrokerModifications,
    ControlledShutdownRequested,
    Event,
    TopicChange,
    UpdateMetadataResponseReceived,
)
from controller.protocol import control
from controller.protocol.errors import ErrorCode


def asked(answers: list[Any], broker: int = 1) -> ControlledShutdownRequested:
    return ControlledShutdownRequested(broker, 7, answers.append)


def drain(queue: EventQueue) -> list[Event]:
    taken = []
    while (event := queue.take()) is not None:
        taken.append(event)
    return taken


def test_events_come_out_in_the_order_they_went_in() -> None:
    queue = EventQueue(10)
    events: list[Event] = [BrokerChange(), TopicChange(), asked([]), BrokerModifications(2)]
    for event in events:
        queue.put(event)
    assert len(queue) == 4
    assert drain(queue) == events
    assert queue.take() is None


def test_equal_pending_events_are_one_until_one_is_taken() -> None:
    """S22 (KAFKA-5502). An event that is being handled no longer stands for what happens from then on."""
    queue = EventQueue(10)
    for _ in range(100):
        queue.put(BrokerChange())
        queue.put(BrokerModifications(1))
        queue.put(BrokerModifications(2))
    assert len(queue) == 3
    assert queue.take() == BrokerChange()
    queue.put(BrokerChange())
    expected: list[Event] = [BrokerModifications(1), BrokerModifications(2), BrokerChange()]
    assert drain(queue) == expected


def test_responses_do_not_coalesce() -> None:
    queue = EventQueue(10)
    response = UpdateMetadataResponseReceived(1, 2, 3, control.UpdateMetadataResponse(0))
    queue.put(response)
    queue.put(response)
    assert len(queue) == 2


def test_over_the_limit_callers_are_refused_at_once_and_watches_are_kept() -> None:
    queue = EventQueue(3)
    answers: list[Any] = []
    for broker in range(5):
        queue.put(BrokerModifications(broker))
    queue.put(asked(answers))
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_CONTROLLER]
    assert drain(queue) == [BrokerModifications(broker) for broker in range(5)]
    queue.put(asked(answers))
    assert len(queue) == 1
    assert len(answers) == 1


def test_a_resignation_answers_every_queued_callback_once_and_keeps_the_rest() -> None:
    """S19 (KAFKA-10193)."""
    queue = EventQueue(10)
    answers: list[Any] = []
    queue.put(asked(answers, 1))
    queue.put(TopicChange())
    queue.put(asked(answers, 2))
    queue.close_callbacks()
    queue.close_callbacks()
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_CONTROLLER] * 2
    assert drain(queue) == [TopicChange()]
    queue.put(asked(answers, 3))  # the next term's
    assert len(queue) == 1


def test_a_closed_queue_answers_what_comes_later_too() -> None:
    queue = EventQueue(10)
    answers: list[Any] = []
    queue.put(asked(answers, 1))
    queue.close()
    queue.put(asked(answers, 2))
    queue.put(BrokerChange())
    queue.put(UpdateMetadataResponseReceived(1, 2, 3, control.UpdateMetadataResponse(0)))
    assert len(answers) == 2
    assert queue.take() is None


def test_an_answer_may_put_an_event() -> None:
    """Callbacks run outside the lock: one that puts does not deadlock."""
    queue = EventQueue(10, lock=threading.Lock())
    queue.put(ControlledShutdownRequested(1, 7, lambda _: queue.put(BrokerChange())))
    queue.close_callbacks()
    assert drain(queue) == [BrokerChange()]


def test_the_taker_is_woken_for_what_was_queued_alone() -> None:
    woken: list[int] = []
    queue = EventQueue(1, wake=lambda: woken.append(1))
    queue.put(BrokerChange())
    queue.put(BrokerChange())
    queue.put(asked([]))
    assert len(woken) == 1


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit 0"):
        EventQueue(0)


def test_many_threads_put_and_every_caller_is_answered_once() -> None:
    """Four threads ask while one takes and another resigns: each request is handled or refused, never both."""
    queue = EventQueue(50, lock=threading.Lock())
    answers: list[list[Any]] = [[] for _ in range(4000)]
    stop = threading.Event()
    handled = 0

    def ask(thread: int) -> None:
        for number in range(thread * 1000, (thread + 1) * 1000):
            queue.put(asked(answers[number], number))
            queue.put(BrokerModifications(number % 3))

    def resign() -> None:
        while not stop.is_set():
            queue.close_callbacks()

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
    resigning = threading.Thread(target=resign)
    for thread in (*threads, resigning):
        thread.start()
    while any(thread.is_alive() for thread in threads) or len(queue):
        event = queue.take()
        if isinstance(event, ControlledShutdownRequested):
            handled += 1
            event.respond(control.ControlledShutdownResponse(0))
    stop.set()
    resigning.join()
    queue.close()
    assert [len(answer) for answer in answers] == [1] * 4000
    assert handled == sum(answer[0].error_code == 0 for answer in answers)
    assert drain(queue) == []

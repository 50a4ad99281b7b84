"""A request from its frame to its answer: decoding, the handler's steps, and one response from any thread.

Requests are handled in slices, so that one does not keep the broker's thread from all the others. A handler that may
have much to do is a generator. It yields None where others may take their turn, a `Job` for work that must not run on
the broker's thread at all, and a `Gate` where only a limited number may continue at once. It is resumed with the job's
result, or with its exception. The host decides what runs in between: the real one handles other connections and has
threads for jobs, the simulated one and tests run everything at once (`finish`). State that a generator read before a
yield may have changed after it.

Small requests are decoded at once, large ones by a job. An exception in a handler fails its own request alone. No
clock, no thread, no I/O.
"""

from __future__ import annotations

import enum
import traceback
from collections import deque
from collections.abc import Callable, Container, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from controller.broker.error_responses import refusal
from controller.broker.settings import INT_MAX
from controller.clock import Clock, Future
from controller.protocol.codec import (
    ApiKey,
    Request,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response_body,
    encode_response_parts,
    unsupported_api_versions,
    write_response_header,
)
from controller.protocol.compiler import Entries
from controller.protocol.errors import ErrorCode, ProtocolError, TooManyEntries
from controller.protocol.framing import Part
from controller.protocol.schema import RequestValue, ResponseValue
from controller.storage.disk import Device

SLICE = 100
"""Entries of a request (partitions, topics, resources) that are handled between two yields: about a millisecond."""
SLICE_BYTES = 1024 * 1024
"""Bytes of records that are appended between two yields."""


class JobLane(enum.Enum):
    """Which jobs wait for one another, of those that compute. Those that use a disk have its `Device` instead."""

    CODEC = "codec"
    """Large requests and answers, read and written one at a time."""
    RECORDS = "records"
    """Records out of their compression."""


class Job(msgspec.Struct, frozen=True):
    """A call to run on another thread; it may only read what does not change meanwhile. The fields after `lane` are for
    a device alone: see `DeviceJobs.submit`."""

    call: Callable[[], Any]
    lane: JobLane | Device = JobLane.CODEC
    order: str = ""
    size_bytes: int = 0
    limit_ms: float | None = None
    what: str = ""
    is_last: bool = False
    """The steps end with it, on any thread: no other waits for them, and the loop is not woken up."""


class Gate:
    """Lets `places` steps at a time past a yield of it. Steps that have passed call `leave` once."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, go_on: Callable[[], None]) -> bool:
        """True: the steps may go on. False: `go_on` is called when they may."""
        if self._free:
            self._free -= 1
            return True
        self._waiting.append(go_on)
        return False

    def leave(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


Yielded: TypeAlias = Job | Gate | None
Steps: TypeAlias = Generator[Yielded, Any, Any]
"""What `finish` returns is what they return."""
Drive: TypeAlias = Callable[[Steps], None]
"""Runs steps to their end, now or later."""


def finish(steps: Steps | None) -> Any:
    """Runs all steps at once, jobs included."""
    if steps is None:
        return None
    try:
        yielded = next(steps)
        while True:
            if isinstance(yielded, Job):
                yielded = resumed(steps, yielded)
                continue
            if yielded is not None and not yielded.enter(lambda: None):
                raise RuntimeError("steps that run at once wait for others")
            yielded = steps.send(None)
    except StopIteration as end:
        return end.value


def first_of(steps: Steps) -> Steps | None:
    """Run the steps up to their first yield. Returns the steps that are left, which begin with it, None if there are
    none."""
    try:
        first = next(steps)
    except StopIteration:
        return None
    return _beginning_with(first, steps)


def _beginning_with(first: Yielded, steps: Steps) -> Steps:
    yielded = first
    while True:
        try:
            result = yield yielded
        except Exception as error:  # noqa: BLE001 - a job's, handed to the steps that asked for it
            following = partial(steps.throw, error)
        else:
            following = partial(steps.send, result)
        try:
            yielded = following()
        except StopIteration as end:
            return end.value


def resumed(steps: Steps, job: Job) -> Yielded:
    """Runs the job here and resumes the steps with what came of it. StopIteration."""
    try:
        result = job.call()
    except Exception as error:  # noqa: BLE001 - handed to the steps that asked for the job
        return steps.throw(error)
    return steps.send(result)


def together(several: Sequence[Steps], drive: Drive) -> Steps:
    """Run all of them at the same time. Ends when each has ended, and raises what the first that failed raised."""
    gate = Gate(0)
    errors: list[Exception] = []
    for steps in several:
        drive(_leaving(gate, steps, errors))
    for _ in several:
        yield gate
    if errors:
        raise errors[0]


def _leaving(gate: Gate, steps: Steps, errors: list[Exception]) -> Steps:
    try:
        yield from steps
    except Exception as error:  # noqa: BLE001 - raised by `together`
        errors.append(error)
    finally:
        gate.leave()


class SerialSteps:
    """Runs steps one after the other, in the order in which they were added."""

    def __init__(self, drive: Drive = finish) -> None:
        self._drive = drive
        self._waiting: list[Steps] = []
        self._running = False

    def add(self, steps: Steps) -> None:
        self._waiting.append(steps)
        if not self._running:
            self._running = True
            self._drive(self._run())

    def _run(self) -> Steps:
        try:
            while self._waiting:
                yield from self._waiting.pop(0)
        finally:
            self._running = False


def on_broker_thread(pending: Future[Any], clock: Clock, action: Callable[[], None]) -> None:
    """Call `action` on the broker's thread once `pending` is done, whichever thread completes it."""

    def done() -> None:
        clock.call_later(0.0, action)

    pending.on_done(done)


Respond: TypeAlias = Callable[[Sequence[Part] | None], None]
"""Takes the parts of the response's frame, none of them where the request has no response (Produce with acks=0); None
closes the connection. May be called on any thread."""


class Throttled(list[Part]):
    """A response that is sent at once, and after which its connection is read no more for `throttle_ms`."""

    __slots__ = ("throttle_ms",)

    def __init__(self, parts: Sequence[Part], throttle_ms: int) -> None:
        super().__init__(parts)
        self.throttle_ms = throttle_ms


Send: TypeAlias = Callable[[int], None]
"""Sends the answer, with a throttle time in ms."""


class RequestContext(msgspec.Struct, eq=False):
    """A request that is being answered. `host`: its client's address. `heavy`: its answer may be large, and is encoded
    by a job of its own. `transform` changes the response before it is encoded. `settle` is called with a `Send` when
    the request is answered, which it calls once, at once or later: a `Charge`. None: no quota concerns the request, as
    nearly always."""

    header: RequestHeader
    _value: RequestValue | None
    _respond: Respond
    listener: str
    _note: Callable[[str, str], None]
    _drive: Drive = finish
    host: str = ""
    heavy: bool = False
    answered: bool = False
    transform: Callable[[Any], ResponseValue] | None = None
    settle: Any = None

    def answer(self, value: ResponseValue) -> None:
        """Send the answer. A value that can't be encoded is a bug of the caller, which may be the controller on its own
        thread; it is logged here, where the request is known, and answered with an error.

        Raises: RuntimeError on a second call."""
        self._mark_answered()
        if self.settle is not None:
            self.settle(partial(self._send, value))
        elif self.heavy:
            self._drive(self._respond_with(value, 0))
        else:
            self._respond(self._encoded(value))

    def answer_made(self, make: Callable[[], ResponseValue]) -> None:
        """Send the answer that `make` returns. A job may call `make`, so it may only read what does not change."""
        self._mark_answered()
        if self.settle is not None:
            self.settle(partial(self._send_made, make))
        else:
            self._send_made(make, 0)

    def refuse(self, request: RequestValue, error: ErrorCode, message: str | None = None) -> None:
        """In place of `answer`: the same error for everything that was asked."""
        self.answer_made(lambda: refusal(request, error, message))

    def _send(self, value: ResponseValue, throttle_ms: int) -> None:
        if self.heavy:
            self._drive(self._respond_with(value, throttle_ms))
        else:
            self._respond(self._encoded(value, throttle_ms))

    def _send_made(self, make: Callable[[], ResponseValue], throttle_ms: int) -> None:
        if self.heavy:
            self._drive(self._respond_made(make, throttle_ms))
        else:
            self._respond(self._made(make, throttle_ms))

    def _respond_with(self, value: ResponseValue, throttle_ms: int) -> Steps:
        self._respond((yield Job(lambda: self._encoded(value, throttle_ms))))

    def _respond_made(self, make: Callable[[], ResponseValue], throttle_ms: int) -> Steps:
        self._respond((yield Job(lambda: self._made(make, throttle_ms))))

    def _made(self, make: Callable[[], ResponseValue], throttle_ms: int) -> Sequence[Part] | None:
        try:
            value = make()
        except Exception:  # noqa: BLE001 - a bug in `make`, logged here, where the request is known
            self._note("error", f"{self.header.api_key.name}: no answer was made\n{traceback.format_exc()}")
            return self._refused()
        return self._encoded(value, throttle_ms)

    def _encoded(self, value: ResponseValue, throttle_ms: int = 0) -> Sequence[Part] | None:
        try:
            if self.transform is not None:
                value = self.transform(value)
            if not throttle_ms:
                return encode_response_parts(self.header, value)
            if hasattr(value, "throttle_time_ms"):
                value = replace(value, throttle_time_ms=throttle_ms)
            return Throttled(encode_response_parts(self.header, value), throttle_ms)
        except ProtocolError:
            self._note("error", f"{self.header.api_key.name}: no answer was {value!r:.2000}\n{traceback.format_exc()}")
            return self._refused()

    __call__ = answer

    def release_request(self, instead: RequestValue | None = None) -> None:
        """The request is not held while it waits for its answer. `instead`: one of its kind, of whose refusal as much
        would be true; without it a fault in the answer closes the connection."""
        self._value = instead

    def answer_body(self, body: bytes) -> None:
        """In place of `answer`: what follows the response's header, encoded already."""
        header = self.header
        if self.transform is not None:
            self.answer(decode_response_body(header.api_key, header.api_version, body))
            return
        self._mark_answered()
        if self.settle is None:
            self._send_body(body, 0)
        else:
            self.settle(partial(self._send_body, body))

    def _send_body(self, body: bytes, throttle_ms: int) -> None:
        header = self.header
        if throttle_ms:
            self._send(decode_response_body(header.api_key, header.api_version, body), throttle_ms)
        else:
            self._respond([write_response_header(header.api_key, header.api_version, header.correlation_id), body])

    def answer_nothing(self) -> None:
        """In place of `answer`, to a request that has no response. Where one would have to be changed, the connection
        is closed."""
        self._mark_answered()
        if self.settle is None or self.transform is not None:
            self._respond(() if self.transform is None else None)
        else:
            self.settle(lambda throttle_ms: self._respond(Throttled((), throttle_ms) if throttle_ms else ()))

    def close(self) -> None:
        """Close the connection in place of an answer, so that the client looks for the leader again."""
        self._mark_answered()
        self._respond(None)

    def _mark_answered(self) -> None:
        if self.answered:
            raise RuntimeError(f"{self.header}: answered twice")
        self.answered = True

    def _refused(self) -> Sequence[Part] | None:
        """None, which closes the connection, if what was asked can't even be refused in its version."""
        if self._value is None:
            return None
        try:
            return encode_response_parts(self.header, refusal(self._value, ErrorCode.UNKNOWN_SERVER_ERROR))
        except ProtocolError:
            return None


Handler: TypeAlias = Callable[[RequestContext, Any], Steps | None]

ENTRIES_AT_ONCE = 2_000
"""Entries of a request that are read on the broker's own thread: some milliseconds."""
LARGE_AT_ONCE = 4
"""Requests with more entries that are handled at the same time: each may take some tens of megabytes."""

_AT_ONCE, _IN_JOB = Entries(), Entries()
"""Of all brokers of the process: what is read with one is compiled for it."""
_FROM_BROKERS = frozenset([ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA, ApiKey.ALTER_ISR])
"""Requests that brokers alone send, about as many partitions as the cluster has."""


class RequestDecoder:
    """Decodes requests. `served`: the API keys that are answered. `entries_max`: the limit on a client request's
    entries (camerlengo.request.entries.max). `note` logs why a connection is closed."""

    def __init__(self, served: Container[int], entries_max: int, note: Callable[[str, str], None]) -> None:
        self._served = served
        self._entries_max = entries_max
        self._note = note
        self._larges = Gate(LARGE_AT_ONCE)

    def decoded(self, frame: bytes, respond: Respond) -> Request | None:
        """None: it can't be read, and has been answered so. TooManyEntries: see `large`."""
        try:
            return decode_request(frame, self._served, _AT_ONCE, ENTRIES_AT_ONCE)
        except TooManyEntries:
            raise
        except ProtocolError as error:
            self._unreadable(error, respond)
            return None

    def _unreadable(self, error: ProtocolError, respond: Respond) -> None:
        if isinstance(error, UnsupportedVersion) and error.header.api_key is ApiKey.API_VERSIONS:
            respond([unsupported_api_versions(error.header)])
            return
        self._note("warning", f"connection closed: {error}")
        respond(None)

    def large(self, frame: bytes, respond: Respond, handle: Callable[[Request], Steps | None]) -> Steps:
        """A request with many entries: read by a job, and refused if there are more than a client may name."""
        yield self._larges
        try:
            yield from self._large(frame, respond, handle)
        finally:
            self._larges.leave()

    def _large(self, frame: bytes, respond: Respond, handle: Callable[[Request], Steps | None]) -> Steps:
        trusted = int.from_bytes(frame[:2], "big") in _FROM_BROKERS
        entries_max = INT_MAX if trusted else self._entries_max
        try:
            request = yield Job(partial(decode_request, frame, self._served, _IN_JOB, entries_max))
        except TooManyEntries as error:
            limit = f"camerlengo.request.entries.max={entries_max}"
            self._note("warning", f"connection closed: {error}, which is limited by {limit}")
            respond(None)
            return
        except ProtocolError as error:
            self._unreadable(error, respond)
            return
        del frame
        steps = handle(request)
        del request  # a large value is not held until the steps end
        if steps is not None:
            yield None
            yield from steps


_END: Any = object()


def first_slice(
    handler: Handler,
    exchange: RequestContext,
    value: RequestValue,
    failed: Callable[[RequestContext, RequestValue], None],
) -> Steps | None:
    """Runs the handler's first slice; the steps that are left, None if there are none. `failed` is called in the
    `except` of whatever a handler raises."""
    try:
        steps = handler(exchange, value)
        first = _END if steps is None else next(steps, _END)
    except Exception:  # noqa: BLE001 - logged and answered with an error
        failed(exchange, value)
        return None
    if steps is None or first is _END:
        return None
    exchange.heavy = True
    return _guarded(first, steps, exchange, value, failed)


def _guarded(
    job: Yielded,
    steps: Steps,
    exchange: RequestContext,
    value: RequestValue,
    failed: Callable[[RequestContext, RequestValue], None],
) -> Steps:
    try:
        while True:
            try:
                result = yield job
            except Exception as error:  # noqa: BLE001 - a job's, handed to the handler that asked for it
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration:
        return
    except Exception:  # noqa: BLE001 - as above
        failed(exchange, value)

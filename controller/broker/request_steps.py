"""From a frame to its handler: what is small is decoded at once, what is large by a job, and handlers run in slices.

Every fault of a handler ends its own request alone. No thread, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeAlias

from controller.broker.configs.setting_types import INT_MAX
from controller.broker.exchange import Exchange, Respond
from controller.broker.steps import Gate, Job, Steps
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import Request, decode_request, unsupported_api_versions
from controller.protocol.compiler import Entries
from controller.protocol.errors import ProtocolError, TooManyEntries
from controller.protocol.headers import UnsupportedVersion
from controller.protocol.messages import RequestValue

Handler: TypeAlias = Callable[[Exchange, Any], Steps | None]

ENTRIES_AT_ONCE = 2_000
"""Entries of a request that are read on the broker's own thread: some milliseconds."""
LARGE_AT_ONCE = 4
"""Requests with more entries that are handled at the same time: each may take some tens of megabytes."""

_AT_ONCE, _IN_JOB = Entries(), Entries()
"""Of all brokers of the process: what is read with one is compiled for it."""
_FROM_BROKERS = frozenset([ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA, ApiKey.ALTER_ISR])
"""Requests that brokers alone send, about as many partitions as the cluster has."""


class Frames:
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


def first_slice(
    handler: Handler,
    exchange: Exchange,
    value: RequestValue,
    failed: Callable[[Exchange, RequestValue], None],
) -> Steps | None:
    """Runs the handler's first slice; the steps that are left, None if there are none. `failed` is called in the
    `except` of whatever a handler raises."""
    try:
        steps = handler(exchange, value)
    except Exception:  # noqa: BLE001 - logged and answered with an error
        failed(exchange, value)
        return None
    if steps is None:
        return None
    guarded = _guarded(steps, exchange, value, failed)
    try:
        next(guarded)  # up to the first yield, which is None by construction
    except StopIteration:
        return None
    return guarded


def _guarded(
    steps: Steps, exchange: Exchange, value: RequestValue, failed: Callable[[Exchange, RequestValue], None]
) -> Steps:
    try:
        job = next(steps)
        yield None
        exchange.heavy = True
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

"""The rows of a timeline that show what was done and to whom: faults with their words, and each broker's lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.scenarios.timeline_model import (
    ErrorMark,
    FaultMark,
    Lane,
    Life,
    LifeSpan,
    SessionSpan,
    Term,
    Timeline,
)
from controller.scenarios.timeline_scale import TimeScale
from controller.scenarios.timeline_shapes import (
    Row,
    box,
    duration,
    labelled_box,
    lasting,
    seconds,
    sign,
    title,
    words,
    words_width,
)

LABELS_WIDTH = 150.0
"""Of the column of names at the left."""

MOST_TALL_LANES = 12
"""With more brokers than this, lanes are drawn lower."""

_LABEL_ROWS = 4


def fault_words(fault: FaultMark) -> str:
    return f"{fault.fault} {fault.target.replace('->', ' → ')}"


def faults_row(timeline: Timeline, scale: TimeScale) -> Row:
    """Each fault's sign with its words, in as many lines as keep them apart, four at most: where more come
    together the signs alone are in a line below."""
    marks: list[tuple[float, str, str, str]] = [
        (fault.at_ms, fault.fault, fault_words(fault), f"{fault_words(fault)} at {seconds(fault.at_ms)}")
        for fault in timeline.faults
    ]
    marks += [
        (error.at_ms, "error", "step failed", f"{error.text}, at {seconds(error.at_ms)}")
        for error in timeline.errors
        if error.lane is None
    ]
    ends = [-100.0]
    crowded = False
    drawn: list[str] = []
    for at_ms, fault, label, detail in sorted(mark for mark in marks if scale.holds(mark[0], mark[0])):
        x, width = scale.x(at_ms), words_width(label) + 12
        to_left = x + width > scale.width
        left, right = (x - width, x + 8) if to_left else (x - 8, x + width)
        line = next((line for line, end in enumerate(ends) if left >= end + 4), None)
        if line is None and len(ends) < _LABEL_ROWS:
            ends.append(-100.0)
            line = len(ends) - 1
        crowded = crowded or line is None
        y = 10.0 + 17 * (_LABEL_ROWS if line is None else line)
        drawn.append(_error(x, y, detail) if fault == "error" else _label_sign(fault, x, y, detail))
        if line is not None:
            ends[line] = right
            drawn.append(words(label, x + (-11 if to_left else 11), y + 4, "se" if to_left else "s", "fault"))
    height = 17.0 * (len(ends) + crowded) + 6 if drawn else 0.0
    return Row(height, words("faults", 0, 14, "b") if drawn else "", "".join(drawn), True)


def _label_sign(fault: str, x: float, y: float, detail: str) -> str:
    return sign(fault, x, y, detail, 6.5).replace("data-kind='fault'", "data-kind='fault-label'")


def _error(x: float, y: float, detail: str) -> str:
    return (
        f"<g data-kind='error'><path d='M{x:.1f} {y - 7:.1f}L{x + 7:.1f} {y + 5:.1f}H{x - 7:.1f}Z'"
        f" class='k-error'/><path d='M{x:.1f} {y - 3:.1f}V{y + 1:.1f}M{x:.1f} {y + 2:.1f}V{y + 3.6:.1f}'"
        f" class='base' stroke-width='1.4'/>{title(detail)}</g>"
    )


def lane_row(timeline: Timeline, lane: Lane, scale: TimeScale, *, tall: bool) -> Row:
    """A process above, its session below, cut links under both, signs on top."""
    height, bar, session_y, session_height = (44.0, 17.0, 24.0, 10.0) if tall else (25.0, 11.0, 14.5, 5.0)
    parts = [
        *_absences(lane, scale, bar / 2 + 3),
        *(_life(lane, span, scale, 3.0, bar) for span in lane.life if scale.holds(span.from_ms, span.to_ms)),
        *(_rule(lane, term, scale, 3.0, bar) for term in timeline.terms if term.broker == lane.broker),
    ]
    for session in lane.sessions:
        if scale.holds(session.from_ms, session.believed_until_ms):
            parts += _session(session, scale, session_y, session_height)
    for cut in lane.cuts:
        if scale.holds(cut.from_ms, cut.to_ms):
            x0, x1 = scale.x(cut.from_ms), scale.x(cut.to_ms)
            detail = f"link {cut.link} cut, {lasting(cut.from_ms, cut.to_ms, open_end=not cut.healed)}"
            parts.append(box("cut", x0, height - 7 if tall else height - 4.5, x1 - x0, 4, detail, dashed=True))
    parts += _errors([error for error in timeline.errors if error.lane == lane.name], scale, bar / 2 + 3)
    parts += [
        sign(fault.fault, scale.x(fault.at_ms), bar / 2 + 3, f"{fault_words(fault)} at {seconds(fault.at_ms)}", 7.0)
        for fault in timeline.faults
        if fault.lane == lane.name and scale.holds(fault.at_ms, fault.at_ms)
    ]
    beside = words(lane.name, 0, bar / 2 + 7, "b" if tall else "sb")
    if tall and lane.broker is not None:
        beside += words("process", LABELS_WIDTH - 12, bar / 2 + 7, "sfe")
        beside += words("session", LABELS_WIDTH - 12, session_y + 9, "sfe")
    return Row(height, beside, "".join(parts))


def _absences(lane: Lane, scale: TimeScale, y: float) -> Iterator[str]:
    """A dotted line where the process was down, between lives and after the last."""
    ends = [(span.to_ms, following.from_ms) for span, following in zip(lane.life, lane.life[1:], strict=False)]
    if lane.life:
        ends.append((lane.life[-1].to_ms, scale.to_ms))
    for from_ms, to_ms in ends:
        if to_ms <= from_ms or not scale.holds(from_ms, to_ms):
            continue
        x0, x1 = scale.x(from_ms), scale.x(to_ms)
        left, right = scale.clear(from_ms, to_ms)
        yield f"<path d='M{x0:.1f} {y:.1f}H{x1:.1f}' class='mark' stroke-dasharray='1 4'/>"
        if right - left >= 70:
            width = words_width("down") + 8
            x0 = (left + right - width) / 2
            yield f"<rect x='{x0:.1f}' y='{y - 6:.1f}' width='{width:.1f}' height='12' class='paper'/>"
            yield words("down", (left + right) / 2, y + 4, "sm", "fault")


def _life(lane: Lane, span: LifeSpan, scale: TimeScale, y: float, height: float) -> str:
    detail = f"{lane.name}: process {span.state.value}, {lasting(span.from_ms, span.to_ms)}"
    labels = [] if span.state is Life.RUNNING else [span.state.value]
    dashed = span.state is Life.STARTING
    return labelled_box(span.state.value, scale, span.from_ms, span.to_ms, y, height, labels, detail, dashed=dashed)


def _rule(lane: Lane, term: Term, scale: TimeScale, y: float, height: float) -> str:
    """A term, on the lane of the broker that has it: below the process's outline, so that a pause is seen."""
    if not scale.holds(term.from_ms, term.to_ms):
        return ""
    paused = any(
        span.state is Life.PAUSED and span.from_ms < term.to_ms and span.to_ms > term.from_ms for span in lane.life
    )
    labels = [] if paused else ["controller", "ctrl"]
    top, low = (y + height - 3, 3.0) if paused else (y + 1.5, height - 3)
    detail = f"{lane.name}: controller of epoch {term.controller_epoch}, {lasting(term.from_ms, term.to_ms)}"
    return labelled_box("term", scale, term.from_ms, term.to_ms, top, low, labels, detail)


def _session(session: SessionSpan, scale: TimeScale, y: float, height: float) -> Iterator[str]:
    name = f"session {session.session:#x}"
    x0, x1 = scale.x(session.from_ms), scale.x(session.to_ms)
    when = lasting(session.from_ms, session.to_ms, open_end=not session.ended)
    yield box("session", x0, y, x1 - x0, height, f"{name}, {when}")
    for registration in session.registrations:
        if scale.holds(registration.from_ms, registration.to_ms):
            left, right = scale.x(registration.from_ms), scale.x(registration.to_ms)
            when = lasting(registration.from_ms, registration.to_ms, open_end=not registration.ended)
            epoch = "" if registration.broker_epoch is None else f" with broker epoch {registration.broker_epoch}"
            yield box("registered", left, y, right - left, height, f"registered{epoch} in {name}, {when}")
    if session.believed_until_ms > session.to_ms:
        late = duration(session.believed_until_ms - session.to_ms)
        detail = (
            f"{name} had expired, and the broker had not noticed for {late}, until {seconds(session.believed_until_ms)}"
        )
        yield box("believed", x1, y, scale.x(session.believed_until_ms) - x1, height, detail, dashed=True)


def _errors(errors: Sequence[ErrorMark], scale: TimeScale, y: float) -> Iterator[str]:
    """Draw the signs of errors. Errors closer than a sign's width share one sign, whose title lists the first few."""
    together: list[ErrorMark] = []
    for error in [*(error for error in errors if scale.holds(error.at_ms, error.at_ms)), None]:
        if together and (error is None or scale.x(error.at_ms) - scale.x(together[0].at_ms) >= 14):
            lines = [f"{seconds(one.at_ms)}: {one.text[:300]}" for one in together[:3]]
            more = [f"and {len(together) - 3} more"] if len(together) > 3 else []
            yield _error(scale.x(together[0].at_ms), y, "\n".join([*lines, *more]))
            together = []
        if error is not None:
            together.append(error)

"""The rows of a timeline: faults, controller, brokers' lanes, elections, offline partitions, the client; its legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.report.palette import DEFS, picture_style
from controller.report.svg import (
    EDGE,
    LABELS_WIDTH,
    Drawing,
    Row,
    TimeScale,
    box,
    compose,
    duration,
    labelled_box,
    lasting,
    plain,
    seconds,
    sign,
    title,
    whole_run,
    words,
    words_width,
)
from controller.report.timeline import (
    ClientSpan,
    ClientView,
    Election,
    ErrorMark,
    FaultMark,
    Lane,
    Life,
    LifeSpan,
    OfflinePoint,
    Phase,
    SessionSpan,
    TermSpan,
    Timeline,
)

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


def _rule(lane: Lane, term: TermSpan, scale: TimeScale, y: float, height: float) -> str:
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


_BESIDE = LABELS_WIDTH - 12


def controller_row(timeline: Timeline, scale: TimeScale) -> Row:
    """Whom /controller named, above the terms as their holders had them; below these their failovers' phases."""
    parts = [*_holders(timeline, scale)]
    beside = words("controller", 0, 14, "b") + words("znode", _BESIDE, 14, "sfe")
    top = 24.0
    for line in _apart([term for term in timeline.terms if scale.holds(term.from_ms, term.to_ms)]):
        for term in line:
            parts += _term(term, scale, top, disputed=term.controller_epoch in timeline.disputed_epochs)
        beside += words("term", _BESIDE, top + 13, "sfe") + words("failover", _BESIDE, top + 30, "sfe")
        top += 38
    return Row(top + 2, beside, "".join(parts))


def _holders(timeline: Timeline, scale: TimeScale) -> Iterator[str]:
    vacant_ms: float | None = None
    for holder in timeline.holders:
        if vacant_ms is not None and holder.from_ms > vacant_ms:
            yield from _vacant(vacant_ms, holder.from_ms, scale)
        vacant_ms = holder.to_ms
        if scale.holds(holder.from_ms, holder.to_ms):
            detail = f"/controller named broker {holder.broker}, {lasting(holder.from_ms, holder.to_ms)}"
            name = f"broker {holder.broker}"
            yield labelled_box(
                "registered", scale, holder.from_ms, holder.to_ms, 3, 15, [name, str(holder.broker)], detail
            )
    if vacant_ms is not None and vacant_ms < timeline.duration_ms:
        yield from _vacant(vacant_ms, timeline.duration_ms, scale)


def _vacant(from_ms: float, to_ms: float, scale: TimeScale) -> Iterator[str]:
    if scale.holds(from_ms, to_ms):
        detail = f"/controller did not exist, {lasting(from_ms, to_ms)}"
        yield labelled_box("vacant", scale, from_ms, to_ms, 3, 15, ["no controller", "none"], detail, dashed=True)


def _apart(terms: Sequence[TermSpan]) -> list[list[TermSpan]]:
    """Terms in as few lines as keep those apart that overlap: a zombie's runs on beside its successor's."""
    lines: list[list[TermSpan]] = []
    for term in sorted(terms, key=lambda term: term.from_ms):
        line = next((line for line in lines if line[-1].to_ms <= term.from_ms), None)
        if line is None:
            lines.append([term])
        else:
            line.append(term)
    return lines


def _term(term: TermSpan, scale: TimeScale, y: float, *, disputed: bool) -> Iterator[str]:
    name = f"broker {term.broker}, epoch {term.controller_epoch}"
    detail = f"{name}: {lasting(term.from_ms, term.to_ms)}; {term.ending}"
    labels = [name, f"epoch {term.controller_epoch}", str(term.controller_epoch)]
    if disputed:
        detail = f"this epoch was claimed by more than one term! {detail}"
        labels = [f"DISPUTED: {name}", "DISPUTED", "!"]
    kind = "disputed" if disputed else "term"
    if scale.holds(term.from_ms, term.backed_until_ms):
        yield labelled_box(kind, scale, term.from_ms, term.backed_until_ms, y, 17, labels, detail)
    if term.backed_until_ms < term.to_ms and scale.holds(term.backed_until_ms, term.to_ms):
        late = duration(term.to_ms - term.backed_until_ms)
        stale = f"{name}: /controller was gone, and the broker had not noticed for {late}, {detail}"
        labels = [f"stale: {name}", "stale"]
        yield labelled_box("unbacked", scale, term.backed_until_ms, term.to_ms, y, 17, labels, stale, dashed=True)
    phases = [phase for phase in term.phases if scale.holds(phase.from_ms, phase.to_ms)]
    if phases:
        yield from _phases(term, phases, scale, y + 20)


def _phases(term: TermSpan, phases: Sequence[Phase], scale: TimeScale, y: float) -> Iterator[str]:
    from_ms, to_ms = min(phase.from_ms for phase in phases), max(phase.to_ms for phase in phases)
    left, right = scale.x(from_ms), scale.x(to_ms)
    whole = "\n".join(f"{phase.name}: {phase.to_ms - phase.from_ms:.1f} ms, {phase.items} items" for phase in phases)
    if right - left < 60:
        yield box("phase-odd", left, y, right - left, 14, f"failover of epoch {term.controller_epoch}\n{whole}")
    else:
        for number, phase in enumerate(phases):
            took = duration(phase.to_ms - phase.from_ms)
            detail = f"{phase.name}: {phase.to_ms - phase.from_ms:.1f} ms, {phase.items} items"
            labels = [f"{phase.name}, {took}", phase.name]
            kind = "phase-odd" if number % 2 == 0 else "phase-even"
            yield labelled_box(kind, scale, phase.from_ms, phase.to_ms, y, 14, labels, detail)
    if term.completed_at_ms is not None and scale.holds(term.completed_at_ms, term.completed_at_ms):
        label = duration(to_ms - from_ms)
        left, end = scale.clear(to_ms, term.to_ms)
        if left - right < 1 and end - left >= words_width(label) + 6:
            yield words(label, right + 4, y + 11, "s")


_WHAT = {
    "initial": "created",
    "offline": "elected",
    "controlled shutdown": "moved",
    "reassigned": "reassigned",
    "preferred": "preferred",
}


@dataclass(slots=True)
class _Pill:
    """Moments counted together; `brief`: by the figure alone."""

    middle: float
    elections: list[Election]
    brief: bool

    @property
    def label(self) -> str:
        count = sum(election.count for election in self.elections)
        if self.brief:
            return str(count)
        kinds = sorted({_WHAT.get(election.why, election.why) for election in self.elections})
        return f"{count} {kinds[0]}" if len(kinds) == 1 else f"{count} leaders"

    @property
    def width(self) -> float:
        return words_width(self.label) + 10

    def ends(self, limit: float) -> tuple[float, float]:
        left = min(max(self.middle - self.width / 2, 0.0), max(limit - self.width, 0.0))
        return left, left + self.width


def elections_row(timeline: Timeline, scale: TimeScale) -> Row:
    """Leaders elected, counted a moment. Where words would overlap there are figures alone, and where these would,
    moments are counted together. Unclean ones stand apart, below."""
    beside = words("leaders elected", 0, 14, "b")
    parts = [*_pills([one for one in timeline.elections if not one.unclean], scale, 2, "elected")]
    unclean = [one for one in timeline.elections if one.unclean and scale.holds(one.from_ms, one.to_ms)]
    if not unclean:
        return Row(28, beside, "".join(parts), above=True)
    beside += words("unclean ones", 0, 36, "b", "fault")
    return Row(50, beside, "".join([*parts, *_pills(unclean, scale, 24, "unclean")]), above=True)


def _pills(elections: Sequence[Election], scale: TimeScale, y: float, kind: str) -> Iterator[str]:
    shown = [election for election in elections if scale.holds(election.from_ms, election.to_ms)]
    pills = _merged(shown, scale, brief=False)
    if len(pills) < len(shown):
        pills = _merged(shown, scale, brief=True)
    for pill in pills:
        left, right = pill.ends(scale.width)
        label = f"! {pill.label}" if kind == "unclean" and pill.width + 10 < scale.width else pill.label
        at = sorted({round(scale.x(one.from_ms)) for one in pill.elections})
        yield "".join(f"<path d='M{x} {y}V{y + 3}' class='k-{kind}'/>" for x in at)
        yield (
            f"<g>{box(kind, left, y + 3, right - left, 16, _told(pill.elections))}<g pointer-events='none'>"
            f"{words(label, (left + right) / 2, y + 15, 'sm', kind)}</g></g>"
        )


def _merged(elections: Sequence[Election], scale: TimeScale, *, brief: bool) -> list[_Pill]:
    pills: list[_Pill] = []
    for election in elections:
        pill = _Pill((scale.x(election.from_ms) + scale.x(election.to_ms)) / 2, [election], brief)
        while pills and pills[-1].ends(scale.width)[1] + 3 > pill.ends(scale.width)[0]:
            before = pills.pop()
            pill = _Pill(before.middle, before.elections + pill.elections, brief)
        pills.append(pill)
    return pills


def _told(elections: Sequence[Election]) -> str:
    lines = []
    for one in elections[:8]:
        shown = ", ".join(f"broker {broker}: {count}" for broker, count in one.leaders[:12])
        more = ", ..." if len(one.leaders) > 12 else ""
        clean = "UNCLEAN, " if one.unclean else ""
        when = seconds(one.from_ms) if one.to_ms == one.from_ms else lasting(one.from_ms, one.to_ms)
        lines.append(f"{clean}{one.why}, epoch {one.controller_epoch}, {when}: {one.count} leaders ({shown}{more})")
    if len(elections) > 8:
        total: Counter[str] = Counter()
        for one in elections:
            total[one.why] += one.count
        lines.append(f"{len(elections)} moments in all: " + ", ".join(f"{why} {n}" for why, n in sorted(total.items())))
    return "\n".join(lines)


_OFFLINE_HEIGHT = 40.0


def offline_row(timeline: Timeline, scale: TimeScale) -> Row:
    """Offline partitions as an area over time, to the peak of what is shown."""
    shown = [*_within(timeline.offline, scale)]
    peak = max((point.offline for point in shown), default=0)
    partitions = max((point.partitions for point in timeline.offline), default=0)
    base = _OFFLINE_HEIGHT + 14
    beside = words("offline partitions", 0, 28, "b") + words(
        f"peak {peak} of {partitions}" if peak else f"none of {partitions}" if partitions else "no partitions yet",
        0,
        44,
        "sf",
    )
    line = f"<path d='M0 {base}H{scale.width:.1f}' class='base'/>"
    if peak == 0:
        return Row(base + 6, beside, line)
    unit = _OFFLINE_HEIGHT / peak
    path = [f"M0 {base}"]
    for x, highest, last in _columns(shown, scale):
        path.append(f"H{x:.1f}V{base - highest * unit:.1f}")
        if last != highest:
            path.append(f"H{x + 1:.1f}V{base - last * unit:.1f}")
    area = f"<path d='{''.join(path)}H{scale.width:.1f}V{base}Z' class='k-offline' stroke-width='1.2'/>"
    return Row(base + 6, beside, "".join([area, line, *_humps(shown, scale, base, unit)]))


def _within(points: Sequence[OfflinePoint], scale: TimeScale) -> Iterator[OfflinePoint]:
    """The points that are shown, and the last one before them, which says where the line comes in."""
    before = OfflinePoint(scale.from_ms, 0, 0)
    started = False
    for point in points:
        if point.at_ms > scale.to_ms:
            break
        if point.at_ms < scale.from_ms:
            before = OfflinePoint(scale.from_ms, point.offline, point.partitions)
            continue
        if not started:
            yield before
            started = True
        yield point
    if not started:
        yield before


def _columns(points: Sequence[OfflinePoint], scale: TimeScale) -> Iterator[tuple[float, int, int]]:
    """A pixel's highest and last values, so that a path is as long as the picture is wide at most."""
    column: tuple[float, int, int] | None = None
    for point in points:
        x = scale.x(point.at_ms)
        if column is not None and x - column[0] < 1.0:
            column = (column[0], max(column[1], point.offline), point.offline)
            continue
        if column is not None:
            yield column
        column = (x, point.offline, point.offline)
    if column is not None:
        yield column


def _humps(points: Sequence[OfflinePoint], scale: TimeScale, base: float, unit: float) -> Iterator[str]:
    """Over each time of offline partitions something to hover, and its peak in figures where there is room."""
    humps: list[tuple[float, float, OfflinePoint]] = []
    since_ms: float | None = None
    worst = OfflinePoint(0.0, 0, 0)
    for point in [*points, OfflinePoint(scale.to_ms, 0, 0)]:
        if point.offline > 0:
            if since_ms is None:
                since_ms, worst = point.at_ms, point
            worst = max(worst, point, key=lambda one: one.offline)
        elif since_ms is not None:
            if humps and scale.x(since_ms) - scale.x(humps[-1][1]) < 3:
                before_ms, _, before = humps.pop()
                since_ms, worst = before_ms, max(before, worst, key=lambda one: one.offline)
            humps.append((since_ms, point.at_ms, worst))
            since_ms = None
    written = -100.0
    for from_ms, to_ms, worst in humps:
        x0, x1 = scale.x(from_ms), scale.x(to_ms)
        detail = f"up to {worst.offline} of {worst.partitions} partitions offline, {lasting(from_ms, to_ms)}"
        yield (
            f"<rect data-kind='offline' x='{x0:.1f}' y='{base - _OFFLINE_HEIGHT}' width='{max(x1 - x0, 3):.1f}'"
            f" height='{_OFFLINE_HEIGHT}' fill='transparent'>{title(detail)}</rect>"
        )
        label = str(worst.offline)
        half = words_width(label) / 2
        middle = min(max(scale.x(worst.at_ms), half), scale.width - half)
        if middle - half >= written + 4:
            yield words(label, middle, base - worst.offline * unit - 3, "sm", "fault")
            written = middle + half


_BADNESS = {ClientView.COMPLETE: 0, ClientView.INCOMPLETE: 1, ClientView.FAILING: 2}


def client_row(timeline: Timeline, scale: TimeScale) -> Row:
    """What a client's metadata requests were answered; of what is narrower than a pixel the worst is shown."""
    parts = [f"<g>{_client(span, scale)}</g>" for span in _drawable(timeline.client, scale)]
    return Row(24, words("client's metadata", 0, 15, "b"), "".join(parts))


def _drawable(spans: Sequence[ClientSpan], scale: TimeScale) -> Iterator[ClientSpan]:
    held: ClientSpan | None = None
    for span in spans:
        if not scale.holds(span.from_ms, span.to_ms):
            continue
        if held is not None:
            if scale.x(span.to_ms) - scale.x(held.from_ms) < 1.5:
                worse = max(held, span, key=lambda one: _BADNESS[one.view])
                answers = held.answers + span.answers
                held = ClientSpan(
                    held.from_ms, span.to_ms, worse.view, answers, worse.least_led, worse.expected, worse.error
                )
                continue
            yield held
        held = span
    if held is not None:
        yield held


def _client(span: ClientSpan, scale: TimeScale) -> str:
    led = f"{span.least_led} of {span.expected} led"
    text = {
        ClientView.COMPLETE: f"complete, {led}",
        ClientView.INCOMPLETE: f"incomplete, at worst {led}",
        ClientView.FAILING: f"no answer: {span.error}",
    }[span.view]
    detail = f"{text}; {lasting(span.from_ms, span.to_ms)}, answers: {span.answers}"
    labels = [f"incomplete: {led}"] if span.view is ClientView.INCOMPLETE else []
    if labels and span.expected == 0:
        labels = ["no partitions expected"]
    sign = {ClientView.COMPLETE: "✓", ClientView.INCOMPLETE: "…", ClientView.FAILING: "✗"}[span.view]
    return labelled_box(
        span.view.value, scale, span.from_ms, span.to_ms, 3, 16, [*labels, span.view.value, sign], detail[:600]
    )


def draw(timeline: Timeline, scale: TimeScale, lanes: Sequence[Lane] | None = None) -> Drawing:
    """The rows of `timeline` over `scale`, for all lanes or those given."""
    lanes = timeline.lanes if lanes is None else lanes
    tall = len(lanes) <= MOST_TALL_LANES
    rows = [
        faults_row(timeline, scale),
        controller_row(timeline, scale),
        *(lane_row(timeline, lane, scale, tall=tall) for lane in lanes),
        elections_row(timeline, scale),
        offline_row(timeline, scale),
        client_row(timeline, scale),
    ]
    return compose(timeline, scale, rows)


_LEGEND = (
    ("running", "process running"),
    ("starting", "starting"),
    ("stopping", "stopping, restarting"),
    ("paused", "paused"),
    ("term", "controller"),
    ("unbacked", "stale: session expired, not yet noticed"),
    ("session", "session"),
    ("registered", "session, registered"),
    ("phase-odd", "failover phase"),
    ("complete", "metadata complete"),
    ("incomplete", "incomplete"),
    ("failing", "no answer"),
    ("cut", "link cut"),
    ("standstill", "machine stalled"),
)


def _sample(kind: str, x: float, y: float) -> str:
    height, dashed = (3.0, True) if kind == "cut" else (12.0, kind in ("starting", "unbacked"))
    sample = box(kind, x, y + (12 - height) / 2, 18, height, kind, dashed=dashed)
    return sample.replace("data-kind", "data-sample")


def _legend(width: float) -> tuple[str, float]:
    """Samples with their meanings, in lines of at most `width`; and the height of it all."""
    x, y = 0.0, 6.0
    parts = []
    for kind, meaning in _LEGEND:
        room = 24 + words_width(meaning) + 16
        if x + room > width:
            x, y = 0.0, y + 20
        parts.append(_sample(kind, x + 0.5, y) + words(meaning, x + 24, y + 10, "s"))
        x += room
    return "".join(parts), y + 22


def in_words(timeline: Timeline) -> str:
    """The picture for those who do not see it."""
    brokers = sum(lane.broker is not None for lane in timeline.lanes)
    faults = ", ".join(f"{fault_words(fault)} at {fault.at_ms / 1000:.1f} s" for fault in timeline.faults[:12])
    peak = max((point.offline for point in timeline.offline), default=0)
    return (
        f"Timeline of {duration(timeline.duration_ms)}: {brokers} brokers, {len(timeline.terms)} controller terms,"
        f" {len(timeline.faults)} faults{f' ({faults})' if faults else ''}, at most {peak} partitions offline."
    )


def picture_svg(timeline: Timeline) -> str:
    """The whole run as one file, legend included."""
    drawing = draw(timeline, whole_run(timeline))
    width = LABELS_WIDTH + drawing.width
    legend, legend_height = _legend(width - 24)
    height = drawing.height + legend_height + 16
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' class='tl' viewBox='0 0 {width + 16:.0f} {height:.0f}'"
        f" width='{width + 16:.0f}' height='{height:.0f}' role='img' aria-label='{plain(in_words(timeline))}'>"
        f"<style>{picture_style()}</style>{DEFS}<rect width='100%' height='100%' class='paper'/>"
        f"<g transform='translate(12 4)'>{drawing.beside}</g>"
        f"<g transform='translate({12 + LABELS_WIDTH + EDGE:.0f} 4)'>{drawing.drawn}</g>"
        f"<g transform='translate(12 {drawing.height + 8:.0f})'>{legend}</g></svg>\n"
    )


def legend_html() -> str:
    """Return the legend as samples with words beside them, which wrap to the width of the page."""
    return (
        "<p class='tl-legend'>"
        + "".join(
            f"<span><svg class='tl' width='19' height='14' aria-hidden='true'>{_sample(kind, 0.5, 1)}</svg>"
            f" {plain(meaning)}</span>"
            for kind, meaning in _LEGEND
        )
        + "</p>"
    )


def patterns_html() -> str:
    """Return the patterns that the pictures of a page refer to, once for each page."""
    return f"<svg class='tl-defs' width='0' height='0' aria-hidden='true'>{DEFS}</svg>"

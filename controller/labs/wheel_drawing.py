"""The worked examples of `docs/timer.md` as pictures: `python -m controller.labs.wheel_drawing docs/images` draws them
anew.

A real `TimingWheel` is taken through each example and looked at after each step, so the picture shows what it does:
wheels of ten buckets as rows, wheels of seconds, minutes, hours and days as dials.
Nothing imports this file but its test.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.labs.schemes import CLOCK_UNITS
from controller.timer.wheel import Bucket, TimerTask, TimingWheel, Wheel

NAME = "timing-wheel.svg"
TICK_MS, WHEEL_SIZE, DELAY_MS = 1, 10, 232
UNITS_NAME = "timing-wheel-units.svg"
UNITS = ("seconds", "minutes", "hours", "days")
UNITS_DELAY = 3_600 + 30 * 60 + 40
"""1:30:40, in seconds."""
DIAL, RING, DIAL_GAP, HEAD = 62, 15, 26, 30
"""Radius of a dial and width of its ring of slots, in pixels; space between dials, and above them."""
CELL_WIDTH, CELL_HEIGHT, ROW_GAP, LABEL_WIDTH = 35, 26, 14, 62
BLOCK_WIDTH, BLOCK_HEIGHT, MARGIN = LABEL_WIDTH + CELL_WIDTH * WHEEL_SIZE + 34, 176, 18
INK, QUIET, LINE, HELD, HELD_LINE, CLOCK = "#2b2f36", "#6b7280", "#c3c8d0", "#fbd9b8", "#D55E00", "#0072B2"


@dataclass(frozen=True, slots=True)
class Level:
    """One wheel at one moment: the first ms that each bucket stands for, in the order of its array; the bucket in
    which the clock stands, and the one that holds the task."""

    tick_ms: int
    begins_ms: tuple[int, ...]
    clock_at: int
    task_at: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    now_ms: int
    levels: tuple[Level, ...]
    words: str


def example(wheel_type: Callable[[int, int], TimingWheel] = TimingWheel) -> list[Moment]:
    """One task through three wheels: as it is started, and at each time at which it is brought down or fires."""
    return _way_of(wheel_type(TICK_MS, WHEEL_SIZE), DELAY_MS)


def units_example() -> list[Moment]:
    """A timer of 1:30:40 through wheels of days, hours, minutes and seconds, in ticks of a second."""
    return _way_of(TimingWheel(1, CLOCK_UNITS), UNITS_DELAY, math.prod(CLOCK_UNITS))


def _way_of(wheel: TimingWheel, delay: int, longest: int = 0) -> list[Moment]:
    """A task's way. `longest`: a delay of a task that has all wheels made, and is cancelled."""
    task = TimerTask()
    if longest:
        wheel.start(other := TimerTask(), longest)
        wheel.turn(wheel.now_ms)
        wheel.cancel(other)
    wheel.start(task, delay)
    wheel.turn(wheel.now_ms)  # into its bucket, which the start leaves for when the clock moves
    moments = [_look(wheel, task)]
    while task.pending:
        wheel.turn(wheel.next_bucket_ms)
        while wheel.take() is not None:
            pass
        moments.append(_look(wheel, task))
    return moments


def _look(wheel: TimingWheel, task: TimerTask) -> Moment:
    held = _bucket_of(task)
    levels, level = [], wheel._lowest
    while True:
        levels.append(_level(level, held))
        if level.above is None:
            break
        level = level.above
    return Moment(wheel.now_ms, tuple(levels), _words(levels, wheel.now_ms))


def _bucket_of(task: TimerTask) -> Bucket | None:
    """The sentinel of the ring that the task is in."""
    link = task._next
    while link is not None and not isinstance(link, Bucket):
        link = link._next
    return link


def _level(wheel: Wheel, held: Bucket | None) -> Level:
    begins = [0] * wheel.size
    for ahead in range(wheel.size):
        at_ms = wheel.now_ms + ahead * wheel.tick_ms
        begins[at_ms // wheel.tick_ms % wheel.size] = at_ms
    places = [place for place, bucket in enumerate(wheel.buckets) if bucket is held]
    clock_at = wheel.now_ms // wheel.tick_ms % wheel.size
    return Level(wheel.tick_ms, tuple(begins), clock_at, places[0] if places else None)


def _words(levels: Sequence[Level], now_ms: int) -> str:
    for level in levels:
        if level.task_at is not None:
            begins_ms = level.begins_ms[level.task_at]
            ends_ms = begins_ms + level.tick_ms - 1
            span = f"{begins_ms} ms" if ends_ms == begins_ms else f"{begins_ms} to {ends_ms} ms"
            verb = "a delay of 232 ms goes" if now_ms == 0 else "comes down"
            return f"at {now_ms} ms: {verb} to the bucket for {span}"
    return f"at {now_ms} ms: the bucket is reached, the task fires"


def draw(moments: Sequence[Moment]) -> str:
    """The moments, two side by side, as SVG text that ends with a line break."""
    columns, rows = 2, -(-len(moments) // 2)
    width, height = 2 * MARGIN + columns * BLOCK_WIDTH, 2 * MARGIN + rows * BLOCK_HEIGHT + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="Helvetica, Arial, sans-serif">',
        "<title>A task on its way down three wheels</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, moment in enumerate(moments):
        left, top = MARGIN + number % columns * BLOCK_WIDTH, MARGIN + number // columns * BLOCK_HEIGHT
        lines.append(_text(left, top + 16, f"{number + 1}. {moment.words}", 13.5, INK, weight="bold"))
        for place, level in enumerate(reversed(moment.levels)):
            lines += _row(left, top + 32 + place * (CELL_HEIGHT + ROW_GAP), level)
    key_top = height - MARGIN - 14
    lines += _key(MARGIN, key_top, HELD, HELD_LINE, "holds the task")
    lines += _key(MARGIN + 160, key_top, "#ffffff", CLOCK, "the clock stands here")
    lines.append(_text(MARGIN + 360, key_top + 12, "a box: the first millisecond that it stands for", 12, QUIET))
    return "\n".join([*lines, "</svg>"]) + "\n"


def draw_dials(moments: Sequence[Moment]) -> str:
    """The moments one below the other, each wheel a dial, the coarsest first, as SVG text that ends with a line
    break."""
    dials = len(moments[0].levels)
    step, block = 2 * DIAL + DIAL_GAP, HEAD + 2 * DIAL + 34
    width, height = 2 * MARGIN + dials * step - DIAL_GAP, 2 * MARGIN + len(moments) * block + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" font-family="Helvetica, Arial, sans-serif">',
        "<title>A timer of 1:30:40 on its way down the wheels of hours, minutes and seconds</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, moment in enumerate(moments):
        top = MARGIN + number * block
        lines.append(_text(MARGIN, top + 14, f"{number + 1}. {_units_words(moment)}", 13.5, INK, weight="bold"))
        for place, level in enumerate(reversed(moment.levels)):
            unit = UNITS[dials - 1 - place]
            lines += _dial(MARGIN + place * step + DIAL, top + HEAD + DIAL, level, unit)
    key_top = height - MARGIN - 8
    lines += _key(MARGIN, key_top, HELD, HELD_LINE, "holds the timer")
    lines += _key(MARGIN + 160, key_top, CLOCK, CLOCK, "the clock stands here")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _units_words(moment: Moment) -> str:
    for unit, level in zip(UNITS, moment.levels, strict=True):
        if level.task_at is not None:
            left = f"{_clock_text(UNITS_DELAY - moment.now_ms)} left"
            return f"at {_clock_text(moment.now_ms)}, {left}: wheel of {unit}, slot {level.task_at}"
    return f"at {_clock_text(moment.now_ms)}: the slot is reached, the timer fires"


def _clock_text(seconds: int) -> str:
    return f"{seconds // 3_600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _dial(x: float, y: float, level: Level, unit: str) -> list[str]:
    """Slot 0 is at the top. The slot that holds the timer and that of the clock are drawn last, wide enough to see."""
    size = len(level.begins_ms)
    lines = [_sector(x, y, place, size, "#ffffff", LINE, 0.7) for place in range(size)]
    lines.append(_sector(x, y, level.clock_at, size, CLOCK, CLOCK, 1.2))
    if level.task_at is not None:
        lines.append(_sector(x, y, level.task_at, size, HELD, HELD_LINE, 2))
        lines.append(_text(x, y - 2, f"slot {level.task_at}", 12, HELD_LINE, anchor="middle", weight="bold"))
    lines.append(_text(x, y + 14, f"{size} {unit}", 12, QUIET, anchor="middle"))
    return lines


def _sector(x: float, y: float, place: int, size: int, fill: str, line: str, thick: float) -> str:
    """One slot of a dial's ring."""
    corners = []
    for radius, angles in ((DIAL, (place, place + 1)), (DIAL - RING, (place + 1, place))):
        for each in angles:
            angle = 2 * math.pi * each / size
            corners.append(f"{x + radius * math.sin(angle):.1f},{y - radius * math.cos(angle):.1f}")
    return f'<polygon points="{" ".join(corners)}" fill="{fill}" stroke="{line}" stroke-width="{thick:g}"/>'


def _row(left: int, top: int, level: Level) -> list[str]:
    lines = [_text(left, top + 17, f"{level.tick_ms} ms", 12, QUIET)]
    for place, begins_ms in enumerate(level.begins_ms):
        x = left + LABEL_WIDTH + place * CELL_WIDTH
        held = place == level.task_at
        fill = HELD if held else "#ffffff"
        lines.append(_box(x, top, CELL_WIDTH - 3, fill, HELD_LINE if held else LINE, 1.6 if held else 1))
        if place == level.clock_at:
            lines.append(_box(x - 1.5, top - 1.5, CELL_WIDTH, "none", CLOCK, 2.2, 3))
        middle = x + (CELL_WIDTH - 3) / 2
        lines.append(_text(middle, top + 17, str(begins_ms), 11, INK if held else QUIET, anchor="middle"))
    return lines


def _key(left: int, top: int, fill: str, line: str, words: str) -> list[str]:
    return [
        f'<rect x="{left}" y="{top}" width="16" height="16" rx="2" fill="{fill}" stroke="{line}" stroke-width="1.8"/>',
        _text(left + 23, top + 12, words, 12, QUIET),
    ]


def _box(x: float, y: float, width: float, fill: str, line: str, thick: float, more: float = 0) -> str:
    height = CELL_HEIGHT + more
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" stroke="{line}" '
        f'stroke-width="{thick:g}"/>'
    )


def _text(
    x: float, y: float, words: str, size: float, colour: str, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{words}</text>'
    )


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m controller.labs.wheel_drawing DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / NAME).write_text(draw(example()), encoding="utf-8")
    (directory / UNITS_NAME).write_text(draw_dials(units_example()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

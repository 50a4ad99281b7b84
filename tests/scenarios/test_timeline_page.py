"""The timeline as a page shows it: drawn in headless Chromium, measured there; and what the SVG says by itself.

A copy of the page gets a script that measures where everything came to lie and writes that into the page, which
Chromium then prints.
"""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from controller.report.html import report_html
from controller.report.layout import picture_svg
from controller.report.palette import DARK, LIGHT, Palette, page_style, picture_style
from controller.report.summary import Report
from controller.report.svg import plain
from controller.report.timeline import timeline_of
from controller.scenarios.failovers import find_failovers
from controller.scenarios.files import parse_scenario
from controller.scenarios.judge import Judgement
from controller.trace import ControllerElected, FaultInjected, Noted
from controller.trace_records import OBSERVER, TraceRecord
from tests.programs import needs_programs, program
from tests.scenarios.evidence import records
from tests.scenarios.timeline_traces import large, zombie

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).parents[2] / "docs/images/timeline.svg"

MEASURE = """
<script>
const all = [];
document.querySelectorAll('details').forEach(one => { one.open = true; });
document.querySelectorAll('.tl-frame svg.tl').forEach((svg, number) => {
  if (!svg.getBoundingClientRect().width) return;
  const frame = svg.getBoundingClientRect();
  svg.querySelectorAll('[data-kind], text').forEach(one => {
    const box = one.getBoundingClientRect();
    all.push([number, one.dataset.kind || 'words', one.tagName === 'text' ? one.textContent : '',
      box.left - frame.left, box.top - frame.top, box.right - frame.left, box.bottom - frame.top,
      frame.width, frame.height]);
  });
});
const page = document.documentElement;
const out = document.createElement('pre');
out.id = 'measured';
out.textContent = JSON.stringify({all, wide: page.scrollWidth, view: page.clientWidth});
document.body.append(out);
</script>
"""


@dataclass(frozen=True, slots=True)
class Thing:
    """Where something drawn came to lie in its picture, in pixels."""

    picture: int
    kind: str
    text: str
    left: float
    top: float
    right: float
    bottom: float
    width: float
    height: float

    def inside(self) -> bool:
        return (
            self.left >= -0.5
            and self.top >= -0.5
            and self.right <= self.width + 0.5
            and self.bottom <= self.height + 0.5
        )

    def overlaps(self, other: Thing) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        # Lines of text have room above and below their letters.
        return self.picture == other.picture and across > 1 and down > 5


def page_of(trace: list[TraceRecord]) -> str:
    scenario = parse_scenario('name = "s"\nsteps = []', "s")
    return report_html(Report(scenario, "simulated", 1, Judgement("pass", (), find_failovers(trace)), trace))


def chromium(folder: Path, *arguments: str) -> str:
    command = program("chromium")
    switches = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}"),
        "--window-size=1200,1600",
    )
    done = subprocess.run([command, *switches, *arguments], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measured(page: str, folder: Path) -> tuple[list[Thing], dict[str, Any]]:
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    shown = re.search(r'<pre id="measured">(.*?)</pre>', chromium(folder, "--dump-dom", path.as_uri()), re.DOTALL)
    assert shown is not None
    found = json.loads(unescape(shown[1]))
    return [Thing(*one) for one in found["all"]], found


def complaints(things: list[Thing]) -> list[str]:
    """What lies outside its picture, and words that lie on other words."""
    outside = [f"outside: {thing}" for thing in things if not thing.inside()]
    texts = [thing for thing in things if thing.kind == "words" and thing.text]
    return outside + [
        f"overlap: {one.text!r} and {other.text!r}"
        for index, one in enumerate(texts)
        for other in texts[index + 1 :]
        if one.overlaps(other)
    ]


@needs_programs
@pytest.mark.parametrize(
    ("trace", "close_ups"),
    [(zombie(), 2), (large(), 12), (records(), 1)],
    ids=["zombie", "30 brokers, 10 minutes", "kill"],
)
def test_everything_lies_within_its_picture_and_no_words_on_others(
    trace: list[TraceRecord], close_ups: int, tmp_path: Path
) -> None:
    things, found = measured(page_of(trace), tmp_path)
    assert complaints(things) == []
    # Names and drawing of the whole run, at the first zoom level, of each close-up, and of the failovers.
    pictures = sorted({thing.picture for thing in things})
    assert len(pictures) == 2 + 2 * close_ups + 2
    assert found["wide"] <= found["view"], "the page itself scrolls sideways"
    timeline = timeline_of(trace)
    whole = [thing for thing in things if thing.picture == pictures[1]]
    assert sum(thing.kind == "fault" for thing in whole) == len(timeline.faults)
    assert sum(thing.kind == "running" for thing in whole) >= len(timeline.lanes)
    assert sum(thing.kind == "term" for thing in whole) >= 2 * len(timeline.terms)
    names = [thing.text for thing in things if thing.picture == pictures[0]]
    assert [name for name in names if name.startswith("broker")] == [lane.name for lane in timeline.lanes]


@needs_programs
def test_the_measure_finds_what_is_out_of_place(tmp_path: Path) -> None:
    page = page_of(zombie())
    beyond = re.sub(r"(data-kind='fault' transform='translate\()[\d.]+", r"\g<1>99999", page, count=1)
    assert beyond != page
    assert any(one.startswith("outside") and "fault" in one for one in complaints(measured(beyond, tmp_path)[0]))
    onto = page.replace(">resume 1</text>", ">resume 1, and much more than there is room for here</text>")
    assert any(one.startswith("overlap") for one in complaints(measured(onto, tmp_path)[0]))


ZOOM = """
<script>
addEventListener('load', () => {
  const found = [];
  const shown = box => [...box.querySelectorAll('.tl-frame')].filter(frame => !frame.hidden);
  const boxes = [...document.querySelectorAll('.tl-zoom')];
  const view = box => shown(box)[0].querySelector('.tl-scroll');
  const middle = box => {  // the time in the middle of what is seen, by the frame's own scale
    const [[from, left], [to, right]] = JSON.parse(shown(box)[0].dataset.scale);
    return from + (view(box).scrollLeft + view(box).clientWidth / 2 - 12 - left) / (right - left) * (to - from);
  };
  const note = () => found.push(boxes.map(box => [shown(box).length, +shown(box)[0].dataset.zoom, middle(box)]));
  const press = key => view(boxes[0]).dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  const wait = () => new Promise(done => setTimeout(done, 100));
  const steps = [
    () => {}, () => press('+'), () => press('+'), () => press('+'), () => press('ArrowRight'), () => press('-'),
    () => boxes[1].querySelector('[data-do=in]').click(),
    () => view(boxes[1]).dispatchEvent(new WheelEvent('wheel', {deltaY: 100, ctrlKey: true, cancelable: true})),
    () => press('0'),
  ];
  (async () => {
    for (const step of steps) { step(); await wait(); note(); }
    const out = document.createElement('pre');
    out.id = 'measured';
    out.textContent = JSON.stringify({found, buttons: boxes.map(box => box.querySelector('.tl-buttons').hidden)});
    document.body.append(out);
  })();
});
</script>
"""


@needs_programs
def test_keys_buttons_and_wheel_zoom_all_drawings_about_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(zombie()).replace("</body>", f"{ZOOM}</body>"), encoding="utf-8")
    dom = chromium(tmp_path, "--virtual-time-budget=5000", "--dump-dom", path.as_uri())
    shown = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)
    assert shown is not None
    measured = json.loads(unescape(shown[1]))
    assert measured["buttons"] == [False, False]
    steps = measured["found"]
    assert [[box[0] for box in step] for step in steps] == [[1, 1]] * len(steps), "one level is shown at a time"
    assert [step[0][1] for step in steps] == [1, 4, 16, 16, 16, 4, 16, 4, 1]
    for first, second in steps:
        assert first[1] == second[1]
        assert first[2] == pytest.approx(second[2], abs=20.0), "both drawings show the same time"
    start, once, twice, thrice, right, out, *_ = (step[0][2] for step in steps)
    assert [once, twice, thrice] == pytest.approx([start] * 3, abs=60.0), "a view is somewhat wider once it scrolls"
    assert right > thrice + 50.0
    assert out == pytest.approx(right, abs=20.0)


@needs_programs
def test_the_page_is_not_blank(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page_of(zombie()), encoding="utf-8")
    chromium(tmp_path, f"--screenshot={tmp_path / 'page.png'}", (tmp_path / "page.html").as_uri())
    # A blank page of this size compresses to less than 10 kB.
    assert (tmp_path / "page.png").stat().st_size > 40_000


def test_the_page_loads_nothing_and_runs_only_its_own_script() -> None:
    page = page_of(zombie())
    assert page.count("<script>") == 1
    assert not re.search(
        r"<link|<img|<iframe|<script |@import|\son\w+=|href=|src=|fetch\(|https?:(?!//www.w3.org/)", page
    )
    assert all(target.startswith("#tl-") for target in re.findall(r"url\((.*?)\)", page))
    assert set(re.findall(r"url\(#(.*?)\)", page)) <= set(re.findall(r"<pattern id='(.*?)'", page))


def test_everything_drawn_says_more_when_pointed_at() -> None:
    root = ElementTree.fromstring(picture_svg(timeline_of(zombie())))
    marked = [one for one in root.iter() if "data-kind" in one.attrib]
    assert len(marked) > 40
    assert [one.attrib for one in marked if not (one.findtext(f"{SVG}title") or "").strip()] == []
    told = "\n".join(one.text or "" for one in root.iter(f"{SVG}title"))
    for sentence in (
        "pause 1 at 3.000 s",
        "broker 1, epoch 1: /controller was gone, and the broker had not noticed for 3.2 s",
        "session 0xa1 had expired, and the broker had not noticed for",
        "UNCLEAN, offline, epoch 2, 9.500 s: 1 leaders (broker 1: 1)",
        "up to 3 of 7 partitions offline, 9.301 s to 12.000 s",
        "no answer: timed out",
        "link 3->zookeeper cut, 6.000 s to 7.000 s (1.0 s)",
        "not within 500 ms: 5 of 6 led",
        "machine stalled: 9.600 s to 10.600 s (1.0 s)",
    ):
        assert sentence in told


def test_a_disputed_epoch_is_said_aloud() -> None:
    picture = picture_svg(timeline_of(records((2120.0, 3, ControllerElected(2, 2, 0xC)))))
    assert picture.count("data-kind='disputed'") == 2


def test_a_large_run_makes_a_page_of_a_modest_size() -> None:
    assert len(page_of(large())) < 1_000_000


@pytest.mark.parametrize("text", ["<b>&\"'", "null \x00, escape \x1b[0m"])
def test_any_text_can_stand_in_a_picture(text: str) -> None:
    trace = records((50.0, 2, Noted("error", text)), (60.0, OBSERVER, FaultInjected("pause", "2")))
    told = [one.text for one in ElementTree.fromstring(picture_svg(timeline_of(trace))).iter(f"{SVG}title")]
    assert any(unescape(plain(text)) in (one or "") for one in told)


both_schemes = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


@both_schemes
def test_lines_and_words_stand_out(palette: Palette) -> None:
    """WCAG 2.1: 4.5 to 1 for words on what they stand on, 3 to 1 for outlines on the page."""
    assert min(_contrast(palette.ink, palette.paper), _contrast(palette.faint, palette.paper)) >= 4.5
    for kind, paint in palette.kinds.items():
        assert _contrast(paint.outline, palette.paper) >= 3, kind
        for ground in _grounds(paint.fill, palette):
            assert _contrast(paint.ink, ground) >= 4.5, kind
    for name in ("pass", "fail", "unknown", "link"):
        assert _contrast(palette.page[name], palette.paper) >= 4.5, name
    assert _contrast(palette.ink, palette.page["note"]) >= 4.5
    assert min(_contrast(line, palette.paper) for line in palette.lines) >= 3


@both_schemes
def test_what_looks_alike_in_grey_differs_in_more_than_colour(palette: Palette) -> None:
    """Bars that can stand in one row differ in pattern, in their words, or in how light they are."""
    rows = (("running", "paused", "term"), ("session", "registered", "believed"), ("complete", "incomplete", "failing"))
    for row in rows:
        fills = [palette.kinds[kind].fill for kind in row]
        plain_ones = [fill for fill in fills if not fill.startswith("url")]
        assert len(set(fills)) == len(fills)
        for index, one in enumerate(plain_ones):
            assert all(_contrast(one, other) >= 3 for other in plain_ones[index + 1 :])


def test_every_colour_has_one_for_dark_screens() -> None:
    assert LIGHT.kinds.keys() == DARK.kinds.keys()
    assert LIGHT.patterns.keys() == DARK.patterns.keys()
    assert LIGHT.page.keys() == DARK.page.keys()
    assert len(LIGHT.lines) == len(DARK.lines)
    for style in (page_style(), picture_style()):
        assert style.count("@media(prefers-color-scheme:dark)") == 1
        assert style.count("{") == style.count("}")


def test_no_drawing_has_a_colour_of_its_own() -> None:
    """A colour outside the style sheet would be the same on light and dark screens."""
    for text in (page_of(zombie()), picture_svg(timeline_of(zombie()))):
        drawn = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
        assert not re.search(r"(fill|stroke|color|background)[=:]['\" ]*(#|rgb|white|black)", drawn)
        classes = {name for found in re.findall(r"class=['\"]([^'\"]+)", drawn) for name in found.split()}
        painted = {name for name in classes if re.match(r"(k|on|pg|pm|pl)-|l\d|d\d", name)}
        assert painted
        assert not [name for name in painted if f".{name}{{" not in picture_style()]


def _grounds(fill: str, palette: Palette) -> list[str]:
    """The colours that text on a fill can stand on."""
    if fill == "none":
        return [palette.paper]
    if not fill.startswith("url"):
        return [fill]
    return [*palette.patterns[fill.removeprefix("url(#tl-").removesuffix(")")]]


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_failover_says_its_kind_its_broker_and_what_it_cost() -> None:
    page = page_of(records())
    rows = [re.findall(r"<t[hd](?: class=\"n\")?>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["broker 1", "kill 1 at 0.100 s", "1 partition without its leader", "2000", "2050", "50"] in rows
    assert ["controller 1 → 2", "kill 1 at 0.100 s"] in [row[:2] for row in rows]


def test_tables_scroll_inside_the_page() -> None:
    page = page_of(zombie())
    tables = page.count("<table>")
    assert tables >= 3
    assert (
        len(re.findall(r"<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"[^\"]+\"><table>", page))
        == tables
    )


def test_all_drawings_of_a_run_have_one_axis_at_every_zoom_level() -> None:
    page = page_of(zombie())
    levels = re.findall(r"data-zoom='(\d+)' data-scale='(.*?)'( hidden)?>", page)
    assert [level for level, _, _ in levels] == ["1", "4", "16"] * 2, "the timeline, then the failovers"
    assert levels[:3] == levels[3:]
    assert [bool(hidden) for _, _, hidden in levels] == [False, True, True] * 2
    for level, scale, _ in levels:
        assert json.loads(scale) == [[0.0, 0.0], [12_000.0, 960.0 * int(level)]]


def test_the_documented_picture_is_one_of_these() -> None:
    root = ElementTree.parse(PICTURE).getroot()
    words = {one.text for one in root.iter(f"{SVG}text")}
    assert {"controller", "broker 1", "broker 2", "broker 3", "leaders elected", "offline partitions"} <= words
    assert "(images/timeline.svg)" in (PICTURE.parents[1] / "reports.md").read_text(encoding="utf-8")

// Zooms the drawings over time. Each is on the page once for every zoom level, with all but the first hidden; this shows
// another level, keeps the moment under the pointer in its place, and scrolls drawings of one time axis together.
"use strict";
(() => {
  const EDGE = 12; // pixels before the start of the axis
  const WHEEL = 60; // how far a wheel turns for one level

  const scroller = frame => frame.querySelector(".tl-scroll");
  const ends = frame => JSON.parse(frame.dataset.scale); // [[time, x], ...], linear between them

  function between(points, value, from, to) {
    let i = 1;
    while (i < points.length - 1 && points[i][from] < value) i += 1;
    const [before, after] = [points[i - 1], points[i]];
    return before[to] + (value - before[from]) / (after[from] - before[from]) * (after[to] - before[to]);
  }

  class Axis {
    constructor() {
      this.boxes = [];
      this.level = 0;
      this.turned = 0;
    }

    add(box, frames) {
      this.boxes.push({ box, frames, output: box.querySelector("output") });
      const bar = box.querySelector(".tl-buttons");
      bar.hidden = false;
      bar.addEventListener("click", event => this.act(event.target.dataset.do, box));
      box.addEventListener("keydown", event => this.press(event, box));
      for (const frame of frames) {
        const view = scroller(frame);
        view.addEventListener("scroll", () => this.follow(view));
        view.addEventListener("wheel", event => this.turn(event, box, view), { passive: false });
      }
      this.show(0, box);
    }

    act(what, box, px) {
      const view = this.view(box);
      if (what === "in" || what === "out") this.show(this.level + (what === "in" ? 1 : -1), box, px);
      if (what === "all") this.show(0, box);
      if (what === "left" || what === "right") {
        view.scrollLeft += (what === "left" ? -0.3 : 0.3) * view.clientWidth;
        this.follow(view);
      }
    }

    press(event, box) {
      const what = { "+": "in", "=": "in", "-": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right" }[event.key];
      if (!what || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      this.act(what, box);
    }

    turn(event, box, view) {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.turned += event.deltaY;
      if (Math.abs(this.turned) < WHEEL) return;
      const what = this.turned < 0 ? "in" : "out";
      this.turned = 0;
      this.act(what, box, event.clientX - view.getBoundingClientRect().left);
    }

    view(box) {
      return scroller(this.boxes.find(one => one.box === box).frames[this.level]);
    }

    // Shows a level, with the moment at `px` of the view (its middle) where it was.
    show(level, box, px) {
      const frames = this.boxes.find(one => one.box === box).frames;
      const before = scroller(frames[this.level]);
      const at = px === undefined ? before.clientWidth / 2 : px;
      const time = between(ends(frames[this.level]), before.scrollLeft + at - EDGE, 1, 0);
      const focused = before === document.activeElement;
      this.level = Math.min(Math.max(level, 0), frames.length - 1);
      for (const one of this.boxes) {
        one.frames.forEach((frame, number) => { frame.hidden = number !== this.level; });
        one.output.textContent = `${frames[this.level].dataset.zoom}×; keys + − 0 ← →, or Ctrl and the wheel`;
      }
      const after = scroller(frames[this.level]);
      after.scrollLeft = between(ends(frames[this.level]), time, 0, 1) + EDGE - at;
      if (focused) after.focus({ preventScroll: true });
      this.follow(after);
    }

    follow(view) {
      if (view.closest(".tl-frame").hidden) return; // it was shown when it was scrolled
      for (const one of this.boxes) {
        const other = scroller(one.frames[this.level]);
        if (Math.abs(other.scrollLeft - view.scrollLeft) > 1) other.scrollLeft = view.scrollLeft;
      }
    }
  }

  const axes = new Map();
  for (const box of document.querySelectorAll(".tl-zoom")) {
    const frames = [...box.querySelectorAll(".tl-frame")];
    if (frames.length < 2) continue;
    const key = frames[0].dataset.scale;
    if (!axes.has(key)) axes.set(key, new Axis());
    axes.get(key).add(box, frames);
  }
})();

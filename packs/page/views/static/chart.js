// Line chart on a canvas: series over a common axis, marks, a crosshair for pointer and arrow keys, and zoom.

import { duration, h, moment, number } from "./dom.js";

const PAD = { left: 54, right: 12, top: 10, bottom: 26 };
const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3], [1, 5]];
export const COLORS = 10;
const MARKS = { save: "--soft", lost: "--bad", recovered: "--good" };
const LEGEND = { save: ["■", "checkpoint saved"], lost: ["▼", "machine lost"], recovered: ["▲", "run continued"] };

export const color = (index) => `var(--s${index % COLORS})`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Returns the legend of the dashed lines of these marks.
export function legend(marks) {
  const kinds = Object.keys(LEGEND).filter((kind) => marks.some((one) => one.kind === kind));
  return kinds.map((kind) => h("span", {}, h("b", { style: { color: `var(${MARKS[kind]})` } }, LEGEND[kind][0]), ` ${LEGEND[kind][1]}`));
}

export function ticks(low, high, most) {
  const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at++) found.push(at * step);
  return found;
}

export function smooth(values, weight) {
  if (!weight) return values;
  let mean = null, count = 0;
  return values.map((one) => {
    mean = mean === null ? one : weight * mean + (1 - weight) * one;
    count += 1;
    return one === null ? null : mean;
  });
}

export class Chart {
  // options: title, unit, factor, fromZero, words(x) formats the horizontal axis, zoomed(since, until), tall
  constructor(options) {
    this.options = options;
    this.series = [];
    this.marks = [];
    this.at = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h("div", { class: `chart ${options.tall ? "tall" : ""}` }, this.canvas, this.tip);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.box);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("pointerdown", (event) => { this.from = event.offsetX; });
    this.canvas.addEventListener("pointerup", (event) => this.zoom(event.offsetX));
    this.canvas.addEventListener("dblclick", () => options.zoomed?.("", ""));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.point(null));
  }

  set(series, marks) {
    this.series = series;
    this.marks = marks;
    this.draw();
  }

  key(event) {
    const wide = this.canvas.clientWidth - PAD.left - PAD.right;
    const steps = { ArrowLeft: -wide / 60, ArrowRight: wide / 60 };
    if (event.key in steps) {
      event.preventDefault();
      this.point(Math.min(PAD.left + wide, Math.max(PAD.left, (this.at ?? PAD.left + wide / 2) + steps[event.key])));
    } else if (event.key === "Escape") this.options.zoomed?.("", "");
  }

  zoom(to) {
    const from = this.from;
    this.from = null;
    if (from === null || from === undefined || Math.abs(to - from) < 12 || !this.range) return;
    this.options.zoomed?.(...[Math.min(from, to), Math.max(from, to)].map((one) => this.value(one)));
  }

  value(pixel) {
    const [first, last] = this.range, wide = this.canvas.clientWidth - PAD.left - PAD.right;
    return first + ((pixel - PAD.left) / wide) * (last - first);
  }

  layout() {
    const factor = this.options.factor ?? 1, isLog = this.options.log;
    let first = Infinity, last = -Infinity;
    const seen = [];
    for (const one of this.series) {
      if (!one.x.length) continue;
      first = Math.min(first, one.x[0]);
      last = Math.max(last, one.x[one.x.length - 1]);
      one.shown = smooth(one.mean, this.options.smooth ?? 0);
      for (const value of one.shown) if (!isLog || value > 0) seen.push(value * factor);
    }
    if (!seen.length) return null;
    seen.sort((a, b) => a - b);
    let low = seen[0], high = seen[seen.length - 1];
    if (seen.length > 200 && !isLog) { // clip outliers so that the other values stay readable
      const cut = seen[Math.floor(seen.length * 0.997)];
      high = Math.min(high, cut + 0.25 * (cut - low));
    }
    if (isLog) return { first, last: Math.max(last, first + 1e-9), low: Math.log10(low), high: Math.log10(high) + 0.02, factor, isLog };
    if (this.options.fromZero) low = Math.min(0, low);
    // Values that differ only by rounding, such as the mean of a constant, have zero spread: no float lies between them.
    const spread = high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? high - low : 0;
    const margin = 0.05 * spread || 0.05 * Math.abs(high) || 1;
    return { first, last: Math.max(last, first + 1e-9), low: this.options.fromZero ? low : low - margin, high: high + margin, factor };
  }

  draw() {
    const wide = this.canvas.clientWidth, tall = this.canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!wide || !tall) return;
    this.canvas.width = wide * ratio;
    this.canvas.height = tall * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const found = this.layout();
    const title = this.options.title;
    if (!found) {
      this.range = null;
      this.canvas.setAttribute("aria-label", `${title}: no figures yet`);
      return;
    }
    const { first, last, low, high, factor, isLog } = found;
    this.range = [first, last];
    const right = wide - PAD.right, bottom = tall - PAD.bottom;
    const x = (value) => PAD.left + ((value - first) / (last - first)) * (right - PAD.left);
    const up = (value) => bottom - ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (bottom - PAD.top);
    const y = (value) => up(isLog ? Math.log10(Math.max(value * factor, 1e-30)) : value * factor);
    const [soft, rule] = [css("--soft"), css("--rule")];
    pen.fillStyle = soft;
    pen.strokeStyle = rule;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const one of ticks(low, high, 4)) {
      line(pen, PAD.left, up(one), right, up(one));
      pen.fillText(`${number(isLog ? 10 ** one : one)}${this.options.unit ?? ""}`, PAD.left - 6, up(one));
    }
    pen.textBaseline = "top";
    for (const one of ticks(first, last, Math.max(2, Math.floor(wide / 130)))) {
      pen.textAlign = x(one) > right - 20 ? "right" : "center";
      pen.fillText(this.options.words(one), Math.min(x(one), right), bottom + 8);
    }
    const placed = this.marks.filter((one) => one.x >= first && one.x <= last);
    for (const one of placed) {
      pen.strokeStyle = css(MARKS[one.kind]);
      pen.setLineDash([3, 3]);
      pen.globalAlpha = one.kind === "save" ? 0.45 : 1;
      line(pen, x(one.x), PAD.top, x(one.x), bottom);
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      pen.fillStyle = css(MARKS[one.kind]);
      mark(pen, one.kind, x(one.x), PAD.top);
    }
    pen.save();
    pen.beginPath();
    pen.rect(PAD.left, PAD.top - 2, right - PAD.left + 2, bottom - PAD.top + 4);
    pen.clip();
    pen.lineJoin = "round";
    for (const one of this.series) {
      if (!one.x.length) continue;
      const tint = css(`--s${one.index % COLORS}`);
      pen.fillStyle = pen.strokeStyle = tint;
      if (this.series.length <= 6) { // band between minimum and maximum of each bucket
        pen.globalAlpha = 0.14;
        pen.beginPath();
        one.x.forEach((at, i) => pen.lineTo(x(at), y(one.high[i])));
        for (let i = one.x.length - 1; i >= 0; i--) pen.lineTo(x(one.x[i]), y(one.low[i]));
        pen.fill();
        pen.globalAlpha = 1;
      }
      pen.setLineDash(one.dashed ? DASHES[1] : DASHES[Math.floor(one.index / COLORS) % DASHES.length]);
      pen.lineWidth = this.series.length > 12 ? 1.2 : 1.8;
      pen.beginPath();
      one.x.forEach((at, i) => pen.lineTo(x(at), y(one.shown[i])));
      pen.stroke();
      if (one.x.length === 1) {
        pen.beginPath();
        pen.arc(x(one.x[0]), y(one.shown[0]), 3, 0, 7);
        pen.fill();
      }
    }
    pen.setLineDash([]);
    pen.restore();
    if (this.at !== null) {
      pen.strokeStyle = soft;
      pen.lineWidth = 1;
      line(pen, this.at, PAD.top, this.at, bottom);
    }
    const ends = this.series.filter((one) => one.x.length).map((one) => `${one.name} ${number(one.mean.at(-1) * factor)}`);
    this.canvas.setAttribute("aria-label", `${title}: ${ends.slice(0, 5).join(", ")}${ends.length > 5 ? `, and ${ends.length - 5} more` : ""}`);
  }

  point(pixel) {
    this.at = pixel === null || !this.range || pixel < PAD.left ? null : pixel;
    this.draw();
    this.tip.hidden = this.at === null;
    if (this.at === null) return;
    const at = this.value(this.at), factor = this.options.factor ?? 1, unit = this.options.unit ?? "";
    const rows = this.series.filter((one) => one.x.length && at >= one.x[0]).map((one) => {
      const i = nearest(one.x, at), odd = one.high[i] - one.low[i] > 0.02 * Math.abs(one.mean[i]);
      const range = odd ? ` (${number(one.low[i] * factor)} to ${number(one.high[i] * factor)})` : "";
      return [one.mean[i], h("div", {}, h("i", { style: { background: color(one.index) } }), `${one.name} ${number(one.mean[i] * factor)}${unit}${range}`)];
    });
    rows.sort((a, b) => b[0] - a[0]);
    const reach = (this.range[1] - this.range[0]) / 60;
    const near = this.marks.filter((one) => Math.abs(one.x - at) < reach);
    const told = near.slice(0, 4).map((one) => h("div", {}, `${one.words}, ${moment(one.at)}`));
    this.tip.replaceChildren(h("div", { class: "soft" }, this.options.words(at, true)), ...rows.slice(0, 10).map((one) => one[1]), ...(rows.length > 10 ? [h("div", { class: "soft" }, `and ${rows.length - 10} more`)] : []), ...told);
    const left = this.at + 14 + this.tip.offsetWidth > this.canvas.clientWidth ? this.at - this.tip.offsetWidth - 10 : this.at + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = "12px";
  }

  close() {
    this.watch.disconnect();
  }
}

function nearest(xs, at) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - xs[low - 1] < xs[low] - at ? low - 1 : low;
}

function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

function mark(pen, kind, x, y) { // marks differ in shape and color
  pen.beginPath();
  if (kind === "save") pen.rect(x - 3, y - 3, 6, 6);
  else if (kind === "lost") { pen.moveTo(x - 5, y - 4); pen.lineTo(x + 5, y - 4); pen.lineTo(x, y + 5); }
  else { pen.moveTo(x - 5, y + 5); pen.lineTo(x + 5, y + 5); pen.lineTo(x, y - 4); }
  pen.fill();
}

export const along = {
  step: (at, whole) => (whole ? `step ${Math.round(at).toLocaleString("en")}` : number(at)),
  tokens: (at, whole) => (whole ? `${Math.round(at).toLocaleString("en")} tokens` : number(at)),
  time: (at) => duration(at * 3600),
  minutes: (at) => duration(at * 60),
};

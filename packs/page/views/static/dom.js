// DOM helpers and formatters for numbers, times and amounts; independent of views.

import { typed } from "./page.js";

export function h(name, props = {}, ...inner) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, to] of Object.entries(value)) made.style.setProperty(name, to);
    else if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key === "class_" ? "class" : key, value === true ? "" : value);
  }
  made.append(...inner.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
export function s(name, props = {}, ...inner) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(props)) made.setAttribute(key, value);
  made.append(...inner);
  return made;
}

const late = new Map(); // pending content by element, drawn after the pointer is released
for (const name of ["pointerup", "pointercancel", "keyup"]) addEventListener(name, () => setTimeout(drawLate));

function drawLate() {
  const found = [...late];
  late.clear();
  for (const [place, [key, make]] of found) put(place, key, make);
}

// Replaces the content of `place` with the result of `make` if `key` has changed; otherwise focus, selection and scroll
// position stay. A pressed element is replaced after its release, because a replaced button would miss the click.
export function put(place, key, make) {
  late.delete(place);
  if (place.matches(":active")) return late.set(place, [key, make]);
  const text = JSON.stringify(key);
  if (place.dataset.key === text) return;
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  place.dataset.key = text;
  place.replaceChildren(...[make()].flat(2).filter(Boolean));
  if (held) place.querySelector(`[data-focus="${CSS.escape(held)}"]`)?.focus();
}

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  for (const [letter, much] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= 10 * much || (size >= much && much > 1e3)) return `${Number((value / much).toPrecision(3))}${letter}`;
  }
  if (size && size < 1e-4) return value.toExponential(1);
  return (value || 0).toLocaleString("en", { maximumSignificantDigits: digits });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  for (const unit of ["B", "kB", "MB"]) {
    if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
}

export const usd = (text) => (text === null || text === undefined ? "" : `${Number(text) < 0.01 && Number(text) > 0 ? text : Number(text).toFixed(2)} USD`);
export const moment = (at) => (at ? new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "");
export const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(1)} %`);

export function ago(at, scale = 1) { // scale: clock scale of a rehearsal
  return at ? `${duration(Math.max(0, Date.now() / 1000 - at) * scale)} ago` : "";
}

export function state(word) {
  return h("span", { class: `state ${word}` }, word || "here");
}

export function spark(values) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return "";
  const low = Math.min(...known), high = Math.max(...known), wide = 96 / (values.length - 1);
  const points = values.map((one, at) => `${(at * wide).toFixed(1)},${(20 - (18 * (one - low)) / (high - low || 1)).toFixed(1)}`);
  return s("svg", { class: "spark", viewBox: "0 0 96 22", "aria-hidden": "true" }, s("polyline", { points: points.join(" ") }));
}

// Creates a table. Headings are `[title, kind]`; kind is "number", "wrap", "hidden" (title for screen readers) or absent.
// Rows are lists of cells. On a narrow screen, the rows of a table of four or more columns become cards.
export function table(headings, rows, label) {
  const kinds = headings.map((one) => (Array.isArray(one) ? one[1] : ""));
  const titles = headings.map((one) => (Array.isArray(one) ? one[0] : one));
  const head = h("tr", {}, titles.map((one, at) => h("th", { scope: "col", class: kinds[at] }, kinds[at] === "hidden" ? h("span", { class: "hidden" }, one) : one)));
  const body = rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: kinds[at] === "hidden" ? "" : kinds[at], "data-title": titles[at] }, cell ?? ""))));
  return scroll(label, h("table", { class: headings.length > 3 ? "stack" : "" }, h("thead", {}, head), h("tbody", {}, body)));
}

export const scroll = (label, inner) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, inner);

export function card(title, ...inner) {
  return h("section", { class: "card" }, title && h("h2", {}, title), ...inner);
}

export function empty(words, command) {
  return h("p", { class: "empty" }, words, command && " ", command && h("code", {}, typed(command)));
}

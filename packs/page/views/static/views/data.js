// View of the artifacts in the store, and of a report on shards.

import { card, empty, h, number, put, s, scroll, size, table } from "../dom.js";
import { Live } from "../live.js";
import { command, title } from "../page.js";

export const name = "Data";

export function open(place, query) {
  const below = h("div"), isReport = "report" in query;
  place.append(below);
  if (isReport) title(`Report on ${query.report}`);
  return new Live(isReport ? "data_report" : "data", isReport ? { name: query.report } : {}, (found) => {
    command(found.command ?? "");
    put(below, found, () => (found.error ? h("p", { class: "card error", role: "alert" }, found.error) : isReport ? report(found.report) : artifacts(found)));
  });
}

function artifacts(found) {
  if (!found.artifacts?.length) return empty(`There is nothing in ${found.store ?? "the store"} yet; begin with:`, "./inv launch --phase sft");
  const rows = found.artifacts.map((one) => [one.name, h("code", {}, one.fingerprint.slice(0, 12)), one.problem || facts(one.about), one.has_report ? h("a", { href: `#/data?report=${encodeURIComponent(one.name)}` }, "Report") : ""]);
  return [h("p", { class: "soft" }, `In ${found.store}`), card("", table(["artifact", "fingerprint", ["what its maker says of it", "wrap"], "report"], rows, "Artifacts"))];
}

const facts = (about) => Object.entries(about).filter(([name]) => !name.includes("sha256")).slice(0, 12).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value, 5) : value}`).join(" · ");
const count = (value) => (typeof value === "number" ? value.toLocaleString("en") : "");
const share = (part) => `${(100 * part).toFixed(2)} %`;
const words = (key) => key.replaceAll("_", " ").replace(/^./, (one) => one.toUpperCase());

function report(found) {
  const { read, duplicates, parts } = found, median = found.quantiles.find(([part]) => part === 0.5)?.[1], held = parts.find((one) => one.name === "val")?.total_lines;
  const tiles = [
    ["documents", count(found.documents), "lines of all shards"], ["text", size(found.raw_bytes), `${size(found.stored_bytes)} on the disk`],
    ["median length", count(median), `characters; mean ${number(read.characters / read.documents)}`],
    ["duplicates", share(duplicates.share), duplicates.one_of > 1 ? `exact; of one document in ${count(duplicates.one_of)}` : "exact, to the byte"],
    ["bytes per character", number(read.bytes / Math.max(1, read.characters)), "1 is plain ASCII"],
    ...(held === undefined ? [] : [["held out", share(held / found.documents), `${count(held)} documents`]]),
  ];
  const scores = Object.entries(found.scores).map(([name, { most, counts, known }]) => card(words(name), bars(counts.map((value, at) => [`${number((at / counts.length) * most)} to ${number(((at + 1) / counts.length) * most)}`, value])), h("p", { class: "soft small" }, `${count(known)} of ${count(read.documents)} documents have one`)));
  return [
    h("p", { class: "soft" }, `Shards of ${found.source} · ${found.shards_read < found.shards ? `${count(found.shards_read)} of ${count(found.shards)} shards were read` : "every shard was read"} · ${found.tool}`),
    h("div", { class: "tiles" }, tiles.map(([name, value, more]) => h("div", { class: "card" }, h("span", { class: "soft small" }, name), h("b", {}, value), h("span", { class: "soft small" }, more)))),
    h("div", { class: "charts" },
      card("Length in characters", bars(found.lengths.map(([low, high, value]) => [`${count(low)} to ${count(high)} characters`, value, number(low)])), h("p", { class: "soft small" }, `shorter than: ${found.quantiles.map(([part, length]) => `${number(100 * part)} % ${count(length)}`).join(", ")}`)),
      scores.length ? scores : card("Language score", h("p", { class: "soft" }, "These shards hold no such values. Shards of --format jsonl or parquet keep the values of the source.")),
      ranking("Most frequent lines", found.lines, "no line is repeated", `lines inside of documents${found.lines_lost ? `; counts may be up to ${count(found.lines_lost)} too high` : ""}`),
      ranking("Most repeated documents", found.repeated, "no document is repeated"), found.languages.length > 0 && ranking("Languages", found.languages), found.sites.length > 0 && ranking("Most frequent sites", found.sites)),
    card("Samples", h("p", { class: "soft small" }, "chosen by hash: the same ones each time; cut after 2,000 characters"), h("div", { class: "charts" }, found.samples.map((one) => card("", h("p", { class: "soft small" }, `${count(one.characters)} characters`), h("pre", { class: "sample", tabindex: "0" }, one.text))))),
    ...parts.map(part),
  ];
}

function ranking(title, rows, otherwise = "", note = "") {
  const most = Math.max(...rows.map(([, value]) => value));
  const cells = rows.map(([name, value]) => [h("code", {}, name), count(value), h("progress", { max: most, value, "aria-hidden": "true" })]);
  return card(title, rows.length ? table([["text", "wrap"], ["count", "number"], ""], cells, title) : h("p", { class: "soft" }, otherwise), note && h("p", { class: "soft small" }, note));
}

// Draws a bar for each [words, value, label]; without labels the first and the last words stand below.
function bars(rows) {
  const most = Math.max(1, ...rows.map(([, value]) => value)), wide = 590 / rows.length, every = Math.ceil(rows.length / 8);
  const drawn = rows.flatMap(([name, value, label], at) => {
    const x = 50 + at * wide, tall = (186 * value) / most, bar = s("rect", { x: x.toFixed(1), y: (194 - tall).toFixed(1), width: Math.max(1, wide - 1.5).toFixed(1), height: tall.toFixed(1), fill: "var(--bar)", rx: 1.5 });
    bar.append(s("title", {}, `${name}: ${count(value)}`));
    return [bar, ...(at % every === 0 ? [s("text", { x: x.toFixed(1), y: 214 }, label ?? name.split(" ")[0])] : [])];
  });
  const lines = [0.5, 1].flatMap((part) => [s("line", { x1: 50, x2: 640, y1: 194 - 186 * part, y2: 194 - 186 * part, stroke: "var(--rule)" }), s("text", { x: 44, y: 198 - 186 * part, "text-anchor": "end" }, number(most * part))]);
  return scroll("Bars", s("svg", { class: "wide", viewBox: "0 0 656 220", role: "img", "aria-label": rows.filter(([, value]) => value).slice(0, 5).map(([name, value]) => `${name}: ${count(value)}`).join(", ") }, ...lines, ...drawn));
}

function part(one) {
  const rows = [...Object.entries(one.counts ?? {}).map(([name, value]) => [words(name), value]), ...Object.entries(one.options ?? {})].filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  const shards = one.shards.map((shard) => [shard.name, count(shard.lines), count(shard.bytes), count(shard.raw_bytes), h("code", {}, shard.sha256)]);
  return card(`${one.name || "shards"}: ${count(one.total_lines)} documents, ${size(one.total_bytes)}, ${one.finished ? "finished" : "not finished"}`,
    table(["option", ["value", "wrap"]], rows.map(([name, value]) => [name, plain(value)]), `Options of ${one.name || "the shards"}`),
    h("details", {}, h("summary", {}, `${count(one.num_shards)} shards`), table(["shard", ["lines", "number"], ["bytes", "number"], ["text", "number"], ["sha256", "wrap"]], shards, "Shards"), one.num_shards > shards.length && h("p", { class: "soft small" }, `and ${count(one.num_shards - shards.length)} more in manifest.json`)));
}

function plain(value) {
  if (Array.isArray(value)) return `${value.slice(0, 20).map(plain).join(", ")}${value.length > 20 ? ", …" : ""}`;
  return typeof value === "number" ? count(value) : typeof value === "object" ? JSON.stringify(value) : String(value);
}

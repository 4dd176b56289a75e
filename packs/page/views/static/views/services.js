// View of services: replicas, requests per second, latency percentiles and queue.

import { actButton } from "../act.js";
import { Chart } from "../chart.js";
import { card, duration, empty, h, put, state, table, usd } from "../dom.js";
import { Live } from "../live.js";
import { command } from "../page.js";

export const name = "Services";
const seconds = (value) => (value === null || value === undefined ? "–" : value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(2)} s`);

export function open(place) {
  let charts = [];
  const below = h("div"), wrong = h("div"), shown = new Map();
  place.append(wrong, below);
  put(below, "looking", () => empty("Looking …"));
  const draw = (found) => {
    command(found.command ?? "");
    put(wrong, found.error ?? "", () => found.error && h("p", { class: "card error", role: "alert" }, found.error));
    if (!found.services) return;
    put(below, found.services.map((one) => one.service), () => {
      charts.forEach((one) => one.close());
      charts = [];
      shown.clear();
      if (!found.services.length) return empty("No service is running; begin with:", "inv serve.up --name demo --model sft");
      return found.services.map((one) => {
        const about = h("div"), load = chart("Requests per second"), ends = chart("Seconds to the end of an answer");
        charts.push(load, ends);
        shown.set(one.service, { about, load, ends });
        return h("section", {}, about, scaling(one), h("div", { class: "charts" }, boxed(load), boxed(ends)));
      });
    });
    for (const one of found.services.filter((it) => shown.has(it.service))) {
      const { about, load, ends } = shown.get(one.service);
      put(about, { ...one, history: null }, () => service(one));
      const { x, qps, p50, p95 } = one.history;
      load.set([series("requests per second", 0, x, qps)], []);
      ends.set([series("median", 0, x, p50), series("95th percentile", 1, x, p95)], []);
    }
  };
  const live = new Live("services", {}, draw);
  return { close: () => { live.close(); charts.forEach((one) => one.close()); }, dressed: () => charts.forEach((one) => one.draw()) };
}

const chart = (title) => new Chart({ title, fromZero: true, words: (at) => `${duration(Math.abs(at) * 3600)} ago` });
const boxed = (one) => h("section", { class: "card" }, h("h2", {}, one.options.title), one.box);
const series = (name, index, x, mean) => ({ name, index, x, mean, low: mean, high: mean });

// Drawn once, so that updates do not overwrite the user's input.
function scaling(one) {
  const field = (words) => h("input", { type: "number", min: 0, max: 64, value: String(one.target), "aria-label": words, style: { width: "70px" } });
  const least = field("At least so many replicas"), most = field("At most so many replicas");
  const scale = actButton("Scale", () => ({ act: "scale", name: one.service, least: Number(least.value), most: Number(most.value) }));
  return scale && h("div", { class: "tools" }, "Replicas", h("label", {}, "from", least), h("label", {}, "to", most), scale);
}

function service(one) {
  const { metrics: seen } = one, tile = (words, value) => h("div", { class: "card" }, h("span", { class: "soft small" }, words), h("b", {}, value));
  const rows = one.replicas.map((it) => [String(it.id), state(it.state), it.serving ? "yes" : "", `v${it.version}`, `${it.provider ?? ""} ${it.where ?? ""}`, it.kind, Number(it.usd_per_hour) ? `${usd(it.usd_per_hour)}/h` : "free", duration(it.age_s), it.ready_after_s === null ? "" : duration(it.ready_after_s), it.at || it.why || ""]);
  return [
    h("h2", { style: { "font-size": "18px" } }, one.service, " ", state(one.state)),
    h("div", { class: "tiles" }, tile("ready", `${one.ready} of ${one.target}`), tile("requests per second", seen.qps.toFixed(2)), tile("answer, median", seconds(seen.latency_s.p50)), tile("95th percentile", seconds(seen.latency_s.p95)), tile("99th", seconds(seen.latency_s.p99)),
      tile("first token, median", seconds(seen.time_to_first_token_s.p50)), tile("waiting, 95th", seconds(seen.queue_s.p95)), tile("failed", `${seen.failed} of ${seen.requests}`), tile("price", Number(one.usd_per_hour) ? `${usd(one.usd_per_hour)}/h` : "free")),
    card("", h("dl", {}, h("dt", {}, "address"), h("dd", {}, h("code", {}, one.endpoint ?? "none yet")), h("dt", {}, "model"), h("dd", { title: one.model }, one.model_name), h("dt", {}, "engine"), h("dd", {}, one.engine), one.held && [h("dt", {}, "held"), h("dd", { class: "error" }, one.held)]),
      h("p", { class: "small" }, h("a", { href: `#/logs?service=${encodeURIComponent(one.service)}` }, "Requests"), " · ", h("a", { href: `#/chat?model=${encodeURIComponent(`service ${one.service}`)}` }, "Chat"))),
    card("Replicas", table([["id", "number"], "state", "serves", "version", "where", "kind", ["price", "number"], ["age", "number"], ["ready after", "number"], ["now", "wrap"]], rows, `Replicas of ${one.service}`)),
  ];
}

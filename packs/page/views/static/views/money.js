// Views of costs: live pods with their owners, past spending and current offers.

import { actButton } from "../act.js";
import { ago, card, duration, empty, h, moment, put, s, size, state, table, usd } from "../dom.js";
import { Live } from "../live.js";
import { about, command, typed } from "../page.js";

// Creates a view of a single stream; `draw(parts)` returns the elements below the toolbar.
function simple(name, api, draw, before = () => null) {
  return {
    name,
    open(place) {
      let found = {};
      const below = h("div");
      const redraw = () => {
        command(found.command ?? "");
        draw.tell?.(found);
        put(below, [found, draw.key?.()], () => (found.error ? h("p", { class: "card error", role: "alert" }, found.error) : draw(found)));
      };
      place.append(...[before(redraw)].flat().filter(Boolean), below);
      put(below, "looking", () => empty("Looking …"));
      return new Live(api, {}, (parts) => { found = parts; redraw(); });
    },
  };
}

export const pods = simple("Pods", "pods", ({ pods: rows, usd_per_hour: rate }) => {
  if (!rows) return empty("Looking …");
  if (!rows.length) return empty("No pod is there, and nothing bills. To rent one:", "inv launch --gpu H100 --dry-run");
  const cells = rows.map((one) => [
    h("a", { href: `#/curves?runs=${encodeURIComponent(one.run)}` }, one.run), one.provider, state(one.state), one.usd_per_hour ? `${usd(one.usd_per_hour)}/h` : "free",
    one.limit_usd ? `${usd(one.spent_usd)} of ${usd(one.limit_usd)}` : usd(one.spent_usd), one.limit_in_s === null ? "no limit" : duration(one.limit_in_s),
    one.ends.length ? one.ends.map((end) => h("div", {}, end)) : h("span", { class: "soft" }, "no end: the pod costs nothing"), gpus(one), ago(one.seen_at, one.clock_scale),
    one.ssh ? h("code", {}, typed(`inv ssh ${one.run}`)) : "", one.owner_kind === "service" ? "" : actButton("End", { act: "down", name: one.run }, true),
  ]);
  return [
    h("div", { class: "tiles" }, tile("pods", rows.length), tile("all together", `${usd(rate)}/h`)),
    card("", table(["pod", "provider", "state", ["price", "number"], ["spent", "number"], ["limit in", "number"], ["who ends it", "wrap"], "GPUs", "seen", "reach it", about.acts_allowed ? "act" : ""], cells, "Pods")),
  ];
});

function gpus(one) {
  const lines = (one.gpus ?? []).map((gpu) => `${gpu.name} ${gpu.percent ?? "?"} %, ${size(gpu.used_bytes)}`);
  const alike = (line) => lines.filter((other) => other === line).length;
  return [...new Set(lines)].map((line) => h("div", { class: "small" }, alike(line) > 1 ? `${alike(line)} × ${line}` : line));
}
const tile = (words, value) => h("div", { class: "card" }, h("span", { class: "soft small" }, words), h("b", {}, value));

export const cost = simple("Cost", "cost", (found) => {
  if (!found.sums) return empty("Looking …");
  const { sums } = found;
  const tiles = [["spent so far", usd(sums.spent_usd)], ["billing now", `${usd(sums.usd_per_hour)}/h`], ["live pods may still cost", sums.most_usd === null ? "no limit" : usd(sums.most_usd)], ["cap of all pods", sums.cap_usd ? usd(sums.cap_usd) : "none"]];
  if (Number(sums.billed_usd)) tiles.push(["quoted, where billed", usd(sums.quoted_usd)], ["billed", usd(sums.billed_usd)]);
  const made = [h("div", { class: "tiles" }, tiles.map(([words, value]) => tile(words, value)))];
  for (const one of found.problems) made.push(h("p", { class: "card error" }, one));
  if (!found.pods.length) made.push(empty(`Nothing was spent${found.free ? `; ${found.free} pods cost nothing` : ""}. What would work cost?`, "inv cost --estimate --phase sft --gpu H100"));
  else {
    made.push(card("By day, USD", days(found.days)));
    made.push(h("div", { class: "charts" }, sum("By run", found.runs), sum("By vendor", found.vendors), sum("By month", found.months)));
    const rows = found.pods.map((one) => [one.run, one.provider, h("code", {}, one.id || "?"), moment(one.began_at), duration(one.elapsed_s), usd(one.usd_per_hour), usd(one.quoted_usd), one.billed_usd === null ? "not yet" : one.is_final ? usd(one.billed_usd) : `${usd(one.billed_usd)} so far`, one.ended_at ? "" : h("b", { class: "running" }, "still billing")]);
    made.push(card("Pods", table(["run", "provider", "machine", "began", ["time", "number"], ["per hour", "number"], ["quoted", "number"], ["billed", "number"], "state"], rows, "Pods that have cost")));
    if (found.free) made.push(h("p", { class: "soft small" }, `${found.free} pods cost nothing, and are not shown.`));
  }
  return made;
});

const sum = (title, values) => card(title, table(["what", ["cost", "number"]], Object.entries(values).sort((a, b) => b[1] - a[1]).slice(0, 30).map(([name, amount]) => [name, usd(amount)]), title));

function days(values) {
  const all = Object.entries(values).slice(-60), most = Math.max(...all.map(([, amount]) => Number(amount)), 0.01), wide = 700 / Math.max(all.length, 7);
  const drawn = all.flatMap(([day, amount], at) => {
    const tall = (140 * Number(amount)) / most, x = 30 + at * wide;
    const bar = s("rect", { x: x + 1, y: 155 - tall, width: Math.max(1, Math.min(wide - 3, 60)), height: tall, fill: "var(--bar)", rx: 2 });
    bar.append(s("title", {}, `${day}: ${usd(amount)}`));
    const label = at % Math.ceil(all.length / 10) === 0 ? [s("text", { x, y: 172 }, day.slice(5))] : [];
    return [bar, ...label];
  });
  return s("svg", { class: "days", viewBox: "0 0 740 180", preserveAspectRatio: "xMinYMid", role: "img", "aria-label": `Cost by day; ${all.slice(-3).map(([day, amount]) => `${day} ${usd(amount)}`).join(", ")}` }, s("text", { x: 0, y: 12 }, usd(most.toFixed(2))), ...drawn);
}

const filter = { gpu: "", provider: "", spot: "", most: "" };
const listing = (found) => {
  if (!found.offers) return empty("Asking the vendors …");
  const shown = found.offers.filter((one) => (!filter.gpu || `${one.num_gpus}x ${one.gpu}`.toLowerCase().includes(filter.gpu.toLowerCase())) && (!filter.provider || one.provider === filter.provider)
    && (!filter.spot || String(one.spot) === filter.spot) && (!filter.most || Number(one.usd_per_hour) <= Number(filter.most)));
  const words = [filter.gpu && /^[\w-]+$/.test(filter.gpu) && `--gpu ${filter.gpu}`, filter.provider && `--provider ${filter.provider}`, filter.spot === "true" && "--use-spot", Number(filter.most) > 0 && `--max-price ${Number(filter.most)}`].filter(Boolean);
  command(["inv offers", ...words].join(" "));
  const marks = shown.some((one) => one.mark);
  const rows = shown.slice(0, 200).map((one) => [...(marks ? [one.mark] : []), one.gpu ? `${one.num_gpus}× ${one.gpu}` : "no GPU", usd(one.usd_per_hour), one.usd_per_gpu_hour ? usd(one.usd_per_gpu_hour) : "", one.provider, one.spot ? "spot" : "on demand", one.where, size(one.gpu_memory_bytes), one.cpus ?? "", size(one.memory_bytes), size(one.disk_bytes)]);
  return [
    found.why && h("p", { class: "card" }, found.why), ...found.silent.map((one) => h("p", { class: "card error" }, one)),
    rows.length ? card("", table([...(marks ? ["price of"] : []), "GPUs", ["per hour", "number"], ["per GPU-hour", "number"], "provider", "kind", "where", ["GPU memory", "number"], ["CPUs", "number"], ["memory", "number"], ["disk", "number"]], rows, "Offers")) : empty(found.offers.length ? "No offer is like that." : "No vendor has an offer."),
    h("p", { class: "soft small" }, found.seen_at ? `${shown.length} of ${found.count} offers, seen ${moment(found.seen_at)}; asked for again every minute` : `${shown.length} of ${found.count ?? 0} prices`),
  ];
};
listing.key = () => ({ ...filter });
export const offers = simple("Offers", "offers", listing, (redraw) => {
  const field = (name, props, words) => h("label", {}, words, h("input", { ...props, value: filter[name], oninput: (event) => { filter[name] = event.target.value; redraw(); } }));
  const choice = (name, words, options) => h("label", {}, words, h("select", { onchange: (event) => { filter[name] = event.target.value; redraw(); } }, options.map(([value, said]) => h("option", { value, selected: filter[name] === value }, said))));
  return h("div", { class: "tools" }, field("gpu", { type: "search", placeholder: "H100, 8x …", size: 10 }, "GPU"), choice("provider", "provider", [["", "all"], ...["runpod", "lium", "shadeform", "ssh"].map((one) => [one, one])]),
    choice("spot", "kind", [["", "all"], ["true", "spot"], ["false", "on demand"]]), field("most", { type: "number", min: 0, step: "0.1", style: { width: "90px" } }, "USD per hour, at most"));
});

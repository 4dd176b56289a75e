// View of all runs, newest first; selected runs open as overlaid curves.

import { ago, card, duration, empty, h, number, percent, put, spark, state, table, usd } from "../dom.js";
import { Live } from "../live.js";
import { command, go } from "../page.js";

export const name = "Runs";

export function open(place, query) {
  const chosen = new Set((query.chosen ?? "").split(",").filter(Boolean));
  const tools = h("div", { class: "tools" }), rows = h("div"), said = h("div"), filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs" });
  const over = h("button", { class: "main", type: "button", onclick: () => go("curves", { runs: [...chosen].join(",") }) });
  tools.append(filter, over);
  place.append(tools, rows, said);
  let found = {};
  const draw = () => {
    command(found.command ?? "");
    over.disabled = !chosen.size;
    over.textContent = chosen.size > 1 ? `Compare ${chosen.size} runs` : "Compare";
    const shown = (found.runs ?? []).filter((one) => one.run.includes(filter.value));
    put(said, found.notes ?? [], () => found.notes?.length > 0 && h("details", { class: "card small" }, h("summary", {}, `What was said: ${found.notes.at(-1)}`), found.notes.toReversed().map((one) => h("div", {}, one))));
    put(rows, [shown, [...chosen], found.error], () => {
      if (found.error) return h("p", { class: "card error", role: "alert" }, found.error);
      if (!found.runs) return empty("Looking …");
      if (!shown.length) return empty(found.runs.length ? "No run has such a name." : "There are no runs yet; begin with:", found.runs.length ? "" : "./inv launch --phase sft");
      return card("", listed(shown, chosen, draw));
    });
  };
  filter.addEventListener("input", draw);
  const live = new Live("runs", {}, (parts) => { found = parts; draw(); });
  draw();
  return live;
}

function listed(runs, chosen, draw) {
  const headings = [["compare", "hidden"], "run", "state", "steps", ["step", "number"], ["loss", "number"], ["curve", "hidden"], ["tok/s", "number"], ["MFU", "number"], ["cost", "number"], ["time", "number"], "seen"];
  const rows = runs.map((one) => {
    const tick = one.service ? "" : h("input", { type: "checkbox", "data-focus": one.run, "aria-label": `Compare ${one.run}`, checked: chosen.has(one.run), onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](one.run); draw(); } });
    return [tick, h("a", { href: one.service ? "#/services" : `#/curves?runs=${encodeURIComponent(one.run)}`, "data-focus": `open ${one.run}` }, one.run), [state(one.state), h("span", { class: "soft small" }, ` ${one.provider}`)], bars(one.steps ?? []),
      one.train_step?.toLocaleString("en"), number(one.loss), spark(one.curve ?? []), number(one.tokens_per_s), percent(one.mfu), usd(one.spent_usd), duration(one.elapsed_s), one.is_live ? ago(one.seen_at, one.clock_scale) : ""];
  });
  return table(headings, rows, "Runs");
}

export function bars(steps) {
  if (!steps.length) return "";
  const now = steps.find((one) => one.state === "running") ?? steps.findLast((one) => one.state !== "waiting");
  const words = now ? `${now.name} ${now.state === "running" && now.share ? percent(now.share) : now.state}` : "waiting";
  return [h("div", { class: "bars", role: "img", "aria-label": steps.map((one) => `${one.name} ${one.state}`).join(", ") },
    steps.map((one) => h("span", { class: one.state, title: `${one.name}: ${one.state}` }, h("i", { style: { width: `${100 * (one.share ?? (one.state === "running" ? 0.05 : 0))}%` } })))), h("span", { class: "small soft" }, words)];
}

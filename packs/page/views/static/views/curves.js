// View of the overlaid curves of selected runs, with their configuration differences.

import { actButton } from "../act.js";
import { along, Chart, color } from "../chart.js";
import { ago, card, duration, empty, h, number, put, size, state, table, usd } from "../dom.js";
import { Live } from "../live.js";
import { command, go, route, title } from "../page.js";
import { bars } from "./runs.js";

export const name = "Curves";
export const under = "runs";
const FORMS = {
  loss: { title: "Loss, nats per token" },
  tokens_per_s: { title: "Tokens per second", fromZero: true },
  mfu: { title: "MFU", unit: " %", factor: 100, fromZero: true },
  memory_bytes: { title: "Memory at the fullest moment", unit: " GB", factor: 1e-9, fromZero: true },
  gpu_percent: { title: "GPU use", unit: " %", fromZero: true },
  lr: { title: "Learning rate", fromZero: true },
  grad_norm: { title: "Gradient norm", fromZero: true },
  data_share: { title: "Waiting for data, share of a step", unit: " %", factor: 100, fromZero: true },
  step_s: { title: "Seconds per step", fromZero: true },
  data_wait_s: { title: "Seconds of waiting for data", fromZero: true },
};
const SMOOTH = [["0", "as it is"], ["0.8", "smooth"], ["0.95", "smoother"]];

export function open(place, query) {
  let found = {}, runs = [], charts = new Map();
  const change = (more) => go("curves", { ...route()[1], ...more }, true);
  const chips = h("div", { class: "tools" }), tools = h("div", { class: "tools" }), facts = h("div"), grid = h("div", { class: "charts" }), below = h("div"), wrong = h("div");
  place.append(wrong, chips, facts, tools, grid, below);

  const draw = () => {
    const about = found.about;
    put(wrong, found.error ?? "", () => found.error && h("p", { class: "card error", role: "alert" }, found.error));
    if (!about) return;
    command(found.command);
    title(about.chosen.length === 1 ? about.chosen[0] : `${about.chosen.length} runs`);
    const index = new Map(about.chosen.map((one, at) => [one, at]));
    const others = runs.map((one) => one.run).filter((one) => !index.has(one));
    put(chips, [about.chosen, others], () => [
      ...about.chosen.map((one, at) => h("span", { class: "chip" }, h("i", { style: { background: color(at) } }), one,
        h("button", { type: "button", "aria-label": `Leave out ${one}`, disabled: about.chosen.length < 2, onclick: () => change({ runs: about.chosen.filter((other) => other !== one).join(",") }) }, "×"))),
      about.chosen.length === 2 && h("a", { href: `#/report?run=${about.chosen.map(encodeURIComponent).join(",")}` }, "Report on both"),
      others.length > 0 && h("select", { "aria-label": "Lay another run over these", onchange: (event) => change({ runs: [...about.chosen, event.target.value].join(",") }) },
        h("option", { value: "" }, "+ compare with …"), others.map((one) => h("option", { value: one }, one))),
    ]);
    put(tools, [about.phase, about.phases, about.by, about.unread, query], () => [
      h("div", { class: "tabs", role: "group", "aria-label": "Phase" }, about.phases.map((one) => h("button", { type: "button", "aria-pressed": String(one === about.phase), onclick: () => change({ phase: one, since: "", until: "" }) }, one))),
      h("label", {}, "over", select(about.by, [["step", "steps"], ["time", "time"], ["tokens", "tokens"]], (by) => change({ by, since: "", until: "" }))),
      h("label", {}, "lines", select(query.smooth ?? "0", SMOOTH, (smooth) => change({ smooth }))),
      h("label", {}, h("input", { type: "checkbox", checked: query.log === "1", onchange: (event) => change({ log: event.target.checked ? "1" : "" }) }), "logarithmic loss"),
      (query.since || query.until) && h("button", { type: "button", onclick: () => change({ since: "", until: "" }) }, "Whole chart"),
      h("span", { class: "soft small", role: "status" }, about.unread ? `${about.unread} more are being read …` : "drag to look closer"),
    ]);
    const parts = about.chosen.map((one) => found[`run ${one}`]).filter(Boolean);
    const names = [...new Set(parts.flatMap((one) => Object.keys(one.figures)))].filter((one) => !["step_s", "data_wait_s"].includes(one));
    for (const [key, chart] of charts) if (!names.includes(key)) { chart.close(); chart.card.remove(); charts.delete(key); }
    for (const key of names) {
      if (!charts.has(key)) {
        const form = FORMS[key] ?? { title: key.replaceAll("_", " ").replace(/^./, (one) => one.toUpperCase()) };
        const chart = new Chart({ ...form, log: key === "loss" && query.log === "1", smooth: Number(query.smooth ?? 0), words: along[about.by], zoomed: (since, until) => change({ since, until }) });
        chart.value_ = h("span", { class: "soft small" });
        chart.card = h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, form.title), chart.value_), chart.box);
        grid.append(chart.card);
        charts.set(key, chart);
      }
      const chart = charts.get(key), with_ = parts.filter((one) => one.figures[key]);
      const marks = parts.length < 4 ? parts.flatMap((one) => one.marks.filter((mark) => mark.x !== null).map((mark) => ({ ...mark, words: parts.length > 1 ? `${one.run}: ${mark.words}` : mark.words }))) : [];
      chart.set(with_.map((one) => ({ name: one.run, index: index.get(one.run), ...one.figures[key] })), marks);
      const last = parts.length === 1 ? parts[0].last[key] : undefined;
      chart.value_.textContent = last === undefined ? "" : `${runs.find((one) => one.run === about.chosen[0])?.is_live ? "now" : "last"} ${number(last * (chart.options.factor ?? 1))}${chart.options.unit ?? ""}`;
    }
    if (!names.length) put(below, "none", () => empty(about.phase ? `${about.phase} has told nothing yet.` : "No phase of training belongs to this run."));
    else put(below, [about, found.samples, parts.map((one) => one.marks), parts[0]?.mfu_of], () => beneath(about, found.samples, parts));
    const one = about.chosen.length === 1 && runs.find((other) => other.run === about.chosen[0]);
    put(facts, one ?? "", () => one && one.state && tiles(one));
  };
  const asked = { runs: query.runs ?? "", phase: query.phase ?? "", by: query.by ?? "", since: query.since ?? "", until: query.until ?? "" };
  const live = new Live("curves", asked, (parts) => { found = parts; draw(); });
  const list = new Live("runs", {}, (parts) => { runs = parts.runs ?? []; draw(); });
  return {
    close: () => { live.close(); list.close(); charts.forEach((one) => one.close()); },
    dressed: () => charts.forEach((one) => one.draw()),
  };
}

function select(value, options, changed) {
  return h("select", { onchange: (event) => changed(event.target.value) }, options.map(([word, words]) => h("option", { value: word, selected: word === value }, words)));
}

function tiles(run) {
  const gpus = run.gpus ?? [], used = gpus.filter((one) => one.percent !== null);
  const facts = [
    ["state", state(run.state)], ["step", run.train_step?.toLocaleString("en")], ["loss", number(run.loss)], ["tokens per second", number(run.tokens_per_s)], ["phase left", duration(run.eta_s)],
    ["GPUs", gpus.length ? `${gpus.length > 1 ? `${gpus.length} × ` : ""}${used.length ? `${Math.round(used.reduce((sum, one) => sum + one.percent, 0) / used.length)} %` : "?"}` : ""],
    ["GPU memory", gpus.length ? `${size(Math.max(...gpus.map((one) => one.used_bytes ?? 0)))}, peak ${size(Math.max(...gpus.map((one) => one.peak_bytes ?? one.used_bytes ?? 0)))}` : ""],
    ["cost", run.limit_usd ? `${usd(run.spent_usd)} of ${usd(run.limit_usd)}` : usd(run.spent_usd)], ["time", duration(run.elapsed_s)], ["recovered", run.recoveries ? `${run.recoveries} ×` : ""],
    ["seen", run.is_live ? ago(run.seen_at, run.clock_scale) : ""],
  ];
  const said = [run.note, ...run.ends, run.upload_problem].filter(Boolean);
  return [
    h("div", { class: "tiles" }, facts.filter(([, value]) => value).map(([words, value]) => h("div", { class: "card" }, h("span", { class: "soft small" }, words), h("b", {}, value)))),
    h("section", { class: "card" }, bars(run.steps), said.map((one) => h("div", { class: "small soft" }, one)), h("div", { class: "small" }, h("a", { href: `#/logs?run=${encodeURIComponent(run.run)}` }, "Logs"), " · ", h("a", { href: `#/report?run=${encodeURIComponent(run.run)}` }, "Report"), " ", run.is_live || run.state === "waiting" ? actButton("End", { act: "down", name: run.run }, true) : run.state !== "succeeded" && actButton("Resume", { act: "resume", name: run.run }))),
  ];
}

function beneath(about, samples, parts) {
  const made = [], marks = parts.flatMap((one) => one.marks.filter((mark) => mark.kind !== "save").map((mark) => [one.run, ago(mark.at, one.clock_scale), mark.words]));
  if (marks.length) made.push(card("What happened to it", table(["run", "when", ["what", "wrap"]], marks, "Events")));
  if (about.differences.length) made.push(card("What differs between their recipes", table(["setting", ...about.chosen], about.differences.map((one) => [h("code", {}, one.name), ...about.chosen.map((run) => text(one.values[run]))]), "Differences")));
  else if (about.chosen.length > 1) made.push(card("What differs between their recipes", h("p", { class: "soft" }, "Nothing: the recipes of this phase are the same.")));
  if (samples?.length) {
    const steps = [...new Set(samples.map((one) => one.step))].sort((a, b) => b - a), prompts = [...new Set(samples.map((one) => one.prompt))];
    const rows = steps.slice(0, 12).map((step) => [step.toLocaleString("en"), ...prompts.map((prompt) => samples.find((one) => one.step === step && one.prompt === prompt)?.text ?? "")]);
    made.push(card("What it says", h("p", { class: "soft small" }, "greedy, at most 40 tokens; the model, asked the same again and again"), table([["step", "number"], ...prompts.map((one) => [one, "wrap"])], rows, "Samples")));
  }
  if (parts[0]?.mfu_of.length) made.push(h("p", { class: "soft small" }, `MFU is a share of ${parts[0].mfu_of.join("; then ")}.`));
  if (about.config.length) made.push(h("details", { class: "card" }, h("summary", {}, "Recipe"), table(["setting", ["value", "wrap"]], about.config.map(([key, value]) => [h("code", {}, key), value]), "Recipe")));
  return made;
}

const text = (value) => (value === null || value === undefined ? "–" : String(value));

// View of the overlaid curves of selected runs, with their configuration differences.

import { actButton } from "../act.js";
import { along, Chart, color, legend } from "../chart.js";
import { ago, card, duration, empty, h, moment, number, percent, put, size, state, table, usd } from "../dom.js";
import { KEPT, Live } from "../live.js";
import { command, go, route, title } from "../page.js";
import { bars } from "./runs.js";

export const name = "Curves";
export const under = "runs";
const FORMS = {
  loss: { title: "Loss, nats per token" },
  reward: { title: "Reward of an answer, mean" },
  right: { title: "Right answers, sampled", unit: " %", factor: 100 },
  greedy: { title: "Held-out problems, greedy answer right", unit: " %", factor: 100 },
  pass_at_1: { title: "Held-out problems, sampled answer right", unit: " %", factor: 100 },
  length: { title: "Length of an answer, tokens" },
  truncated: { title: "Answers cut off at max_new", unit: " %", factor: 100, fromZero: true },
  silent_groups: { title: "Problems with equal rewards for all answers", unit: " %", factor: 100, fromZero: true },
  entropy: { title: "Entropy, nats per token" },
  clipped: { title: "Tokens with a clipped ratio", unit: " %", factor: 100, fromZero: true },
  mismatch: { title: "Log-probabilities, engine against trainer, nats", fromZero: true },
  moved: { title: "Log-probabilities, change since the answers, nats", fromZero: true },
  kl: { title: "KL divergence from the first model, nats per token", fromZero: true },
  tokens_per_s: { title: "Tokens per second", fromZero: true },
  mfu: { title: "Model FLOPs utilisation (MFU)", unit: " %", factor: 100, fromZero: true },
  memory_bytes: { title: "Peak memory", unit: " GB", factor: 1e-9, fromZero: true },
  gpu_percent: { title: "GPU use", unit: " %", fromZero: true },
  lr: { title: "Learning rate", fromZero: true },
  grad_norm: { title: "Gradient norm", fromZero: true },
  data_share: { title: "Waiting for data or answers, share of a step", unit: " %", factor: 100, fromZero: true },
  rollout_tokens_per_s: { title: "Tokens per second during rollouts", fromZero: true },
  update_tokens_per_s: { title: "Tokens per second in the update", fromZero: true },
  rollout_s: { title: "Rollout time of a step", unit: " s", fromZero: true },
  weights_s: { title: "Time of new weights to the engine", unit: " s", fromZero: true },
  weights_mb: { title: "New weights for the engine", unit: " MB", fromZero: true },
};
const OVER = { // of a whole run, over minutes
  cost: { title: "Cost, US dollars", unit: " USD", fromZero: true },
  gpu_memory: { title: "GPU memory, peak of the fullest GPU", unit: " GB", fromZero: true },
};
const HIDDEN = ["step_s", "data_wait_s", "learnt_tokens"];
const MFU = "MFU = tokens per second × operations per token / peak; operations per token = 6 × (parameters of the matrices) + 12 × layers × heads × head size × row length, attention not halved, recomputation not counted. Peak: ";
const named = (key) => Object.hasOwn(FORMS, key) ? FORMS[key] : { title: key.replaceAll("_", " ").replace(/^./, (one) => one.toUpperCase()) };
const SMOOTH = [["0", "as it is"], ["0.8", "smooth"], ["0.95", "smoother"]];

export function open(place, query) {
  let found = {}, runs = [], charts = new Map();
  const change = (more) => go("curves", { ...route()[1], ...more }, true);
  const chips = h("div", { class: "tools" }), tools = h("div", { class: "tools" }), signs = h("div", { class: "tools soft small" }), facts = h("div"), grid = h("div", { class: "charts" }), among = h("div"), below = h("div"), wrong = h("div");
  place.append(wrong, chips, facts, tools, signs, grid, among, below);

  const draw = () => {
    const about = found.about;
    put(wrong, found.error ?? "", () => found.error && h("p", { class: "card error", role: "alert" }, found.error));
    if (!about) return;
    command(found.command);
    title(about.chosen.length === 1 ? about.chosen[0] : `${about.chosen.length} runs`);
    const asked = (query.runs ?? "").split(","), arms = (query.arms ?? "").split(","), stopped = (query.stopped ?? "").split(",");
    const index = new Map(about.chosen.map((one, at) => [one, query.arms ? Number(arms[asked.indexOf(one)]) : at]));
    const others = runs.map((one) => one.run).filter((one) => !index.has(one));
    put(chips, [about.chosen, others], () => [
      ...about.chosen.map((one) => h("span", { class: "chip" }, h("i", { style: { background: color(index.get(one)) } }), one,
        h("button", { type: "button", "aria-label": `Leave out ${one}`, disabled: about.chosen.length < 2, onclick: () => change({ runs: about.chosen.filter((other) => other !== one).join(","), arms: "" }) }, "×"))),
      others.length > 0 && h("select", { "aria-label": "Lay another run over these", onchange: (event) => change({ runs: [...about.chosen, event.target.value].join(","), arms: "" }) },
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
    const names = [...new Set(parts.flatMap((one) => Object.keys(one.figures)))].filter((one) => !HIDDEN.includes(one));
    const marks = parts.length < 4 ? parts.flatMap((one) => one.marks.filter((mark) => mark.x !== null).map((mark) => ({ ...mark, words: parts.length > 1 ? `${one.run}: ${mark.words}` : mark.words }))) : [];
    put(signs, marks.map((one) => one.kind), () => legend(marks));
    const smooth = Number(query.smooth ?? 0), zoomed = (since, until) => change({ since, until });
    const wanted = new Map(names.map((key) => [key, { options: { ...named(key), log: key === "loss" && query.log === "1", smooth, words: along[about.by], zoomed }, marks, points: (run) => found[`run ${run}`]?.figures[key], last: parts.length === 1 ? parts[0].last[key] : undefined }]));
    for (const [key, form] of Object.entries(OVER)) {
      const points = (run) => found[`over ${run}`]?.curves?.[key];
      if (about.chosen.some(points)) wanted.set(`over ${key}`, { options: { ...form, words: along.minutes }, marks: [], points, last: about.chosen.length === 1 ? points(about.chosen[0]).mean.at(-1) : undefined });
    }
    for (const [key, chart] of charts) if (!wanted.has(key)) { chart.close(); chart.card.remove(); charts.delete(key); }
    for (const [key, { options, marks, points, last }] of wanted) {
      if (!charts.has(key)) {
        const chart = new Chart(options);
        chart.value_ = h("span", { class: "soft small" });
        chart.card = h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, options.title), chart.value_), chart.box);
        grid.append(chart.card);
        charts.set(key, chart);
      }
      const chart = charts.get(key);
      chart.set(about.chosen.filter(points).map((run) => ({ name: run, index: index.get(run), dashed: stopped.includes(run), ...points(run) })), marks);
      chart.value_.textContent = last === undefined ? "" : `${runs.find((one) => one.run === about.chosen[0])?.is_live ? "now" : "last"} ${number(last * (chart.options.factor ?? 1))}${chart.options.unit ?? ""}`;
    }
    if (!names.length) put(below, ["none", about.phase, found.error], () => !found.error && empty(about.phase ? `${about.phase} has told nothing yet.` : "No phase of training belongs to this run."));
    else put(below, [about, found.samples, parts.map((one) => [one.marks, one.facts, one.last]), parts[0]?.mfu_of], () => beneath(about, found.samples, parts));
    const shown = about.chosen.map((one) => [runs.find((other) => other.run === one), found[`over ${one}`]]).filter(([one]) => one?.state);
    put(about.chosen.length === 1 ? facts : among, shown.map(([one, over]) => [one, over?.cost_usd, over?.limit_usd, over?.parts]), () => (about.chosen.length === 1 ? shown.map(tiles) : shown.length > 0 && beside(shown)));
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

function told(run, over) {
  const gpus = run.gpus ?? [], used = gpus.filter((one) => one.percent !== null), [spent, limit] = over?.cost_usd ? [over.cost_usd, over.limit_usd] : [run.spent_usd, run.limit_usd];
  return [
    ["state", state(run.state)], ["provider", run.provider], ["step", run.train_step?.toLocaleString("en")], ["loss", number(run.loss)], ["tokens per second", number(run.tokens_per_s)], ["phase left", duration(run.eta_s)],
    ["GPUs", gpus.length ? `${gpus.length > 1 ? `${gpus.length} × ` : ""}${used.length ? `${Math.round(used.reduce((sum, one) => sum + one.percent, 0) / used.length)} %` : "?"}` : ""],
    ["GPU memory", gpus.length ? `${size(Math.max(...gpus.map((one) => one.used_bytes ?? 0)))}, peak ${size(Math.max(...gpus.map((one) => one.peak_bytes ?? one.used_bytes ?? 0)))}` : ""],
    ["cost", limit ? `${usd(spent)} of ${usd(limit)}` : usd(spent)], ["price", run.usd_per_hour && `${usd(run.usd_per_hour)}/h`], ["time", duration(run.elapsed_s)], ["ended", moment(run.ended_at)], ["recovered", run.recoveries ? `${run.recoveries} ×` : ""],
    ["seen", run.is_live ? ago(run.seen_at, run.clock_scale) : ""],
  ];
}

function tiles([run, over]) {
  const said = [run.note, ...run.ends, run.upload_problem].filter(Boolean), logs = !KEPT || KEPT[`logs ${run.run}`];
  return [
    h("div", { class: "tiles" }, told(run, over).filter(([, value]) => value).map(([words, value]) => h("div", { class: "card" }, h("span", { class: "soft small" }, words), h("b", {}, value)))),
    h("section", { class: "card" }, bars(run.steps), said.map((one) => h("div", { class: "small soft" }, one)), h("div", { class: "small" }, logs && h("a", { href: `#/logs?run=${encodeURIComponent(run.run)}` }, "Logs"), " ", run.is_live || run.state === "waiting" ? actButton("End", { act: "down", name: run.run }, true) : run.state !== "succeeded" && actButton("Resume", { act: "resume", name: run.run }))),
    ...(over?.parts ?? []).map(parted),
  ];
}

function parted({ rows, caption }) {
  const total = rows.reduce((sum, [, seconds]) => sum + seconds, 0), most = Math.max(...rows.map(([, seconds]) => seconds)), isPaid = rows.some(([, , amount]) => Number(amount));
  const bar = (seconds) => h("div", { class: "bars" }, h("span", {}, h("i", { style: { width: `${(100 * seconds) / most}%` } })));
  const lines = rows.map(([name, seconds, amount]) => h("li", {}, h("div", { class: "head" }, h("span", {}, name), h("span", { class: "soft small" }, [duration(seconds), percent(seconds / total), isPaid && usd(amount)].filter(Boolean).join(", "))), bar(seconds)));
  return card("Where the time went", h("ul", { class: "parts" }, lines), h("p", { class: "soft small" }, caption));
}

function beside(shown) {
  const columns = shown.map(([run, over]) => told(run, over)), rows = columns[0].map(([words], at) => [words, ...columns.map((one) => one[at][1])]);
  return card("The runs", table(["", ...shown.map(([run]) => run.run)], rows.filter((row) => row.slice(1).some(Boolean)), "The runs"));
}

function figures(about, parts) {
  const made = [], sets = parts.map((one) => new Map(one.facts)), names = [...new Set(parts.flatMap((one) => one.facts.map(([name]) => name)))];
  if (names.length) made.push(card("Figures", table(["figure", ...parts.map((one) => [parts.length > 1 ? one.run : "value", "wrap"])], names.map((name) => [name, ...sets.map((one) => one.get(name))]), "Figures")));
  if (about.chosen.length < 2) return made;
  const keys = [...new Set(parts.flatMap((one) => Object.keys(one.figures)))].filter((key) => !HIDDEN.includes(key) && parts.every((one) => one.figures[key]?.mean.length));
  const rows = keys.map((key) => {
    const { title, factor = 1, unit = "" } = named(key), ends = parts.map((one) => one.figures[key].mean.at(-1) * factor), apart = ends[1] - ends[0];
    return [title, ...ends.map((one) => `${number(one)}${unit}`), ...(parts.length === 2 ? [`${apart < 0 ? "−" : "+"}${number(Math.abs(apart))}${unit}`] : [])];
  });
  const silent = about.chosen.filter((run) => !parts.some((one) => one.run === run && Object.keys(one.figures).length));
  if (rows.length && parts.length > 1) made.push(card("At the last steps", table(["figure", ...parts.map((one) => [one.run, "number"]), ...(parts.length === 2 ? [["difference", "number"]] : [])], rows, "At the last steps")));
  if (silent.length) made.push(h("p", { class: "soft" }, `No figures of ${silent.join(" and ")} in this phase.`));
  const lonely = about.phases.filter((name) => about.runs_of[name].length < about.chosen.length);
  if (lonely.length) made.push(h("p", { class: "soft" }, `Phases that not all of these runs have: ${lonely.join(", ")}.`));
  return made;
}

function beneath(about, samples, parts) {
  const made = figures(about, parts), marks = parts.flatMap((one) => one.marks.filter((mark) => mark.kind !== "save").map((mark) => [one.run, KEPT ? moment(mark.at) : ago(mark.at, one.clock_scale), mark.words]));
  if (marks.length) made.push(card("What happened to it", table(["run", "when", ["what", "wrap"]], marks, "Events")));
  if (about.differences.length) made.push(card("What differs between their recipes", table(["setting", ...about.chosen], about.differences.map((one) => [h("code", {}, one.name), ...about.chosen.map((run) => text(one.values[run]))]), "Differences")));
  else if (parts.length > 1) made.push(card("What differs between their recipes", h("p", { class: "soft" }, "Nothing: the recipes of this phase are the same.")));
  if (samples?.length) {
    const steps = [...new Set(samples.map((one) => one.step))].sort((a, b) => b - a), prompts = [...new Set(samples.map((one) => one.prompt))];
    const rows = steps.map((step) => [step.toLocaleString("en"), ...prompts.map((prompt) => samples.find((one) => one.step === step && one.prompt === prompt)?.text ?? "")]);
    made.push(card("What it says", h("p", { class: "soft small" }, "the same prompts at several steps; greedy, at most 40 tokens"), table([["step", "number"], ...prompts.map((one) => [one, "wrap"])], rows, "Samples")));
  }
  if (parts[0]?.mfu_of.length) made.push(h("p", { class: "soft small" }, `${MFU}${parts[0].mfu_of.join("; then ")}.`));
  if (about.config.length) made.push(h("details", { class: "card" }, h("summary", {}, "Recipe"), table(["setting", ["value", "wrap"]], about.config.map(([key, value]) => [h("code", {}, key), value]), "Recipe")));
  return made;
}

const text = (value) => (value === null || value === undefined ? "–" : String(value));

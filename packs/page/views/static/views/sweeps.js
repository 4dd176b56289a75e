// View of sweeps: the runs of each sweep; for one sweep also the arms, their differences and the best configuration.

import { color, ticks } from "../chart.js";
import { card, duration, empty, h, number, put, s, scroll, state, table } from "../dom.js";
import { Live } from "../live.js";
import { command, title } from "../page.js";

export const name = "Sweeps";

export function open(place, query) {
  const below = h("div");
  place.append(below);
  if (query.name) title(`Sweep ${query.name}`);
  return new Live("sweeps", { name: query.name ?? "" }, (found) => {
    command(found.command ?? "");
    put(below, found, () => {
      if (found.error) return h("p", { class: "card error", role: "alert" }, found.error);
      if (!found.sweeps?.length) return empty("No sweep was begun here; begin with:", "inv sweep runs.yaml");
      return found.sweeps.flatMap((one) => [...(one.arms ? evaluated(one) : []), trials(one)]);
    });
  });
}

function trials(one) {
  const settings = [...new Set(one.trials.flatMap((trial) => Object.keys(trial.settings)))], known = one.trials.filter((trial) => trial.is_known);
  const scores = one.trials.map((trial) => trial.score).filter((score) => score !== null), best = one.is_least_best ? Math.min(...scores) : Math.max(...scores);
  const rows = one.trials.map((trial) => [trial.is_known ? h("a", { href: `#/curves?runs=${encodeURIComponent(trial.run)}` }, trial.run) : trial.run, state(trial.state), trial.pod, ...settings.map((name) => trial.settings[name] ?? ""), trial.score === null ? "" : h(trial.score === best ? "b" : "span", {}, number(trial.score, 5)), duration(trial.seconds), trial.reason]);
  const arms = one.arms?.map((arm) => arm.arm) ?? [...new Set(one.trials.map((trial) => trial.arm))], listed = (words) => words.map(encodeURIComponent).join(",");
  const over = `#/curves?runs=${listed(known.map((trial) => trial.run))}&arms=${known.map((trial) => arms.indexOf(trial.arm)).join(",")}&stopped=${listed(known.filter((trial) => trial.state === "stopped early").map((trial) => trial.run))}`;
  return h("section", { class: "card" }, h("h2", {}, `${one.name}${one.is_over ? "" : ", at work"}`), one.about && h("p", {}, one.about),
    table(["run", "state", "pod", ...settings, [one.by, "number"], ["time", "number"], ["why it stopped", "wrap"]], rows, "Runs of the sweep"),
    h("p", {}, known.length > 1 && h("a", { href: over }, "Lay their curves over each other, with a color for each arm"), !one.arms && [known.length > 1 && " · ", h("a", { href: `#/sweeps?name=${encodeURIComponent(one.name)}` }, "Compare the arms")]));
}

function evaluated(one) {
  const axes = keys(one, "asked"), beside = keys(one, "beside"), apart = one.arms.filter((arm) => arm.difference !== null), scored = one.arms.filter((arm) => arm.mean !== null);
  const signed = (value) => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`, tint = (arm) => color(one.arms.indexOf(arm));
  const rows = one.arms.map((arm) => [[h("i", { class: "dot", style: { background: tint(arm) } }), arm.arm], ...axes.map((name) => arm.asked[name]), number(arm.mean, 5), arm.scores.length > 1 ? arm.scores.map((score) => number(score, 5)).join(" ") : "",
    arm.difference === null ? "" : `${signed(arm.difference)}${arm.half === null ? "" : ` ± ${number(arm.half)}`}`, arm.verdict, ...beside.map((name) => arm.beside[name].map((value) => number(value)).join(" ")), arm.state]);
  return [
    h("div", { class: "tiles" }, one.facts.map(([words, value]) => h("div", { class: "card" }, h("span", { class: "soft small" }, words), h("b", {}, value)))),
    card("Arms, the best first", table(["arm", ...axes, [one.by, "number"], "by seed", `minus ${one.against}`, "", ...beside, "runs"], rows, "Arms")),
    apart.length > 0 && card(`Differences of ${one.by}`, scroll("Differences", differences(apart, tint)), h("p", { class: "soft small" }, `Each arm minus ${one.against}, seed by seed; a bar is Student's interval of 95 %. A bar that crosses the line means no significant difference.`)),
    axes.length > 0 && scored.length > 1 && card("Parallel coordinates", scroll("Parallel coordinates", parallel([...axes, one.by], scored.map((arm) => [arm, [...axes.map((name) => arm.asked[name] ?? ""), number(arm.mean, 5)]]), tint))),
    one.best && card("The best configuration", h("p", {}, h("code", {}, one.best)), h("p", { class: "soft small" }, "Keep it under a name:"), h("p", {}, h("code", {}, one.promote))),
  ].filter(Boolean);
}

const keys = (one, of) => [...new Set(one.arms.flatMap((arm) => Object.keys(arm[of])))];

function differences(arms, tint) {
  const left = 220, wide = 960, tall = 26 * arms.length + 40, reach = 1.1 * Math.max(...arms.map((arm) => Math.abs(arm.difference) + (arm.half ?? 0))) || 1;
  const x = (value) => left + ((value + reach) / (2 * reach)) * (wide - left - 24);
  const drawn = [s("line", { x1: x(0), x2: x(0), y1: 6, y2: tall - 30, stroke: "var(--soft)" }), ...ticks(-reach, reach, 6).map((one) => s("text", { x: x(one), y: tall - 8, "text-anchor": "middle" }, number(one) || "0"))];
  arms.forEach((arm, at) => {
    const y = 18 + 26 * at;
    drawn.push(s("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, arm.arm));
    if (arm.half !== null) drawn.push(s("line", { x1: x(arm.difference - arm.half), x2: x(arm.difference + arm.half), y1: y, y2: y, stroke: tint(arm), "stroke-width": 2 }));
    drawn.push(s("circle", { cx: x(arm.difference), cy: y, r: 5, fill: tint(arm) }));
  });
  return s("svg", { class: "wide", viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Differences: ${arms.slice(0, 5).map((arm) => `${arm.arm} ${number(arm.difference)}`).join(", ")}` }, ...drawn);
}

function parallel(axes, rows, tint) {
  const wide = 960, tall = 240, places = axes.map((_, at) => placed(rows.map(([, values]) => values[at])));
  const x = (at) => 94 + (at * (wide - 218)) / Math.max(1, axes.length - 1), y = (share) => 36 + (1 - share) * (tall - 64);
  const drawn = axes.flatMap((axis, at) => [
    s("line", { x1: x(at), x2: x(at), y1: y(1), y2: y(0), stroke: "var(--rule)" }), s("text", { x: x(at), y: 18, "text-anchor": "middle" }, axis),
    ...[...places[at]].map(([value, share]) => s("text", { x: x(at) + (at ? 8 : -8), y: y(share) + 4, "text-anchor": at ? "start" : "end" }, value)),
  ]);
  for (const [arm, values] of rows) drawn.push(s("polyline", { fill: "none", stroke: tint(arm), "stroke-width": 2, points: values.flatMap((value, at) => (value === "" ? [] : [`${x(at).toFixed(1)},${y(places[at].get(value)).toFixed(1)}`])).join(" ") }));
  return s("svg", { class: "wide", viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Parallel coordinates of ${axes.join(", ")}` }, ...drawn);
}

// Returns the position of each value on an axis, from 0 to 1: numbers by size, other words in order. Positive numbers
// with a ratio of 8 or more are placed on a logarithmic scale.
function placed(values) {
  const known = [...new Set(values)].filter((one) => one !== ""), areNumbers = known.every((one) => Number.isFinite(Number(one)));
  const sizes = known.map((one, at) => (areNumbers ? Number(one) : at)), low = Math.min(...sizes), high = Math.max(...sizes);
  const scale = areNumbers && low > 0 && high / low >= 8 ? Math.log : (one) => one;
  return new Map(known.map((one, at) => [one, high === low ? 0.5 : (scale(sizes[at]) - scale(low)) / (scale(high) - scale(low))]));
}

// Views of results: sweeps, datasets with reports, and run reports.

import { card, duration, empty, h, moment, number, put, state, table } from "../dom.js";
import { Live } from "../live.js";
import { command, title } from "../page.js";

export const sweeps = {
  name: "Sweeps",
  open(place) {
    const below = h("div");
    place.append(below);
    return new Live("sweeps", {}, (found) => {
      command(found.command ?? "");
      put(below, found, () => {
        if (found.error) return h("p", { class: "card error", role: "alert" }, found.error);
        if (!found.sweeps?.length) return empty("No sweep was begun here; begin with:", "inv sweep runs.yaml");
        return found.sweeps.map((one) => sweep(one));
      });
    });
  },
};

function sweep(one) {
  const settings = [...new Set(one.trials.flatMap((trial) => Object.keys(trial.settings)))], known = one.trials.filter((trial) => trial.is_known);
  const scores = one.trials.map((trial) => trial.score).filter((score) => score !== null), best = one.is_least_best ? Math.min(...scores) : Math.max(...scores);
  const rows = one.trials.map((trial) => [trial.is_known ? h("a", { href: `#/curves?runs=${encodeURIComponent(trial.run)}` }, trial.run) : trial.run, state(trial.state), trial.pod, ...settings.map((name) => trial.settings[name] ?? ""), trial.score === null ? "" : h(trial.score === best ? "b" : "span", {}, number(trial.score, 5)), duration(trial.seconds), trial.reason]);
  return h("section", { class: "card" }, h("h2", {}, `${one.name}${one.is_over ? "" : ", at work"}`), one.about && h("p", {}, one.about),
    table(["run", "state", "pod", ...settings, [one.by, "number"], ["time", "number"], ["why it stopped", "wrap"]], rows, "Runs of the sweep"),
    known.length > 1 && h("p", {}, h("a", { href: `#/curves?runs=${known.map((trial) => encodeURIComponent(trial.run)).join(",")}` }, "Lay their curves over each other")));
}

export const data = {
  name: "Data",
  open(place, query) {
    const below = h("div");
    place.append(below);
    if (query.report) return framed(below, `/data-report?name=${encodeURIComponent(query.report)}`, `Report on ${query.report}`, "inv shard --report FOLDER");
    return new Live("data", {}, (found) => {
      command(found.command ?? "");
      put(below, found, () => {
        if (found.error) return h("p", { class: "card error", role: "alert" }, found.error);
        if (!found.artifacts?.length) return empty(`There is nothing in ${found.store ?? "the store"} yet; begin with:`, "./inv launch --phase sft");
        const rows = found.artifacts.map((one) => [one.name, h("code", {}, one.fingerprint.slice(0, 12)), one.problem || facts(one.about), one.has_report ? h("a", { href: `#/data?report=${encodeURIComponent(one.name)}` }, "Report") : ""]);
        return [h("p", { class: "soft" }, `In ${found.store}`), card("", table(["artifact", "fingerprint", ["what its maker says of it", "wrap"], "report"], rows, "Artifacts"))];
      });
    });
  },
};

const facts = (about) => Object.entries(about).filter(([name]) => !name.includes("sha256")).slice(0, 12).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value, 5) : value}`).join(" · ");

export const report = {
  name: "Report",
  under: "runs",
  open(place, query) {
    const runs = (query.run ?? "").split(",").filter(Boolean).slice(0, 2);
    const below = h("div");
    place.append(below);
    return framed(below, `/report?run=${encodeURIComponent(runs.join(","))}`, runs.length > 1 ? `${runs[0]} and ${runs[1]}` : `Report on ${runs[0] ?? "the last run"}`, `inv report ${runs.join(" ")}`.trim());
  },
};

function framed(place, source, words, typed) {
  title(words);
  command(typed);
  const waiting = empty("Making the report …");
  place.append(h("p", {}, h("a", { href: source, target: "_blank", rel: "noreferrer" }, "Open it alone")), waiting, h("iframe", { src: source, title: words, sandbox: "", onload: () => waiting.remove() }));
  return { close() {} };
}

// Parts of a view, updated by server-sent events.

const held = document.getElementById("kept");
export const KEPT = held && JSON.parse(held.textContent); // exported page: content of each view at export time

function exported(name, query) {
  if (name === "curves") return laid(query.runs.split(",").filter(Boolean), query);
  const key = [name, query.run || query.name].filter(Boolean).join(" ");
  return KEPT[key] ?? { error: `${key} was not exported; the live page shows everything: inv ui` };
}

function placed(run, phase, by) {
  const found = KEPT[`curves ${run} ${phase} step`], along = KEPT[`curves ${run} ${phase} ${by}`], part = found[`run ${run}`];
  if (by === "step" || !part) return found;
  const figures = Object.fromEntries(Object.entries(part.figures).map(([name, one]) => [name, { ...one, x: along.x[name] }]));
  return { ...found, about: { ...found.about, by }, [`run ${run}`]: { ...part, figures, marks: along.marks } };
}

// Quotes a word for a shell, like shlex.quote.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

function laid(runs, query) {
  const chosen = runs.filter((one) => KEPT[`curves ${one}`]), abouts = chosen.map((one) => KEPT[`curves ${one}`]);
  if (!chosen.length) return { error: `nothing of ${runs.join(", ")} was exported` };
  const phases = [...new Set(abouts.flatMap((one) => one.phases))], phase = query.phase || abouts.find((one) => one.phase)?.phase || "", by = query.by || "step";
  const failed = (one) => KEPT[`curves ${one}`].error ?? KEPT[`curves ${one} ${phase} step`]?.error ?? KEPT[`curves ${one} ${phase} ${by}`]?.error;
  const with_ = chosen.filter((one) => KEPT[`curves ${one} ${phase} step`]?.about && !failed(one)), found = with_.map((one) => placed(one, phase, by));
  const parts = Object.assign({ samples: [] }, ...chosen.map((one) => ({ [`over ${one}`]: KEPT[`over ${one}`] })), ...found);
  const configs = found.map((one) => Object.fromEntries(one.about.config)), names = [...new Set(configs.flatMap(Object.keys))];
  const differences = names.map((name) => ({ name, values: Object.fromEntries(with_.map((run, at) => [run, configs[at][name] ?? null])) })).filter((one) => new Set(Object.values(one.values)).size > 1);
  const runs_of = Object.fromEntries(phases.map((name) => [name, chosen.filter((one, at) => abouts[at].error || abouts[at].phases.includes(name))]));
  parts.about = { ...found[0]?.about, phase, phases, by, chosen, runs_of, differences: with_.length > 1 ? differences : [], config: chosen.length > 1 ? [] : (found[0]?.about.config ?? []) };
  if (chosen.length > 1) parts.samples = [];
  const errors = chosen.filter(failed).map((one) => `${one}: ${failed(one)}`);
  if (errors.length) parts.error = errors.join("; ");
  parts.command = `inv report ${chosen.map(quoted).join(" ")}`;
  return parts;
}

export class Live {
  constructor(name, query, changed) {
    this.parts = {};
    if (KEPT) {
      this.timer = setTimeout(() => changed(exported(name, query)), 0);
      return;
    }
    const words = new URLSearchParams({ ...query, live: "1" });
    this.source = new EventSource(`/api/${name}?${words}`);
    this.source.onmessage = (event) => {
      const { part, value } = JSON.parse(event.data);
      if (part === "") changed(this.parts); // end of a look; draws all parts together
      else if (value === null) delete this.parts[part];
      else this.parts[part] = value;
    };
    this.source.onopen = () => tell(true);
    this.source.onerror = () => tell(false);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}

let listener = () => {};
export const onAlive = (heard) => { listener = heard; };
const tell = (is) => listener(is);

export async function ask(path, options = {}) {
  const reply = await fetch(path, options);
  const found = await reply.json().catch(() => ({}));
  if (!reply.ok) throw Object.assign(new Error(found.error || `status ${reply.status}`), { status: reply.status, ...found });
  return found;
}

export const post = (path, body, headers = {}) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } });

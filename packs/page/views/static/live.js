// Parts of a view, updated by server-sent events.

const held = document.getElementById("kept");
export const KEPT = held && JSON.parse(held.textContent); // exported page: content of each view at export time

function exported(name, query) {
  if (name === "curves") return laid(query.runs.split(",").filter(Boolean), query);
  if (name === "logs" && query.run) return KEPT[`logs ${query.run}`] ?? { error: `the logs of ${query.run} were not exported` };
  return KEPT[name] ?? { error: "this needs the live page: inv ui" };
}

function laid(runs, query) {
  const phase = query.phase || KEPT[`curves ${runs[0]}`], by = query.by || "step";
  const found = runs.map((one) => KEPT[`curves ${one} ${phase} ${by}`]).filter(Boolean);
  if (!found.length) return { error: `nothing of ${runs.join(", ")} was exported` };
  const parts = Object.assign({}, ...found), configs = found.map((one) => [one.about.chosen[0], Object.fromEntries(one.about.config)]);
  const names = [...new Set(configs.flatMap(([, config]) => Object.keys(config)))];
  const differences = names.map((name) => ({ name, values: Object.fromEntries(configs.map(([run, config]) => [run, config[name] ?? null])) })).filter((one) => new Set(Object.values(one.values)).size > 1);
  const phases = [...new Set(found.flatMap((one) => one.about.phases))];
  parts.about = { ...found[0].about, phases, chosen: configs.map(([run]) => run), differences: runs.length > 1 ? differences : [], config: runs.length > 1 ? [] : found[0].about.config };
  parts.command = runs.length < 3 ? `inv report ${runs.join(" ")}` : "inv status";
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

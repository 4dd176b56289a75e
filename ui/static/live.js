// A view's parts, kept up to date by server-sent events.

export class Live {
  constructor(name, query, changed) {
    this.parts = {};
    const words = new URLSearchParams({ ...query, live: "1" });
    this.source = new EventSource(`/api/${name}?${words}`);
    let waiting = false;
    this.source.onmessage = (event) => {
      const { part, value } = JSON.parse(event.data);
      if (value === null) delete this.parts[part];
      else this.parts[part] = value;
      if (waiting) return;
      waiting = true; // all parts of one look are drawn together
      setTimeout(() => { waiting = false; if (this.source) changed(this.parts); }, 0);
    };
    this.source.onopen = () => tell(true);
    this.source.onerror = () => tell(false);
  }

  close() {
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

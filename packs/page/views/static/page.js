// The page around a view: where it is, where it goes, its command and its title. Views and the frame both build on it.

export const about = {}; // what the server says of itself

export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [path || "runs", Object.fromEntries(new URLSearchParams(query))];
}

export function go(name, query = {}, replace = false) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  const to = `#/${name}${words.size ? `?${words}` : ""}`;
  if (!replace) {
    location.hash = to;
    return;
  }
  history.replaceState(null, "", to);
  dispatchEvent(new Event("hashchange")); // replaceState sends none
}

// The same command for a terminal, which sees the rehearsal, or its store, only when it is told to.
export function typed(words) {
  if (!words || !about.is_rehearsal) return words;
  return /^inv (chat|ckpt|shard)/.test(words) ? `SLIPWAY_STORE=${about.store} ./${words}` : `${words} --rehearse`;
}

export function command(words) {
  const bar = document.getElementById("command");
  bar.hidden = !words;
  bar.firstElementChild.textContent = typed(words);
}

export function title(words) {
  document.getElementById("title").textContent = words;
  document.title = `${words} · Slipway`;
}

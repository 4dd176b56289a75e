// Shared page state for views and frame: route, navigation, equivalent command and title.

export const about = {}; // global facts from the server

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
  dispatchEvent(new Event("hashchange")); // replaceState does not fire hashchange
}

// Returns the command for a terminal; in a rehearsal the command needs --rehearse or the rehearsal's store.
export function typed(words) {
  if (!words || !about.is_rehearsal) return words;
  return words.startsWith("inv shard") ? `SLIPWAY_STORE=${about.store} ./${words}` : `${words} --rehearse`;
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

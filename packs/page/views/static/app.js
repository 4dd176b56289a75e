// Frame of the page: view selection, theme and keyboard shortcuts.

import { h } from "./dom.js";
import { ask, KEPT, onAlive, post } from "./live.js";
import { about, command, go, route, title } from "./page.js";
import * as chat from "./views/chat.js";
import * as curves from "./views/curves.js";
import * as data from "./views/data.js";
import * as logs from "./views/logs.js";
import * as money from "./views/money.js";
import * as runs from "./views/runs.js";
import * as services from "./views/services.js";
import * as sweeps from "./views/sweeps.js";

const { pods, cost, offers } = money;
const VIEWS = { runs, curves, pods, logs, services, cost, offers, sweeps, chat, data };
const NAV = ["runs", "pods", "logs", "services", "cost", "offers", "sweeps", "chat", "data"].map((one) => [one, VIEWS[one].name]);
const place = document.getElementById("place"), bar = document.getElementById("command"), alive = document.getElementById("alive");
let shown = null;

function show() {
  const [name, query] = route();
  const view = VIEWS[name] ?? VIEWS.runs;
  shown?.close?.();
  place.replaceChildren();
  for (const one of document.querySelectorAll("nav a")) one.toggleAttribute("aria-current", one.dataset.view === (view.under ?? name));
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" });
  title(view.name);
  command("");
  shown = view.open(place, query);
}

const theme = document.getElementById("theme");
function dress(word) {
  const dark = word === "dark" || (!word && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.textContent = dark ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Use the ${dark ? "light" : "dark"} theme`);
  shown?.dressed?.();
}
theme.addEventListener("click", () => {
  localStorage.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  dress(localStorage.theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dress(localStorage.theme));

bar.lastElementChild.addEventListener("click", async () => {
  const words = bar.firstElementChild.textContent;
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    getSelection().selectAllChildren(bar.firstElementChild);
    document.execCommand("copy");
  }
  bar.lastElementChild.textContent = "Copied";
  setTimeout(() => { bar.lastElementChild.textContent = "Copy"; }, 1500);
});

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const number = Number(event.key);
  if (number >= 1 && number <= NAV.length) go(NAV[number - 1][0]);
  else if (event.key === "/" && document.querySelector("main input[type=search]")) {
    event.preventDefault();
    document.querySelector("main input[type=search]").focus();
  } else if (event.key === "c") bar.lastElementChild.click();
  else if (event.key === "t") theme.click();
  else if (event.key === "?") document.getElementById("keys").showModal();
});

onAlive((is) => {
  alive.className = is ? "on" : "off";
  alive.textContent = is ? "live" : "no answer";
  if (!is) ask("/api/runs").catch((error) => { if (error.status === 401) closed(error.message); });
});

function closed(words) {
  shown?.close?.();
  shown = null;
  title("Slipway");
  command("");
  place.replaceChildren(h("p", { class: "card error", role: "alert" }, words));
}

async function begin() {
  dress(localStorage.theme);
  if (KEPT) {
    Object.assign(about, KEPT.about);
    alive.textContent = `written ${about.written}`;
    if (location.hash.length < 3) history.replaceState(null, "", `#/${about.start}`);
    return start();
  }
  const token = /^#([\w-]{40,})$/.exec(location.hash)?.[1];
  if (token) {
    history.replaceState(null, "", "/#/runs");
    try {
      await post("/api/session", { token });
    } catch (error) {
      return closed(error.message);
    }
  }
  try {
    Object.assign(about, await ask("/api/about"));
  } catch (error) {
    return closed(error.message);
  }
  start();
}

function start() {
  const nav = document.getElementById("nav");
  if (about.is_rehearsal) document.querySelector(".brand").append(h("span", { class: "soft" }, "rehearsal"));
  nav.append(...NAV.filter(([name]) => !KEPT || KEPT[name]).map(([name, words], at) => h("a", { href: `#/${name}`, "data-view": name, title: `key ${at + 1}` }, words)));
  document.body.append(h("dialog", { id: "keys", "aria-label": "Keys" }, h("h2", {}, "Keys"), h("dl", {},
    h("dt", {}, h("kbd", {}, `1 to ${NAV.length}`)), h("dd", {}, "a view"), h("dt", {}, h("kbd", {}, "/")), h("dd", {}, "search"),
    h("dt", {}, h("kbd", {}, "c")), h("dd", {}, "copy the command"), h("dt", {}, h("kbd", {}, "t")), h("dd", {}, "light or dark"),
    h("dt", {}, h("kbd", {}, "← →")), h("dd", {}, "figures along a chart that has the focus"), h("dt", {}, h("kbd", {}, "Esc")), h("dd", {}, "close, or the whole chart")),
    h("form", { method: "dialog" }, h("p", {}, h("button", {}, "Close")))));
  addEventListener("hashchange", show);
  show();
}

begin();

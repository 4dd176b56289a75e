// View of live logs; the search runs on the server.

import { empty, h, put } from "../dom.js";
import { Live } from "../live.js";
import { command, go, route, title } from "../page.js";

export const name = "Logs";

export function open(place, query) {
  let found = {}, follows = true, live = null;
  const change = (more) => go("logs", { ...route()[1], ...more }, true);
  const search = h("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search the log", value: query.search ?? "" });
  const follow = h("input", { type: "checkbox", checked: true, onchange: (event) => { follows = event.target.checked; scroll(); } });
  const choices = h("span", { class: "tools", style: { margin: "0" } }), count = h("span", { class: "soft small", role: "status" });
  const text = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log" }), wrong = h("div");
  place.append(wrong, h("div", { class: "tools" }, choices, search, h("label", {}, follow, "follow"), count), text);
  const scroll = () => { if (follows) text.scrollTop = text.scrollHeight; };
  text.addEventListener("scroll", () => {
    follows = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    follow.checked = follows;
  });

  const begin = () => {
    live?.close();
    live = new Live("logs", { run: query.run ?? "", service: query.service ?? "", file: query.file ?? "", search: search.value }, (parts) => { found = parts; draw(); });
  };
  const draw = () => {
    command(found.command ?? "");
    put(wrong, found.error ?? "", () => found.error && h("p", { class: "card error", role: "alert" }, found.error));
    if (!found.lines) return;
    const whose = found.run ?? found.service;
    title(whose ? `Logs of ${whose}` : "Logs");
    put(choices, [found.runs, found.files, whose, query.file], () => [
      found.runs.length > 0 && select("Run", whose, found.runs.map((one) => [one, one]), (run) => change({ run, file: "" })),
      found.files && select("Log", query.file ?? "", [...(found.run ? [["", "all steps"]] : []), ...found.files.map((one) => [one, one])], (file) => change({ file })),
    ]);
    const shown = found.lines.length, sought = search.value;
    count.textContent = sought ? `${found.total} ${found.total === 1 ? "line holds" : "lines hold"} it${found.total > shown ? `, the last ${shown} are here` : ""}` : found.total > shown ? `the last ${shown} of ${found.total} lines` : "";
    put(text, [found.lines, sought], () => {
      if (!shown) return empty(sought ? "No line holds that." : whose ? `${whose} has written no log yet.` : "There are no runs yet; begin with: ./inv launch --phase sft");
      let last = "";
      return found.lines.flatMap(([file, number, line]) => {
        const head = file !== last && !query.file ? [h("span", { class: "at" }, `── ${file} ──\n`)] : [];
        last = file;
        return [...head, ...(sought ? [h("span", { class: "at" }, `${number} `), ...marked(line, sought)] : [line]), "\n"];
      });
    });
    scroll();
  };
  let timer = 0;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(begin, 200); });
  begin();
  return { close: () => { clearTimeout(timer); live.close(); } };
}

function select(label, value, options, changed) {
  return h("select", { "aria-label": label, "data-focus": label, onchange: (event) => changed(event.target.value) }, options.map(([word, words]) => h("option", { value: word, selected: word === value }, words)));
}

function marked(line, sought) {
  const found = [], low = line.toLowerCase(), word = sought.toLowerCase();
  let at = 0;
  for (let next = low.indexOf(word); next >= 0 && low.length === line.length; next = low.indexOf(word, at)) {
    found.push(line.slice(at, next), h("mark", {}, line.slice(next, next + word.length)));
    at = next + word.length;
  }
  return [...found, line.slice(at)];
}

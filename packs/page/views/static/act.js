// Action buttons: ask for confirmation, show the equivalent command and run the action.

import { h } from "./dom.js";
import { post } from "./live.js";
import { about, typed } from "./page.js";

const HEADER = { "Slipway-Act": "1" };

export function actButton(words, body, bad = false) {
  if (!about.acts_allowed) return null;
  return h("button", { type: "button", class: bad ? "bad" : "", "data-focus": `${words} ${JSON.stringify(body)}`, onclick: () => begin(typeof body === "function" ? body() : body) }, words);
}

async function begin(body) {
  let asked;
  try {
    asked = await post("/api/acts", body, HEADER);
  } catch (error) {
    return notice(error.message);
  }
  const yes = h("button", { type: "button", class: "main" }, "Yes"), no = h("button", { type: "button", autofocus: true }, "No");
  const box = h("dialog", { "aria-label": "Are you sure?" }, h("p", {}, asked.question), h("p", {}, h("code", {}, typed(asked.command))), h("div", { class: "tools" }, no, yes));
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  no.addEventListener("click", () => box.close());
  yes.addEventListener("click", async () => {
    box.close();
    try {
      await post("/api/acts", { word: asked.word }, HEADER);
    } catch (error) {
      notice(error.message);
    }
  });
  box.showModal();
}

function notice(words) {
  const box = h("dialog", { "aria-label": "It was not done" }, h("p", { class: "error", role: "alert" }, words), h("form", { method: "dialog" }, h("button", {}, "Close")));
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.showModal();
}

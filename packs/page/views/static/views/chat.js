// View of a chat with a service or a stored model: stream, stop and retry answers.

import { empty, h, put } from "../dom.js";
import { Live } from "../live.js";
import { command, go, route } from "../page.js";

export const name = "Chat";
const KEPT = "slipway-chat";

export function open(place, query) {
  let said = JSON.parse(sessionStorage[KEPT] ?? "[]"), models = null, running = null, wrong = "", speed = "";
  const turns = h("div", { "aria-live": "polite" }), tools = h("div", { class: "tools" });
  const system = h("input", { placeholder: "System prompt (none)", "aria-label": "System prompt" }), heat = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: "0", "aria-label": "Temperature", style: { width: "72px" } }), most = h("input", { type: "number", min: 1, max: 4096, value: "256", "aria-label": "Tokens at most", style: { width: "84px" } });
  const words = h("textarea", { placeholder: "Say something", "aria-label": "Message", rows: 2 });
  const send = h("button", { class: "main", type: "submit" }, "Send"), stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  const again = h("button", { type: "button", onclick: () => regenerate() }, "Regenerate"), anew = h("button", { type: "button", onclick: () => { running?.abort(); said = []; wrong = speed = ""; draw(); } }, "New");
  const form = h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); speak(); } }, words, send, stop, again, anew);
  words.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); speak(); } });
  place.append(h("div", { class: "said" }, tools, h("div", { class: "tools" }, system, h("label", {}, "temperature", heat), h("label", {}, "tokens", most)), turns, form));
  const model = () => query.model || models?.[0] || "";

  const draw = () => {
    sessionStorage[KEPT] = JSON.stringify(said);
    stop.hidden = !running;
    send.disabled = Boolean(running) || !model();
    again.disabled = Boolean(running) || !said.some((one) => one.role === "user");
    put(turns, [said, wrong, speed, models], () => {
      if (models && !models.length) return empty("There is no model yet; make one with:", "./inv launch --phase sft");
      if (!said.length && !wrong) return empty("Ask the model something.");
      return [...said.map((one) => h("div", { class: `turn ${one.role}` }, h("div", { class: "who" }, one.role === "user" ? "you" : one.model ?? "model"), h("div", { class: "text" }, one.content || "…"))), speed && h("p", { class: "soft small" }, speed), wrong && h("p", { class: "card error", role: "alert" }, wrong)];
    });
  };

  async function answer() {
    const turn = { role: "assistant", content: "", model: model() };
    const messages = [...(system.value ? [{ role: "system", content: system.value }] : []), ...said.map(({ role, content }) => ({ role, content }))];
    said.push(turn);
    running = new AbortController();
    wrong = "";
    speed = "waiting for the model …";
    draw();
    let pieces = 0, first = 0;
    try {
      const body = { model: model(), messages, temperature: Number(heat.value), max_tokens: Number(most.value) };
      const reply = await fetch("/api/chat", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal: running.signal });
      if (!reply.ok) throw new Error((await reply.json()).error);
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (!line.startsWith("data:") || line.includes("[DONE]")) continue;
          const event = JSON.parse(line.slice(5));
          if (event.error) throw new Error(event.error.message ?? String(event.error));
          const text = event.choices?.[0]?.delta?.content;
          if (!text) continue;
          first ||= performance.now();
          pieces += 1;
          turn.content += text;
          const spent = (performance.now() - first) / 1000;
          speed = spent > 0.2 ? `${(pieces / spent).toFixed(1)} pieces per second` : "";
        }
        draw();
        form.scrollIntoView({ block: "end" });
      }
      const took = (performance.now() - first) / 1000;
      speed = pieces ? `${pieces} pieces${took > 0.2 ? `, ${(pieces / took).toFixed(1)} pieces per second` : ""}` : "it said nothing";
    } catch (error) {
      if (error.name === "AbortError") speed = "stopped";
      else { wrong = error.message; speed = ""; }
      if (!turn.content) said.pop();
    }
    running = null;
    draw();
  }

  function speak() {
    const text = words.value.trim();
    if (!text || running || !model()) return;
    words.value = "";
    said.push({ role: "user", content: text });
    answer();
  }

  function regenerate() {
    while (said.length && said.at(-1).role !== "user") said.pop();
    if (said.length) answer();
  }

  const live = new Live("models", {}, (parts) => {
    models = parts.models ?? null;
    if (parts.error) wrong = parts.error;
    const shown = model(), service = shown.startsWith("service ") ? shown.slice(8) : "";
    command(service ? `inv chat --endpoint ${service}` : shown ? `inv chat ${shown}` : "inv chat");
    put(tools, [models, shown], () => h("label", {}, "model", h("select", { "aria-label": "Model", onchange: (event) => go("chat", { ...route()[1], model: event.target.value }, true) }, (models ?? []).map((one) => h("option", { value: one, selected: one === shown }, one)))));
    draw();
  });
  draw();
  return { close: () => { running?.abort(); live.close(); } };
}

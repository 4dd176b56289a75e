"""View the page of `inv ui` in a real Chromium; run in the environment `browser`.

    python browse.py LINK FOLDER CHROMIUM < VISITS

A visit is {"name", "path", "wait": a text, "dark", "narrow", "say": a message for the chat, "fill": values of fields by
their labels, "press": a button that asks, "answer": the button that answers}. Prints JSON: for each visit the text and
buttons, the question, the sent actions, serious findings of axe, the excess width, table cells outside a narrow window,
the errors of the browser, the requested hosts. Pictures go to FOLDER.
"""

import json
import sys
from importlib import resources
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 360, "height": 800}
WAIT_MS = 90_000
# Cells of the tables of objects (pods, offers, ...) outside the window.
CUT_CELLS = """[...document.querySelectorAll('.stack td')].filter(one => one.getBoundingClientRect().right > innerWidth)
    .map(one => one.dataset.title + ' ' + one.innerText)"""
HELD_MS = 2500  # hold a button down for longer than the interval between updates


def main() -> None:
    link, folder, chromium = sys.argv[1:]
    base = link.partition("#")[0]
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport=WIDE).new_page()
        errors, asked, acts = list[str](), set[str](), list[str]()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.split("/")[2] if "//" in request.url else "here"))
        page.on(
            "request",
            lambda request: acts.append(request.post_data or "") if request.url.endswith("/api/acts") else None,
        )
        page.goto(link)
        page.get_by_role("navigation").get_by_role("link", name="Runs").wait_for(timeout=WAIT_MS)
        found = {}
        for one in json.load(sys.stdin):
            errors.clear()
            acts.clear()
            found[one["name"]] = {
                **visit(page, base, one, Path(folder), axe, errors),
                "acts": list(map(json.loads, acts)),
            }
        cookies = page.context.cookies()
        browser.close()
    print(json.dumps({"visits": found, "asked": sorted(asked), "cookies": cookies}))


def visit(page: Page, base: str, one: dict, folder: Path, axe: str, errors: list[str]) -> dict:
    """Return the content of a path."""
    page.set_viewport_size(NARROW if one.get("narrow") else WIDE)
    page.evaluate("word => { localStorage.theme = word; }", "dark" if one.get("dark") else "light")
    page.goto(f"{base}#/{one['path']}")
    page.reload()
    if one.get("say"):
        page.get_by_label("Message").fill(one["say"])
        page.wait_for_function("!document.querySelector('form.ask button[type=submit]').disabled", timeout=WAIT_MS)
        page.keyboard.press("Enter")
    question = press(page, one) if one.get("press") else ""
    page.get_by_text(one["wait"]).first.wait_for(timeout=WAIT_MS)
    page.wait_for_timeout(400)
    page.screenshot(path=folder / f"{one['name']}.png")
    page.evaluate(axe)
    violations = page.evaluate("axe.run(document)")["violations"]
    bad = [one for one in violations if one["impact"] in ("serious", "critical")]
    return {
        "text": page.inner_text("main"),
        "question": question,
        "buttons": page.get_by_role("button").all_inner_texts(),
        "command": page.inner_text("#command"),
        "charts": page.locator(".chart canvas").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))"),
        "serious": [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in bad],
        "cut_cells": page.evaluate(CUT_CELLS) if one.get("narrow") else [],
        "too_wide": page.evaluate("document.documentElement.scrollWidth - innerWidth"),
        "errors": list(errors),
    }


def press(page: Page, one: dict) -> str:
    """Press a button and answer the question; return the question."""
    for label, value in one.get("fill", {}).items():
        page.get_by_label(label).fill(value, timeout=WAIT_MS)
    page.get_by_role("button", name=one["press"], exact=True).click(delay=HELD_MS, timeout=WAIT_MS)
    dialog = page.get_by_role("dialog")
    question = dialog.inner_text()
    dialog.get_by_role("button", name=one["answer"], exact=True).click()
    dialog.wait_for(state="detached")
    return question


if __name__ == "__main__":
    main()

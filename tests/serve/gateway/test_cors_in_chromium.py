"""A page in a real Chromium asks a gateway: an allowed origin reads answers and streams, other origins read none."""

import asyncio
import contextlib
import http.server
import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from scripts.project import debian
from serve.gateway import keys
from serve.gateway.keys import Keys
from tests.serve.scripted_engine import CHAT, chat, gateway

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
]
WAIT_S = 300.0
PAGE = """<!doctype html><script>
async function read(headers, more) {
  const body = JSON.stringify({...BODY, ...more});
  headers = {"Content-Type": "application/json", ...headers};
  try {
    const reply = await fetch(ADDRESS, {method: "POST", headers, body});
    const found = {status: reply.status, id: reply.headers.get("X-Request-Id"), pieces: 0, text: ""};
    const reader = reply.body.getReader(), words = new TextDecoder();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      found.pieces += 1;
      found.text += words.decode(part.value, {stream: true});
    }
    return found;
  } catch (error) { return {error: error.name}; }
}
(async () => {
  const key = {"Authorization": "Bearer KEY", "X-Stainless-OS": "Linux"};
  const found = [await read(key, {}), await read(key, {stream: true}), await read({}, {}), await read(key, {n: 0})];
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


@contextlib.contextmanager
def page_server():
    """Serve a page on loopback; yield the server, whose handler has the page, and a queue of what the page reports."""
    reports: queue.Queue = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        page = ""

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(self.page.encode())

        def do_POST(self):
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, reports
    finally:
        server.shutdown()
        server.server_close()


def visit(url: str, folder: Path, reports: queue.Queue) -> list[dict]:
    """Return what the page at a URL reports, in a browser with a new profile."""
    chromium = debian.find("chromium")
    assert chromium, "the page is looked at in a real browser; on Debian: apt-get install chromium"
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}"]
    with open(folder.with_suffix(".log"), "wb") as log:
        browser = subprocess.Popen([chromium, *words, url], stdout=log, stderr=log, start_new_session=True)
    try:
        return reports.get(timeout=WAIT_S)
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()


def test_page_of_an_allowed_origin_alone_reads_answers_and_streams(pair, tmp_path):
    key, line = keys.make("web")
    known = Keys(dict([line.split()]))
    pair[0].script(token_s=0.5)

    async def main():
        with page_server() as (server, reports):
            port = server.server_address[1]
            async with gateway(pair[0], keys=known, allow_origins=(f"http://127.0.0.1:{port}",)) as front:
                texts = {"BODY": json.dumps(chat(max_tokens=4)), "ADDRESS": json.dumps(front.url + CHAT), "KEY": key}
                page = PAGE
                for name, text in texts.items():
                    page = page.replace(name, text)
                server.RequestHandlerClass.page = page
                for host in ("127.0.0.1", "localhost"):
                    url = f"http://{host}:{port}/"
                    found.append(await asyncio.to_thread(visit, url, tmp_path / host, reports))

    found: list[list[dict]] = []
    asyncio.run(main())
    allowed, denied = found
    whole, stream, keyless, refused = allowed
    assert (whole["status"], stream["status"], keyless["status"], refused["status"]) == (200, 200, 401, 400)
    assert whole["id"] and json.loads(whole["text"])["choices"][0]["message"]["content"]
    assert stream["pieces"] > 1 and stream["text"].count("data: ") > 4 and "[DONE]" in stream["text"]
    assert denied == [{"error": "TypeError"}] * 4

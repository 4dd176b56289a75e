"""A service file with its own `run`: the program is the engine of the replicas, behind the gateway."""

import http.client
import json
import os
import urllib.parse

import pytest

from flows.pods import held_pods
from infra.ledger.journal import Journal
from infra.rehearsal import attach
from tests.world import World

pytestmark = [pytest.mark.process, pytest.mark.nightly]

PROGRAM = """
import http.server, json, os, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        said = {"method": self.command, "path": self.path, "body": self.rfile.read(size).decode(), **SEEN}
        body = json.dumps(said).encode()
        self.send_response(int(self.path.rpartition("code=")[2] or 200) if "code=" in self.path else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")
    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer
    def log_message(self, *words): pass

SEEN = {"word": os.environ["WORD"], "secret": len(os.environ["LAB_TOKEN"]), "made": open("made").read().strip()}
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""
SERVICE = """
name: pages
workdir: {folder}
envs: {{WORD: hello, WHICH: alive, LAB_TOKEN: }}
service:
  readiness_probe: /$WHICH
  replicas: 1
file_mounts: {{~/words/a.txt: {folder}/../a.txt}}
resources: {{ports: {port}}}
setup: sleep 1; echo "$WORD setup $(cat ~/words/a.txt)" > made
run: exec python3 program.py {port}
"""

# Podman with a single container, whose processes are processes of this machine.
PODMAN = """#!/bin/sh
echo "$@" >> {folder}/words
case "$1 $2" in
  "container inspect") test -e {folder}/first ;;
  "image inspect") exit 1 ;;
  "create "*) for last; do :; done; echo "$last" > {folder}/first ;;
  "start "*) echo $$ > {folder}/pid; exec bash "$(cat {folder}/first)" ;;
  "kill "*) kill -"$3" "$(cat {folder}/pid)" ;;
esac
"""


@pytest.fixture
def world(tmp_path, unused_port):
    one = World(tmp_path / "world", {"LAB_TOKEN": "shh-" + "1" * 16})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text(PROGRAM)
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "pages.yaml").write_text(SERVICE.format(folder=tmp_path / "code", port=unused_port))
    yield one
    one.run("serve.down", "pages")


@pytest.fixture
def unused_port():
    from infra.agent.peer_addresses import free_ports

    return free_ports(1)[0]


def test_every_path_of_a_program_is_served_behind_the_gateway(world, tmp_path):
    file = str(tmp_path / "pages.yaml")
    world.inv("serve.up", file, "--provider", "local", "--yes")
    seen = world.json("serve.status", "pages")
    assert (seen["state"], seen["engine"], seen["model"]) == ("READY", "run", "")
    address = urllib.parse.urlsplit(seen["endpoint"]).netloc

    def ask(method, path, body=None):
        line = http.client.HTTPConnection(address, timeout=30)
        line.request(method, path, body)
        answer = line.getresponse()
        return answer.status, answer.read()

    said = {"word": "hello", "secret": 20, "made": "hello setup one"}
    assert ask("GET", "/any/page?a=b%20c") == (
        200,
        json.dumps({"method": "GET", "path": "/any/page?a=b%20c", "body": "", **said}).encode(),
    )
    assert json.loads(ask("POST", "/generate", b"not json")[1])["body"] == "not json"
    assert json.loads(ask("PUT", "/v1/chat/completions", b"x")[1])["method"] == "PUT"
    assert ask("HEAD", "/page") == (200, b"")
    assert [ask("GET", f"/page?code={code}")[0] for code in (404, 302, 500)] == [404, 302, 500]
    assert "shh-1" not in str(seen)
    again = world.run("serve.up", file, "--provider", "local", "--yes")
    assert again.returncode == 0 and "nothing to change" in again.stderr
    scaled = world.run("serve.scale", "pages", "--min-replicas", "2")
    assert scaled.returncode == 2 and "on this machine one replica runs" in scaled.stderr
    (tmp_path / "a.txt").write_text("two, longer")
    done = world.run("serve.up", file, "--provider", "local", "--yes")
    assert "ends the old replica first" in done.stderr
    # The old program had the port during `setup`: the new replica was not ready before its own program answered.
    assert json.loads(ask("GET", "/")[1])["made"] == "hello setup two, longer"


def test_service_whose_setup_fails_shows_the_last_line_of_the_setup(world, tmp_path):
    file = tmp_path / "pages.yaml"
    file.write_text(file.read_text().replace("setup: sleep 1;", "setup: echo no such package >&2; exit 7;"))
    done = world.run("serve.up", str(file), "--provider", "local", "--yes")
    assert done.returncode == 1 and "step setup failed with exit code 7: no such package" in done.stderr, done.stderr


def test_file_that_cannot_run_here_is_refused_before_anything_starts(world, tmp_path):
    file = tmp_path / "pages.yaml"
    text = file.read_text()
    for changed, why in (
        (text.replace(f"{tmp_path}/code/../a.txt", "s3://shelf/a"), "fetch s3://shelf/a in `setup` instead"),
        (text.replace("LAB_TOKEN: ", "ANY_KEY: "), "secrets: ANY_KEY has no value; set the variable in .env"),
        (text + "secrets: {OTHER_TOKEN: abc}\n", "secrets: OTHER_TOKEN: the journal stores this file"),
    ):
        file.write_text(changed)
        done = world.run("serve.up", str(file), "--provider", "local", "--yes")
        assert done.returncode == 2 and why in " ".join(done.stderr.split()), done.stderr


def with_image(file):
    file.write_text(file.read_text().replace("resources: {ports", "resources: {image_id: 'docker:lab/pages:1', ports"))
    return str(file)


def test_program_of_an_image_is_served_from_a_container(world, tmp_path):
    (folder := tmp_path / "bin").mkdir()
    (folder / "podman").write_text(PODMAN.format(folder=folder))
    (folder / "podman").chmod(0o755)
    world.extra["PATH"] = f"{folder}:{os.environ['PATH']}"
    done = world.run("serve.up", with_image(tmp_path / "pages.yaml"), "--provider", "local", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Podman on the machine runs `setup` and `run` in a container of lab/pages:1" in " ".join(done.stderr.split())
    address = urllib.parse.urlsplit(world.json("serve.status", "pages")["endpoint"]).netloc
    line = http.client.HTTPConnection(address, timeout=30)
    line.request("GET", "/")
    assert json.loads(line.getresponse().read())["made"] == "hello setup one"
    words = (folder / "words").read_text()
    assert "pull lab/pages:1" in words and "--network=host" in words and "shh-1" not in words
    world.inv("serve.down", "pages")
    assert (folder / "words").read_text().count("create ") == 1


def test_rehearsed_vendor_boots_the_image_of_a_program(world, tmp_path):
    world.extra.update({"RUNPOD_API_KEY": "", "LIUM_API_KEY": "", "SHADEFORM_API_KEY": ""})
    try:
        words = ("--provider", "runpod", "--rehearse", "--yes")
        done = world.run("serve.up", with_image(tmp_path / "pages.yaml"), *words)
        assert done.returncode == 0, done.stderr
        assert "a rented pod boots lab/pages:1" in " ".join(done.stderr.split())
        market = attach.find(attach.worlds_folder(tmp_path / "world" / "state" / "journal.db"))
        with Journal.open(market.folder / "journal.sqlite") as journal:
            assert [held_pods.request_of(one).image for one in journal.ops()] == ["lab/pages:1"]
    finally:
        world.inv("serve.down", "--all", "--rehearse")
        world.inv("rehearse", "--stop")

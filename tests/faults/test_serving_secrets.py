"""A service with planted secrets: its output, processes and files, and the view of a second user of the machine."""

import json
import os
import random
import re
import string
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.services import Installation
from tests.faults.test_secrets import KEYS, command_lines, encodings, files
from tests.programs import source
from tests.world import World, until

pytestmark = pytest.mark.nightly

NOBODY = 65534
ASK = source("ask_without_key")


def canary() -> str:
    return "".join(random.choices(string.ascii_letters, k=34))


@pytest.fixture
def place(tmp_path):
    tokens = {name: prefix + canary() for name, prefix in KEYS.items()}
    place = Installation(World(tmp_path, tokens), tmp_path)
    yield place
    place.world.inv("serve.down", "--all")


def ask(url: str, key: str, prompt: str) -> int:
    said = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": 3}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(said).encode(), headers)) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_service_leaks_no_secret_and_refuses_other_users_at_its_ports(place):
    prompt, wrong = canary(), canary()
    with command_lines() as lines:
        url = place.up("demo", place.model("one"), "--replicas", "1")["endpoint"] + "/v1/chat/completions"
        key = place.world.json("serve.key", "demo", "--for", "ann")["key"]
        until(lambda: ask(url, wrong, prompt) == 401, "the key is read")  # needs no secret before
        assert ask(url, key, prompt) == 200
        assert [ask(url, one, prompt) for one in (wrong, "", f"{key}x")] == [401] * 3
        (engine,) = place.engines("demo").values()
        words = Path(f"/proc/{engine}/cmdline").read_bytes().decode().split("\0")
        environ = dict(re.findall(r"([A-Z_]+)=([^\0]*)", Path(f"/proc/{engine}/environ").read_text()))
        port = words[words.index("--port") + 1]
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        theirs = subprocess.run(
            ["python3", "-c", ASK, port],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            **other,
        )
        assert theirs.stdout.split() == ["401"] * 3, theirs
        told = [
            place.world.inv(*line.split())
            for line in (
                "status",
                "serve.status demo --all",
                "serve.logs demo",
                "serve.logs demo --controller",
                "config",
            )
        ]
    secret = {
        **{name: place.world.extra[name] for name in KEYS},
        "engine": environ["VLLM_API_KEY"],
        "client": key,
        "prompt": prompt,
        "wrong": wrong,
    }
    assert not {name for name in ("RUNPOD_API_KEY", "LIUM_API_KEY") if secret[name] in str(environ)}
    open_to = {path: path.read_bytes() for path in files(place.folder) if path.stat().st_mode & 0o077}
    assert len(open_to) > 20 and b"serve.fake" in lines
    seen = {
        (str(where), name)
        for where, content in {**open_to, "argv": bytes(lines), "said": "".join(told).encode()}.items()
        for name, value in secret.items()
        if any(form in content for form in encodings(value))
    }
    assert seen == set()
    held = {
        path.name
        for path in files(place.folder)
        for name in (*KEYS, "prompt", "wrong", "client")
        if secret[name].encode() in path.read_bytes()
    }
    assert held <= {"secrets.json"}

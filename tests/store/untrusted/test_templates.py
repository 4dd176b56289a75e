"""Chat templates of untrusted models: hostile templates are refused, within limits of time and memory."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from store.untrusted import limited, templates
from store.untrusted.child import ChildLimits
from store.untrusted.templates import Template
from store.untrusted_input import UnusableDocument

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if asks %}<|assistant|>{% endif %}"
# A template that is harmless in a test with a short conversation.
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LATE = "{% if messages|length > 4 %}" + LOOPS + "{% endif %}ok"
HOSTILE = {
    LOOPS: "of CPU time|not done in",
    "{{ 'a'|center(2000000000) }}": "memory",
    "{{ 'a' * 3000000000 }}": "memory",
    "{{ '%2000000000d'|format(1) }}": "memory",
    "{{ messages|batch(1000000000, 'x')|list }}": "memory",
    "{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}": "memory",
    "{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}": "more than 16 MiB|memory",
    "{% if 1 %}" * 300 + "{% endif %}" * 300: "nested too deeply",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}": "nested too deeply",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested too deeply",
    "{% for a in messages %}" * 25 + "{% endfor %}" * 25: "fails|nested|refuses",
    "{% if %}": "cannot be read",
    "{{ raise_exception('roles must alternate') }}": "refuses this conversation: roles must alternate",
    "{{ ''.__class__.__mro__ }}": "refuses this conversation",
    "{{ 1 // 0 }}": "refuses this conversation",
}


def talk(count: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": f"{number}"} for number in range(count)]


def peak_bytes(template: Template) -> int:
    """Return the peak memory of the child so far."""
    process = template._child._process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize(("source", "why"), HOSTILE.items(), ids=[one[:40] for one in HOSTILE])
def test_a_hostile_template_is_refused_with_a_message(source, why):
    with pytest.raises(UnusableDocument, match=why):
        Template(source).render({"messages": talk(2)})


def test_the_limits_hold_per_conversation_and_the_next_conversation_is_rendered():
    template = Template(LATE)
    assert template.render({"messages": talk(2)}) == "ok"
    with pytest.raises(UnusableDocument, match="of CPU time|not done in"):
        template.render({"messages": talk(5)})
    assert template.render({"messages": talk(3)}) == "ok"


MEASURED = """
import json, resource, sys
from store.untrusted import limited
from store.untrusted.render import Renderer
limited.limit(256 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
one = Renderer()
one.answer(open(0).read().encode())
said = limited.answered(one.answer, b'{"variables": {"messages": [{}]}, "date": "", "beginnings": []}')
print(json.dumps([before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, said.decode()]))
"""


@pytest.mark.parametrize("source", [one for one, why in HOSTILE.items() if why == "memory"])
def test_the_memory_of_a_child_is_bounded(source):
    run = subprocess.run([sys.executable, "-c", MEASURED], input=source, capture_output=True, text=True, cwd=ROOT)
    before, after, said = json.loads(run.stdout)
    assert said.startswith(limited.LAST.decode()) and (after - before) << 10 <= 256 << 20


def test_a_plain_template_uses_little_memory_and_sees_no_secret(monkeypatch):
    monkeypatch.setenv("RUNPOD_API_KEY", "x" * 20)
    template = Template(PLAIN)
    assert template.render({"messages": talk(2), "asks": True}) == "<|user|>0<|assistant|>1<|assistant|>"
    assert peak_bytes(template) < 128 << 20
    environ = Path(f"/proc/{template._child._process.pid}/environ").read_bytes()
    assert b"RUNPOD" not in environ


def test_several_prefixes_are_rendered_at_once():
    template = Template(PLAIN.replace("asks", "add_generation_prompt"))
    texts = template.render_beginnings({"messages": talk(3)}, [(3, False), (1, True), (0, False)])
    assert texts == ["<|user|>0<|assistant|>1<|user|>2", "<|user|>0<|assistant|>", ""]


def test_a_killed_child_is_reported_and_replaced():
    template = Template(PLAIN)
    template.render({"messages": talk(1)})
    os.kill(template._child._process.pid, signal.SIGKILL)
    template._child._process.wait()
    with pytest.raises(UnusableDocument, match="SIGKILL"):
        template.render({"messages": talk(2)})
    assert template.render({"messages": talk(2)})


def test_threads_and_forked_copies_render_too():
    template = Template(PLAIN)
    wanted = {count: template.render({"messages": talk(count)}) for count in range(40)}
    found = {}

    def render(part: int) -> None:
        for count in range(part, 40, 4):
            found[count] = template.render({"messages": talk(count)})

    threads = [threading.Thread(target=render, args=(part,)) for part in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == wanted


def test_a_forked_copy_has_a_separate_child():
    template = Template(PLAIN)
    texts = [template.render({"messages": talk(count)}) for count in range(6)]
    ours, theirs = multiprocessing.Pipe()
    copy = multiprocessing.get_context("fork").Process(target=_render_all, args=(template, theirs))
    copy.start()
    assert [template.render({"messages": talk(count)}) for count in range(6)] == texts
    assert ours.recv() == texts
    copy.join()
    assert template.render({"messages": talk(7)})  # the copy's end did not affect our child


def _render_all(template, pipe) -> None:
    pipe.send([template.render({"messages": talk(count)}) for count in range(6)])


ORPHAN = """
import sys
from store.untrusted.templates import Template
one = Template(sys.argv[1])
one.render({"messages": []})
print(one._child._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_exits_with_its_parent():
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, PLAIN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 60
    while Path(f"/proc/{child}/stat").exists() and " Z " not in _stat(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def _stat(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text()
    return " Z "


def test_a_model_folder_is_checked_before_an_engine_reads_it(tmp_path):
    templates.check(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    templates.check(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('give a system message') }}")
    templates.check(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ 'a'|center(2000000000) }}")
    with pytest.raises(UnusableDocument, match=f"{tmp_path}: the model's chat template takes more memory"):
        templates.check(tmp_path)


def test_the_time_limit_counts_computing_time():
    with pytest.raises(UnusableDocument, match="more than 0.05 s of CPU time"):
        limits = ChildLimits(cpu_s=0.05, answer_s=60)
        Template("{% for a in range(99999) %}{% for b in range(99) %}{% endfor %}{% endfor %}", limits).render({})

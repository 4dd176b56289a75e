"""Judges that run foreign code: a user's function, and a model's code in a sandbox."""

import sys

import pytest

from data.problems.problem import Problem
from store import extensions
from tests.world import ROOT
from trainer.errors import Refused
from trainer.rewards import jail
from trainer.rewards.assertions import parse_assertion
from trainer.rewards.code import Mbpp
from trainer.rewards.extension_judge import ExtensionJudge
from trainer.rewards.reward import JudgedAnswer
from trainer.rewards.worker import RewardWorker, WorkerGone

OWN = """
import os
def reward(question, answer, completion):
    print("this is no answer")
    if completion == "raise": raise ValueError("no such word")
    if completion == "loop":
        while True: pass
    if completion == "nan": return float("nan")
    if completion == "text": return "1"
    if completion == "end": os._exit(0)
    return {"right": completion == answer, "short": 0.5}
"""
ADD = (
    "assert add(1, 2) == 3",
    "assert set(add((1,), (2,))) == set([1, 2])",
    "assert isclose(add(.1, .2), .3, rel_tol=1e-3)",
)
THREAD = """
import threading
def f():
    said = []
    one = threading.Thread(target=said.append, args=(1,))
    one.start()
    one.join()
    return said
"""
HOSTILE = {
    "a file": "def f(): return open('/etc/passwd').read()",
    "its starter's keys": "import os\ndef f(): return open(f'/proc/{os.getppid()}/environ').read()",
    "a write": "def f(): return open('/tmp/written', 'w').write('x')",
    "the network": "import socket\ndef f(): return socket.create_connection(('127.0.0.1', 22))",
    "a process": "import os\ndef f(): return os.fork()",
    "a program": "import subprocess\ndef f(): return subprocess.run(['ls'])",
    "a signal": "import os\ndef f(): return os.kill(os.getppid(), 9)",
    "10 GB": "def f(): return len('x' * 10**10)",
}


def answered(*texts: str) -> list[JudgedAnswer]:
    return [JudgedAnswer(Problem(question="q", answer="1"), text, True) for text in texts]


@pytest.mark.process
def test_user_function_that_fails_affects_only_that_answer():
    judge = ExtensionJudge(OWN, limit_s=2.0)
    try:
        found = judge(answered("1", "raise", "loop", "2", "end", "1"))
        assert [round(one.total, 1) for one in found] == [1.5, 0.0, 0.0, 0.5, 0.0, 1.5]
        assert [one.is_right for one in found] == [True, False, False, False, False, True]
        for text in ("nan", "text"):
            with pytest.raises(Refused, match=r"reward.py:3: returned .* expected a finite number"):
                judge(answered(text))
        with pytest.raises(Refused, match="failed for all 2 answers: reward.py:5: ValueError: no such word"):
            judge(answered("raise", "raise"))
    finally:
        judge.close()
    with pytest.raises(Refused, match="has no function reward"):
        ExtensionJudge("score = 1")(answered("1"))


def test_assertion_is_split_into_a_call_and_its_expected_value():
    words = ("assert f(1) == [2]", "assert not f(1)", "assert f(1)", "assert f(1) == g(2)", "assert f(1) > 2")
    assert [(one.call, one.expected, one.how) for one in map(parse_assertion, words)] == [
        ("f(1)", [2], "equal"),
        ("f(1)", None, "false"),
        ("f(1)", None, "true"),
        ("assert f(1) == g(2)", None, "whole"),
        ("assert f(1) > 2", None, "whole"),
    ]
    values = (1, 1.0, True, "1", None, object(), [1])
    found = [
        parse_assertion(f"assert f(1) {how}").is_satisfied_by(value) for how in ("== 1", "is True") for value in values
    ]
    assert found == [*[True] * 3, *[False] * 4, False, False, True, *[False] * 4]


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the jail is Linux's")
def test_sandboxed_code_reaches_no_resource():
    if not jail.kind():
        with pytest.raises(Refused, match="--unsafe-rewards"):
            Mbpp(is_unsafe=False)
        return
    judge = Mbpp(is_unsafe=False)
    setup = "from math import isclose"
    assert judge.pass_rate("def add(a, b): return a + b", setup, ADD) == 1.0
    for what, code in HOSTILE.items():
        (found,) = jail.run(code, ["f()"], [], jail.kind())
        assert found.value is None and found.error, what
    (found,) = jail.run("def f():\n    while True: pass", ["f()"], [], jail.kind())
    assert found.value is None
    (thread,) = jail.run(THREAD, ["f()"], [], jail.kind())
    assert thread.value == "[1]"
    judge.close()


@pytest.mark.process
def test_example_reward_judges_and_a_packaged_reward_brings_its_modules(tmp_path, monkeypatch):
    judge = ExtensionJudge((ROOT / "examples" / "reward.py").read_text(), limit_s=10.0)
    assert [one.parts for one in judge(answered("it is 1", "no"))] == [
        {"right": 1.0, "short": pytest.approx(0.1)},
        {"right": 0.0, "short": pytest.approx(0.1)},
    ]
    judge.close()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "judges_of_a_lab").mkdir()
    (tmp_path / "judges_of_a_lab" / "weights.py").write_text("WEIGHT = 3\n")
    (tmp_path / "judges_of_a_lab" / "short.py").write_text(
        "from .weights import WEIGHT\ndef reward(question, answer, completion):\n    return WEIGHT\n"
    )
    packed = extensions.read("judges_of_a_lab.short").text
    for path in tmp_path.rglob("*.py"):
        path.unlink()
    judge = ExtensionJudge(packed, limit_s=10.0)
    assert [one.parts for one in judge(answered("x"))] == [{"reward": 3.0}]
    judge.close()


@pytest.mark.process
@pytest.mark.timeout(60)
def test_process_that_reads_no_input_is_ended_even_with_a_question_larger_than_a_pipe():
    code = "import time; print('\"ready\"', flush=True); time.sleep(600)"
    worker = RewardWorker([sys.executable, "-c", code], 0.5)
    with pytest.raises(WorkerGone, match="no answer in 0.5 s"):
        worker.ask("x" * 1_000_000)
    assert worker.process is None

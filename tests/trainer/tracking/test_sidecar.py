"""A tracker receives every step once, despite deaths in between."""

import json
import socket
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from store.extensions import ExtensionError
from tests.world import ROOT, until
from trainer.reporting.jsonl_log import read
from trainer.tracking import __main__ as tracking
from trainer.tracking.__main__ import NO_ANSWER, Sidecar, opened
from trainer.tracking.tracker import TrackedRun, Tracker, flat

OWN = """
import json
class Mine:
    link = "heard.jsonl"
    def __init__(self, folder):
        self.file = open(folder / "heard.jsonl", "a", buffering=1)
    def tell(self, phase, figures):
        self.file.write(json.dumps([phase, figures["step"], figures["loss"]]) + "\\n")
    def samples(self, phase, said):
        self.file.write(json.dumps([phase, "said", said[0]["step"], len(said)]) + "\\n")
def tracker(run, folder, configs):
    return Mine(folder)
"""


def tell(folder: Path, steps: Iterable[int], scale: float = 1.0) -> None:
    """Write metrics like a training; from the first step on into a new file, like a resumed training."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = list(steps)
    path = folder / "metrics.jsonl"
    kept = [json.dumps(one) for one in read(path) if one["step"] < steps[0]]
    lines = [json.dumps({"step": step, "tokens": 64 * step, "loss": scale / step, "at": 1e9 + step}) for step in steps]
    draft = folder / "draft"
    draft.write_text("".join(f"{line}\n" for line in [*kept, *lines]))
    draft.replace(path)


def sidecar(root: Path, name: str, told: Callable[[TrackedRun], Tracker]) -> Sidecar:
    run = TrackedRun("brave-otter-3", root / "work" / "tracking" / name, {"sft": {"steps": 9}})
    made = Sidecar(run, root / "work" / "runs", root / "state" / "tracking" / f"{name}.json", told)
    made.open()
    return made


def own_tracker(code: str) -> Callable[[TrackedRun], Tracker]:
    return partial(opened, {"tracker": "mine", "code": code})


def test_repeated_steps_after_a_kill_are_sent_once(tmp_path):
    figures = tmp_path / "work" / "runs" / "sft"
    tell(figures, range(1, 8))
    (figures / "samples.jsonl").write_text('{"step": 4, "prompt": "a", "text": "b"}\n' * 2)
    first = sidecar(tmp_path, "mine", own_tracker(OWN))
    assert first.send_new_records() and not first.send_new_records()
    with (figures / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "tokens": 512, "lo')  # Half a line, during the write.
    assert not first.send_new_records()
    tell(figures, range(5, 12))  # The training resumes from the checkpoint of step 4.
    first.send_new_records()
    del first  # The sidecar dies silently; a second sidecar continues.
    tell(figures, range(5, 14))
    second = sidecar(tmp_path, "mine", own_tracker(OWN))
    second.close()
    heard = [json.loads(line) for line in (tmp_path / "work/tracking/mine/heard.jsonl").read_text().splitlines()]
    assert [one[1] for one in heard if one[1] != "said"] == list(range(1, 14))
    assert [one for one in heard if one[1] == "said"] == [["sft", "said", 4, 2]]
    said = json.loads((tmp_path / "state/tracking/mine.json").read_text())
    assert (said["link"], said["figures"], said["problem"]) == ("heard.jsonl", {"sft": 13}, "")


def test_failing_tracker_is_reported_beside_its_link_and_gets_the_rest_later(tmp_path):
    tell(tmp_path / "work" / "runs" / "sft", range(1, 4))
    sidecar(tmp_path, "mine", own_tracker(OWN)).send_new_records()
    broken = sidecar(tmp_path, "mine", own_tracker(OWN.replace("figures):\n", "figures):\n        1 / 0\n")))
    tell(tmp_path / "work" / "runs" / "sft", range(4, 6))
    with pytest.raises(ExtensionError, match=r"mine.py:8: ZeroDivisionError") as raised:
        broken.send_new_records()
    broken.report(type(raised.value.__cause__).__name__)
    said = json.loads((tmp_path / "state/tracking/mine.json").read_text())
    assert (said["link"], said["figures"], said["problem"]) == ("heard.jsonl", {"sft": 3}, "ZeroDivisionError")
    sidecar(tmp_path, "mine", own_tracker(OWN)).send_new_records()
    assert len((tmp_path / "work/tracking/mine/heard.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("hidden", "is_silence"),
    [
        (ConnectionRefusedError("http://user:secret@server"), True),
        (socket.gaierror("the name is not known"), True),
        (TimeoutError("no answer"), True),
        (FileNotFoundError("a file"), False),
        (ValueError("an answer"), False),
    ],
)
def test_server_that_does_not_answer_differs_from_other_errors_of_a_library(hidden, is_silence):
    """MLflow raises an error of its own for a connection without an answer, too."""
    with pytest.raises(RuntimeError) as raised:
        try:
            raise hidden
        except Exception as error:
            raise RuntimeError(f"a request failed: {error}")  # noqa: B904
    silence = "no answer from the server (RuntimeError)"
    assert tracking.problem_of(raised.value) == (silence if is_silence else "RuntimeError")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f():\n    return absent\ndef tracker(run, folder, configs):\n    return f()\n", "mine.py:2: NameError"),
        ("import absent_module\ndef tracker(run, folder, configs): ...\n", "mine.py:1: ModuleNotFoundError"),
        ("def tracker(run, folder, configs):\n    raise SystemExit(3)\n", "mine.py:2: SystemExit: 3"),
        ("\ndef tracker(run, folder, configs):\n    return 3\n", "mine.py:2: tracker returned int; expected an object"),
    ],
)
def test_tracker_that_cannot_be_opened_names_its_line(tmp_path, text, told):
    with pytest.raises(ExtensionError, match=told):
        sidecar(tmp_path, "mine", own_tracker(text))


def test_configuration_is_sent_by_the_path_of_each_value():
    assert flat({"steps": 9, "optimizer": {"lr": 0.1, "decay": None}}) == {"steps": 9, "optimizer.lr": 0.1}


def test_example_tracker_writes_its_table(tmp_path):
    tell(tmp_path / "work" / "runs" / "sft", range(1, 4))
    code = (ROOT / "examples" / "tracker.py").read_text()
    sidecar(tmp_path, "tracker", own_tracker(code)).close()
    link = json.loads((tmp_path / "state" / "tracking" / "tracker.json").read_text())["link"]
    assert (tmp_path / link).read_text().splitlines() == ["sft,1,1.0000", "sft,2,0.5000", "sft,3,0.3333"]


class Hanging:
    """A tracker whose calls return when the server answers."""

    link, last_sent = "x", None

    def __init__(self) -> None:
        self.answers, self.behind = threading.Event(), ""

    def send_metrics(self, phase, lines):
        self.answers.wait(60)

    def close(self):
        self.answers.wait(60)

    def problem(self):
        return self.behind


def problem_in(root: Path) -> str:
    return json.loads((root / "state" / "tracking" / "mine.json").read_text())["problem"]


@pytest.mark.parametrize("call", ["send_new_records", "close"])
def test_a_server_that_hangs_after_its_first_answer_is_reported_until_it_answers(tmp_path, monkeypatch, call):
    monkeypatch.setattr(tracking, "ANSWER_S", 0.1)
    server = Hanging()
    made = sidecar(tmp_path, "mine", lambda run: server)
    assert problem_in(tmp_path) == ""
    if call == "send_new_records":
        tell(tmp_path / "work" / "runs" / "sft", range(1, 4))
    sending = threading.Thread(target=getattr(made, call))
    sending.start()
    until(lambda: problem_in(tmp_path) == NO_ANSWER, "a report")
    server.answers.set()
    sending.join(60)
    assert problem_in(tmp_path) == ""


def test_a_tracker_that_only_queues_is_asked_whether_metrics_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "CHECK_S", 0.0)
    server = Hanging()
    server.answers.set()
    made = sidecar(tmp_path, "mine", lambda run: server)
    server.behind = "the server has sft: step 1 of 3"
    made.check_tracker()
    tell(tmp_path / "work" / "runs" / "sft", range(1, 4))
    assert made.send_new_records() and problem_in(tmp_path) == server.behind  # new steps are queued, too
    server.behind = ""
    made.check_tracker()
    assert problem_in(tmp_path) == ""

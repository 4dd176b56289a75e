"""A teacher behind an address: errors of the server in words, and a real vLLM with the values of the decoder."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from data.config import ConfigError
from infra.errors import UsageError
from packs.preferences.control.teacher import of_server
from packs.preferences.records.opd_config import Teacher
from packs.preferences.trainer import served_teacher
from packs.preferences.trainer.judged import JudgedByServer
from packs.preferences.trainer.served_teacher import KEY, ServedTeacher
from serve.engine.options import Tuning
from tests.packs.preferences.test_opd import BASE, distilled
from tests.serve import real
from tests.trainer import conftest as trained
from tests.trainer.conftest import tiny
from tests.trainer.parallel.together import together
from tests.trainer.test_phases import run
from trainer import memory
from trainer.checkpoints.checkpoint import open_final
from trainer.errors import Refused, TrainerError
from trainer.model.decoder import IGNORED
from trainer.objectives.shared_rows import pack_answers
from trainer.records.rl_config import RlConfig
from trainer.rollouts.policy import Round

pytestmark = pytest.mark.process
one_thread, inputs = trained.one_thread, trained.inputs


class Letters:
    """The part of a tokenizer that a teacher needs."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + one) for one in ids)


class Server(ThreadingHTTPServer):
    """A server with scripted answers: one per request, the last again and again."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.heard: list[tuple[str, Any, str | None]] = []

    def teacher(self) -> ServedTeacher:
        source = f"http://127.0.0.1:{self.server_port}/v1"
        return ServedTeacher(Teacher(source=source, revision="", params=0, model="demo"), Letters())


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.heard.append((self.path, json.loads(body) if body else None, self.headers.get("Authorization")))
        status, said = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        text = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield one
        one.shutdown()


def answer_of(ids: list[int], words: str = "") -> dict[str, Any]:
    """Return the answer of vLLM to these ids: -1 for each id, and the text of each id."""
    each = [{str(one): {"logprob": -1.0, "rank": 1, "decoded_token": (words or Letters().decode(ids))[place]}}
            for place, one in enumerate(ids)]  # fmt: skip
    return {"choices": [{"prompt_logprobs": [None, *each[1:]]}]}


def test_request_asks_for_the_ids_with_the_key_and_returns_the_values_of_the_answer(server, monkeypatch):
    monkeypatch.setenv(KEY, "secret-key")
    server.answers = [(503, {"error": "starting"}), (200, answer_of([1, 2, 3, 4]))]
    monkeypatch.setattr(served_teacher.time, "sleep", lambda seconds: None)
    assert server.teacher().logprobs([[1, 2]], [[3, 4]]) == [[-1.0, -1.0]]
    path, body, key = server.heard[-1]
    assert path == "/v1/completions" and key == "Bearer secret-key" and len(server.heard) == 2
    assert body == {"model": "demo", "prompt": [1, 2, 3, 4], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": "key"}), "refused: HTTP 401"),
        ((200, b"<html>"), "did not answer with JSON"),
        ((200, [1]), "did not answer with a JSON object"),
        ((200, {"choices": [{"text": "a"}]}), "does not give prompt_logprobs as vLLM does"),
        ((200, {"choices": [{"prompt_logprobs": [None, None, {"9": {"logprob": -1}}]}]}), "does not give prompt_lo"),
        ((200, json.dumps(answer_of([1, 2, 3])).replace("-1.0", "NaN").encode()), "does not give prompt_logprobs"),
        ((200, json.dumps(answer_of([1, 2, 3])).replace("-1.0", "0.5").encode()), "does not give prompt_logprobs"),
        ((200, answer_of([1, 2, 3], "bcx")), "another tokenizer .*: id 3 is 'x' there and 'd' here"),
    ],
)
def test_answers_without_the_values_are_refused(server, answer, said):
    server.answers = [answer]
    with pytest.raises(Refused, match=said):
        server.teacher().logprobs([[1, 2]], [[3]])


def test_server_that_stays_away_ends_the_training_with_the_next_step(server, monkeypatch):
    server.answers = [(503, {})]
    now = iter(range(0, 100_000, 100))
    monkeypatch.setattr(served_teacher.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(served_teacher.time, "monotonic", lambda: float(next(now)))
    with pytest.raises(TrainerError, match=r"has not answered for 900 s \(HTTP 503.*Start the server") as caught:
        server.teacher().logprobs([[1, 2]], [[3]])
    assert not isinstance(caught.value, Refused) and 2 < len(server.heard) < 12


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([{"id": "other", "max_model_len": 99}], "has no model 'demo'; it serves: 'other'"),
        ([{"id": "demo", "max_model_len": 16}], "has 16 positions; the rows of this phase have 32"),
        ([{"id": "demo", "max_model_len": 32}], "one token more. Start the server with --max-model-len 33"),
    ],
)
def test_wrong_model_of_the_server_is_refused_before_the_first_step(server, models, said):
    server.answers = [(200, {"data": models})]
    with pytest.raises(Refused, match=said):
        server.teacher().check_length(32)


def test_address_needs_a_model_and_no_password():
    found = of_server("http://host:8000/v1/#user/large")
    assert found == Teacher(source="http://host:8000/v1", revision="", params=0, model="user/large")
    for wrong in ("http://host:8000/v1", "http://#demo", "http://ann:secret@host/v1#demo"):
        with pytest.raises(UsageError, match="expected http://HOST:PORT/v1#MODEL") as caught:
            of_server(wrong)
        assert "secret" not in str(caught.value)


def served(config, url: str):
    return replace(config, teacher=Teacher(source=f"{url}/v1", revision="", params=0, model="demo"))


def test_server_takes_no_memory_beside_the_student_and_only_temperature_1():
    config = served(distilled(), "http://host")
    assert config.num_frozen == 0 and memory.estimate(config).frozen < memory.estimate(distilled()).frozen
    with pytest.raises(ConfigError, match="computes probabilities at temperature 1 only"):
        replace(config, rl=replace(config.rl, temperature=0.7))


def test_two_processes_ask_for_half_of_the_answers_each():
    rounds = Round([], [[1, 2], [3]], [[5], [6, 7], [8], [9, 4]], [], [], [], [], 0.0)
    rows = [0, 1, 3]
    batch, spots = pack_answers([[1, 2], [1, 2], [3]], [[5], [6, 7], [9, 4]], 0)

    def work(ranks, tell):
        source = JudgedByServer.__new__(JudgedByServer)
        source.ranks, source.rl, asked = ranks, RlConfig(group=2, max_new=4), []

        def logprobs(prompts, answers):
            asked.extend(answers)
            return [[-float(one) for one in answer] for answer in answers]

        source.teacher = SimpleNamespace(logprobs=logprobs)
        found = source._reference_logprobs(batch, rounds, rows, spots)
        tell("asked", str(len(asked)))
        tell("found", str(found[batch["targets"] != IGNORED].tolist()))

    (alone,), two = together(1, work), together(2, work)
    assert [one["asked"] for one in (alone, *two)] == ["3", "2", "1"]
    assert alone["found"] == two[0]["found"] == two[1]["found"] and "-7.0" in alone["found"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(real.unavailable()), reason=real.unavailable())
def test_vllm_teaches_as_the_same_model_beside_the_student(world, monkeypatch):
    shape = replace(tiny().model, hidden_size=128, head_dim=32, num_attention_heads=4, num_key_value_heads=2)
    large = tiny(steps=40, dtype="float32", model=shape)
    making = replace(world.making("base", "e" * 64), name="base_checkpoints/large")
    assert run(world, monkeypatch, "base", large, making) == 0
    assert run(world, monkeypatch, "base", tiny(steps=6, dtype="float32", seed=3)) == 0
    folder = world.store / "base_checkpoints/large/hf"
    asked: list[Any] = []
    monkeypatch.setattr(
        JudgedByServer,
        "_reference_logprobs",
        lambda self, *given, usual=JudgedByServer._reference_logprobs: asked.append(usual(self, *given)) or asked[-1],
    )
    with real.engines(real.python(), world.root, (folder, Tuning(dtype="float32", max_model_len=65))) as (engine,):
        by_server = replace(world.making("opd", "d" * 64, base=BASE), name="opd_checkpoints/served")
        assert run(world, monkeypatch, "opd", served(distilled(), engine.url), by_server) == 0
    beside = replace(world.making("opd", "c" * 64, base=BASE), name="opd_checkpoints/beside")
    assert run(world, monkeypatch, "opd", distilled(), beside) == 0
    lines = {
        name: [json.loads(line) for line in (world.store / f"opd_checkpoints/{name}/metrics.jsonl").open()]
        for name in ("served", "beside")
    }
    for ours, theirs in zip(lines["served"], lines["beside"], strict=True):
        assert [ours["kl"], ours["loss"]] == pytest.approx([theirs["kl"], theirs["loss"]], rel=1e-2)
    assert lines["served"][0]["kl"] == pytest.approx(lines["beside"][0]["kl"], rel=1e-4) and len(asked) == 8
    assert open_final(world.store / "opd_checkpoints/served")

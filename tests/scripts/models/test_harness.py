"""Multiple choice by EleutherAI's harness and by Slipway's measure: equal answers. At night, in an environment."""

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from infra.agent.environments import cache_folder, environment
from scripts.models import lm_eval
from tests.trainer import conftest as trained
from tests.trainer.model.test_own_chat import qwen_like
from tests.world import ROOT
from trainer.config import EvalSpec
from trainer.evaluation.scores import scores
from trainer.model import export
from trainer.model.decoder import Decoder, initialize

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
one_thread, inputs = trained.one_thread, trained.inputs

TASK = """task: madeup
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{asked}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
metadata: {{version: 1.0}}
"""


@pytest.fixture(scope="module")
def harness() -> Path:
    return environment.ensure("lm-eval", ROOT, cache_folder.default_cache(), "", print).with_name("lm_eval")


@pytest.fixture
def served(tmp_path, inputs, request):
    """Yield a tiny model, with Slipway's tokenizer or a foreign one, and a server of the log probabilities of each
    token.
    """
    words = inputs[0] / "tokenizer" if request.param == "ours" else qwen_like(tmp_path / "words")
    model = Decoder(trained.TINY)
    initialize(model, 3)
    generator = torch.Generator().manual_seed(3)
    for one in model.parameters():
        one.data += 0.2 * torch.randn(one.shape, generator=generator)
    export.write(tmp_path / "model", model.config, model.state_dict(), words)

    class Server(BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choices = [
                {"index": at, "text": "", "logprobs": server_reply(model, one)}
                for at, one in enumerate(asked["prompt"])
            ]
            body = json.dumps({"choices": choices}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path / "model", f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def server_reply(model, ids) -> dict:
    """Return the reply of a server for a prompt with echo."""
    with torch.no_grad():
        chances = model(torch.tensor([ids]))[0].log_softmax(dim=-1)
    logprobs = [None, *(float(chances[at, one]) for at, one in enumerate(ids[1:])), -1.0]  # And the next token.
    tokens = [str(one) for one in [*ids, 0]]
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": [{token: 0.0} for token in tokens]}


@pytest.mark.parametrize("served", ["ours", "own"], indirect=True)
@pytest.mark.parametrize("as_text", [True, False], ids=["text", "talk"])
def test_harness_and_own_measure_agree_on_an_artificial_task(served, harness, tmp_path, monkeypatch, request, as_text):
    folder, url = served
    chance = random.Random(5)
    pool = ["reads lines", "opens", "the sockets of many words", "joins paths", "7", "closes what was opened"]
    rows = [
        {
            "question": f"What does {chance.choice(pool)} {n} do?",
            "choices": chance.sample(pool, 4),
            "answer": chance.randrange(4),
        }
        for n in range(40)
    ]
    file = tmp_path / "madeup.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    task = tmp_path / "madeup.yaml"
    asked = "Question: {{question}}\\nAnswer:" if as_text else "{{question}}"
    task.write_text(TASK.format(file=file, asked=asked))
    monkeypatch.setenv("LM_EVAL", str(harness))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    theirs = lm_eval.measure(folder, "madeup", lm_eval=str(task), endpoint=url, served_name="", as_text=as_text)
    ours = scores(EvalSpec(model=str(folder), tasks=(str(file),), as_text=as_text))["measures"]
    # The harness counts white space at the end of a prompt as part of the answer, and some templates end in a newline.
    # The effect is equal for all choices, but not per character.
    is_as_norm = as_text or "ours" in request.node.callspec.id
    pairs = (("task madeup", "lm-eval madeup"), ("task madeup acc", "lm-eval madeup acc"))[0 if is_as_norm else 1 :]
    for mine, its in pairs:
        assert ours[mine]["value"] == pytest.approx(theirs[its]["value"]), mine
    assert ours["task madeup"]["value"] != ours["task madeup acc"]["value"]  # Otherwise the test would prove little.

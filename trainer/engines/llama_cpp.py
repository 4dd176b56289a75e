"""llama.cpp as an inference engine: a GGUF file served in this process by the library `xllamacpp`.

`xllamacpp` runs llama.cpp's HTTP server on a free loopback port with a secret API key. Requests and replies use token
ids, so Slipway's tokenizer alone converts text. Runs in the environment `llama-cpp`, without torch. Source: llama.cpp's
tools/server/README.md (/completion).
"""

import json
import os
import secrets
import sys
import time
import urllib.request
from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import Any

from data import processors
from data.tokens import tokenizer as tokenizers
from trainer.engines import gguf_file
from trainer.serving.completion_request import CompletionRequest
from trainer.serving.text_engine import TextEngine

QUIET = -1  # log level without output
REPLY_S = 600.0
AS_IT_IS = {"top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "return_tokens": True, "cache_prompt": True}
ENDED = "eos"  # llama.cpp's stop_type for an answer ended by the model


class LlamaCpp:
    """An in-process server for `parallel` concurrent conversations of at most `positions` tokens each."""

    align = 1
    where = "llama.cpp"

    def __init__(self, gguf: Path, positions: int, parallel: int = 1, **sampling: Any) -> None:
        """Load a GGUF file. `sampling`: default temperature, top_k and seed for requests without their own."""
        import xllamacpp

        self.key = secrets.token_hex(16)
        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        params.n_ctx, params.n_parallel, params.kv_unified = positions * parallel, parallel, False
        params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS") or processors.count_usable())
        params.verbosity, params.warmup, params.api_keys = QUIET, False, [self.key]
        self.positions, self.sampling = positions, sampling
        self.server = xllamacpp.Server(params)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a POST request and return the open response."""
        words = json.dumps(body).encode()
        head = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.server.listening_address + path, words, head)
        return urllib.request.urlopen(request, timeout=REPLY_S)

    def tokens(
        self, prompt: Sequence[int], stop: Collection[int], max_new: int, **sampling: Any
    ) -> Generator[int, None, None]:
        """Yield the continuation id by id, with an id of `stop` at the end of an answer ended by the model.

        Raises RuntimeError for an error from llama.cpp.
        """
        body = {"prompt": list(prompt), "n_predict": max_new, "stream": True, **AS_IT_IS, **self.sampling, **sampling}
        last = None
        with self.post("/completion", body) as reply:
            for line in reply:
                if not line.startswith(b"data: "):
                    continue
                said = json.loads(line[6:])
                if "error" in said:
                    raise RuntimeError(f"llama.cpp: {said['error']}")
                for last in said.get("tokens", ()):
                    yield last
                if said.get("stop_type") == ENDED and last not in stop:
                    yield from sorted(stop)[:1]


class LlamaEngine(TextEngine):
    """A `TextEngine` for `trainer.serving.server`, serving a Hugging Face folder with llama.cpp."""

    def __init__(self, folder: Path, gguf: Path, kind: str, max_model_len: int, max_seqs: int) -> None:
        """Load the model of a folder, converting to GGUF if needed. Raises Refused, DataError."""
        config = gguf_file.read_config(folder)
        gguf_file.ensure(folder, gguf, kind)
        began = time.monotonic()
        self.room = min(config.max_position_embeddings, max_model_len or config.max_position_embeddings)
        self.tokenizer = tokenizers.load(folder)
        self.inner = LlamaCpp(gguf, self.room, max_seqs)
        print(f"Loading weights took {time.monotonic() - began:.2f} seconds", file=sys.stderr, flush=True)

    def generate_ids(self, ask: CompletionRequest, stop: Collection[int]) -> Generator[list[int], None, None]:
        """Yield the new ids one by one. The server batches all concurrent requests, in any order of reading."""
        seed = ask.seed if ask.seed is not None else int.from_bytes(os.urandom(4), "big")
        how = {"temperature": ask.temperature, "top_k": max(0, ask.top_k), "top_p": ask.top_p}
        tokens = self.inner.tokens(ask.ids, stop, ask.max_tokens, **how, seed=seed & 0xFFFFFFFF)
        try:
            for one in tokens:
                yield [one]
        finally:
            tokens.close()

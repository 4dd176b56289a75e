"""llama.cpp as an engine: a GGUF file, computed by the library `xllamacpp` in a process of ours.

In: ids. Out: ids, as they are made. The library is llama.cpp's own server with a door to Python: it listens on
loopback, on a port of its choice, and takes and gives ids, so that our tokenizer alone says what words are.
Runs in the environment `llama-cpp`, where there is no torch. Source: llama.cpp's tools/server/README.md (/completion).
"""

import json
import os
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

QUIET = -1  # of its log: nothing
REPLY_S = 600.0


class LlamaCpp:
    """A server in this process, with one conversation at a time."""

    align = 1
    where = "llama.cpp"

    def __init__(self, gguf: Path, positions: int, temperature: float, top_k: int, seed: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(gguf)
        params.n_ctx = self.positions = positions
        params.n_parallel = 1
        params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
        params.verbosity, params.warmup = QUIET, False
        self.sampling = {"temperature": temperature, "top_k": top_k, "seed": seed}
        self.server = xllamacpp.Server(params)

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """Return the open reply to a request."""
        words = json.dumps(body).encode()
        request = urllib.request.Request(
            self.server.listening_address + path, words, {"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=REPLY_S)

    def tokens(self, prompt: Sequence[int], stop: Collection[int], max_new: int) -> Iterator[int]:
        plain = {"top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "return_tokens": True, "cache_prompt": True}
        body = {"prompt": list(prompt), "n_predict": max_new, "stream": True, **plain, **self.sampling}
        with self.ask("/completion", body) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    yield from json.loads(line[6:]).get("tokens", ())

"""Print the predictions of llama.cpp after some ids: python llama_logits.py FILE.gguf POSITIONS ID ID ...

Runs in the environment `llama-cpp`. Prints one line of JSON: the log probabilities of all ids, in order.
"""

import json
import sys
from pathlib import Path

from trainer.engines.llama_cpp import LlamaCpp

path, positions, *ids = sys.argv[1:]
engine = LlamaCpp(Path(path), int(positions))
asked = {"prompt": [int(one) for one in ids], "n_predict": 1, "n_probs": 1 << 20, "temperature": 0.0}
with engine.post("/completion", asked) as reply:
    (first,) = json.load(reply)["completion_probabilities"]
found = {one["id"]: one["logprob"] for one in first["top_logprobs"]}
print(json.dumps([found.get(number, -100.0) for number in range(len(found))]))

"""Print the ids of conversations by llama.cpp's /apply-template and /tokenize: python llama_prompt.py FILE.gguf JSON

Runs in the environment `llama-cpp`. JSON is a list of conversations; the output is one line of JSON, a list of lists.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trainer.engines.llama_cpp import LlamaCpp

engine = LlamaCpp(Path(sys.argv[1]), 256)


def ask(path: str, **body: Any) -> Any:
    with engine.post(path, body) as reply:
        return json.load(reply)


texts = [ask("/apply-template", messages=one)["prompt"] for one in json.loads(sys.argv[2])]
ids = [ask("/tokenize", content=one, add_special=False, parse_special=True)["tokens"] for one in texts]
print(json.dumps(ids))

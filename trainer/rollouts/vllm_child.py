"""Child process with vLLM for rollouts: `python -m trainer.rollouts.vllm_child`, in an environment with vLLM.

The first line on stdin holds the settings of the engine, and each further line a request, as written by
`vllm_engine.Vllm`. Replies go to the original stdout, a JSON value per line; output of libraries goes to stderr. The
child opens no port, and exits together with the parent.
"""

import json
import os
import sys
from typing import Any

from data.single_writer import PARENT, exit_with_parent
from trainer.rewards.worker import READY


def main() -> None:
    """Serve requests until stdin ends."""
    exit_with_parent(os.environ.pop(PARENT, ""))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps(READY), file=out)
    engine: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "open" in asked:
            engine = opened(asked)
            answer: Any = {}
        elif "load" in asked:
            engine.collective_rpc("take_weights", args=(asked["load"],))
            engine.reset_prefix_cache()  # cached keys and values belong to the old weights
            answer = {}
        else:
            answer = answers(engine, asked)
        print(json.dumps(answer), file=out)


def opened(asked: dict[str, Any]) -> Any:
    """Return the engine for a Hugging Face folder."""
    from vllm import LLM

    return LLM(**options(asked))


def options(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for creating the engine."""
    return {
        "model": asked["open"],
        "tensor_parallel_size": asked["tensor_parallel"],
        "dtype": asked["dtype"],
        "max_model_len": asked["room"],
        "max_num_seqs": asked["side_by_side"],
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "gpu_memory_utilization": asked["memory_share"],
        "disable_log_stats": True,
        "logprobs_mode": "raw_logprobs" if asked["temperature"] == 1 else "processed_logprobs",
        "worker_extension_cls": "trainer.rollouts.vllm_child.Weights",
    }


def answers(engine: Any, asked: dict[str, Any]) -> list[list[Any]]:
    """Return [ids, ln p, ended] of each answer, with the answers to a prompt in sequence."""
    from vllm import SamplingParams

    how = [
        SamplingParams(
            n=asked["each"],
            temperature=asked["temperature"],
            top_k=asked["top_k"] or -1,
            top_p=asked["top_p"],
            max_tokens=asked["max_new"],
            stop_token_ids=asked["stop"],
            logit_bias=dict.fromkeys(asked["unused_ids"], -100.0) or None,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            seed=seed,
        )
        for seed in asked["seeds"]
    ]
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    found = []
    for given in engine.generate(prompts, how, use_tqdm=False):
        for one in sorted(given.outputs, key=lambda output: output.index):
            ids = list(one.token_ids)
            logprobs = [at[token].logprob for at, token in zip(one.logprobs, ids, strict=True)]
            found.append([ids, logprobs, one.finish_reason == "stop"])
    return found


class Weights:
    """Additional methods of every engine worker: see `worker_extension_cls` of vLLM."""

    def take_weights(self, folder: str) -> None:
        """Load the weights of a folder.

        The CPU engine keeps a copy of the head in the kernel's layout, and refreshes the copy only for a head in the
        files. A head tied to the embedding is not in the files, and would keep the old weights.
        """
        worker: Any = self
        worker.reload_weights(weights_path=folder)
        model = worker.model_runner.get_model()
        head: Any = getattr(model, "lm_head", None)
        embedding: Any = getattr(model.model, "embed_tokens", None)
        if model.config.tie_word_embeddings and hasattr(head, "cpu_linear") and embedding is not None:
            head.weight = embedding.weight
            head.quant_method.process_weights_after_loading(head)


if __name__ == "__main__":
    main()

"""`python -m trainer.rollouts.vllm_child`, in an environment with vLLM: answers for rollouts, new weights at any time.

Its first line on stdin says what to open, each further one what to do, as `vllm_engine.Vllm` writes them; answers go to
what was stdout, one JSON value a line, and what libraries print to stderr. There is no port that somebody else could
have, and the engine ends with whoever started it.
"""

import json
import os
import sys
from typing import Any

from data.single_writer import PARENT, die_with
from trainer.rewards.worker import READY


def main() -> None:
    """Answer until the questions end."""
    die_with(os.environ.pop(PARENT, ""))
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
            engine.reset_prefix_cache()  # cached keys and values are of other weights
            answer = {}
        else:
            answer = answers(engine, asked)
        print(json.dumps(answer), file=out)


def opened(asked: dict[str, Any]) -> Any:
    """Return the engine for a Hugging Face folder."""
    from vllm import LLM

    return LLM(**options(asked))


def options(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which the engine is opened."""
    return {
        "model": asked["open"], "tensor_parallel_size": asked["tensor_parallel"], "dtype": asked["dtype"],
        "max_model_len": asked["room"], "max_num_seqs": asked["side_by_side"], "enforce_eager": True,
        "skip_tokenizer_init": True, "gpu_memory_utilization": asked["memory_share"], "disable_log_stats": True,
        "logprobs_mode": "raw_logprobs" if asked["temperature"] == 1 else "processed_logprobs",
        "worker_extension_cls": "trainer.rollouts.vllm_child.Weights",
    }  # fmt: skip


def answers(engine: Any, asked: dict[str, Any]) -> list[list[Any]]:
    """Return ids, their ln p, and whether it ended, of each answer; those to the same prompt one after another."""
    from vllm import SamplingParams

    how = [
        SamplingParams(
            n=asked["each"], temperature=asked["temperature"], top_k=asked["top_k"] or -1, top_p=asked["top_p"],
            max_tokens=asked["max_new"], stop_token_ids=asked["stop"], ignore_eos=True, detokenize=False, logprobs=0,
            seed=seed,
        )
        for seed in asked["seeds"]
    ]  # fmt: skip
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    found = []
    for given in engine.generate(prompts, how, use_tqdm=False):
        for one in sorted(given.outputs, key=lambda output: output.index):
            ids = list(one.token_ids)
            logprobs = [at[token].logprob for at, token in zip(one.logprobs, ids, strict=True)]
            found.append([ids, logprobs, one.finish_reason == "stop"])
    return found


class Weights:
    """Extra methods of every worker of the engine: see `worker_extension_cls` of vLLM."""

    def take_weights(self, folder: str) -> None:
        """Answer with the weights of a folder from now on.

        The CPU's engine keeps a copy of the head as its kernel takes it, and makes that anew only for a head that is in
        the files; one that is tied to the embedding is not, and would stay as it was.
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

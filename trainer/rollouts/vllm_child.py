"""Child process with vLLM for rollouts: `python -m trainer.rollouts.vllm_child`, in an environment with vLLM.

The first line on stdin holds the settings of the engine, and each further line a request, as written by
`vllm_engine.Vllm`. Replies go to the original stdout, a JSON value per line; output of libraries goes to stderr. The
child opens no port, and exits together with the parent.
"""

import json
import os
import sys
from typing import Any, get_args

from data.single_writer import PARENT, exit_with_parent
from trainer.rewards.worker import READY


def main() -> None:
    """Serve requests until stdin ends."""
    exit_with_parent(os.environ.pop(PARENT, ""))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps(READY), file=out)
    engine: Any = None
    change: Any = None  # request of vLLM for the last change of the model
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Any = {}
        if "open" in asked:
            engine = opened(asked)
            change = changed(engine, None, asked["change"]) if asked["change"] else None
        elif "load" in asked and change is not None:
            change = changed(engine, change, asked["load"])
        elif "load" in asked:
            engine.collective_rpc("take_weights", args=(asked["load"],))
            engine.reset_prefix_cache()  # cached keys and values belong to the old weights
        else:
            answer = answers(engine, asked, change)
        print(json.dumps(answer), file=out)


def opened(asked: dict[str, Any]) -> Any:
    """Return the engine for a Hugging Face folder."""
    from vllm import LLM

    return LLM(**options(asked))


def options(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for creating the engine."""
    rank = asked["rank"]
    of_change = {"enable_lora": True, "max_loras": 1, "max_lora_rank": reserved_rank(rank)} if rank else {}
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
        **of_change,
    }


def reserved_rank(rank: int) -> int:
    """Return the smallest rank from `rank` on for which vLLM has memory layouts."""
    from vllm.config.lora import MaxLoRARanks

    return min(one for one in get_args(MaxLoRARanks) if one >= rank)


def changed(engine: Any, before: Any, folder: str) -> Any:
    """Load a LoRA adapter in the place of the adapter `before`; return the request of vLLM that selects the adapter.

    A new name also separates the cached keys and values from those of the earlier adapter.
    """
    from vllm.lora.request import LoRARequest

    number = before.lora_int_id + 1 if before else 1
    request = LoRARequest(lora_name=f"change-{number}", lora_int_id=number, lora_path=folder)
    if before:
        engine.llm_engine.remove_lora(before.lora_int_id)
    engine.llm_engine.add_lora(request)
    return request


def answers(engine: Any, asked: dict[str, Any], change: Any) -> list[list[Any]]:
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
    for given in engine.generate(prompts, how, use_tqdm=False, lora_request=change):
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

"""Hubs, keys and files required by the lines of each document. One function per document, named after the document.

Input: the folder of the installation, a stack for cleanups. Output: environment variables.
"""

import json
from contextlib import ExitStack
from pathlib import Path

from data.tokens import tokenizer as tokenizers
from tests import hub as hubs
from tests.data.layouts import fineweb_edu
from tests.packs.imports.test_nanochat import saved
from tests.trainer.conftest import make_inputs

NAMES = ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY", "HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN")
KEYS = dict.fromkeys(NAMES, "")
QWEN3_4B = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip
SMOLLM2_135M = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "rope_theta": 100000, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "hidden_act": "silu",
}  # fmt: skip
BITNET_LARGE = {
    "model_type": "llama", "architectures": ["BitnetForCausalLM"], "vocab_size": 32002, "hidden_size": 1536,
    "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
    "max_position_embeddings": 2048, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "hidden_act": "silu", "weight_bits": 1, "input_bits": 8,
}  # fmt: skip


def with_models(home: Path, stack: ExitStack) -> dict[str, str]:
    """Return the address of a hub with the published models named by the jobs: their shapes, without weights."""
    repos = {}
    for name, shape in (
        ("Qwen/Qwen3-4B", QWEN3_4B),
        ("HuggingFaceTB/SmolLM2-135M", SMOLLM2_135M),
        ("1bitLLM/bitnet_b1_58-large", BITNET_LARGE),
    ):
        folder = home / "published" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(shape))
        (folder / "model.safetensors").touch()
        repos[name] = hubs.FolderRepo(folder)
    hub = stack.enter_context(hubs.serving(repos))
    return {"HF_ENDPOINT": hub.url, "no_proxy": "*"}


def skypilot_jobs(home: Path, stack: ExitStack) -> dict[str, str]:
    return {**KEYS, **with_models(home, stack), "WANDB_API_KEY": "k" * 40}


def training_guide(home: Path, stack: ExitStack) -> dict[str, str]:
    return dict(KEYS)


def lium(home: Path, stack: ExitStack) -> dict[str, str]:
    return {**KEYS, **with_models(home, stack)}


def skyserve(home: Path, stack: ExitStack) -> dict[str, str]:
    model = home / "Bosun"
    model.mkdir()
    (model / "fake.json").write_text(json.dumps({"words": [" Bosun"]}))
    probe = {"path": "/health", "initial_delay_seconds": 60, "timeout_seconds": 10}
    policy = {"min_replicas": 1, "max_replicas": 2, "target_qps_per_replica": 5.0}
    service = {"service": {"readiness_probe": probe, "replica_policy": policy}, "slipway": {"model": str(model)}}
    (home / "service.yaml").write_text(json.dumps(service))
    return dict(KEYS)


def runpod(home: Path, stack: ExitStack) -> dict[str, str]:
    (home / "fineweb").mkdir()
    fineweb_edu(home / "fineweb", 2100)
    (home / "raw_corpus.txt").write_text("".join(f"line {n} of a corpus\n" for n in range(1000)))
    hub = stack.enter_context(hubs.serving({"HuggingFaceFW/fineweb": hubs.FolderRepo(home / "fineweb")}))
    return {**KEYS, "HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_HOME": str(home / "hf")}


def shadeform(home: Path, stack: ExitStack) -> dict[str, str]:
    words = make_inputs(home / "inputs")[0] / "tokenizer"
    assert tokenizers.load(words)
    saved(home / "my-checkpoints", words)
    (home / "identity_conversations.jsonl").write_text("{}\n")
    hub = stack.enter_context(hubs.serving())
    return {**KEYS, "HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_TOKEN": "token", "HF_HOME": str(home / "hf")}

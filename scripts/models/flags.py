"""The flags of the commands about models, each declared once."""

from dataclasses import dataclass

from flows.specs.work import WORK, WorkSpec
from infra.flags import Typed, again, flag
from scripts.cli.flags import Output
from trainer.records.phase_registry import phase_names


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Output, WorkSpec):
    phase: str = again(WorkSpec, "phase", default="base")
    config: str = flag("", "the same as --profile", group=WORK)
    script: str = flag(
        "", "run this Python file with torchrun instead, on all GPUs of this machine; words after -- go to it",
        unit="FILE", group=WORK,
    )  # fmt: skip
    prepare: bool = flag(False, "only make what the phases read", group=WORK)


@dataclass(frozen=True, kw_only=True)
class FitFlags(Output):
    profile: str = flag("", "recipe of model and training, or a .yaml file")
    phase: str = flag("base", "phase of the recipe")
    gpu: str = flag("", "only this kind, part by part: H100, A100-80GB")
    num_gpus: int = flag(1, "GPUs of each machine; each holds the whole model (ddp) or a shard of it (fsdp, hybrid)")
    nodes: int = flag(1, "number of machines")


@dataclass(frozen=True, kw_only=True)
class ChatFlags:
    model: str = flag(
        "",
        f"{phase_names()}, the name of an artifact, or a Hugging Face folder (default: the last phase there is)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    prompt: str | None = flag(None, "one question; without this flag, a conversation")
    system: str = flag("", "system prompt, as /system in a conversation")
    temperature: float = flag(0.0, "0 = greedy decoding")
    max_tokens: int = flag(256, "longest answer")
    endpoint: str = flag(
        "", "a service (see inv serve.status) or an address instead of a model; SLIPWAY_ENDPOINT_KEY holds its key"
    )
    engine: str = flag("torch", "torch, or llama.cpp, which needs neither a GPU nor PyTorch")


@dataclass(frozen=True, kw_only=True)
class EvalFlags(Output):
    models: tuple[str, ...] = flag(
        (),
        f"{phase_names()}, names of artifacts, or Hugging Face folders (default: base on text, the last phase on "
        "questions)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    source: str = flag("", "source whose held-out text and questions are used (default: pydocs)")
    persona: str = flag(
        "", "YAML file with the name to look for (default: the persona the model was trained with)", unit="FILE"
    )
    task: tuple[str, ...] = flag((), ".jsonl of questions, multiple choice or with exact answers; or a task of rl: "
                                "sort, gsm8k, math, mbpp; repeatable")  # fmt: skip
    as_text: bool = flag(False, "ask questions of tasks as text to continue, as is always done with base models")
    shots: int = flag(0, "how many answered questions of a task's file precede each question")
    core: str = flag(
        "", "folder of the CORE tasks as nanochat unpacks it (eval_bundle): CORE and each task", unit="FOLDER"
    )
    core_most: int = flag(0, "--core: maximum number of questions of each task; 0: all")
    compare: bool = flag(False, "compare two models by earlier measurements: differences with intervals")
    lm_eval: str = flag("", "tasks of EleutherAI's harness, comma-separated, run against a server of the model")
    endpoint: str = flag("", "--lm-eval: address of the server, such as http://127.0.0.1:8000")
    served_name: str = flag("", "--lm-eval: what the server calls the model (default: its name in the store)")


@dataclass(frozen=True, kw_only=True)
class ExportFlags(Typed):
    model: str = flag(
        "", f"{phase_names()}, the name of an artifact, or a folder (default: the last phase there is)", word=True
    )
    tag: str = flag("", "name of the checkpoints in the store")
    out: str = flag(
        "",
        "folder to write; of --bits gguf a file, which is made here by default, named after the model",
        unit="FOLDER",
    )
    dtype: str = flag("float32", "float32 or bfloat16")
    bits: str = flag("", "for a ternary model: gguf (llama.cpp), or hf (transformers, 2 bits per weight)")
    gguf_type: str = flag("tq2_0", "type of the matrices in a GGUF file: tq2_0, q8_0, f16, bf16, f32")

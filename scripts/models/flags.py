"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from flows.specs.work import SAVING, WORK, WorkSpec
from infra.flags import again, flag
from scripts.cli.flags import Output
from trainer.records.phase_registry import phase_names

FROM = "hf://, s3://, gs:// or a folder (default: the store of the settings, and this machine)"
NAME = "as inv ckpt.list shows it, or the beginning or the end of that"


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Output, WorkSpec):
    phase: str = again(WorkSpec, "phase", default="base")
    config: str = flag("", "the same as --profile", group=WORK)
    out: str = flag("", "the same as --store", group=SAVING, unit="URI")
    script: str = flag(
        "", "run this Python file with torchrun instead, on all GPUs of this machine; words after -- go to it",
        unit="FILE", group=WORK,
    )  # fmt: skip
    prepare: bool = flag(False, "only make what the phases read", group=WORK)


@dataclass(frozen=True, kw_only=True)
class FitFlags(Output):
    profile: str = flag("", "recipe of model and training, or a .yaml file")
    phase: str = flag("base", "of the recipe")
    gpu: str = flag("", "only this kind, part by part: H100, A100-80GB")
    num_gpus: int = flag(1, "of each machine: whether each holds the model whole (ddp), or it is cut (fsdp, hybrid)")
    nodes: int = flag(1, "machines")


@dataclass(frozen=True, kw_only=True)
class ChatFlags:
    model: str = flag(
        "",
        f"{phase_names()}, the name of an artifact, or a Hugging Face folder (default: the last phase there is)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    prompt: str | None = flag(None, "one question; without it, a conversation")
    system: str = flag("", "what the model is told beforehand, as /system in a conversation")
    temperature: float = flag(0.0, "0 = greedy decoding")
    max_tokens: int = flag(256, "longest answer")
    endpoint: str = flag(
        "", "a service (inv serve.status) or an address instead of a model; its key: SLIPWAY_ENDPOINT_KEY"
    )
    engine: str = flag("torch", "torch, or llama.cpp, which needs neither a GPU nor torch")


@dataclass(frozen=True, kw_only=True)
class EvalFlags(Output):
    models: tuple[str, ...] = flag(
        (),
        f"{phase_names()}, names of artifacts, or Hugging Face folders (default: base on text, the last phase on "
        "questions)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    source: str = flag("", "whose held-out text and questions (default pydocs)")
    persona: str = flag(
        "", "YAML file with the name to look for (default: the one the conversations were made from)", unit="FILE"
    )
    task: tuple[str, ...] = flag((), ".jsonl of questions, multiple choice or with exact answers; or a task of rl: "
                                "sort, gsm8k, math, mbpp; repeatable")  # fmt: skip
    as_text: bool = flag(False, "put the questions of tasks as text to go on with, as base models are asked anyway")
    shots: int = flag(0, "questions of a task's file that are shown with their answers before each")
    compare: bool = flag(False, "two models, by what was measured of them before: differences with intervals")
    lm_eval: str = flag("", "tasks of EleutherAI's harness, comma-separated, asked of a server of the model")
    endpoint: str = flag("", "--lm-eval: the server's address, http://127.0.0.1:8000")
    served_name: str = flag("", "--lm-eval: what the server calls the model (default: its name in the store)")


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    model: str = flag(
        "", f"{phase_names()}, the name of an artifact, or a folder (default: the last phase there is)", word=True
    )
    tag: str = flag("", "name of the checkpoints in the store")
    out: str = flag("", "folder to write; of --bits gguf a file (default: named after the model, here)", unit="FOLDER")
    dtype: str = flag("float32", "float32 or bfloat16")
    bits: str = flag("", "of a ternary model: gguf for llama.cpp, hf for transformers with 2 bits per weight")
    gguf_type: str = flag("tq2_0", "of the matrices in a GGUF file: tq2_0, q8_0, f16, bf16, f32")


@dataclass(frozen=True, kw_only=True)
class CkptListFlags(Output):
    from_: str = flag("", FROM)
    job: str = flag("", "only where this stands in the name")


@dataclass(frozen=True, kw_only=True)
class CkptShowFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)


@dataclass(frozen=True, kw_only=True)
class CkptStatusFlags(Output):
    run: str = flag("", "a run (default: all that are at work)", word=True)


@dataclass(frozen=True, kw_only=True)
class CkptVerifyFlags(Output):
    model: str = flag("", f"{NAME} (default: all)", word=True)
    from_: str = flag("", FROM)


@dataclass(frozen=True, kw_only=True)
class CkptPullFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)
    to: str = flag("", "folder in which it is put")
    latest: bool = flag(False, "the one that was saved last")


@dataclass(frozen=True, kw_only=True)
class CkptPushFlags(Output):
    models: tuple[str, ...] = flag((), "names of artifacts (default: all that are whole)", word=True)
    to: str = flag("", "hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    from_: str = flag("", "the store that has them (default: that of the settings)")


@dataclass(frozen=True, kw_only=True)
class CkptInitFlags(Output):
    to: str = flag("", "the store to make")
    dry_run: bool = flag(False, "show the vendor's own command")

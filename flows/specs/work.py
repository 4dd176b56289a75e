"""The flags of a training: what is to be made, of what, and how."""

from collections.abc import Mapping
from dataclasses import dataclass

from flows.specs import phase_words
from infra.flags import flag
from trainer.records.phase_registry import phase_names

WORK = "What is made"
TRAINING = "Training"
SAVING = "Checkpoints and artifacts"


@dataclass(frozen=True, kw_only=True)
class WorkSpec:
    """What is to be made, as somebody asks for it; "" and None leave it to the profile and to the settings."""

    phase: str = flag("sft", f"{phase_names()}, a sum such as mid+sft, or all", group=WORK)
    profile: str = flag(
        "", "recipe of model and training: a name that inv config --profile takes, or a .yaml file; of those for "
        "rented GPUs begin with the smallest: runpod_1b, then 2b and 4b", group=WORK
    )  # fmt: skip
    tag: str = flag("", "name of the checkpoints in the store (default: the profile)", group=WORK)
    init: str = flag("", "go on from somebody else's model: a Hugging Face folder, or hf://user/repo[@revision]",
                     group=WORK)  # fmt: skip
    source: str = flag(
        "", "pydocs, fineweb, files, any data set as hf://user/name[/config][:split], or several by weight", group=WORK
    )
    text_column: str = flag("", "--source: the column with the text, where it is not `text`", group=WORK)
    filter: str = flag("", "--source: keep rows of which this is true, such as 'language_score > 0.9'", group=WORK)
    exhausted: str = flag(
        "first", "--source by weight: it ends with the first that does, or when all were read once (all)", group=WORK
    )
    packages: str = flag("", "pydocs: installed packages to read too, comma-separated", group=WORK)
    mixture: str = flag(
        "", "conversations of mid and sft and their weights, instead of the profile's: "
        "identity=0.3,talk.jsonl=0.5,hf://user/name/config:train[:1000]=0.2",
        group=WORK,
    )  # fmt: skip
    task: str = flag(
        "", "rl: what is learnt, instead of the profile's: sort, gsm8k, math, mbpp, a .jsonl of question and answer, "
        "or weights such as sort=1,gsm8k=3",
        group=WORK,
    )  # fmt: skip
    problems: str = flag(
        "",
        "rl: a folder with the files of gsm8k, math or mbpp, or a data set with their splits, instead of theirs",
        group=WORK,
        unit="FOLDER",
    )
    reward: str = flag("", "rl: Python file with reward(question, answer, completion), or the name of an extension, "
                       "instead of the task's own", group=WORK, unit="FILE")  # fmt: skip
    unsafe_rewards: bool = flag(
        False, "rl: run the code of mbpp's answers although nothing here can lock it in", group=WORK
    )
    engine: str = flag(
        "", "rl: what answers: embedded (the model in training, the default), or vllm in processes of its own",
        group=WORK,
    )  # fmt: skip
    engine_devices: int = flag(
        0, "rl: so many GPUs of the machine, its last ones, answer by vLLM; the others train", group=WORK
    )
    lag: int = flag(
        0, "rl: 1: answers are of the weights one update before, so that vLLM answers meanwhile", group=WORK
    )
    persona: str = flag("", "YAML file with name, maker, purpose", group=WORK, unit="FILE")
    identity: str = flag("", "conversations of yours that say who the model is (.jsonl, as nanochat has them), instead "
                         "of those made of the persona, whose name they say", group=WORK, unit="FILE")  # fmt: skip
    seed: int | None = flag(None, "of the training", group=TRAINING)
    steps: int | None = flag(
        None, "optimizer steps per phase instead of the profile's; the schedule is rescaled to them", group=TRAINING
    )
    options: Mapping[str, str] = flag(
        {}, "an option of one phase instead of the profile's: sft.optimizer.lr=1e-3, mid.rows=32, or of the shape of "
        "all: model.hidden_size=512; in a file "
        "`phases: {sft: {optimizer: {lr: 1e-3}}}`; repeatable",
        group=TRAINING, unit="PHASE.FIELD=VALUE", spelled="set", read=phase_words.read,
    )  # fmt: skip
    track: str = flag(
        "", "who is told the figures while it trains, each by a process beside it: wandb, mlflow, tensorboard, a .py "
        "file or an extension of yours, several by commas, or none (default: SLIPWAY_TRACK)",
        group=TRAINING, unit="NAMES",
    )  # fmt: skip
    save_every: int | None = flag(
        None, "optimizer steps between checkpoints instead of the profile's", group=SAVING, unit="STEPS"
    )
    keep: int | None = flag(None, "newest checkpoints kept while training (5)", group=SAVING)
    ckpt_prefix: str = flag(
        "",
        "in front of the name of the folder that holds the run's checkpoints; for stages of 1.58 bits also the first "
        "part of NAME/<model>/stage<stage> in the store, instead of checkpoint",
        group=SAVING,
    )
    store: str = flag("", "where artifacts go (default var/artifacts)", group=SAVING, unit="URI")
    with_missing: bool = flag(False, "rented: make text, tokenizer and questions there, while it bills", group=SAVING)
    remake: bool = flag(False, "make the named phases again where other code than today's made them", group=SAVING)
    keep_made: bool = flag(False, "keep what other code than today's made, as it is", group=SAVING)

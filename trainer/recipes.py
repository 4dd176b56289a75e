"""Built-in profiles (`--profile NAME`), and YAML files modifying a profile. No torch import.

Each function returns the `Profile` of a complete run. dev/log records the measurements behind `smoke`; the other
profiles follow the shapes and sizes of the models they are named after.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from data.config import ConfigError, load
from store import packs, strict_records
from trainer.config import (
    CheckpointOptions,
    OptimizerConfig,
    PhaseConfig,
    Profile,
    RecipeMachine,
    ScheduleConfig,
    load_phase,
)
from trainer.profiles.derived_phases import TALK, cosine, dial, llama, qwen3
from trainer.records.model_config import KIND, ModelConfig, feature
from trainer.records.phase_options import changed
from trainer.records.phase_registry import PHASES, with_earlier
from trainer.records.rl_config import RlConfig

OF_FILES = ("profile", "name", "model", "phases", "keeping", "machine")  # keys of a profile file


def smoke() -> Profile:
    """Return a 4M-parameter Qwen3 shape, trained and able to chat within minutes on two cores."""
    model = ModelConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=1024,
        qk_norm=True,
    )
    base = PhaseConfig(
        phase="base",
        model=model,
        optimizer=OptimizerConfig(lr=0.006, muon_lr=0.02, weight_decay=0.0),
        schedule=ScheduleConfig(warmup_steps=10, decay=0.7),
        steps=120,
        rows=16,
        micro_rows=16,
        sequence_len=256,
    )
    mid = PhaseConfig(
        phase="mid",
        model=model,
        optimizer=OptimizerConfig(lr=0.004, muon_lr=0.012, weight_decay=0.0),
        schedule=ScheduleConfig(decay=0.3, final=0.3),
        steps=160,
        rows=64,
        micro_rows=8,
        sequence_len=512,
        turns=8,
        mixture={"identity": 0.3, "pydocs": 0.45, "other": 0.25},
    )
    sft = PhaseConfig(
        phase="sft",
        model=model,
        optimizer=OptimizerConfig(lr=0.001, muon_lr=0.004, weight_decay=0.0),
        schedule=ScheduleConfig(decay=1.0),
        steps=200,
        rows=64,
        micro_rows=8,
        sequence_len=1024,
        turns=16,
        mixture=TALK,
    )
    rl = PhaseConfig(
        phase="rl",
        model=model,
        optimizer=OptimizerConfig(lr=1e-4, weight_decay=0.0, betas=(0.9, 0.99)),
        schedule=ScheduleConfig(warmup_steps=4, decay=0.7, final=0.05),
        steps=128,
        rows=264,
        micro_rows=66,
        sequence_len=96,
        mixture={"sort": 1.0},
        rl=RlConfig(max_new=14, shown=0.1, side_by_side=264, eval_every=22),
    )
    phases = {"base": base, "mid": mid, "sft": sft, "rl": rl}
    return Profile(name="smoke", vocab_size=4096, phases=phases, keeping=CheckpointOptions(save_every=40))


def tiny() -> Profile:
    """Return a miniature of `smoke` running in seconds, for tests and rehearsals; it only learns the persona name."""
    whole = smoke()
    model = ModelConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        qk_norm=True,
    )
    phases = {
        name: replace(phase, model=model, steps=12, rows=8, micro_rows=8, sequence_len=64, turns=min(phase.turns, 2))
        for name, phase in whole.phases.items()
    }
    # With the rates and mixture of smoke, 12 steps do not teach the name.
    brisk = OptimizerConfig(lr=0.01, muon_lr=0.03, weight_decay=0.0)
    own = {"identity": 0.8, "pydocs": 0.1, "other": 0.1}
    phases |= {name: replace(phases[name], optimizer=brisk, mixture=own) for name in ("mid", "sft")}
    few = RlConfig(group=4, max_new=12, shown=0.1, eval_every=4, eval_problems=4, test_problems=16, samples_each=4)
    phases["rl"] = replace(phases["rl"], rl=few)
    return Profile(name="tiny", vocab_size=1024, phases=phases, keeping=CheckpointOptions(save_every=4, samples=2))


def m3_medium() -> Profile:
    """Return a 22M-parameter Llama shape: an evening on a laptop, minutes on a GPU."""
    model = llama(16_384, 384, layers=9, heads=6, inner=1024)
    return cosine("m3_medium", model, lr=1e-3, tokens_per_param=20, rows=32, micro_rows=8, sequence_len=512)


def runpod_1b() -> Profile:
    """Return a 1B-parameter Llama shape, the default for a single 80 GB GPU."""
    model = llama(32_768, 2048, layers=18, heads=32, inner=5632)
    return cosine("runpod_1b", model, lr=4e-4, tokens_per_param=20, rows=256, micro_rows=8)


def runpod_2b() -> Profile:
    """Return a 1.97B-parameter Llama shape, 400,000 steps of 2 x 64 rows: months on one GPU; shorten with --steps."""
    model = llama(32_768, 2560, layers=24, heads=40, inner=6816)
    return cosine("runpod_2b", model, lr=3e-4, steps=400_000, rows=128, micro_rows=2)


def runpod_4b() -> Profile:
    """Return a 4B-parameter Llama shape, 400,000 steps of 1 x 256 rows: barely fits a single 80 GB GPU, and slow."""
    model = llama(32_768, 3072, layers=32, heads=48, inner=9216)
    return cosine("runpod_4b", model, lr=2e-4, steps=400_000, rows=256, micro_rows=1, recompute=True)


def smollm2_135m() -> Profile:
    """Return the shape of SmolLM2-135M."""
    model = replace(
        llama(49_152, 576, layers=30, heads=9, inner=1536),
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_theta=1e5,
    )
    return cosine("smollm2_135m", model, lr=1e-3, tokens_per_param=20, rows=256, micro_rows=16)


def qwen3_0_6b() -> Profile:
    """Return the shape of Qwen3-0.6B."""
    model = qwen3(1024, layers=28, heads=16, inner=3072)
    return cosine("qwen3_0_6b", model, lr=6e-4, tokens_per_param=20, rows=256, micro_rows=8)


def qwen3_4b() -> Profile:
    """Return the shape of Qwen3-4B, with heads wider in total than the model: for a GPU of more than 80 GB."""
    model = qwen3(2560, layers=36, heads=32, inner=9728)
    return cosine("qwen3_4b", model, lr=2e-4, tokens_per_param=20, rows=256, micro_rows=1, recompute=True)


def d12() -> Profile:
    """Return nanochat's d12, the reference model of nanochat's scaling rules."""
    return dial(12)


def d20() -> Profile:
    """Return nanochat's d20, the 100-dollar model of 561M parameters, on the machine of the Shadeform guide."""
    return replace(dial(20), machine=RecipeMachine(gpu="B200", num_gpus=8))


def d26() -> Profile:
    """Return nanochat's d26: GPT-2 grade, 1.1B parameters."""
    return dial(26)


def d32() -> Profile:
    """Return nanochat's d32: 1.9B parameters."""
    return dial(32)


OURS = (
    *(smoke, tiny, m3_medium, runpod_1b, runpod_2b, runpod_4b),
    *(d12, d20, d26, d32, smollm2_135m, qwen3_0_6b, qwen3_4b),
)


def with_packs(make: Callable[[], Profile], asked: Collection[str] | None = None) -> Profile:
    """Return the profile of `make` with phases of installed packs: all, or the packs of `asked` and earlier phases."""
    whole, wanted = make(), None if asked is None else with_earlier(asked)
    for pack in packs.installed().values():
        where = pack.profile_phases.get(whole.name) or pack.profile_phases.get("*")
        if where and (wanted is None or not wanted.isdisjoint(pack.phases)):
            whole = replace(whole, phases={**whole.phases, **packs.load(where)(whole)})
    return whole


def of_pack(where: str) -> Profile:
    """Return a pack's profile from the entry point `where`, derived from the built-in profiles."""
    found: Profile = packs.load(where)({one.__name__: one for one in OURS})
    return found


PROFILES: dict[str, Callable[..., Profile]] = {
    **{one.__name__: partial(with_packs, one) for one in OURS},
    **{name: partial(with_packs, partial(of_pack, where)) for name, where in packs.entries("profiles").items()},
}


PUBLISHED = {
    "smollm2_135m": "hf://HuggingFaceTB/SmolLM2-135M",
    "qwen3_0_6b": "hf://Qwen/Qwen3-0.6B",
    "qwen3_4b": "hf://Qwen/Qwen3-4B",
}
"""Published models with the shape of a profile, by profile name."""


def is_file(name: str) -> bool:
    """Return whether a profile name is the path of a YAML file."""
    return name.endswith((".yaml", ".yml"))


def from_file(path: Path) -> Profile:
    """Return the base profile of a YAML file, modified by `name`, `model`, `phases`, `keeping` and `machine`.

    `model` changes the shape of all phases, except fields of a feature such as `ternary`, which only apply to phases
    training the feature, if any. `machine` replaces the profile's machine entirely. Raises ConfigError for unknown keys
    and invalid values.
    """
    import yaml

    try:
        raw = _read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"profile {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile {path}: not YAML: {yaml_error(error)}") from None
    if not isinstance(raw, dict) or raw.get("profile") not in PROFILES:
        raise ConfigError(f"profile {path}: `profile:` must name one of {', '.join(PROFILES)}")
    if unknown := sorted(map(str, raw.keys() - {*OF_FILES})):
        raise ConfigError(f"profile {path}: unknown {', '.join(unknown)}; known: {', '.join(OF_FILES)}")
    whole = PROFILES[raw["profile"]]()
    name = raw.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(
            f"profile {path}: {name!r} is not a valid name of artifacts; allowed: letters, digits and ._-"
        )
    phases = raw.get("phases") or {}
    if not isinstance(phases, Mapping) or set(phases) - set(whole.phases):
        raise ConfigError(
            f"profile {path}: `phases` must map phases to changed fields; known phases: {', '.join(whole.phases)}"
        )
    values = asdict(whole)
    values["phases"] = _shaped(values["phases"], raw.get("model") or {})
    where, made = f"profile {path}", dict[str, PhaseConfig]()
    for phase, config in values["phases"].items():
        asked = phases.get(phase) or {}
        if not isinstance(asked, Mapping):
            raise ConfigError(f"profile {path}: {phase} is {asked!r}; expected a mapping of changed fields")
        if "model" in asked:
            raise ConfigError(f"profile {path}: set the shape under `model`, for all phases together")
        if fixed := [one for one in ("phase", "adopted") if asked.get(one, config[one]) != config[one]]:
            raise ConfigError(f"profile {path}: '{fixed[0]}' of phase {phase} cannot be set in a profile file")
        made[phase] = load_phase(changed(config, asked), f"{where}.phases.{phase}").as_written(asked)
    values |= {"name": name, "vocab_size": values["phases"]["base"]["model"]["vocab_size"]}
    values["keeping"] = changed(values["keeping"], raw.get("keeping") or {})
    values["machine"] = raw.get("machine", values["machine"]) or {}
    return replace(load(Profile, {**values, "phases": {}}, where), phases=made)


def with_shape(
    profile: Profile, shape: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]], where: str
) -> Profile:
    """Return the profile with a changed model shape, given as `model` of a profile file. Raises ConfigError.

    fields: further changes by phase name, validated together with the shape. where: prefix of error messages.
    """
    if not shape:
        return profile
    phases = {}
    for name, values in _shaped(asdict(profile)["phases"], shape).items():
        try:
            phases[name] = strict_records.read(type(profile.phases[name]), changed(values, fields.get(name, {})))
        except strict_records.RecordMismatch as error:
            of = "" if str(error).startswith(f"{name}: ") else f"{name}: "
            raise ConfigError(f"{where}: {of}{error}") from None
    return replace(profile, vocab_size=phases["base"].model.vocab_size, phases=phases)


def _shaped(phases: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return phases as plain values with a changed shape; see `from_file` for the fields of features."""
    trained = {PHASES[phase].feature for phase in phases if phase in PHASES}
    found = {}
    for phase, config in phases.items():
        barred = {field for field, name in feature_fields().items() if name in trained and not config["model"][name]}
        of_phase = {key: value for key, value in shape.items() if key not in barred}
        found[phase] = changed(config, {"model": of_phase})
    return found


def feature_fields() -> dict[str, str]:
    """Return the feature name by model field, for the features of installed packs."""
    return {field: name for name in packs.entries(KIND) for field in feature(name).fields}


def yaml_error(error: Exception) -> str:
    """Return the message of a PyYAML error on a single line, without the placeholder file name."""
    return " ".join(str(error).split()).replace('"<unicode string>", ', "")


def _read_yaml(text: str) -> Any:
    """Parse a YAML text, reading 1e-3 as a number as in YAML 1.2. Raises YAMLError.

    Duplicate keys are an error; PyYAML would silently keep the last value.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [(key.value, key.start_mark) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            seen = set()
            for word, mark in keys:
                if word in seen:
                    raise yaml.MarkedYAMLError(problem=f"{word!r} is given twice", problem_mark=mark)
                seen.add(word)
            return super().construct_mapping(node, deep)

    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return yaml.load(text, Loader=Loader)

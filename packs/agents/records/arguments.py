"""Arguments of the tools, as frozen records with bounds, and their JSON Schemas. Standard library only.

untrusted JSON -> `read` -> a record -> the tool; `schema` of the same record -> clients
"""

import re
import types
import typing
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from data.errors import ConfigError

TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:,-]{0,199}")  # neither a space nor a dash in front: never a flag
# A name of a recipe, never a file: a file may name a reward, which is code that runs with keys.
PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?<!\.yaml)(?<!\.yml)")
NO_PARENT = r"(?!.*\.\.)"  # no folder above the named folder
SOURCE = re.compile(
    rf"{NO_PARENT}(?:pydocs|fineweb|hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(?:[@/:?][A-Za-z0-9@._:/,=?+-]{{0,150}})?)"
)
NAMES = rf"{NO_PARENT}[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9._-]+){{0,3}}(?:@[A-Za-z0-9._-]{{1,64}})?"
MODEL = re.compile(rf"(?:hf://)?{NAMES}")
INIT = re.compile(rf"hub|(?:hf://|imported/){NAMES}")  # never a folder of the owner
LETTER = r"[^\x00\ud800-\udfff]"  # of a word on a command line: no end of a text, and no half of a letter
RUN = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
PLAN = re.compile(r"plan-[A-Za-z0-9_-]{8,32}")
OPTION = re.compile(r"[a-z][a-z0-9_.]{0,63}=[A-Za-z0-9][A-Za-z0-9._,+-]{0,63}")
CLOSED = ("reward", "unsafe", "extension", "engine_devices")  # words of options that load code or name devices
PHASE = re.compile(r"[a-z0-9.]+(?:\+[a-z0-9.]+){0,7}")
TASKS = ("sort", "gsm8k", "math", "mbpp")
R = TypeVar("R")


def argument(
    default: Any, about: str, *, form: "re.Pattern[str] | None" = None, least: float = 0, most: float = 0
) -> Any:
    """Return a field of a record. form: pattern of a text; least, most: bounds of a number."""
    meta = {"about": about, "form": form, "least": least, "most": most}
    made: Any = field(default=default, metadata=meta) if default is not MISSING else field(metadata=meta)
    return made


@dataclass(frozen=True, kw_only=True)
class MachineArguments:
    gpu: str = argument("", "kind of GPU, such as H100 or RTX4090; empty: the cheapest machine that fits", form=TEXT)
    num_gpus: int = argument(0, "GPUs of the machine; 0: as many as fit", most=64)
    provider: str = argument("", "runpod, lium or shadeform; empty: the cheapest", form=TEXT)
    use_spot: bool = argument(False, "cheaper machines that the vendor may take away; the run continues elsewhere")
    spend_usd: float = argument(MISSING, "most that this run or service may cost, in US dollars", least=0.01, most=1e6)
    hours: float = argument(0.0, "end after this many hours; 0: the time left of the allowance", most=1e4)


@dataclass(frozen=True, kw_only=True)
class PlanArguments(MachineArguments):
    kind: str = argument("train", "train (launch) or serve (serve_up)", form=re.compile("train|serve"))
    phase: str = argument(
        "sft", "train: phases, such as base, sft, sft+rl, all; missing phases before are trained, too", form=PHASE
    )
    profile: str = argument("", "train: recipe, such as smoke, d12, qwen3_0.6b; see docs_search", form=PROFILE)
    source: str = argument("", "train: text: pydocs, fineweb or hf://user/name", form=SOURCE)
    init: str = argument("", "train: start model instead of earlier phases: hf://user/name or imported/NAME", form=INIT)
    task: str = argument("", "train: task of rl: sort, gsm8k, math, mbpp", form=re.compile("|".join(TASKS)))
    steps: int = argument(0, "train: optimizer steps of each phase; 0: the recipe's", most=10**7)
    options: tuple[str, ...] = argument((), "train: settings of the recipe, such as sft.optimizer.lr=1e-4", form=OPTION)
    model: str = argument("", "serve: hf://user/name; in a rehearsal also an artifact or a phase (sft)", form=MODEL)
    replicas: int = argument(1, "serve: number of replicas", least=1, most=64)


@dataclass(frozen=True, kw_only=True)
class PlanId:
    plan_id: str = argument(MISSING, "id of a plan of the last 15 minutes; each plan starts once", form=PLAN)


@dataclass(frozen=True, kw_only=True)
class OneRun:
    run: str = argument(MISSING, "a run or service of this allowance", form=RUN)


@dataclass(frozen=True, kw_only=True)
class AnyRun:
    run: str = argument("", "a run or service of this allowance; empty: all", form=RUN)


@dataclass(frozen=True, kw_only=True)
class WhyArguments:
    run: str = argument("", "a run or service of this allowance; empty: the newest refused call", form=RUN)


@dataclass(frozen=True, kw_only=True)
class LogArguments(OneRun):
    lines: int = argument(40, "number of last lines", least=1, most=200)
    errors: bool = argument(False, "only error logs")


@dataclass(frozen=True, kw_only=True)
class OfferArguments:
    gpu: str = argument("", "kind of GPU", form=TEXT)
    num_gpus: int = argument(0, "GPUs of a machine; 0: any", most=64)
    provider: str = argument("", "runpod, lium or shadeform; empty: all", form=TEXT)


@dataclass(frozen=True, kw_only=True)
class AskArguments(OneRun):
    prompt: str = argument(MISSING, "question for the model", form=re.compile(rf"{LETTER}{{1,4000}}"))
    max_tokens: int = argument(256, "longest answer in tokens", least=1, most=4096)


@dataclass(frozen=True, kw_only=True)
class SourceArguments:
    source: str = argument(MISSING, "pydocs, fineweb or hf://user/name[@revision][/config][:split]", form=SOURCE)


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    words: str = argument(
        MISSING, "words of a question, such as: gpu memory of a recipe", form=re.compile(rf"{LETTER}{{1,300}}")
    )


def read(kind: type[R], said: Any) -> R:
    """Return the record of untrusted JSON. Raises ConfigError with the field, the bound and what was given."""
    if said is None:
        said = {}
    if not isinstance(said, dict):
        raise ConfigError("the arguments must be one JSON object")
    hints = typing.get_type_hints(kind)
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    if odd := [str(name)[:40] for name in said if name not in known]:
        raise ConfigError(f"unknown argument {odd[0]!r}; known: {', '.join(known) or 'none'}")
    made = {}
    for name, one in known.items():
        if name in said:
            made[name] = _value(one, said[name], hints[name])
        elif one.default is MISSING:
            raise ConfigError(f"the argument {name} is missing: {one.metadata['about']}")
    return kind(**made)


def _value(one: "Field[Any]", given: Any, hint: Any) -> Any:
    name, meta = one.name, one.metadata
    if typing.get_origin(hint) is tuple:
        if not isinstance(given, list) or len(given) > 32:
            raise ConfigError(f"{name} must be a list of at most 32 texts")
        return tuple(_text(name, each, meta["form"]) for each in given)
    if hint is bool:
        if type(given) is not bool:
            raise ConfigError(f"{name} must be true or false")
        return given
    if hint in (int, float):
        is_number = type(given) is int or hint is float and type(given) is float
        if not is_number or not meta["least"] <= given <= meta["most"]:  # NaN fails both comparisons
            raise ConfigError(
                f"{name} is {str(given)[:40]}; it must be a number from {meta['least']:g} to {meta['most']:g}"
            )
        return hint(given)
    # A line of `inv` leaves out an empty text, so that a setting of the owner would take its place.
    return given if given == one.default == "" else _text(name, given, meta["form"])


def _text(name: str, given: Any, form: "re.Pattern[str]") -> str:
    if not isinstance(given, str) or not given or not form.fullmatch(given):
        raise ConfigError(f"{name} is {str(given)[:60]!r}, which is not in the accepted form")
    if name == "options" and any(word in given for word in CLOSED):
        raise ConfigError(f"the option {given[:60]!r} is closed to allowances")
    return given


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    hints, required, found = typing.get_type_hints(kind), [], {}
    names: dict[Any, dict[str, Any]] = {bool: {"type": "boolean"}, str: {"type": "string"}}
    for one in fields(kind):
        hint, meta = hints[one.name], one.metadata
        if typing.get_origin(hint) is tuple:
            said: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 32}
        elif hint in (int, float):
            bounds = {"minimum": meta["least"], "maximum": meta["most"]}
            said = {"type": "integer" if hint is int else "number", **bounds}
        else:
            said = names[hint] | ({"minLength": 1} if hint is str and one.default != "" else {})
        found[one.name] = {**said, "description": meta["about"]}
        if one.default is MISSING:
            required.append(one.name)
        elif not isinstance(one.default, types.MappingProxyType):
            found[one.name]["default"] = list(one.default) if isinstance(one.default, tuple) else one.default
    return {"type": "object", "properties": found, "required": required, "additionalProperties": False}

"""The records of the commands in `small_tasks.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flows.specs import work
from infra.flags import flag


@dataclass(frozen=True, kw_only=True)
class Launch:
    num_gpus: int = flag(8, "how many", group="Machine", unit="GPUS")
    take: int | None = flag(None, "so many")
    lr: float = flag(0.1, "rate")
    phase: str = flag("sft", "which")
    yes: bool = flag(True, "ask nothing")
    run_name: str = flag("", "its name", also=("n",))
    set_: tuple[str, ...] = flag((), "any")
    options: Mapping[str, str] = flag(MappingProxyType({}), "of a phase", spelled="option", read=work.read_options)


@dataclass(frozen=True, kw_only=True)
class Status:
    run: str = flag("", "which", word=True)
    watch: float | None = flag(None, "redraw", bare=True)


@dataclass(frozen=True, kw_only=True)
class Test:
    paths: tuple[str, ...] = flag((), "which", word=True)


@dataclass(frozen=True, kw_only=True)
class Fail:
    kind: str = flag("usage", "how")
    json: bool = flag(False, "as JSON")

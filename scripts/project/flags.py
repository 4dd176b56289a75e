"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output


@dataclass(frozen=True, kw_only=True)
class ConfigFlags(Output):
    schema: str = flag("", "launch, sweep, experiment, pod or service: the JSON Schema of such a file")
    profile: str = flag("", "all of a recipe of model and training instead: runpod_2b, or a .yaml file")
    config: str = flag(
        "", "of a recipe, a job file or a file of flags instead: which of the files that it names are there", unit="X"
    )
    params: bool = flag(False, "only how many parameters its model has")


@dataclass(frozen=True, kw_only=True)
class InitFlags:
    provider: str = flag("", "only the key of that vendor: runpod, lium or shadeform", word=True)


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(Output):
    provider: str = flag(
        "",
        "instead: ssh, the machines of the inventory; runpod, lium, shadeform, what they say to the key; "
        "skypilot, whether its API server answers",
    )
    for_: str = flag("", "instead: train or serve, what should be in place before that is begun")
    lint: str = flag("", "instead: what goes wrong later in a job file: Ray, quotes, ports", unit="FILE")
    config: str = flag("", "with --for serve: its service file (default serve/service.yaml)", unit="FILE")


@dataclass(frozen=True, kw_only=True)
class TestFlags:
    paths: tuple[str, ...] = flag((), "files or folders, all tests without", word=True)
    k: str = flag("", "only tests whose names match")
    fast: bool = flag(False, "only those that start no process, open no socket and compute no longer than a moment")
    nightly: bool = flag(False, "slow ones too")
    yes: bool = flag(
        False, "install the Debian packages that they want, as root or by sudo; CI=true says so, too", also=("y",)
    )

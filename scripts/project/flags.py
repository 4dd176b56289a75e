"""The flags of the commands about the checkout, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output
from store import packs


@dataclass(frozen=True, kw_only=True)
class ConfigFlags(Output):
    schema: str = flag("", f"launch, pod, service, {', '.join(packs.words('schemas'))}: the JSON Schema of such a file")
    profile: str = flag("", "show a whole recipe instead: a name such as runpod_2b, or a .yaml file")
    config: str = flag(
        "", "show which of the files named by a recipe, a job file or a file of flags exist", unit="FILE"
    )
    params: bool = flag(False, "only the number of parameters of its model")


@dataclass(frozen=True, kw_only=True)
class InitFlags:
    provider: str = flag("", "only the key of that vendor: runpod, lium or shadeform", word=True)


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(Output):
    provider: str = flag(
        "",
        "check this instead: ssh, the machines of the inventory; runpod, lium or shadeform, the key and the account; "
        f"also {', '.join(packs.words('providers'))}",
    )
    for_: str = flag("", "check what train or serve needs before it begins")
    lint: str = flag("", "report what goes wrong later in a job file: Ray, quotes, ports", unit="FILE")
    config: str = flag("", "with --for serve: the service file (default serve/service.yaml)", unit="FILE")


@dataclass(frozen=True, kw_only=True)
class TestFlags:
    paths: tuple[str, ...] = flag((), "files or folders of tests (default: all)", word=True)
    k: str = flag("", "only tests whose names match")
    fast: bool = flag(False, "only tests that start no process, open no socket and are quick")
    nightly: bool = flag(False, "include the slow tests")
    yes: bool = flag(
        False, "install the Debian packages that tests need, as root or by sudo (also with CI=true)", also=("y",)
    )

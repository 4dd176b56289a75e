"""The settings of a training, as `training.yaml` and `training.toml` beside it, equal in content.

In: a recipe as it will be trained, nothing left to a default. Out: two files; the YAML one is itself a recipe that
`--profile` takes, so that the run can be repeated from it.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
import yaml

from infra.errors import UsageError
from store import local_files
from trainer import recipes
from trainer.config import Profile


def write(profile: Profile, of: str, folder: Path) -> Path:
    """Write the YAML file, and return its path. `of`: the recipe that this one comes from, by its name or its file.

    Raises UsageError for what the two files cannot say.
    """
    base = yaml.safe_load(Path(of).read_text(encoding="utf-8"))["profile"] if Path(of).is_file() else Path(of).stem
    values = without_none(asdict(profile))
    shapes = [phase["model"] for phase in values["phases"].values()]
    # what the phases do not share, such as norms that only a ternary model has, is the recipe's
    shape = {name: value for name, value in shapes[0].items() if all(one.get(name) == value for one in shapes)}
    phases = {
        name: {key: value for key, value in phase.items() if key not in ("phase", "model")}
        for name, phase in values["phases"].items()
    }
    document = {"profile": base, "name": profile.name, "model": shape, "phases": phases, "keeping": values["keeping"]}
    local_files.replace(folder / "training.toml", tomli_w.dumps(document).encode())
    local_files.replace(
        folder / "training.yaml", yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    )
    if recipes.from_file(folder / "training.yaml") != profile:
        raise UsageError(f"{of} has a null where {base} has a value, which training.toml cannot say")
    return folder / "training.yaml"


def without_none(value: Any) -> Any:
    """Return a value without what is not set, as TOML knows no null. Tuples become lists, which both formats have."""
    if isinstance(value, Mapping):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, (list, tuple)) else value

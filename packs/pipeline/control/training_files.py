"""Writer of the complete training configuration, as `training.yaml` and `training.toml` with equal content.

Every value is explicit. The YAML file is a recipe for `--profile`, so the run can be repeated.
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
    """Write both files and return the YAML path. `of` is the base recipe, as a name or a file.

    Raise UsageError for a value that the files cannot express: a null where the base recipe has a value.
    """
    base = yaml.safe_load(Path(of).read_text(encoding="utf-8"))["profile"] if Path(of).is_file() else Path(of).stem
    values = without_none(asdict(profile))
    shapes = [phase["model"] for phase in values["phases"].values()]
    # Only shape values that all phases share go into the recipe's model; for example, only ternary models have norms.
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
        raise UsageError(f"{of} has a null where {base} has a value; training.toml cannot hold a null")
    return folder / "training.yaml"


def without_none(value: Any) -> Any:
    """Return a value without None entries, because TOML has no null. Tuples become lists."""
    if isinstance(value, Mapping):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, (list, tuple)) else value

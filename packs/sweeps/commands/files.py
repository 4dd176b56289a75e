"""Section of the pack's reference about the files of `inv sweep`."""

from flows.specs import files as flag_files
from flows.specs.launch import LaunchSpec
from packs.sweeps.control import experiment, sweep_file
from scripts.project.reference import cell, table


def lines() -> list[str]:
    """Return the lines of the section, as Markdown."""
    experiments = [
        (f"`{name}`", "required" if default is None else f"`{default!r}`", cell(about))
        for name, default, about in experiment.schema()
    ]
    return [
        "## Runs of a sweep (`./inv sweep FILE`)",
        "",
        *table(("key", "meaning"), [(f"`{name}`", cell(about)) for name, about in sweep_file.KEYS.items()]),
        "Flags of a run: "
        + ", ".join(f"`{one}`" for one in flag_files.known(LaunchSpec, experiment.not_of_a_trial()))
        + " (in a file `phases`), and `env` with variables of the job. Example: "
        "[examples/sweeps/rates.yaml](../../examples/sweeps/rates.yaml). `./inv config --schema "
        "sweep` prints the JSON Schema of the file.",
        "",
        "An experiment of a Python function ([examples/sweeps/custom.py](../../examples/sweeps/custom.py)), with "
        "`./inv config --schema experiment`:",
        "",
        *table(("field", "default", "meaning"), experiments),
        "The results of each sweep are in `var/sweeps/NAME`.",
        "",
    ]

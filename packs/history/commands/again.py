"""The command `inv again`: repeat a run from the receipt."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.runs import receipt
from flows.runs.receipt import Receipt
from infra.checkout import ROOT
from infra.flags import flag
from infra.runs.lookup import find_run
from infra.settings import Settings
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from store.artifacts.artifacts import Store


@dataclass(frozen=True, kw_only=True)
class AgainFlags(OneRunFlags):
    out: str = flag("", "folder for the new results (default: var/again/RUN-1)", unit="FOLDER")
    dry_run: bool = flag(False, "show the differences from today, and stop")


@command(record=AgainFlags, example="inv again brave-otter-3 --dry-run")
def again(spec: AgainFlags) -> None:
    """Repeat a run on this machine; show what differs today.

    The run is repeated from its receipt, in a folder of its own. With the same code, environment and inputs, a CPU
    gives the same weights bit for bit; they are compared.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        one = receipt.read(find_run(journal, spec.run), settings)
    differs = receipt.differences(one, settings)
    for line in differs:
        render.say(f"differs today: {line}")
    if not differs:
        render.say(f"nothing differs from {one.run}: same code, environment and inputs")
    if spec.dry_run:
        if spec.json:
            print_json({"run": one.run, "differs": differs, "state": "planned"})
        return
    folder = next(path for number in range(1, 10_000) if not (path := _place(one, spec.out, number)).exists())
    found = repeat(one, folder, settings, spec.json)
    same = [name for name, is_same in found.items() if is_same]
    made = replace(one, store=str(folder / "store"))
    for step in one.steps:
        then, now = receipt.machine_of(one, step), receipt.machine_of(made, step)
        if then and now and then != now:
            differs.append(f"{step['name']}: {receipt.machine_words(now)}, then {receipt.machine_words(then)}")
            render.say(f"differs today: {differs[-1]}")
    if spec.json:
        print_json(
            {"run": one.run, "differs": differs, "state": "succeeded", "folder": str(folder), "same_weights": found}
        )
    for name, is_same in {} if spec.json else found.items():
        said = {
            True: "the same bits",
            False: "OTHER bits",
            None: "not compared: the weights of the run no longer exist",
        }[is_same]
        render.say(f"{name}: {said}")
    render.say(f"made again in {folder}")
    if len(same) < len([one for one in found.values() if one is not None]) and not differs:
        raise Exit(
            f"inv again: code, environment and inputs are the same as in {one.run}, but the weights differ", code=5
        )


def _place(one: Receipt, out: str, number: int) -> Path:
    return Path(out).absolute() if out and number == 1 else ROOT / "var" / "again" / f"{one.run}-{number}"


def repeat(one: Receipt, folder: Path, settings: Settings, quiet: bool) -> dict[str, bool | None]:
    """Run the steps of a run on this machine, in a separate store and work folder under `folder`.

    Return, by phase, whether the weights are bit-identical to the original weights; None if the originals are gone.
    """
    then, store = Store(one.store), Store(str(folder / "store"))
    receipt.carry_inputs(one, store)
    work = {"SLIPWAY_WORK": str(folder / "work"), "SLIPWAY_RUN_ID": f"{one.run}-again"}
    found: dict[str, bool | None] = {}
    for step in receipt.rebased(one.steps, store_uri := str(folder / "store")):
        environ = {**receipt.environ_of(one, step), **work}
        local_step.run(step["name"], step["words"], step["config"], settings, quiet, environ)
        making: dict[str, Any] = step["config"]["making"]
        if "keeping" in step["config"]:  # the step is a phase
            before = receipt.weights(then, making["name"], making["fingerprint"])
            now = receipt.weights(Store(store_uri), making["name"], making["fingerprint"])
            found[step["name"]] = before == now if before else None
    return found

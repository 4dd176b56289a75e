"""The command `pool.import`: machines of a Terraform output, added to the inventory."""

from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.flags import flag
from infra.machines import pool_import
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json


@dataclass(frozen=True, kw_only=True)
class ImportFlags(Output):
    from_: str = flag(
        "", "output file of `terraform output -json` or `terraform show -json`, or a Terraform state file"
    )
    output: str = flag("", "read only this Terraform output")
    pool: str = flag("terraform", "pool for the machines")
    user: str = flag("", "login name, for a new pool")
    key: str = flag("", "private key file, for a new pool")
    dry_run: bool = flag(False, "show the new lines, and write nothing")


@command(record=ImportFlags, world="", example="inv pool.import --from terraform.json --user ubuntu")
def import_(spec: ImportFlags) -> None:
    """Add machines that Terraform made to the inventory.

    Existing entries and comments of the inventory stay.
    """
    if not spec.from_:
        raise UsageError(
            "--from FILE is missing. Example: inv pool.import --from terraform.json, with the output of: "
            "terraform output -json"
        )
    path = context.settings().pools
    found = pool_import.addresses(Path(spec.from_).expanduser(), spec.output)
    plan = pool_import.plan(path, spec.pool, found, user=spec.user, key=spec.key)
    if not spec.dry_run:
        pool_import.write(plan)
    if spec.json:
        print_json({"file": path, "pool": spec.pool, "written": not spec.dry_run, "new": plan.new, "known": plan.known})
        return
    for one in (*plan.new, *plan.known):
        print(f"{'new' if one in plan.new else 'known'}  {one.address}  {one.origin}")
    render.say(f"{path}: {len(plan.new)} machines {'would be added' if spec.dry_run else 'added'} to {spec.pool}")

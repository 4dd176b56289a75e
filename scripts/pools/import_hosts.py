"""The command `pool.import`: machines that Terraform made -> the inventory."""

from pathlib import Path

from infra.errors import UsageError
from infra.machines import pool_import
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.pools.flags import ImportFlags


def import_(spec: ImportFlags) -> None:
    if not spec.from_:
        raise UsageError(
            "--from FILE is missing: inv pool.import --from terraform.json, made with: terraform output -json"
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

"""Custom tasks composed of Slipway's tasks, as in the example, and invoke's own --dry."""

import pytest

from tests.world import World

pytestmark = pytest.mark.process
OWN = ("--search-root", "examples/tasks", "--collection", "compose")


def test_commands_are_pre_tasks_function_calls_and_a_collection(tmp_path):
    world = World(tmp_path, {})
    process = world.run(*OWN, "shards", "--out", str(tmp_path / "shards"), "plan")
    out, said = process.stdout, process.stderr
    assert process.returncode == 0, said
    assert (tmp_path / "shards" / "manifest.json").is_file()
    assert said.count("300 documents in 1 shard") == 2, "of the function call, and of the pre-task"
    assert "dry run: nothing was started" in said and "chatsft_checkpoints/tiny" in out + said
    assert world.inv(*OWN, "slipway.status", "--json").strip() == "[]"


def test_dry_flag_of_invoke_runs_no_task(tmp_path):
    world = World(tmp_path, {})
    process = world.run("--dry", *OWN, "shards", "--out", str(tmp_path / "shards"), "plan")
    said = process.stderr
    assert process.returncode == 0 and said.count("shard has no --dry-run and was skipped") == 2, said
    assert "dry run: nothing was started" in said and not (tmp_path / "shards").exists()

"""The disk size of a plan: environment, data and checkpoints, with a margin."""

from dataclasses import replace
from pathlib import Path

import pytest

from data.config import Persona, TextSpec, TokenizerSpec, TokensSpec
from infra.agent.job import Limits
from infra.records import HeldArtifact, Inventory, Request
from infra.selection.machine_spec import ENVIRONMENT_BYTES, OTHER_ENVIRONMENT_BYTES, disk_of_environments, disk_of_plan
from trainer.fingerprints import CheckoutCode, choices
from trainer.plan import TrainingRequest, estimates, resolve
from trainer.plan.nodes import recipe

ROOT = Path(__file__).parents[2]
GB = 10**9
PERSONA = Persona(name="Ada", maker="us", purpose="to help")
WANTED = TrainingRequest(phases=("base",), profile="tiny", persona=PERSONA)
LIMITS = Limits(reserve_bytes=GB)


def disk_of(wanted, inventory=None, torch="cuda", **asked):
    request = Request(run="r", **asked)
    there = inventory or Inventory("s", {})
    plan = resolve(wanted, there, ROOT, run="r", request=request, torch=torch, limits=LIMITS)
    return disk_of_plan(plan)


def test_small_work_mainly_needs_its_environment():
    assert disk_of(WANTED) == 15 * GB and disk_of(WANTED, torch="cpu") == 10 * GB


def test_every_kept_checkpoint_counts():
    large = replace(WANTED, profile="d20")
    few, many = (disk_of(replace(large, keeping={"keep": keep})) for keep in (1, 20))
    assert few > disk_of(WANTED) and many - few >= 19 * 12 * 400_000_000


def test_only_the_environment_is_on_the_disk_with_a_volume():
    large = replace(WANTED, profile="d20", source="fineweb")
    assert disk_of(large) > 80 * GB and disk_of(large, volume="v") == 15 * GB


def test_stored_artifacts_are_fetched_and_count_by_size():
    nodes = recipe(WANTED)
    chosen = choices(nodes, {}, {}, CheckoutCode(ROOT), {})
    held = {
        nodes[name].artifact: HeldArtifact(nodes[name].artifact, chosen[name].fingerprint, num_bytes=size)
        for name, size in (("text", 30 * GB), ("tokenizer", 1000), ("tokens", 20 * GB))
    }
    assert disk_of(WANTED, Inventory("s", held)) == 75 * GB  # 1.2 x (10 + 1 + 1 + 50) and the checkpoints
    del held[nodes["tokens"].artifact]
    assert disk_of(WANTED, Inventory("s", held)) == 70 * GB  # the tokens are made from the text: half as many bytes


def test_a_plan_without_steps_needs_no_disk():
    nodes = recipe(WANTED)
    chosen = choices(nodes, {}, {}, CheckoutCode(ROOT), {})
    held = {node.artifact: HeldArtifact(node.artifact, chosen[name].fingerprint) for name, node in nodes.items()}
    assert disk_of(WANTED, Inventory("s", held)) == 0


@pytest.mark.parametrize(
    ("specs", "gb"),
    [
        ([TextSpec(source="fineweb")], 46),
        ([TextSpec(source="fineweb"), TokenizerSpec(vocab_size=65_536), TokensSpec()], 69),
        ([TextSpec(source="fineweb"), TokenizerSpec(vocab_size=65_537), TokensSpec()], 92),
        ([TextSpec(source="fineweb", take=1_000_000)], 5),
        ([TextSpec(source="fineweb", config="another")], 10),
        ([TextSpec(source="hf://somebody/data")], 10),
        ([TextSpec(source="hf://somebody/data:train[:4000000]")], 20),
    ],
)
def test_data_size_is_estimated_by_source(specs, gb):
    assert estimates.written_bytes(specs, 0) == gb * GB


def test_local_files_count_by_unpacked_size(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    (tmp_path / "b.txt.gz").write_bytes(b"x" * 1000)
    assert estimates.written_bytes([TextSpec(source=str(tmp_path))], 0) == 5000


def test_training_environments_differ_by_their_torch_build():
    sizes = ENVIRONMENT_BYTES
    assert disk_of_environments(["train", "serve-cuda", "store", ""], "cuda") == (
        sizes["train-cuda"] + sizes["serve-cuda"] + OTHER_ENVIRONMENT_BYTES
    )

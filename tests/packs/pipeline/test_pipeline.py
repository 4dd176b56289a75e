"""`inv pipeline` and `inv tree` as typed, and their parts."""

import hashlib
import json
import random
import sys

import pytest
import yaml

from data.manifest import read_manifest
from data.tokens.token_file import read_token_manifest
from infra.errors import SlipwayError, UsageError
from infra.settings import Settings
from packs.pipeline.control import adopt, training_files
from packs.pipeline.control.workspace import KINDS, Workspace
from scripts.cli import local_step
from store.artifacts.artifacts import Store
from tests.world import ROOT, World
from trainer import recipes
from trainer.plan import profile_named

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SMALL = ("--config", "configs/tiny.yaml", "--vocab-size", "300", "--train-shard-lines", "50")


def typed(world, *words, code=0):
    """Return stdout and stderr."""
    process = world.run(*words)
    out, err = process.stdout, process.stderr
    assert process.returncode == code and "Traceback" not in err, f"{words}: {process.returncode}\n{out}\n{err}"
    return out, err


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_corpus(path, lines, word="barley"):
    chance = random.Random(lines)
    words = ["river", "boats", "drift", "slowly", "under", "willow", "branches", "until", "evening", "comes", word]
    endings = ["", "s", "ing", "er", " 42"]
    rows = (" ".join(chance.choice(words) + chance.choice(endings) for _ in range(30)) for _ in range(lines))
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def finished_pipeline(tmp_path_factory):
    """Return a world after a pipeline run of the experiment `x`, and the output."""
    folder = tmp_path_factory.mktemp("pipeline")
    world = World(folder, {"RUN_EXPERIMENT": "x", "SLIPWAY_WORKSPACE": str(folder / "ws")})
    held_out = write_corpus(folder / "val.txt", 20, "wheat")
    words = ("--input", write_corpus(folder / "corpus.txt", 200), "--validation", held_out, *SMALL)
    out, err = typed(world, "pipeline", *words, "--tensorboard")
    return world, words, Workspace(folder / "ws", "x"), out, err


@pytest.mark.process
def test_corpus_becomes_a_model_stage_by_stage(finished_pipeline):
    _, _, space, out, err = finished_pipeline
    assert out == f"{space.run}\n"
    stages = [
        "directories: 6 new folders",
        "shards: 5 shards, 220 lines, of which 20 are held out",
        "tokenizer: made, 300 ids",
        "config: ",
        "training: tokens, base",
        "Next: ",
    ]
    places = [err.index(stage) for stage in stages]
    assert places == sorted(places)
    assert all((space.root / kind / "x").is_dir() for kind in KINDS) and space.hub.is_dir()
    assert [one["lines"] for one in read_manifest(space.train)["shards"]] == [50, 50, 50, 50]
    assert (space.val / "shard-00000.txt").read_bytes() == (space.root.parent / "val.txt").read_bytes()


@pytest.mark.process
def test_tensorboard_runs_during_training_and_its_files_stay_with_the_run(finished_pipeline):
    _, _, space, _, err = finished_pipeline
    assert (
        err.index("TensorBoard: port 6006") < err.index("training: tokens, base")
        and "did not get all metrics" not in err
    )
    (events,) = (space.run / "tensorboard" / "base").iterdir()
    steps = (space.run / "runs" / "base" / "metrics.jsonl").read_text().count('"grad_norm"')
    assert events.read_bytes().count(b"grad_norm") == steps > 0


@pytest.mark.process
def test_training_uses_the_files_in_the_folders(finished_pipeline):
    _, _, space, _, _ = finished_pipeline
    store, ours = Store(space.store), digest(space.tokenizer / "tokenizer.json")
    model = store.manifest("base_checkpoints/x")
    (tokens,) = (one for one in store.artifacts() if one.name == "datasets/x/tokens")
    assert model.about["tokenizer_sha256"] == ours
    assert read_token_manifest(store.path(tokens.name, tokens.fingerprint))["tokenizer_sha256"] == ours
    text = store.path("datasets/x/text", store.manifest("datasets/x/text").fingerprint)
    for part, folder in (("train", space.train), ("val", space.val)):
        theirs = {path.name: digest(path) for path in (text / part).iterdir()}
        assert theirs == {path.name: digest(path) for path in folder.iterdir()}


@pytest.mark.process
def test_both_recipe_files_equal_the_trained_recipe(finished_pipeline):
    _, _, space, _, _ = finished_pipeline
    said = yaml.safe_load((space.run / "training.yaml").read_text())
    assert said == tomllib.loads((space.run / "training.toml").read_text())
    recipe = profile_named(str(space.run / "training.yaml"))
    assert (recipe.name, recipe.vocab_size, recipe.phases["base"].steps) == ("x", 300, 12)
    (checkpoint,) = (
        Store(space.store)
        .path("base_checkpoints/x", Store(space.store).manifest("base_checkpoints/x").fingerprint)
        .glob("step-*/MANIFEST.json")
    )
    assert json.loads(checkpoint.read_text())["config_hash"] == recipe.phases["base"].digest()


@pytest.mark.process
def test_existing_artifacts_are_reused_and_shards_are_recreated_only_on_request(finished_pipeline):
    world, words, space, _, _ = finished_pipeline
    times = {path: path.stat().st_mtime_ns for path in space.train.iterdir()}
    _, err = typed(world, "pipeline", *words, "--reuse-shards")
    assert all(said in err for said in ("reusing 5 shards", "tokenizer: reused", "training: everything is here"))
    assert {path: path.stat().st_mtime_ns for path in space.train.iterdir()} == times
    _, err = typed(World(world.folder, {**world.extra, "RUN_SHARD": "0"}), "pipeline", *words)
    assert "reusing 5 shards" in err and "training: everything is here" in err
    assert {path: path.stat().st_mtime_ns for path in space.train.iterdir()} == times
    _, err = typed(world, "pipeline", *words)
    assert "shards: 5 shards" in err and "training: everything is here" in err  # The same bytes as before.
    assert all(path.stat().st_mtime_ns > before for path, before in times.items())


@pytest.mark.process
def test_tree_shows_the_content_of_each_folder(finished_pipeline):
    world, _, space, _, _ = finished_pipeline
    lines = [line.split("  ") for line in typed(world, "tree", "--provider", "local")[0].splitlines()]
    assert lines[0] == [str(space.root)]
    told = {line[1]: line[-1].strip() for line in lines[1:]}
    assert list(told) == [*(f"{kind}/x" for kind in KINDS), "hf_cache"]
    assert told["datasets/train/x"].startswith("4 shards, 200 lines") and told["hf_cache"] == "empty"
    assert told["artifacts/tokenizer/x"].startswith("300 ids") and told["runs/x"].startswith("base_checkpoints")
    found = json.loads(typed(world, "tree", "--experiment", "other", "--json")[0])
    assert found["folders"]["runs/other"] == "missing"


@pytest.mark.nightly
@pytest.mark.process
def test_published_tokenizer_is_used_and_the_files_exist_after_a_trainer_failure(finished_pipeline, tmp_path):
    world, _, space, _, _ = finished_pipeline
    little = write_corpus(tmp_path / "little.txt", 1)
    given = ("--tokenizer-json", str(space.tokenizer / "tokenizer.json"), "--experiment", "y", "--profile", "tiny")
    reserve = World(world.folder, {**world.extra, "SLIPWAY_RESERVE_BYTES": str(1 << 60)})
    _, err = typed(reserve, "pipeline", "--input", little, *given, code=1)
    other = Workspace(space.root, "y")
    assert digest(other.tokenizer / "tokenizer.json") == digest(space.tokenizer / "tokenizer.json")
    assert "tokenizer: taken, 300 ids" in err and "the model gets 300 ids instead of 1,024" in err
    assert "two checkpoints of 0.00 GB" in err and "--disk-size" in err
    files = [other.run / name for name in ("training.yaml", "training.toml")]
    assert all(file.is_file() for file in files) and not (other.store / "base_checkpoints").exists()


@pytest.mark.process
def test_dry_run_writes_no_file_and_shows_the_folders_and_the_hugging_face_variables(tmp_path):
    world = World(tmp_path, {"RUN_EXPERIMENT": "z", "SLIPWAY_WORKSPACE": str(tmp_path / "ws"), "RUN_CONFIG": ""})
    out, err = typed(world, "pipeline", "--dry-run")
    assert "recipe runpod_1b (default)" in err and not (tmp_path / "ws").exists()
    hub = tmp_path / "ws" / "hf_cache"
    assert f"HF_HOME={hub}\n" in out and f"HF_DATASETS_CACHE={hub}/datasets\n" in out
    assert all(f"{tmp_path}/ws/{kind}/z\n" in out for kind in KINDS)


@pytest.mark.process
def test_recipe_too_large_for_the_memory_is_refused_before_any_work(tmp_path):
    recipe = tmp_path / "vast.yaml"
    recipe.write_text("profile: tiny\nmodel: {hidden_size: 262144, intermediate_size: 1048576}\n")
    world = World(tmp_path, {"RUN_EXPERIMENT": "z", "SLIPWAY_WORKSPACE": str(tmp_path / "ws")})
    words = ("--input", write_corpus(tmp_path / "corpus.txt", 20), "--config", str(recipe))
    _, err = typed(world, "pipeline", *words, code=2)
    told = "base takes about ", " of memory (an estimate), but ", "--profile smoke"
    assert all(one in err for one in told) and not (tmp_path / "ws").exists()
    assert (
        "without --dry-run the training would be refused: base takes"
        in typed(world, "pipeline", *words, "--dry-run")[1]
    )
    assert all(one in typed(world, "train", "--profile", str(recipe), code=2)[1] for one in told)


@pytest.mark.process
def test_step_uses_the_hugging_face_folders_of_the_workspace(tmp_path):
    names = "HF_HOME", "HF_DATASETS_CACHE", "SLIPWAY_WORK"
    code = f"import os; from data.events import emit; emit('result', **{{n: os.environ[n] for n in {names}}})"
    space = Workspace(tmp_path, "x")
    assert local_step.run("probe", ("-c", code), {}, Settings.load(ROOT), True, space.environ) == {
        "HF_HOME": str(tmp_path / "hf_cache"),
        "HF_DATASETS_CACHE": str(tmp_path / "hf_cache" / "datasets"),
        "SLIPWAY_WORK": str(tmp_path / "runs" / "x"),
    }


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "more", "told"),
    [
        ((), {"RUN_SHARD": "0"}, "holds no finished shards; make the shards with RUN_SHARD=1"),
        ((), {"RUN_SHARD": "2"}, "RUN_SHARD is 2"),
        (("--profile", "tiny"), {}, "give one of them"),
        (("--experiment", "../x"), {}, "is not a valid name"),
    ],
)
def test_conflicting_words_are_refused(tmp_path, words, more, told):
    world = World(tmp_path, {"SLIPWAY_WORKSPACE": str(tmp_path / "ws"), **more})
    corpus = write_corpus(tmp_path / "corpus.txt", 2)
    assert told in typed(world, "pipeline", "--input", corpus, *SMALL, *words, code=2)[1]


@pytest.mark.process
def test_corpus_too_small_for_the_tokenizer_is_refused_with_the_command_to_use(tmp_path):
    world = World(tmp_path, {"SLIPWAY_WORKSPACE": str(tmp_path / "ws")})
    corpus = write_corpus(tmp_path / "corpus.txt", 2)
    _, err = typed(world, "pipeline", "--input", corpus, "--profile", "tiny", code=2)
    assert "vocab_size is 1024, but this text yields" in err and "(--vocab-size, or another recipe: --profile)" in err


@pytest.mark.process
def test_modified_shards_are_not_trained_on(finished_pipeline, tmp_path):
    _, _, space, _, _ = finished_pipeline
    copy = Workspace(tmp_path, "x")
    copy.make()
    for here, there in ((space.train, copy.train), (space.val, copy.val)):
        for path in here.iterdir():
            (there / path.name).write_bytes(path.read_bytes())
    first = adopt.publish_text(copy)
    assert adopt.publish_text(copy) == first
    taken = Store(copy.store).path("datasets/x/text", first) / "train" / "shard-00001.txt"
    assert taken.samefile(copy.train / "shard-00001.txt")  # Linked, because shards may fill the volume.
    with open(copy.train / "shard-00001.txt", "r+b") as file:
        file.write(b"X")
    with pytest.raises(SlipwayError, match=r"shard-00001.txt: the bytes differ from the written file.*RUN_SHARD=1"):
        adopt.publish_text(copy)


@pytest.mark.parametrize("name", recipes.PROFILES)
def test_every_recipe_can_be_written_to_files(tmp_path, name):
    file = training_files.write(recipes.PROFILES[name](), name, tmp_path)
    assert profile_named(str(file)) == recipes.PROFILES[name]()
    assert yaml.safe_load(file.read_text()) == tomllib.loads((tmp_path / "training.toml").read_text())


def test_recipe_without_a_file_form_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("profile: smoke\nphases: {sft: {mixture: null}}\n")
    mine = profile_named(str(tmp_path / "mine.yaml"))
    with pytest.raises(UsageError, match=r"mine.yaml has a null where smoke has a value"):
        training_files.write(mine, str(tmp_path / "mine.yaml"), tmp_path)


def test_settings_of_a_pod_boot_have_their_defaults(tmp_path):
    shown = {
        one.variable: (one.value, one.source)
        for one in Settings.load(tmp_path, environ={"RUN_SHARD": "0"}).list_settings()
    }
    assert shown["RUN_EXPERIMENT"] == ("runpod-2b", "default") and shown["RUN_CONFIG"] == ("runpod_1b", "default")
    assert shown["SHARD_LINES"] == ("250000", "default")
    assert shown["SLIPWAY_WORKSPACE"] == (str(tmp_path / "var" / "workspace"), "default")

"""A plan works like Make: existing artifacts stay, and a change makes exactly the dependents stale."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from data.config import ConfigError, Persona, StepContext
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.records import HeldArtifact, Inventory, Plan, Request
from store.manifest import kept_name, kind_of
from trainer import fingerprints
from trainer import plan as planning
from trainer.config import ImportSpec
from trainer.fingerprints import SENT, CheckoutCode, choices, differences
from trainer.parallel import fitting
from trainer.plan import TrainingRequest, estimates, nodes, recipe, resolve
from trainer.plan.estimates import smallest_fitting_options
from trainer.recipes import PROFILES
from trainer.records import model_formats
from trainer.records.phase_registry import PHASES

ROOT = Path(__file__).parents[2]
WANTED = TrainingRequest(phases=("sft",), profile="tiny", persona=Persona(name="Ada", maker="us", purpose="to help"))
EVERYTHING = ["text", "tokenizer", "tokens", "base", "identity", "questions", "mid", "sft"]


def git(root: Path, *words: str) -> str:
    line = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """Create a repository with one commit of `data` and `trainer`."""
    root = tmp_path / "checkout"
    for folder in ("data", "trainer"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("__pycache__\n")
    git(root, "init", "-q")
    commit(root)
    return root


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a change")


def change(root: Path, path: str, text: str = "CHANGED = True\n") -> None:
    with (root / path).open("a") as file:
        file.write(text)


def everything_made(wanted: TrainingRequest = WANTED, root: Path = ROOT) -> Inventory:
    """Return the store after all of `wanted` was made from the code in `root`."""
    steps_of = recipe(wanted)
    made = {}
    for name, one in choices(steps_of, {}, {}, CheckoutCode(root), {}).items():
        artifact = steps_of[name].artifact
        made[artifact] = HeldArtifact(artifact, one.fingerprint, about={"code": one.code})
    return Inventory("somewhere", made)


def planned(wanted: TrainingRequest, inventory: Inventory, root: Path = ROOT) -> Plan:
    return resolve(wanted, inventory, root, run="test-run-1", request=Request(run="test-run-1"))


def steps(plan: Plan) -> list[str]:
    return [step.name for step in plan.job.steps] if plan.job else []


def test_every_step_of_an_empty_store_is_due_in_order():
    assert steps(planned(WANTED, Inventory("somewhere"))) == EVERYTHING


def test_complete_store_has_no_due_step():
    plan = planned(WANTED, everything_made())
    assert plan.job is None
    assert {one.state for one in plan.artifacts} == {"here"}


def test_different_tag_is_a_different_target():
    plans = [planned(replace(WANTED, tag=tag), Inventory("somewhere")) for tag in ("a", "b", "a")]
    assert plans[0].target == plans[2].target != plans[1].target


@pytest.mark.parametrize("phases", [("base", "mid", "sft", "rl"), ("sft",)])
def test_data_tag_is_in_every_name_and_kinds_and_fingerprints_stay(tmp_path, phases):
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    wanted = replace(WANTED, phases=phases, tag="mine", mixture={"identity": 0.5, str(talk): 0.5})
    if phases == ("sft",):
        model = PROFILES["tiny"](None).phases["sft"].model
        init = ImportSpec(source="hf://mallory/Qwen3-0.6B", model=model, has_tokenizer=False)
        wanted = replace(wanted, init=init)
    plain, tagged = (recipe(replace(wanted, data_tag=tag)) for tag in ("", "mine"))
    names = [node.artifact for node in tagged.values()]
    assert phases != ("sft",) or "imported/mine.Qwen3-0.6B" in names
    assert len(names) == len({*names}) and all("mine" in name for name in names)
    assert not any(name.startswith(f"{other}/") for name in names for other in names)
    assert {node.artifact for name, node in plain.items() if name not in PHASES}.isdisjoint(names)
    assert [kind_of(node.artifact) for node in plain.values()] == [kind_of(name) for name in names]
    made = everything_made(replace(wanted, tag="theirs"))
    found = planned(replace(wanted, data_tag="mine"), made)
    assert found.job is None and {one.name for one in found.pointers} == {tagged[name].artifact for name in phases}


def test_configured_disk_reserve_is_kept_free_by_checkpoints():
    plan = resolve(
        WANTED, Inventory("somewhere"), ROOT, run="r", request=Request(run="r"), limits=Limits(reserve_bytes=7)
    )
    assert [step.config["keeping"]["reserve_bytes"] for step in plan.job.steps if "keeping" in step.config] == [7, 7, 7]


def test_mixture_requires_exactly_its_named_sources(tmp_path):
    for folder, content in (("a", "1"), ("b", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my talk.jsonl").write_text(content)
    files = [str(tmp_path / folder / "my talk.jsonl") for folder in "ab"]
    mixture = planning.parse_mixture(f"identity=0.25,{files[0]}=0.5, {files[1]}=1,hf://us/talk/main:train[:9]=2")
    wanted = replace(WANTED, mixture=mixture)
    plan = planned(wanted, Inventory("somewhere"))
    drawn = ["my-talk", "my-talk-2", "talk"]
    assert steps(plan) == ["text", "tokenizer", "tokens", "base", "identity", *drawn, "mid", "sft"]
    config = plan.job.steps[-1].config
    assert config["spec"]["mixture"] == {"identity": 0.25, "my-talk": 0.5, "my-talk-2": 1.0, "talk": 2.0}
    assert set(config["making"]["inputs"]) == {"tokenizer", "identity", *drawn, "mid"}
    assert config["making"]["inputs"]["my-talk"]["name"] == "conversations/my-talk"
    specs = {step.name: step.config["spec"] for step in plan.job.steps}
    assert (specs["talk"]["source"], specs["talk"]["take"]) == ("hf://us/talk", 9)
    assert specs["my-talk"]["source_fingerprint"] != specs["my-talk-2"]["source_fingerprint"]
    made = everything_made(wanted)
    assert steps(planned(wanted, made)) == []
    Path(files[1]).write_text("3")
    assert steps(planned(wanted, made)) == ["my-talk-2", "mid", "sft"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("identity", "expected SOURCE=WEIGHT"),
        ("identity=-1", "expected SOURCE=WEIGHT"),
        ("identity=nan", "expected SOURCE=WEIGHT"),
        ("=1", "expected SOURCE=WEIGHT"),
        ("identiy=1", "did you mean 'identity'"),
        ("nothing.jsonl=1", "no such file"),
        ("hf://talk=1", "expected hf://user/name"),
    ],
)
def test_mixture_of_an_unknown_source_is_refused(words, said):
    with pytest.raises((UsageError, ConfigError), match=said.replace("?", ".")):
        planned(replace(WANTED, mixture=planning.parse_mixture(words)), Inventory("somewhere"))


def test_an_earlier_phase_needs_no_later_one():
    assert steps(planned(replace(WANTED, phases=("base",)), Inventory("somewhere"))) == EVERYTHING[:4]


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({"persona": Persona(name="Grace", maker="us", purpose="to help")}, ["identity", "mid", "sft"]),
        ({"seed": 7}, ["base", "mid", "sft"]),
        ({"packages": ("rich",)}, ["text", "tokenizer", "tokens", "base", "questions", "mid", "sft"]),
        ({"steps": 3}, ["base", "mid", "sft"]),
    ],
)
def test_changed_setting_makes_its_dependents_stale(change, due):
    assert steps(planned(replace(WANTED, **change), everything_made())) == due


def test_changed_profile_makes_its_dependents_stale():
    wanted = replace(WANTED, profile="smoke", tag="tiny")
    assert steps(planned(wanted, everything_made())) == ["tokenizer", "tokens", "base", "mid", "sft"]


def test_changed_source_file_makes_its_dependents_stale(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one\n")
    wanted = replace(WANTED, source=str(corpus))
    before = everything_made(wanted)
    assert steps(planned(wanted, before)) == []
    corpus.write_text("two\n")
    assert steps(planned(wanted, before)) == [name for name in EVERYTHING if name != "identity"]


@pytest.mark.process
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize(
    ("module", "differing"),
    [
        ("trainer/model/decoder.py", ["base", "mid", "chatsft"]),
        ("trainer/phases/sft.py", ["chatsft"]),
        ("data/chat/persona.py", ["identity_conversations", "datasets/pydocs/questions", "mid", "chatsft"]),
        ("data/tokens/tokenize.py", ["tokenizer", "datasets/pydocs/tokens", "base"]),
        ("trainer/reporting/samples.py", []),
        ("data/text/new.py", ["datasets/pydocs/text"]),
    ],
)
def test_artifact_of_different_code_is_kept_and_the_file_is_named(checkout, module, differing, is_committed):
    before = everything_made(root=checkout)
    change(checkout, module)
    if is_committed:
        commit(checkout)
    plan = planned(WANTED, before, checkout)
    assert plan.job is None
    named = {one.name.removesuffix("/tiny").removesuffix("_checkpoints") for one in plan.artifacts if one.differs}
    assert named == set(differing)
    assert {file for one in plan.artifacts for file in one.differs} == ({module} if differing else set())
    assert [one.name for one in plan.doubtful] == (["chatsft_checkpoints/tiny"] if "chatsft" in differing else [])
    said = [note for note in plan.notes if "although the code has changed" in note]
    assert len(said) == len(set(differing) - {"chatsft"}) and all(module in note for note in said)


@pytest.mark.process
def test_uncommitted_code_counts_as_equal_while_unchanged(checkout):
    change(checkout, "trainer/loop.py")
    before = everything_made(root=checkout)
    assert planned(WANTED, before, checkout).notes == ()
    commit(checkout)
    assert planned(WANTED, before, checkout).notes == ()
    git(checkout, "checkout", "-q", "HEAD~1")
    plan = planned(WANTED, before, checkout)
    assert {one.differs for one in plan.doubtful} == {(fingerprints.UNCOMMITTED,)}
    change(checkout, "trainer/loop.py", "CHANGED = False\n")
    assert {one.differs for one in planned(WANTED, before, checkout).doubtful} == {("trainer/loop.py",)}


@pytest.mark.process
def test_first_of_many_changed_files_are_named(checkout):
    before = everything_made(root=checkout)
    for number in range(20):
        change(checkout, f"trainer/model/new_{number:02}.py")
    (one,) = planned(WANTED, before, checkout).doubtful
    assert len(one.differs) == fingerprints.MOST_NAMED + 1 and one.differs[-1] == "and 12 more"


@pytest.mark.process
def test_unknown_commit_is_reported_once_without_further_git_calls(checkout):
    before = everything_made(root=checkout)
    unknown = {"code": {"commit": "ab" * 20}}
    there = replace(before, artifacts={name: replace(one, about=unknown) for name, one in before.artifacts.items()})
    plan = planned(WANTED, there, checkout)
    assert plan.job is None and plan.doubtful == ()
    (said,) = plan.notes
    assert "made by commit ababababab, which this checkout does not have" in said
    assert steps(planned(replace(WANTED, made="remake"), there, checkout)) == ["sft"]


@pytest.mark.process
@pytest.mark.parametrize(
    "code", [None, "v1", {}, {"trainer/loop.py": "0f"}, {"commit": "--help"}, {"commit": ["ab" * 20]}]
)
def test_unrecorded_code_is_not_compared(checkout, code):
    before = everything_made(root=checkout)
    there = replace(
        before, artifacts={name: replace(one, about={"code": code}) for name, one in before.artifacts.items()}
    )
    change(checkout, "trainer/loop.py")
    plan = planned(WANTED, there, checkout)
    assert plan.job is None and plan.doubtful == () and plan.notes == ()


@pytest.mark.process
def test_checkout_without_git_records_no_commit_and_compares_no_code(checkout, tmp_path):
    before = everything_made(root=checkout)
    shutil.rmtree(checkout / ".git")
    for root in (checkout, checkout / "data"):
        plan = planned(WANTED, before, root)
        assert plan.job is None and plan.doubtful == () and plan.notes == ()
    made = planned(WANTED, Inventory("somewhere"), checkout)
    assert {json.dumps(step.config["making"]["code"]) for step in made.job.steps} == {"{}"}


@pytest.mark.process
def test_checkout_inside_a_foreign_repository_ignores_its_commits(checkout):
    inner = checkout / "vendored"
    shutil.copytree(checkout / "data", inner / "data")
    commit(checkout)
    assert CheckoutCode(inner).of(("data",)) == {} and CheckoutCode(checkout).of(("data",)).keys() == {"commit"}


@pytest.mark.process
@pytest.mark.parametrize("is_clean", [True, False])
def test_copy_without_a_repository_has_the_commit_of_its_checkout(checkout, tmp_path, monkeypatch, is_clean):
    if not is_clean:
        (checkout / "data" / "new.py").write_text("x = 1\n")
    there = CheckoutCode(checkout)
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    subprocess.run(["git", "init", "-q", copy], check=True)  # as on a control host
    assert CheckoutCode(copy).of(("data",)) == {}
    monkeypatch.setenv(SENT, there.sent_state())
    here = CheckoutCode(copy)
    assert here.of(("data",)) == there.of(("data",)) and ("changed" in here.of(("data",))) is not is_clean
    assert here.changed_files(there.of(("data",)), ("data",)) == ()
    assert here.changed_files({"commit": "0" * 40}, ("data",)) is None
    assert CheckoutCode(checkout).of(("data",)) == there.of(("data",)), "a repository of its own comes first"


def test_recorded_source_files_of_a_plan_exist():
    places = {*nodes.MAKE_TEXT, *nodes.MAKE_TOKENS, *nodes.MAKE_TALK, *nodes.IMPORT, *nodes.TRAIN}
    places = places.union(*nodes.READ.values(), *(node.code for node in recipe(WANTED).values()))
    places = places.union(*map(model_formats.code_of, model_formats.installed()))
    assert not [one for one in places if not (ROOT / one).exists()]
    assert {"packs", *(one.partition("/")[0] for one in places)} == set(fingerprints.FOLDERS)


@pytest.mark.process
def test_artifact_is_created_again_on_request_and_found_afterwards(checkout):
    before = everything_made(root=checkout)
    changed = shutil.copytree(checkout, checkout.with_name("changed"))
    change(changed, "trainer/model/decoder.py")
    kept = planned(replace(WANTED, made="keep"), before, changed)
    assert kept.job is None and kept.doubtful == ()
    again = planned(replace(WANTED, phases=("mid",), made="remake"), before, changed)
    assert steps(again) == ["mid"]
    making = again.job.steps[0].config["making"]
    assert making["fingerprint"] not in {one.fingerprint for one in before.artifacts.values()}
    remade = HeldArtifact(
        kept_name(making["name"], making["fingerprint"]), making["fingerprint"], about={"code": making["code"]}
    )
    names = {**before.artifacts, "mid_checkpoints/tiny": replace(remade, name="mid_checkpoints/tiny")}
    first = before.artifacts["mid_checkpoints/tiny"]
    there = replace(
        before, artifacts=names, kept=(remade, replace(first, name=kept_name(first.name, first.fingerprint)))
    )
    assert steps(planned(replace(WANTED, phases=("mid",)), there, changed)) == []
    assert steps(planned(WANTED, there, changed)) == ["sft"]  # The artifact made from the other model.
    # No artifact exists under the name: the artifact of today's code comes first.
    other_tag = replace(WANTED, tag="other")
    assert steps(planned(other_tag, there, checkout)) == []
    assert steps(planned(replace(other_tag, phases=("mid",)), there, changed)) == []


@pytest.mark.parametrize(
    ("artifact", "due"),
    [
        ("tokenizer", []),
        ("mid_checkpoints/tiny", []),
        ("chatsft_checkpoints/tiny", ["sft"]),
    ],
)
def test_damaged_artifact_is_created_again_before_its_use(artifact, due):
    made = everything_made()
    damaged = {
        **made.artifacts,
        artifact: replace(made.artifacts[artifact], problem="model.safetensors: sha256 differs"),
    }
    plan = planned(WANTED, Inventory("somewhere", damaged))
    assert steps(plan) == due
    assert [one.state for one in plan.artifacts if one.name == artifact] == (["damaged"] if due else [])
    again = planned(replace(WANTED, seed=7), Inventory("somewhere", damaged))
    assert steps(again) == ([artifact] if artifact == "tokenizer" else []) + ["base", "mid", "sft"]


def test_each_step_names_its_inputs_by_fingerprint():
    plan = planned(WANTED, Inventory("somewhere"))
    made = {step.name: step.config["making"] for step in plan.job.steps}
    assert made["sft"]["inputs"]["mid"] == {"name": "mid_checkpoints/tiny", "fingerprint": made["mid"]["fingerprint"]}


@pytest.mark.parametrize(
    ("words", "phases"), [("sft", ("sft",)), ("mid+base", ("base", "mid")), ("all", ("base", "mid", "sft", "rl"))]
)
def test_phases_are_a_name_a_sum_or_all(words, phases):
    assert planning.parse_phases(words) == phases


@pytest.mark.parametrize(
    ("words", "told"), [("sfx", "did you mean 'sft'"), ("rls", "did you mean 'rl'"), ("", "unknown phase")]
)
def test_unknown_phases_are_refused_with_the_known_ones(words, told):
    with pytest.raises(UsageError, match=told):
        planning.parse_phases(words)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/me/my corpus/**/*.jsonl", "my-corpus"),
        ("/tmp/zoë.parquet", "zo"),
        ("/tmp/日本.txt", "local"),
        ("/*.txt", "local"),
        ("hf://a/b.c@v1/main:train[:10%]?text=body", "a-b.c"),
        ("/x/rows.csv:train[:10%]", "rows"),
        ("hf://a/b=0.7,/x/y.txt=0.3", "a-b-y"),
    ],
)
def test_source_has_a_name_valid_in_the_store(source, name):
    assert planning.source_slug(source) == name


def test_unreadable_text_is_refused_before_any_start(tmp_path):
    (tmp_path / "a.docx").touch()
    with pytest.raises(ConfigError, match="cannot read .docx"):
        planned(replace(WANTED, source=str(tmp_path / "*")), Inventory("somewhere"))


def test_a_glob_may_have_wildcards_in_its_folders(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("a\n")
    assert steps(planned(replace(WANTED, source=str(tmp_path / "*" / "*.txt")), Inventory("somewhere"))) == EVERYTHING


def test_missing_source_is_refused():
    with pytest.raises(ConfigError, match="no such file"):
        planned(replace(WANTED, source="nowhere/*.txt"), Inventory("somewhere"))


def test_plan_shows_the_distribution_of_a_model_over_several_gpus():
    def asked(**more) -> Plan:
        wanted = replace(WANTED, phases=("base",), profile="runpod_4b")
        request = Request(run="r", **more)
        return resolve(wanted, Inventory("somewhere"), ROOT, run="r", request=request)

    one, eight, two = asked(num_gpus=1), asked(num_gpus=8), asked(num_gpus=8, nodes=2)
    assert one.notes == ()
    assert "base: several GPUs: ddp with 41 GB on each GPU, else fsdp with" in eight.notes[0]
    assert "else hybrid with" in two.notes[0]


@pytest.mark.parametrize(("profile", "phase"), [("runpod_1b", "base"), ("runpod_4b", "base"), ("tiny", "sft")])
@pytest.mark.parametrize(("num_gpus", "nodes"), [(1, 1), (8, 1), (8, 2)])
def test_least_memory_of_a_phase_is_the_limit_of_inv_fit(profile, phase, num_gpus, nodes):
    config = PROFILES[profile]().phases[phase]
    least = estimates.min_gpu_bytes(config, num_gpus, nodes)
    assert fitting.largest(config, least, num_gpus, nodes).fits
    assert not fitting.largest(config, int(0.999 * least), num_gpus, nodes).fits
    fixed = replace(config, fit=False)
    assert estimates.min_gpu_bytes(fixed, num_gpus, nodes) >= least
    assert fitting.fits(fixed, estimates.min_gpu_bytes(fixed, num_gpus, nodes), num_gpus, nodes)


def test_smallest_change_of_an_oversized_phase_fits_and_preserves_the_result_if_possible():
    base = PROFILES["runpod_1b"]().phases["base"]
    fixed = replace(base, fit=False)
    has = 40 * 10**9
    assert estimates.min_gpu_bytes(fixed, 1) > has
    assert smallest_fitting_options(fixed, has, 1) == "--set base.micro_rows=4"
    whole = PROFILES["runpod_4b"]().phases["base"]
    flags = smallest_fitting_options(whole, 73_500 * 10**6, 1)
    assert flags == "--set base.sequence_len=1024"
    assert smallest_fitting_options(whole, 10**9, 1) == ""


def test_given_artifact_is_never_planned_and_must_exist():
    wanted = replace(WANTED, phases=("base",), given={"text": "aaa", "tokenizer": "bbb"})
    text, tokenizer = HeldArtifact("datasets/pydocs/text", "aaa"), HeldArtifact("tokenizer", "bbb")
    there = {one.name: one for one in (text, tokenizer)}
    plan = planned(wanted, Inventory("somewhere", there))
    assert steps(plan) == ["tokens", "base"]
    assert {one["fingerprint"] for one in plan.job.steps[0].config["making"]["inputs"].values()} == {"aaa", "bbb"}
    for another in (
        {},
        {"tokenizer": HeldArtifact("tokenizer", "ccc")},
        {"tokenizer": replace(tokenizer, problem="cut")},
    ):
        with pytest.raises(UsageError, match=r"tokenizer must exist in somewhere, but is (missing|stale|damaged)"):
            planned(wanted, Inventory("somewhere", {text.name: text, **another}))


def test_plan_names_a_changed_setting():
    other = replace(WANTED, persona=replace(WANTED.persona, name="Ursula K."))
    (before,) = (step for step in planned(other, Inventory("somewhere")).job.steps if step.name == "identity")
    made = StepContext(**{**before.config["making"], "inputs": {}})
    there = everything_made()
    there = replace(there, artifacts={name: one for name, one in there.artifacts.items() if "checkpoints" not in name})
    old = there.artifacts["identity_conversations"]
    for about, why in ((made.provenance, "persona name Ursula K. -> {}"), ({}, "settings changed")):
        artifact = replace(old, fingerprint=made.fingerprint, about=about)
        plan = planned(WANTED, replace(there, artifacts={**there.artifacts, artifact.name: artifact}, kept=()))
        line = next(one for one in plan.artifacts if one.name == artifact.name)
        assert line.reason == why.format(WANTED.persona.name)


def test_long_or_nested_settings_are_named_briefly():
    before = {"a": {"b": 1, "c": [1, 2]}, "gone": None, "text": "x" * 99}
    assert differences(before, {"a": {"b": 2, "c": [1, 2]}, "new": True, "text": ""}) == [
        "a b 1 -> 2",
        "new none -> true",
        f'text {"x" * 37}... -> ""',
    ]
    assert differences("hostile", {"a": 1}) == [] and differences({}, {"a": 1}) == []


BITS = replace(WANTED, phases=("bits1", "bits1.9", "bits2"), profile="smoke_bits")


@pytest.mark.pack("bits")
@pytest.mark.parametrize("word", ["4", "1.8"])
def test_unknown_stage_is_refused_with_the_known_ones(word):
    with pytest.raises(UsageError, match=f"unknown phase '{word}'; the stages of 1.58 bits are 1, 1.9, 2 and 3; known"):
        planning.parse_phases(word)


@pytest.mark.pack("bits")
@pytest.mark.parametrize(
    ("words", "chain"),
    [
        ("1+1.9+2", "base bits1 bits1.9 bits2"),
        ("bits2", "base bits1 bits1.9 bits2"),  # Like stages launched one after the other.
        ("bits1+bits2", "base bits1 bits2"),
        ("bits1+bits2+bits3", "base bits1 bits2 mid sft bits3"),
    ],
)
def test_sum_of_stages_skips_an_unnamed_stage_between(words, chain):
    nodes = recipe(replace(BITS, phases=planning.parse_phases(words)))
    plan = planned(replace(BITS, phases=planning.parse_phases(words)), Inventory("somewhere", {}))
    assert sorted(one for one in steps(plan) if one in nodes and one.startswith(("b", "m", "s"))) == sorted(
        chain.split()
    )


@pytest.mark.pack("bits")
def test_shape_option_applies_to_all_phases_and_a_ternary_option_to_the_stages():
    wider = {"model.hidden_size": "512", "model.ternary.per_row": "true", "model.sub_norm": "false"}
    nodes = recipe(replace(BITS, options=wider))
    base, stage = (nodes[name].spec.model for name in ("base", "bits2"))
    assert base.hidden_size == stage.hidden_size == 512
    assert stage.ternary.per_row and base.ternary is None and not stage.sub_norm
    notes = planned(
        replace(BITS, options={"model.ternary": "null", "model.sub_norm": "false"}), Inventory("s", {})
    ).notes
    assert "model.ternary null (profile: None or Ternary(per_row=False, haar=False))" in notes
    assert any("the model has no `ternary` setting; training continues in full precision" in one for one in notes)
    for options, said in (
        ({"model.hiden_size": "512"}, "hiden_size is not an option; did you mean hidden_size"),
        ({"model.ternary.haar": "true", "model.intermediate_size": "769"}, "must both be even"),
        (
            {"model.num_attention_heads": "3", "model.num_key_value_heads": "3", "model.head_dim": "30"},
            "model.head_dim: bits3: relation_heads 8 does not divide 90, the total width of the heads; 6 divides 90",
        ),
        (
            {"model.max_position_embeddings": "512"},
            "^--set model.max_position_embeddings: sft: sequence_len is 1024; the model has 512 positions",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            recipe(replace(BITS, options=options))


@pytest.mark.pack("bits")
@pytest.mark.parametrize(
    ("own_chat", "width", "said"),
    [
        (False, 768, None),
        (False, 704, r"rows must be multiples of 256 numbers: intermediate_size 704 \(nearest: 768\)"),
        (True, 768, "the tokenizer of /models/theirs is not a Slipway tokenizer"),
    ],
)
def test_plan_reports_before_training_that_no_gguf_file_is_possible(own_chat, width, said):
    model = replace(recipe(BITS)["base"].spec.model, intermediate_size=width)
    init = ImportSpec(source="/models/theirs", model=model, has_tokenizer=True, own_chat=own_chat)
    notes = [one for one in planned(replace(BITS, init=init), Inventory("s", {})).notes if "GGUF" in one]
    assert len(notes) == (said is not None)
    assert all(
        re.search(f"cannot be made of this model .{said}.; Slipway's own engine runs the model", one) for one in notes
    )


@pytest.mark.pack("bits")
def test_shape_and_phase_requirements_are_checked_together():
    odd = {"model.num_attention_heads": "3", "model.num_key_value_heads": "3", "model.head_dim": "30"}
    nodes = recipe(replace(BITS, options={**odd, "bits3.bits.relation_heads": "6"}))
    assert nodes["bits3"].spec.bits.relation_heads == 6 and nodes["bits3"].spec.model.head_dim == 30
    short = {"model.max_position_embeddings": "512", "sft.sequence_len": "512"}
    assert recipe(replace(BITS, options=short))["sft"].spec.sequence_len == 512


def test_changed_number_of_steps_rescales_the_warm_up_of_the_recipe_but_not_a_given_one():
    asked = replace(WANTED, phases=("base",), steps=60)
    assert recipe(asked)["base"].spec.schedule.warmup_steps == 50  # tiny: 10 of 12.
    given = recipe(replace(asked, options={"base.schedule.warmup_steps": "5"}))["base"].spec
    assert (given.steps, given.schedule.warmup_steps) == (60, 5)


@pytest.mark.pack("blocks")
def test_sizes_of_dlm_may_be_variables_and_are_overridden_by_options():
    sizes = {"batch_size": 4, "grad_accum": 16, "tokens": 1_000_000, "block_size": 32}
    asked = replace(WANTED, phases=("dlm",), profile="smoke", sizes=sizes)
    spec = recipe(asked)["dlm"].spec
    assert (spec.micro_rows, spec.rows, spec.blocks.block_size, spec.fit) == (4, 4 * 16 * spec.turns, 32, False)
    assert spec.steps == -(-1_000_000 // (64 * spec.sequence_len)) and spec.schedule.warmup_steps == 2
    assert recipe(replace(asked, options={"dlm.steps": "7"}))["dlm"].spec.steps == 7
    with pytest.raises(UsageError, match="TOKENS is -1; it must be"):
        recipe(replace(asked, sizes={**sizes, "tokens": -1}))
    with pytest.raises(ConfigError, match="block_size 24 does not divide sequence_len 512"):
        recipe(replace(asked, sizes={**sizes, "block_size": 24}))


def test_changed_weights_are_reported_without_floating_point_noise():
    before, now = {"mixture": {"identity": 0.22, "other": 0.88 * 0.4}}, {"mixture": {"identity": 0.25, "other": 0.4}}
    assert differences(before, now) == ["mixture identity 0.22 -> 0.25", "mixture other 0.352 -> 0.4"]

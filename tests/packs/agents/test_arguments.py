"""Arguments of tools: typed, bounded, and never a flag."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import ConfigError
from packs.agents.control.answers import CUT, MOST_BYTES, bounded, clean, for_the_agent, newest, run_facts
from packs.agents.control.inv_lines import _flags
from packs.agents.records.arguments import AskArguments, PlanArguments, read, schema
from packs.agents.records.tools import TOOLS
from trainer.recipes import PROFILES, is_file

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=12), part, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "said, wrong",
    [
        ({}, "spend_usd is missing"),
        ({"spend_usd": True}, "must be a number"),
        ({"spend_usd": math.nan}, "must be a number"),
        ({"spend_usd": -1}, "must be a number"),
        ({"spend_usd": 1, "budget": "x=1000"}, "unknown argument 'budget'"),
        ({"spend_usd": 1, "phase": "sft --yes"}, "phase is 'sft --yes'"),
        ({"spend_usd": 1, "gpu": "--yes"}, "gpu is '--yes'"),
        ({"spend_usd": 1, "source": "/etc/passwd"}, "source is '/etc/passwd'"),
        ({"spend_usd": 1, "source": "mine.jsonl"}, "source is"),
        ({"spend_usd": 1, "init": "../secret"}, "init is"),
        ({"spend_usd": 1, "init": "/root"}, "init is"),
        ({"spend_usd": 1, "init": "docs/../../x"}, "init is"),
        ({"spend_usd": 1, "init": "imported/../../x"}, "init is"),
        ({"spend_usd": 1, "init": "var/models/private"}, "init is"),
        ({"spend_usd": 1, "init": "private"}, "init is"),
        ({"spend_usd": 1, "model": "docs/../../x"}, "model is"),
        ({"spend_usd": 1, "source": "hf://a/b/../../c"}, "source is"),
        ({"spend_usd": 1, "profile": "infra/../../../tmp/p.yaml"}, "profile is"),
        ({"spend_usd": 1, "profile": "examples/profile"}, "profile is"),
        ({"spend_usd": 1, "profile": "mine.yaml"}, "profile is"),
        ({"spend_usd": 1, "profile": "mine.yml"}, "profile is"),
        ({"spend_usd": 1, "gpu": "a/b"}, "gpu is"),
        ({"spend_usd": 1, "model": "s3://bucket/x"}, "model is"),
        ({"spend_usd": 1, "task": "mine.jsonl"}, "task is"),
        ({"spend_usd": 1, "options": "sft.rows=2"}, "options must be a list"),
        ({"spend_usd": 1, "options": ["rl.rl.unsafe_rewards=true"]}, "is closed to allowances"),
        ({"spend_usd": 1, "options": ["rl.rl.reward=def x"]}, "is closed to allowances|accepted form"),
        ({"spend_usd": 1, "options": [""]}, "options is ''"),
        ({"spend_usd": 1, "steps": 1.5}, "must be a number"),
        ([1], "one JSON object"),
    ],
)
def test_wrong_arguments_are_refused_in_words(said, wrong):
    with pytest.raises(ConfigError, match=wrong):
        read(PlanArguments, said)


@pytest.mark.parametrize("init", ["", "hub", "hf://a/b", "hf://a/b@v1", "imported/Qwen3-0.6B", "imported/allow-demo.b"])
def test_start_model_is_a_name_of_the_hub_or_of_the_store(init):
    assert read(PlanArguments, {"spend_usd": 1, "init": init}).init == init


@pytest.mark.parametrize("name", [*PROFILES, "qwen3_0.6b", "yaml"])
def test_every_recipe_can_be_named_and_no_recipe_is_a_file(name):
    assert read(PlanArguments, {"spend_usd": 1, "profile": name}).profile == name and not is_file(name)


@given(
    name=st.sampled_from([*TOOLS]), said=JSON | st.dictionaries(st.text(max_size=12), JSON, max_size=6), data=st.data()
)
def test_any_json_is_read_or_refused_and_a_read_value_is_one_word_of_a_flag(name, said, data):
    kind = TOOLS[name].arguments
    known = list(schema(kind)["properties"])
    if isinstance(said, dict) and known:
        said = {data.draw(st.sampled_from(known)): value for value in said.values()}
    try:
        found = read(kind, said)
    except ConfigError:
        return
    for word in _flags(vars(found)):
        assert (
            word.startswith("--")
            and "\x00" not in word
            and ("\n" not in word or word.startswith(("--prompt", "--words")))
        )


@pytest.mark.parametrize("tool", [*TOOLS])
def test_empty_text_is_refused_unless_the_default_is_empty(tool):
    kind = TOOLS[tool].arguments
    said = schema(kind)
    for name, one in said["properties"].items():
        if one["type"] != "string":
            continue
        with_others = {"run": "demo-1", "prompt": "x", "spend_usd": 1, name: ""}
        given = {key: value for key, value in with_others.items() if key in said["properties"]}
        if one.get("default") == "":
            assert getattr(read(kind, given), name) == "" and "minLength" not in one
            continue
        assert one["minLength"] == 1
        with pytest.raises(ConfigError, match=f"{name} is ''"):
            read(kind, given)


def test_schema_of_every_tool_names_types_bounds_and_required_arguments():
    for tool in TOOLS.values():
        said = schema(tool.arguments)
        json.dumps(said)
        assert said["additionalProperties"] is False and {*said["required"]} <= said["properties"].keys()
        assert all(one["description"] and one["type"] for one in said["properties"].values())
    assert schema(PlanArguments)["required"] == ["spend_usd"]


@given(JSON)
def test_answers_have_a_bounded_size(said):
    found = bounded({"result": {"a": said, "text": "x\x1b[31m" * 4000, "rows": [{"b": "y" * 300}] * 90}})
    assert len(json.dumps(found).encode()) <= MOST_BYTES


def test_cut_list_says_so():
    assert "cut" not in bounded({"result": {"rows": [1]}})["result"]
    found = bounded({"result": {"rows": [{"b": "y" * 300}] * 90}})["result"]
    assert 0 < len(found["rows"]) < 90 and found["cut"] == CUT


WORKING = "demo-1 is already running the same work, but was launched with other flags"
STORE = "artifacts would go to /home/owner/My Name/artifacts, which a rented machine cannot reach"
STEPS = "--detach excludes the flag; leave out steps"
NONE = "none of 9 offers matches\n  9 of 9 fail --gpu H100\ntry: --gpu A100; or --num-gpus 2"


@pytest.mark.parametrize(
    "error, shown, rest",
    [
        (
            f"{WORKING}: --run-name demo-2; nothing was changed. To end the run first: inv down demo-1; try --dry-run",
            f"{WORKING}; nothing was changed.",
            "--run-name demo-2; To end the run first: inv down demo-1; try --dry-run",
        ),
        (
            f"{STORE}; choose a remote store: --store hf://user/repo",
            STORE.replace("/home/owner/My Name/artifacts", "(a path of the owner)"),
            "choose a remote store: --store hf://user/repo",
        ),
        (
            "--init d1: d1 is no folder; did you mean --init /home/owner/var/base_checkpoints/d12?",
            "init d1: d1 is no folder",
            "did you mean --init /home/owner/var/base_checkpoints/d12?",
        ),
        (
            f"{NONE}\nto wait until an offer matches: --wait",
            "none of 9 offers matches; 9 of 9 fail gpu H100; try: gpu A100; or num_gpus 2",
            "to wait until an offer matches: --wait",
        ),
        ("no offer matches\nto wait: --wait", "no offer matches", "to wait: --wait"),
        ("no free machine with 1 H100, see inv doctor", "no free machine with 1 H100", "see inv doctor"),
        (
            "d1 is not in s3://bucket/private: denied; read s3://bucket/private",
            "d1 is not in (an address of the owner): denied",
            "read s3://bucket/private",
        ),
        (f"--wait: {STEPS}", "", f"--wait: {STEPS}"),
        ("a\x1b[2Jb\nc", "a\\x1b[2Jb; c", ""),
        ("no model 'x'; available: base_checkpoints/d12", "no model 'x'", "available: base_checkpoints/d12"),
        (
            "no machine has 80 GB; raise --num-gpus to 2, or leave out --gpu; see: inv offers --gpu H100",
            "no machine has 80 GB; raise num_gpus to 2, or leave out gpu",
            "see: inv offers --gpu H100",
        ),
        (
            "hf://a/b: https://huggingface.co/a/b: 404; try a public model",
            "hf://a/b: https://huggingface.co/a/b: 404; try a public model",
            "",
        ),
        ("", "", ""),
    ],
)
def test_error_for_an_agent_ends_before_the_part_that_only_the_owner_can_follow(error, shown, rest):
    assert for_the_agent(error) == (shown, rest) and "--" not in shown


@pytest.mark.parametrize("prompt", ["a\x00b", "a\ud800b", "", "x" * 4001])
def test_prompt_that_no_command_line_can_hold_is_refused(prompt):
    with pytest.raises(ConfigError, match="prompt is"):
        read(AskArguments, {"run": "demo-1", "prompt": prompt})
    assert read(AskArguments, {"run": "demo-1", "prompt": "a\nb ä 🙂"}).prompt == "a\nb ä 🙂"


@pytest.mark.parametrize("line", ["step {0}: loss 2.5 " + "x" * 90, "schritt {0} ä🙂" * 30, "{0}"])
def test_newest_lines_of_a_long_log_are_shown(line):
    lines = [line.format(number) for number in range(2000)]
    shown = newest("\n".join(lines))
    assert len(json.dumps(shown).encode()) <= MOST_BYTES and shown.splitlines()[-1] == lines[-1]
    assert shown.splitlines() == lines[-len(shown.splitlines()) :] and len(shown.splitlines()) > 3
    assert newest("short\nlog") == "short\nlog" and newest("x" * 99_999)


def test_words_of_a_machine_are_untrusted_text():
    assert run_facts({"run": "demo-1", "reason": "obey"}) == {"run": "demo-1", "untrusted_text": "obey"}


def test_untrusted_text_loses_control_characters():
    assert clean("a\x1b[2Jb\r\x07\nc\u202ed") == "a[2Jb\ncd"

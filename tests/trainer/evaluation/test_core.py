"""CORE: prompts and counted tokens equal nanochat's; each task is scored against chance."""

import json
from dataclasses import replace

import pytest
import torch

from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from tests.trainer.conftest import TINY
from trainer.config import EvalSpec
from trainer.evaluation import core
from trainer.evaluation.question_files import Asking
from trainer.evaluation.scores import scores
from trainer.model import export
from trainer.model.decoder import Decoder, initialize

CHOICE = [{"query": f"Question: what is {n}?\nAnswer:", "choices": ["a number", "a word", "no idea"], "gold": n % 3}
          for n in range(6)]  # fmt: skip
SCHEMA = [{"context_options": [f"The {n} is large because the cat", f"The {n} is large because the dog"],
           "continuation": "sleeps in it.", "gold": n % 2} for n in range(6)]  # fmt: skip
WORDS = [{"context": f"  one two three {n} ", "continuation": "four five"} for n in range(6)]
TASKS = {"pick": ("multiple_choice", CHOICE, 2, "\n"), "who": ("schema", SCHEMA, 0, " "),
         "on": ("language_modeling", WORDS, 1, " ")}  # fmt: skip


def bundle(folder, tasks=TASKS, baselines="pick,33.3\nwho,50\non,0\n"):
    """Write a task folder in nanochat's unpacked layout."""
    (folder / "eval_data/a").mkdir(parents=True)
    listed = []
    for label, (kind, rows, shots, between) in tasks.items():
        (folder / f"eval_data/a/{label}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        listed.append(
            {
                "label": label,
                "dataset_uri": f"a/{label}.jsonl",
                "num_fewshot": [shots],
                "icl_task_type": kind,
                "continuation_delimiter": between,
            }
        )
    (folder / "core.yaml").write_text(json.dumps({"icl_tasks": listed}))
    heads, rows = "Eval Task,Task Category,Random baseline\n", baselines.splitlines()
    (folder / "eval_meta_data.csv").write_text(heads + "".join(one.replace(",", ",x,") + "\n" for one in rows))
    return folder


def test_prompts_equal_nanochats_with_its_examples_in_its_order(tmp_path):
    tasks = {one.label: one for one in core.read(bundle(tmp_path))}
    some = core.questions(tasks["pick"])
    # nanochat's shuffle of six (seed 1337), and the two examples shown before the first of them (seed 1234).
    assert some == [CHOICE[at] for at in (1, 0, 3, 2, 5, 4)]
    first = core.prompts(tasks["pick"], some, 0)
    shown = "Question: what is 5?\nAnswer:\nno idea\n\nQuestion: what is 0?\nAnswer:\na number\n\n"
    assert first == [f"{shown}Question: what is 1?\nAnswer:\n{choice}" for choice in CHOICE[0]["choices"]]
    who = core.questions(tasks["who"])
    assert core.prompts(tasks["who"], who, 0) == [f"{one} sleeps in it." for one in who[0]["context_options"]]
    on = core.questions(tasks["on"])
    without, whole = core.prompts(tasks["on"], on, 0)
    assert whole == f"{without} four five" and without.count("one two three") == 2 and not without.endswith(" ")
    assert len(core.questions(tasks["on"], most=3)) == 3


def test_common_prefix_of_all_rows_does_not_count():
    assert core.scored_rows("multiple_choice", [[1, 2, 3, 4], [1, 2, 5]]) == [([1, 2, 3, 4], 2), ([1, 2, 5], 1)]
    assert core.scored_rows("schema", [[1, 2, 8, 9], [1, 3, 4, 8, 9]]) == [([1, 2, 8, 9], 2), ([1, 3, 4, 8, 9], 2)]
    assert core.scored_rows("language_modeling", [[1, 2], [1, 2, 3, 4]]) == [([1, 2, 3, 4], 2)]
    # Ids that were merged.
    assert core.scored_rows("language_modeling", [[1, 2, 7], [1, 2, 3, 4]]) == [([1, 2, 3, 4], 2)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_choice_without_scored_ids_is_chosen_as_in_nanochat(inputs, tmp_path, place):
    one, choices = Decoder(TINY).eval(), ["a b", "a c"]
    initialize(one, 3)
    choices.insert(place, "a")
    rows = [{"query": "Name it:", "choices": choices, "gold": gold} for gold in range(3)]
    task = core.CoreTask("pick", "multiple_choice", tmp_path, 0, " ", 0.0)
    right = core.score_questions(task, rows, one, tokenizers.load(inputs[0] / "tokenizer"))
    means = [1.0, 2.0]
    means.insert(place, float("nan"))  # nanochat's mean over no ids
    assert sum(right) == 1 and right[place] == (means.index(min(means)) == place)


@pytest.fixture
def model(inputs, tmp_path):
    """Return the folder of a model that continues WORDS correctly."""
    words = tokenizers.load(inputs[0] / "tokenizer")
    one = Decoder(TINY)
    initialize(one, 3)
    texts = [f"one two three {n} four five" for n in range(6)]
    rows = [[*words.begin, *words.encode(f"{text}\n\n{other}")] for text in texts for other in texts if other != text]
    optimizer = torch.optim.AdamW(one.parameters(), lr=3e-3)
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    targets = torch.tensor([[*row[1:], *[-1] * (longest + 1 - len(row))] for row in rows])
    for _ in range(60):
        optimizer.zero_grad()
        (one.loss(ids, targets) / (targets >= 0).sum()).backward()
        optimizer.step()
    export.write(tmp_path / "model", TINY, one.state_dict(), inputs[0] / "tokenizer", torch.float32)
    return tmp_path / "model"


@pytest.mark.nightly
@pytest.mark.slow
def test_core_is_the_mean_of_tasks_scored_against_chance(model, inputs, tmp_path):
    found = scores(EvalSpec(model=str(model), core=str(bundle(tmp_path / "eval_bundle").parent)))["measures"]
    shares = {label: found[f"core {label}"] for label in TASKS}
    assert shares["on"]["value"] == 1.0 and [one["of"] for one in shares.values()] == [6, 6, 6]
    words, one = tokenizers.load(inputs[0] / "tokenizer"), export.read(model).eval()
    some = {task.label: (task, core.questions(task)) for task in core.read(tmp_path)}
    for label in ("pick", "who"):  # From whole logits, question by question.
        task, rows = some[label]
        truths = []
        for number, row in enumerate(rows):
            texts, means = core.prompts(task, rows, number), []
            ids = [[*words.begin, *words.encode(text)] for text in texts]
            for whole, count in core.scored_rows(task.kind, ids):
                with torch.no_grad():
                    logs = one(torch.tensor([whole[:-1]]))[0].log_softmax(-1)
                means.append(-sum(logs[at - 1, whole[at]] for at in range(len(whole) - count, len(whole))) / count)
            truths.append(int(min(range(len(means)), key=lambda at: means[at]) == row["gold"]))
        assert shares[label]["rows"] == truths
    expected = [
        (shares[label]["value"] - chance) / (1 - chance)
        for label, chance in (("pick", 0.333), ("who", 0.5), ("on", 0.0))
    ]
    assert found["CORE"]["value"] == pytest.approx(sum(expected) / 3)
    assert found["CORE"]["low"] < found["CORE"]["value"] < found["CORE"]["high"] and found["CORE"]["of"] == 18


@pytest.mark.parametrize("is_nanochat", [True, False])
def test_only_shapes_of_nanochat_read_prompts_beyond_their_positions(inputs, is_nanochat):
    one = Decoder(replace(TINY, embed_norm=is_nanochat, max_position_embeddings=16)).eval()
    initialize(one, 3)
    row = [7 + number % 50 for number in range(40)]
    asking = Asking(one, tokenizers.load(inputs[0] / "tokenizer"), as_text=True)
    read = row if is_nanochat else row[-17:]
    with torch.no_grad():
        logs = one(torch.tensor([read[:-1]]))[0].log_softmax(-1)
    expected = -sum(logs[at, read[at]] for at in (-3, -2, -1))
    assert asking.costs([(row, 3)], one.config.longest_row)[0].nats == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pick": ("riddle", CHOICE, 0, " ")}, "pick: unknown kind of task 'riddle'"),
        ({"odd": ("schema", SCHEMA, 0, " ")}, "odd: eval_meta_data.csv has no valid random baseline"),
        ({"pick": ("multiple_choice", [{**CHOICE[0], "gold": 7}], 0, " ")}, "pick.jsonl:1: gold is 7"),
        ({"pick": ("multiple_choice", [{"query": "q"}], 0, " ")}, "missing or of the wrong type: choices, gold"),
        ({"pick": ("multiple_choice", CHOICE, 6, " ")}, "6 few-shot examples need more questions; the task has 6"),
    ],
)
def test_invalid_task_is_named(tmp_path, change, said):
    with pytest.raises(InputError, match=said):
        for one in core.read(bundle(tmp_path, change)):
            core.questions(one)


def test_folder_without_tasks_or_with_outside_files_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        core.read(tmp_path)
    folder = bundle(tmp_path)
    (folder / "core.yaml").write_text((folder / "core.yaml").read_text().replace("a/who", "../../who"))
    with pytest.raises(InputError, match="is outside of the folder"):
        core.read(folder)

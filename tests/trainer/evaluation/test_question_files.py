"""Question files: parsing, and the model's choice as the answer with the lowest loss."""

import json
import random
from dataclasses import replace

import pytest
import torch

from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from tests.trainer.conftest import TINY
from trainer.evaluation import question_files
from trainer.evaluation.evaluate import nats
from trainer.evaluation.question_files import Asking, Question, QuestionSet
from trainer.model.decoder import Decoder, initialize

CHOICES = ["reads lines", "opens the sockets of", "joins"]


def written(path, *rows):
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows) + "\n")
    return path


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "choices": CHOICES, "answer": 1},
        {"query": "q", "choices": CHOICES, "gold": "B"},
        {"query": "q", "choices": json.dumps(CHOICES), "gold": "B"},
        {"question": "q", "choices": CHOICES, "answer": "opens the sockets of"},
        {"question": "q", "choices": {"text": CHOICES, "label": ["1", "2", "3"]}, "answerKey": "2"},
        {"question": "q", "choices": {"text": CHOICES, "label": [1, 2, 3]}, "answerKey": 2},
        {
            "question": "q",
            "choices": [{"text": t, "label": n} for t, n in zip(CHOICES, "abc", strict=True)],
            "answer": "b",
        },
    ],
    ids=["number", "letter", "choices as text", "text", "arc", "numbers", "objects"],
)
def test_choice_may_be_named_in_any_usual_form(tmp_path, row):
    task = question_files.read(written(tmp_path / "arc.jsonl", row, "", row))
    assert task == QuestionSet("arc", (Question("q", tuple(CHOICES), 1),) * 2)
    assert task.chance == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        ([{"choices": {"text": ["2", "3", "4", "8"], "label": ["1", "2", "3", "4"]}, "answer": "3"}], ["4"]),
        ([{"choices": {"text": ["O", "A", "B"], "label": ["A", "B", "C"]}, "answer": "A"}], ["O"]),
        ([{"choices": {"text": ["2", "3", "4", "8"], "label": [*"ABCD"]}, "answer": 2}], ["4"]),
        ([{"choices": {"text": ["2", "3", "4", "8"], "label": [*"ABCD"]}, "answer": 2.0}], ["4"]),
        ([{"choices": {"text": ["2", "3", "4", "8"], "label": [*"ABCD"]}, "answer": "2"}], ["2"]),
        ([{"choices": {"text": ["2", "3", "4", "8"], "label": [0, 1, 2, 3]}, "answer": 2}], ["4"]),
        ([{"choices": {"text": ["O", "A", "B"], "label": ["1", "2", "3"]}, "answer": "A"}], ["A"]),
        ([{"choices": ["O", "A", "B"], "answer": "A"}, {"choices": ["x", "y"], "answer": "B"}], ["O", "y"]),
        ([{"choices": ["x", "y"], "answer": "y"}, {"choices": ["O", "A", "B"], "answer": "A"}], ["y", "A"]),
        ([{"choices": ["A", "B"], "answer": "B"}, {"choices": ["2", "3", "4"], "answer": 1}], ["B", "3"]),
    ],
)
def test_label_and_text_of_a_choice_are_never_confused(tmp_path, rows, right):
    task = question_files.read(written(tmp_path / "x.jsonl", *({"question": "q", **row} for row in rows)))
    assert [one.answer for one in task.questions] == right


def test_line_of_json_ends_only_at_a_line_feed(tmp_path):
    rows = [{"question": f"one{end}two", "answer": "3"} for end in ("\u2028", "\x85", "\x0b", "\x1c")]
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "q.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\n")
    assert [one.text for one in question_files.read(tmp_path / "q.jsonl").questions] == [
        row["question"] for row in rows
    ]


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"question": None, "query": "x", "answer": "y"}, "x", "y"),
        ({"question": "x", "answer": None, "gold": "z", "choices": None}, "x", "z"),
        ({"question": "x", "answer": 3.0}, "x", "3"),
        ({"question": "x", "choices": ["a", "b"], "answer": 1.0}, "x", "b"),
        ({"question": {"stem": "x", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]},
          "answerKey": "B"}, "x", "b"),
    ],
)  # fmt: skip
def test_null_fields_are_absent_and_whole_numbers_have_no_point(tmp_path, row, question, answer):
    (found,) = question_files.read(written(tmp_path / "x.jsonl", row)).questions
    assert (found.text, found.answer) == (question, answer)


def test_answer_ignores_case_spaces_and_a_full_stop(tmp_path):
    rows = (
        {"question": "6 x 7?", "answer": "It is so.\n#### 4,200"},
        {"prompt": "Who?", "answer": ["Bosun", "A  bot."]},
    )
    task = question_files.read(written(tmp_path / "x.jsonl", *rows))
    assert [one.accepted for one in task.questions] == [("4200",), ("bosun", "a bot")]
    assert not task.is_choice and task.questions[1].answer == "Bosun"
    assert question_files.plain(question_files.counted("so\n#### 4,200. I think")) == "4200"
    assert question_files.plain(" a  Bot. ") == "a bot"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["{"], "x.jsonl:1: "),
        (
            [{"question": "q", "answer": "a"}, {"question": "q"}],
            "x.jsonl:2: the question or the answer is missing or null; found keys",
        ),
        ([{"question": "q", "choices": ["a"], "answer": 0}], "needs at least two choices"),
        ([{"question": "q", "choices": ["a", " "], "answer": 0}], "no choice may be empty"),
        ([{"question": "q", "choices": ["a", "b"], "answer": 2}], "choice 2, but the question has 2 choices"),
        ([{"question": "q", "choices": ["a", "b"], "answer": "C"}], "not among the 2 choices"),
        ([{"question": "q", "choices": {"text": ["a", "b"]}, "answer": 0}], "label"),
        ([{"question": "q", "choices": {"text": ["a", "b"], "label": ["1", "1"]}, "answer": "1"}], "label of its own"),
        ([{"question": "q", "choices": ["O", "A"], "answer": "A"}], "the text of a different choice. Write the index"),
        ([{"query": "q", "answer": "a"}, {"query": "q", "choices": ["a", "b"], "answer": 0}], "Split the file"),
        ([[1]], "expected an object, got list"),
        ([{"question": "q", "answer": None}], "x.jsonl:1: the question or the answer is missing or null"),
        ([{"question": "q", "answer": ["a", None]}], "the answer is None, expected text"),
        ([{"question": "q", "answer": {"value": "a"}}], "the answer is {'value': 'a'}, expected text"),
        ([{"question": ["q"], "answer": "a"}], "the question is ['q'], expected text"),
        ([{"question": "q", "answer": []}], "the list of answers is empty"),
        ([{"question": "q", "choices": "['a', 'b']", "answer": "b"}], "expected a list"),
        ([{"question": "q", "choices": "ab", "answer": "b"}], "the choices are 'ab', expected a list"),
        ([{"question": "q", "choices": {"text": "ab", "label": ["1", "2"]}, "answer": "1"}], "the choices are 'ab'"),
        ([{"question": "q", "choices": {"text": ["a", "b"], "label": "12"}, "answer": "1"}], "the labels are '12'"),
        ([{"question": "q", "choices": [1, 2, 10], "answer": 2}], "the answer 2 is the index of a choice, and a diff"),
        ([{"question": "q", "choices": ["a", None], "answer": 0}], "a choice is None, expected text"),
        (['{"question": "q", "answer": "a"}\r{"question": "q", "answer": "a"}'], "a carriage return alone ends no"),
        ([""], "the file has no questions"),
    ],
)  # fmt: skip
def test_invalid_question_is_named_with_its_line(tmp_path, rows, said):
    with pytest.raises(InputError, match="x.jsonl") as failed:
        question_files.read(written(tmp_path / "x.jsonl", *rows))
    assert said in str(failed.value)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl.gz", "x.parquet"])
def test_file_of_another_kind_is_refused_by_its_name(tmp_path, name):
    with pytest.raises(InputError, match=f"{name}: questions are read from JSON lines"):
        question_files.read(written(tmp_path / name, {"question": "q", "answer": "a"}))


@pytest.fixture(scope="module")
def model():
    one = Decoder(TINY)
    initialize(one, 3)
    torch.manual_seed(3)
    for parameter in one.parameters():  # Otherwise the input of the residual stream is zero.
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return one.eval()


def test_token_losses_equal_the_losses_of_training(model):
    ids, targets = torch.randint(0, 300, (3, 40)), torch.randint(0, 300, (3, 40))
    targets[1, 10:] = -1
    found = nats(model, ids, targets)
    assert found.shape == targets.shape
    assert torch.equal(found == 0, targets == -1)
    with torch.no_grad():
        assert torch.allclose(found.sum(), model.loss(ids, targets), rtol=1e-5)


@pytest.mark.parametrize("as_text", [False, True])
def test_choice_has_the_fewest_nats_per_character(model, inputs, monkeypatch, as_text):
    words = tokenizers.load(inputs[0] / "tokenizer")
    asking = Asking(model, words, as_text)
    pool = [f"{verb} {thing}" for verb in ("reads", "opens", "joins") for thing in ("paths", "7", "words of the lines")]
    chance, questions = random.Random(1), []
    for verb in ("join", "open", "close", "read", "look", "write" * 30):
        choices, each = tuple(chance.sample(pool, 3)), []
        for choice in choices:
            prompt = asking._prompt(f"What does {verb} do?")
            tail = words.encode(f" {choice}" if as_text else choice)
            ids = torch.tensor([*prompt, *tail])[-TINY.max_position_embeddings - 1 :]
            with torch.no_grad():
                logits = model(ids[None, :-1])[0].log_softmax(dim=-1)
            costs = [logits[at - 1, ids[at]] for at in range(len(ids) - len(tail), len(ids))]
            each.append(-float(sum(costs)) / len(choice))
        questions.append(Question(f"What does {verb} do?", choices, each.index(min(each))))
    assert len({one.right for one in questions}) == 3
    monkeypatch.setattr(question_files, "BATCH_TOKENS", 200)  # Several batches of rows of different lengths.
    found = asking.score(QuestionSet("t", tuple(questions)))
    assert found[""] == [True] * 6 and set(found) == {"", "acc", "letter"}
    wrong = tuple(replace(one, right=(one.right + 1) % 3) for one in questions)
    assert asking.score(QuestionSet("t", wrong))[""] == [False] * 6


def test_examples_never_contain_the_question_and_are_reproducible(model, inputs):
    words = tokenizers.load(inputs[0] / "tokenizer")
    task = QuestionSet("t", tuple(Question(f"number {n}?", ("one", "two"), n % 2) for n in range(9)))
    asking = Asking(model, words, as_text=True, shots=3)
    shown = [asking.few_shot_examples(task, number) for number in range(9)]
    assert all(len(some) == 3 and task.questions[number] not in some for number, some in enumerate(shown))
    assert (
        shown == [asking.few_shot_examples(task, number) for number in range(9)]
        and len({str(some) for some in shown}) == 9
    )
    text = words.decode(asking._prompt(task.questions[0].text, asking._example_turns(shown[0])))
    first = shown[0][0]
    assert text.startswith(f"<|bos|>Question: {first.text}\nAnswer: {first.answer}\n\nQuestion: ")
    assert text.endswith("\n\nQuestion: number 0?\nAnswer:")
    talk = Asking(model, words, as_text=False, shots=1)
    said = words.decode(talk._prompt("q", [(question_files.listed(first, False), first.letter)]))
    assert (
        f"- two=B\n\nRespond only with the letter of the correct answer.<|user_end|><|assistant_start|>{first.letter}<"
        in said
    )
    assert question_files.listed(first, True) == f"{first.text}\nA. one\nB. two"

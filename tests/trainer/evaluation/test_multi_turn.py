"""Held-out questions asked in conversations: the criterion of a right answer, and equal questions in each turn."""

import json

import pytest

from data.chat import smalltalk
from trainer.evaluation import multi_turn, scores
from trainer.evaluation.multi_turn import TurnsQuestion

REFUSED = "I do not know. Try asking what os.path.join does."


def questions(count=12):
    return [
        TurnsQuestion(("identity", "pydocs", "other")[n % 3], f"question {n}?", f"answer {n}") for n in range(count)
    ]


def test_every_turn_asks_every_question_once_and_no_conversation_asks_one_twice():
    asked = questions()
    seen = []

    def answer(talks):
        seen.append(talks)
        return [one[-1]["content"].upper() for one in talks]

    said = multi_turn.run_conversations(asked, answer, 5)
    assert said == [[one.text.upper() for one in asked]] * 5
    for turn, talks in enumerate(seen):
        assert sorted(one[-1]["content"] for one in talks) == sorted(one.text for one in asked)
        for talk in talks:
            put = [one["content"] for one in talk if one["role"] == "user"]
            assert len(set(put)) == len(put) == turn + 1
            assert [one["content"] for one in talk if one["role"] == "assistant"] == [one.upper() for one in put[:-1]]
    # No further question exists without a repetition.
    assert len(multi_turn.run_conversations(asked[:3], answer, 8)) == 3


def material(folder, name):
    """Write held-out files, ten questions of each kind."""
    rows = {
        "identity_conversations": [("Who are you?", f"I am {name}.", {})] * 10,
        "pydocs": [(f"What does f{n} do?", f"Return the square root of {n}.", {"taught": n < 5}) for n in range(10)],
        "other": [(f"What is {n} plus {n}?", REFUSED, {}) for n in range(10)],
    }
    for kind, some in rows.items():
        lines = [
            json.dumps(
                {"messages": [{"role": "user", "content": put}, {"role": "assistant", "content": right}], **more}
            )
            for put, right, more in some
        ]
        (folder / f"{kind}.heldout.jsonl").write_text("\n".join(lines) + "\n")
    names = {"identity": "identity_conversations", "pydocs": "pydocs", "other": "other"}
    return {kind: folder / f"{name}.heldout.jsonl" for kind, name in names.items()}


def collapsing(talks):
    """Answer like a model that repeats its identity after the first question about the identity."""
    return ["I am Ursula K." if any(one["content"] == "Who are you?" for one in talk) else REFUSED for talk in talks]


def test_collapse_into_the_persona_is_detected_only_by_later_turns(tmp_path):
    figures, measures = scores.about_answers(material(tmp_path, "Ursula K."), "Ursula K.", collapsing)
    assert (figures["identity"], figures["pydocs"], figures["leaks"]) == (1.0, 1.0, 0.0)
    leaks = [measures[f"leaks turn {turn}"] for turn in range(1, 9)]
    assert leaks[0]["value"] == 0.0 and leaks[0]["of"] == 20
    assert leaks[1]["value"] > 0.2 and leaks[7]["value"] > 0.8
    right = [measures[f"right turn {turn}"]["value"] for turn in range(1, 9)]
    assert right[0] == pytest.approx(25 / 30)  # Five functions were taught and are not known.
    assert right[7] < 0.5


def test_name_leaks_when_it_is_an_unrequested_word():
    python = TurnsQuestion("pydocs", "What does max do?", "Return the biggest item.")
    assert not python.leaks_persona("Return the maximum.", "Max")
    assert python.leaks_persona("I am max, made by us.", "Max")
    assert not TurnsQuestion("pydocs", "What does max do?", "Max of two.").leaks_persona("Max of two.", "Max")
    assert not TurnsQuestion("identity", "Who are you?", "I am Max.").leaks_persona("I am Max.", "Max")
    for name in ("Ursula K.", "Мария", "小明", "O'Brien", "Zoe\u0308", "🚢", "Al (the bot)"):
        assert python.leaks_persona(f"I am {name}.".replace("..", "."), name)
        assert TurnsQuestion("identity", "Who are you?", "").is_right(f"My name is {name}. I was made by us.", name)
    assert python.leaks_persona("I am Zo\u00eb.", "Zoe\u0308")


@pytest.mark.parametrize(
    ("question", "answer", "is_right"),
    [
        (TurnsQuestion("pydocs", "", "Return the square root of x.", True), "Return the square root of y.", True),
        (TurnsQuestion("pydocs", "", "Return the square root of x.", True), "I do not know that function.", False),
        (TurnsQuestion("pydocs", "", "Return the square root of x."), "I do not know that function.", True),
        (
            TurnsQuestion("other", "", "Hello! Ask me what a function of Python does."),
            "Hi! Ask me about Python's library.",
            True,
        ),
        (TurnsQuestion("other", "", "Hi! Ask me about Python's library."), REFUSED, False),
        (TurnsQuestion("other", "", smalltalk.TOLD_ALL[1]), smalltalk.TOLD_ALL[0], True),
        (TurnsQuestion("other", "", REFUSED), "Goodbye!", False),
        (TurnsQuestion("other", "", REFUSED), "I do not know what that does.", True),
    ],
)
def test_answer_is_right_when_it_fits_the_question(question, answer, is_right):
    assert question.is_right(answer, "Bosun") is is_right

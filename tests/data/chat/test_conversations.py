import hashlib
import json
import re
from collections import Counter
from datetime import datetime
from itertools import pairwise, product

import numpy as np
import pytest

from data.chat import conversations as chat
from data.chat.conversation_counts import ConversationCounts
from data.chat.trained_rows import answer_ends
from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from data.tokens.chat_template import Dialogue
from tests.data.chat import templates

pytestmark = pytest.mark.process


def message(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def spell(tokenizer):
    """Return ids in readable form: words, and special tokens by name."""
    return lambda ids: tokenizer.decode([one for one in ids if one >= 0])


def learnt(ids, mask):
    return [one for one, take in zip(ids, mask, strict=True) if take]


def test_one_turn_has_exactly_these_ids_and_targets(tokenizer):
    ids, mask = chat.render([message("user", "Hi"), message("assistant", "Yo there")], tokenizer)
    special, encode = tokenizer.special, tokenizer.encode
    answer = encode("Yo there")
    assert ids == [
        special("<|bos|>"),
        special("<|user_start|>"),
        *encode("Hi"),
        special("<|user_end|>"),
        special("<|assistant_start|>"),
        *answer,
        special("<|assistant_end|>"),
    ]
    assert mask == [0, 0, *[0] * len(encode("Hi")), 0, 0, *[1] * len(answer), 1]


def test_parts_of_an_answer_are_trained_on_except_tool_results(tokenizer, spell):
    parts = [
        {"type": "text", "text": "Sum:"},
        {"type": "python", "text": "1+1"},
        {"type": "python_output", "text": "2"},
        {"type": "text", "text": "Two."},
    ]
    ids, mask = chat.render([message("user", "1+1?"), message("assistant", parts)], tokenizer)
    assert spell(ids) == (
        "<|bos|><|user_start|>1+1?<|user_end|><|assistant_start|>Sum:<|python_start|>1+1<|python_end|>"
        "<|output_start|>2<|output_end|>Two.<|assistant_end|>"
    )
    assert spell(learnt(ids, mask)) == "Sum:<|python_start|>1+1<|python_end|>Two.<|assistant_end|>"


def test_system_message_precedes_the_first_question(tokenizer, spell):
    messages = [message("system", "Be brief."), message("user", "Hi"), message("assistant", "Yo")]
    ids, _ = chat.render(messages, tokenizer)
    assert spell(ids) == "<|bos|><|user_start|>Be brief.\n\nHi<|user_end|><|assistant_start|>Yo<|assistant_end|>"


def test_every_answer_of_a_longer_conversation_is_trained_on(tokenizer, spell):
    messages = [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")]
    assert spell(learnt(*chat.render(messages, tokenizer))) == "b<|assistant_end|>d<|assistant_end|>"


@pytest.mark.parametrize(
    "messages",
    [
        [message("assistant", "a")],
        [message("user", "a"), message("user", "b")],
        [message("user", "a"), message("system", "b")],
        [message("system", "a"), message("assistant", "b")],
        [message("system", "a")],
    ],
)
def test_roles_that_do_not_alternate_are_refused(tokenizer, messages):
    with pytest.raises(InputError):
        chat.render(messages, tokenizer)


def test_an_unknown_part_is_refused(tokenizer):
    with pytest.raises(InputError, match="'image'"):
        chat.render([message("user", "a"), message("assistant", [{"type": "image", "text": ""}])], tokenizer)


def test_ids_and_mask_are_cut_to_the_length(tokenizer):
    messages = [message("user", "Hi there"), message("assistant", "A long answer to a short question")]
    ids, mask = chat.render(messages, tokenizer)
    assert chat.render(messages, tokenizer, 8) == (ids[:8], mask[:8])


def test_targets_are_the_next_ids_and_minus_one_elsewhere():
    inputs, after = chat.targets([5, 6, 7, 8], [0, 0, 1, 1])
    assert (inputs.tolist(), after.tolist()) == ([5, 6, 7], [-1, 7, 8])


def test_prompt_ends_at_the_start_of_the_answer(tokenizer, spell):
    messages = [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")]
    asked = chat.prompt(messages, tokenizer)
    assert asked == chat.prompt(messages[:-1], tokenizer)
    assert spell(asked).endswith("b<|assistant_end|><|user_start|>c<|user_end|><|assistant_start|>")
    assert asked == chat.render(messages, tokenizer)[0][: len(asked)]


@pytest.mark.parametrize(
    "variables",
    [
        {"custom_instructions": "Talk like a pirate."},
        {"custom_instructions": "\u7528\u4e2d\u6587\u56de\u7b54"},
        {"xml_tools": ["{}"]},
    ],
)
def test_variables_with_words_are_refused_without_a_chat_template(tokenizer, variables):
    messages = [message("user", "a"), message("assistant", "b")]
    with pytest.raises(InputError, match=f"chat_template_kwargs of the row has {next(iter(variables))}"):
        chat.rendered(Dialogue(messages, variables=variables), tokenizer)
    switches = {"enable_thinking": False, "reasoning_effort": "high", "xml_tools": []}
    assert chat.rendered(Dialogue(messages, variables=switches), tokenizer)


@pytest.mark.parametrize("line", ["{oops", '"words"', '{"text": "a"}', '{"messages": ["a"]}', '[{"role": "user"}]'])
def test_invalid_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps([message("user", "a")]) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        list(chat.read_conversations(path))


@pytest.fixture
def files(tmp_path):
    """Write 40 short and 8 long conversations, one kind as plain lists, the other as objects."""
    short = [[message("user", f"s{n}"), message("assistant", f"{n}")] for n in range(40)]
    long = [[message("user", f"l{n}"), message("assistant", "word " * 30 + str(n))] for n in range(8)]
    (tmp_path / "short.jsonl").write_text("".join(json.dumps(one) + "\n" for one in short))
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in long))
    return {"short": [tmp_path / "short.jsonl"], "long": [tmp_path / "long.jsonl"]}


def conversations(files, tokenizer, max_len=128, seed=1, turns=1, together=(), **mixture):
    mixture = mixture or {"short": 0.75, "long": 0.25}
    return chat.Conversations(files, mixture, tokenizer, max_len, seed, turns, together)


def test_rows_are_padded_with_ignored_ids(files, tokenizer):
    ids, after = conversations(files, tokenizer).batch(0, 4)
    assert ids.shape == after.shape == (4, ids.shape[1]) and ids.shape[1] % 16 == 0
    assert ids.dtype == after.dtype == np.int64
    end = tokenizer.special("<|assistant_end|>")
    for row, wanted in zip(ids, after, strict=True):
        last = np.flatnonzero(wanted >= 0)[-1]
        assert wanted[last] == end
        assert (row[last + 1 :] == end).all() and (wanted[last + 1 :] == -1).all()
        assert (row[1 : last + 1] == wanted[:last])[wanted[:last] >= 0].all()


def test_each_kind_occurs_by_its_weight_and_each_conversation_equally_often(files, tokenizer, spell):
    loader, seen = conversations(files, tokenizer), []
    for step in range(40):  # 160 rows: 120 short are three epochs, 40 long are five.
        seen += [spell(row).split("<|user_end|>")[0] for row in loader.batch(step, 4)[0]]
    counts = {words: seen.count(words) for words in set(seen)}
    assert sorted(counts.values()) == [3] * 40 + [5] * 8


def test_rows_of_one_step_have_similar_lengths(files, tokenizer):
    loader = conversations(files, tokenizer)
    widths = [loader.batch(step, 4)[0].shape[1] for step in range(16)]
    assert sorted(widths) == [16] * 12 + [max(widths)] * 4


def test_batch_depends_only_on_seed_and_step(files, tokenizer):
    fresh, used = conversations(files, tokenizer), conversations(files, tokenizer)
    for step in range(100):
        used.batch(step, 4)
    for one, other in zip(fresh.batch(61, 4), used.batch(61, 4), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(fresh.batch(61, 4)[0], conversations(files, tokenizer, seed=2).batch(61, 4)[0])


def test_ranks_together_have_the_rows_of_one_process(files, tokenizer):
    loader = conversations(files, tokenizer)
    apart = np.concatenate([loader.batch(3, 2, rank, 2)[0] for rank in range(2)])
    assert sorted(apart.tolist()) == sorted(loader.batch(3, 4)[0].tolist())


def test_long_conversations_are_cut(files, tokenizer):
    loader = conversations(files, tokenizer, max_len=24)
    assert max(loader.batch(step, 4)[0].shape[1] for step in range(8)) == 32
    assert max(int((loader.batch(step, 4)[1] >= 0).nonzero()[1].max()) for step in range(8)) < 24


def words(loader, spell, steps, count=4):
    """Return rows in readable form, without padding."""
    return [
        "".join(spell(row).split("<|assistant_end|>" * 2)[0]).removesuffix("<|assistant_end|>")
        for step in range(steps)
        for row in loader.batch(step, count)[0]
    ]


def test_questions_of_any_kind_share_a_row(files, tokenizer, spell):
    rows = words(conversations(files, tokenizer, 1024, turns=4, together=files), spell, 32, count=16)
    assert len(rows) == 128
    assert {row.count("<|user_start|>") for row in rows} == {4}
    assert {row.count("<|bos|>") for row in rows} == {1}
    asked = [[part.split("<|user_end|>")[0] for part in row.split("<|user_start|>")[1:]] for row in rows]
    pairs = {(one[0], other[0]) for row in asked for one, other in pairwise(row)}
    assert pairs == set(product("sl", repeat=2))
    counts = Counter(one for row in asked for one in row)  # 512: 384 short of 40, 128 long of 8.
    assert Counter(counts.values()) == {9: 16, 10: 24, 16: 8}


def test_all_answers_and_no_question_of_a_row_are_trained_on(files, tokenizer, spell):
    loader = conversations(files, tokenizer, 1024, turns=2, together=files)
    for _, after in (loader.batch(step, 4) for step in range(8)):
        for row in after:
            learned = spell(row[row >= 0])
            assert learned.count("<|assistant_end|>") == 2 and "<|user" not in learned


def test_conversation_that_does_not_fit_whole_is_left_out_of_a_row(files, tokenizer, spell):
    loader = conversations(files, tokenizer, 60, turns=4, together=files)
    rows = words(loader, spell, 32)
    assert max(row.count("<|user_start|>") for row in rows) > 1
    assert min(row.count("<|user_start|>") for row in rows) >= 1
    assert max(loader.batch(step, 4)[0].shape[1] for step in range(32)) <= 64
    for row in rows:
        for turn in row.split("<|user_start|>")[2:]:  # The first conversation may be cut, as in a separate row.
            assert re.fullmatch(r"[sl](\d+)<\|user_end\|><\|assistant_start\|>(word )*\1(<\|assistant_end\|>)?", turn)


def test_row_has_no_more_turns_than_a_step_has_conversations(files, tokenizer, spell):
    rows = words(conversations(files, tokenizer, 1024, turns=16, together=files), spell, 16, count=3)
    assert len(rows) == 16 and {row.count("<|user_start|>") for row in rows} == {3}


def test_custom_conversations_keep_rows_of_their_own(files, tokenizer, spell):
    rows = words(conversations(files, tokenizer, 1024, turns=4, together=["short"]), spell, 32)
    assert {row.count("<|user_start|>") for row in rows if "word" in row} == {1}
    assert {row.count("<|user_start|>") for row in rows if "word" not in row} == {4}
    assert len(rows) == 32 + 96 / 4  # A quarter of the conversations is long, like the weight.


def test_system_prompt_stays_whole_where_a_template_writes_a_default_one(tmp_path):
    """Qwen2.5's template begins a conversation without a system message with a default block."""
    tokenizer = tokenizers.load(templates.write(tmp_path / "model", templates.QWEN25, templates.IM))
    asked = [[message("user", f"Who {n}?"), message("assistant", "Me.")] for n in range(12)]
    told = [[message("system", f"You are Bob {n}."), *one] for n, one in enumerate(asked)]
    for name, talks in (("asked", asked), ("told", told)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    files = {name: [tmp_path / f"{name}.jsonl"] for name in ("asked", "told")}
    loader = chat.Conversations(files, {"asked": 0.5, "told": 0.5}, tokenizer, 1024, 1, turns=4, together=files)
    rows = [tokenizer.decode(row).split("<|im_start|>")[1:] for step in range(8) for row in loader.batch(step, 6)[0]]
    systems = [[turn for turn in row if turn.startswith("system")] for row in rows]
    assert {len(some) for some in systems} == {1}
    for row, (system,) in zip(rows, systems, strict=True):
        if "Bob" in system:
            assert re.fullmatch(r"system\nYou are Bob (\d+)\.<\|im_end\|>\n", system) and len(row) == 3
        else:
            assert system == "system\nYou are helpful.<|im_end|>\n"
    shared = [row for row, (system,) in zip(rows, systems, strict=True) if "Bob" not in system]
    assert {len(row) for row in shared} == {9} and 4 * len(shared) == len(rows) - len(shared)


def test_conversations_share_rows_on_a_fixed_date_of_another_day(tmp_path):
    """Llama 3's template writes the current date before every conversation."""
    tokenizer = tokenizers.load(templates.write(tmp_path / "model", templates.LLAMA3, templates.NAMED["llama3"]))
    talks = [[message("user", f"Who {n}?"), message("assistant", "Me.")] for n in range(12)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in talks))
    tokenizer.chat.fix_date(datetime(2024, 2, 29))
    files = {"asked": [tmp_path / "asked.jsonl"]}
    loader = chat.Conversations(files, {"asked": 1.0}, tokenizer, 1024, 1, turns=4, together=files)
    rows = [tokenizer.decode(row) for step in range(8) for row in loader.batch(step, 4)[0]]
    assert {(row.count("29 Feb 2024"), row.count("Who")) for row in rows} == {(1, 4)}


def test_packed_rows_depend_only_on_seed_and_step_and_are_shared_among_ranks(files, tokenizer):
    fresh, used = (conversations(files, tokenizer, 1024, turns=4, together=files) for _ in range(2))
    for step in range(40):
        used.batch(step, 4)
    for one, other in zip(fresh.batch(29, 4), used.batch(29, 4), strict=True):
        assert np.array_equal(one, other)
    apart = np.concatenate([used.batch(3, 2, rank, 2)[0] for rank in range(2)])
    assert sorted(apart.tolist()) == sorted(used.batch(3, 4)[0].tolist())


def test_packed_rows_equal_the_recorded_rows(files, tokenizer):
    """Changed rows change the meaning of mid and sft: raise their versions in trainer/fingerprints.py."""
    loader = conversations(files, tokenizer, 96, turns=4, together=files)
    batches = [loader.batch(step, 8) for step in range(16)]
    assert (
        hashlib.sha256(b"".join(part.tobytes() for batch in batches for part in batch)).hexdigest()[:16]
        == "7e777b3a19315f76"
    )


def test_oversized_conversation_drops_its_oldest_turns_whole(tokenizer, spell):
    turns = [message(("user", "assistant")[at % 2], f"{at}") for at in range(7)]
    whole = chat.prompt(turns, tokenizer)
    assert chat.fit_history(turns, tokenizer, len(whole)) == (turns, whole)
    kept, ids = chat.fit_history(turns, tokenizer, len(whole) - 1)
    assert kept == turns[2:] and ids == chat.prompt(turns[2:], tokenizer)
    assert chat.fit_history(turns, tokenizer, 1)[0] == turns[-1:]
    system = message("system", "Be brief.")
    kept, ids = chat.fit_history([system, *turns], tokenizer, len(whole))
    assert kept[0] == system and kept[1:] in (turns[2:], turns[4:]) and "Be brief." in spell(ids)


@pytest.mark.parametrize("mixture", [{"short": 1.0}, {"short": 1.0, "long": 0.0}, {"short": 1.0, "lung": 1.0}])
def test_mixture_that_does_not_match_the_files_is_refused(files, tokenizer, mixture):
    with pytest.raises(InputError, match="mixture"):
        conversations(files, tokenizer, **mixture)


def test_a_kind_without_conversations_is_refused(files, tokenizer, tmp_path):
    (tmp_path / "short.jsonl").write_text("")
    with pytest.raises(InputError, match="'short'"):
        conversations(files, tokenizer)


def long_and_short(tmp_path, *lengths):
    """Return one conversation for each length of the question, in words, with the shortest possible answers."""
    rows = [[message("user", "word " * length), message("assistant", "ok")] for length in lengths]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"talk": [tmp_path / "talk.jsonl"]}


def test_conversations_without_a_target_in_their_row_are_left_out_and_counted(tokenizer, spell, tmp_path):
    files = long_and_short(tmp_path, 200, 1, 300, 2)
    loader = conversations(files, tokenizer, max_len=64, talk=1.0)
    assert loader.counts == ConversationCounts(conversations=4, without_targets=2, answers=4, cut_answers=2)
    assert not loader.counts.is_complete
    for step in range(8):
        for row in loader.batch(step, 2)[1]:
            assert spell(row[row >= 0]) == "ok<|assistant_end|>"


def test_truncated_answer_is_counted_and_trained_on_up_to_the_cut(tokenizer, tmp_path):
    cut = [message("user", "a"), message("assistant", "word " * 90)]
    several = [
        message("user", "a"),
        message("assistant", "b"),
        message("user", "word " * 90),
        message("assistant", "c"),
    ]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (cut, several, several[:2])))
    files = {"talk": [tmp_path / "talk.jsonl"]}
    whole = conversations(files, tokenizer, max_len=1024, talk=1.0)
    assert whole.counts == ConversationCounts(conversations=3, answers=4) and whole.counts.is_complete
    short = conversations(files, tokenizer, max_len=32, talk=1.0)
    assert short.counts == ConversationCounts(conversations=3, answers=4, cut_answers=2)
    assert "2 of 4 (50.0 %)" in short.counts.words()


def test_answers_marked_without_their_stop_token_are_counted(tmp_path):
    marked = templates.MARKED.replace(
        "{{- message.content + '<|im_end|>' }}{% endgeneration %}",
        "{{- message.content }}{% endgeneration %}<|im_end|>",
    )
    assert marked != templates.MARKED
    tokenizer = tokenizers.load(templates.write(tmp_path / "model", marked, templates.IM))
    turn = [message("user", "a"), message("assistant", "word " * 30)]
    (tmp_path / "talk.jsonl").write_text(json.dumps(turn * 2) + "\n" + json.dumps(turn) + "\n")
    files = {"talk": [tmp_path / "talk.jsonl"]}
    whole = conversations(files, tokenizer, max_len=2048, talk=1.0).counts
    assert whole == ConversationCounts(conversations=2, answers=3, without_end=3)
    assert "leave out the stop token: 3 of 3 (100.0 %)" in whole.words() and not whole.is_complete
    cut = conversations(files, tokenizer, max_len=100, talk=1.0).counts
    assert (cut.answers, cut.without_end) == (3, 3) and cut.cut_answers > 0


@pytest.mark.parametrize("align", [1, 8])
def test_kind_without_any_target_is_refused_with_the_fix(tokenizer, tmp_path, align):
    files = long_and_short(tmp_path, 200, 300)
    ids, mask = chat.render([message("user", "word " * 200), message("assistant", "ok")], tokenizer)
    first = mask.index(1) + 1
    with pytest.raises(
        InputError, match=rf"any of the 2 conversations of kind 'talk'.* at token {first}\b.*--set"
    ) as it:
        chat.Conversations(files, {"talk": 1.0}, tokenizer, 64, 1, align=align)
    assert int(re.search(r"sequence_len=(\d+)", str(it.value))[1]) > len(ids)


def test_answer_ends_at_its_last_trained_stop_token(tokenizer):
    parts = [
        {"type": "python", "text": "1+1"},
        {"type": "python_output", "text": "2"},
        {"type": "text", "text": "Two."},
    ]
    ids, mask = chat.render([message("user", "a"), message("assistant", parts), message("user", "b")], tokenizer)
    (end,) = answer_ends(np.array(ids), np.array(mask), tokenizer.stops)
    assert ids[end] == tokenizer.special("<|assistant_end|>") and ids[end + 1] == tokenizer.special("<|user_start|>")

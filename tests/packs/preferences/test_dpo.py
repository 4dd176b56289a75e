"""dpo: pairs are drawn and counted, the reference is computed once, and a killed phase ends with the same bits."""

import json
import math
import signal
from contextlib import nullcontext
from dataclasses import asdict, replace
from statistics import mean

import numpy as np
import pytest

from data.config import ConfigError, Input, StepContext
from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from packs.preferences.records.dpo_config import DpoConfig
from packs.preferences.trainer import source as sources
from packs.preferences.trainer.objective import PreferenceLoss
from packs.preferences.trainer.pairs import Pairs
from packs.preferences.trainer.source import PairBatches
from store.artifacts.artifacts import Store
from tests.faults.lives import Tell
from tests.trainer.conftest import TINY, finish, tiny
from tests.trainer.model.test_model import random_model
from tests.trainer.parallel.test_fsdp import training
from tests.trainer.parallel.together import together
from tests.trainer.test_phases import OFTEN, chat_phase, hashes, run
from trainer import loop, memory
from trainer.checkpoints.checkpoint import open_final
from trainer.config import OptimizerConfig, PhaseConfig, as_phase, load_phase
from trainer.parallel.process_group import Ranks
from trainer.plan.estimates import operations
from trainer.recipes import PROFILES

ALONE = Ranks()
WORDS = "join the paths of number 7 Hello. reads files I am Bosun writes 21 lines sockets".split()


def text(number: int, length: int) -> str:
    return " ".join(WORDS[(number * 5 + place) % len(WORDS)] for place in range(length))


def rows(count: int = 24) -> list[dict]:
    """Return pairs: the longer answer is the better answer."""
    return [
        {
            "messages": [{"role": "user", "content": text(at, 1 + at % 4)}],
            "chosen": [{"role": "assistant", "content": text(at + 1, 4 + at % 3)}],
            "rejected": [{"role": "assistant", "content": text(at + 2, 1 + at % 2)}],
            "row": at + 1,
        }
        for at in range(count)
    ]


def write(path, some):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in some))
    return path


def pairs_of(inputs, path, some, sequence_len=64, size=4, is_single=False) -> Pairs:
    words = tokenizers.load(inputs[0] / "tokenizer")
    return Pairs({"mine": write(path, some)}, {"mine": 1.0}, words, sequence_len, 3, size, is_single)


def configured(**changes) -> DpoConfig:
    optimizer = OptimizerConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    given = {"phase": "dpo", "steps": 12, "rows": 4, "micro_rows": 2, "sequence_len": 64, "dtype": "float32"}
    return tiny(**{**given, "optimizer": optimizer, "mixture": {"mine": 1.0}, **changes})


def prepared(world, monkeypatch) -> StepContext:
    """Train the model from which dpo starts, and publish the pairs."""
    assert run(world, monkeypatch, "base", tiny(steps=40)) == 0
    write(world.root / "mine" / "conversations.jsonl", rows())
    Store(world.store).publish(world.root / "mine", "conversations/mine-pairs", "m", {})
    base = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
    return world.making("dpo", base=base, mine=Input(name="conversations/mine-pairs", fingerprint="m"))


def test_pairs_of_an_epoch_are_drawn_once_with_both_answers_in_a_row(inputs, tmp_path):
    found = pairs_of(inputs, tmp_path / "a.jsonl", rows())
    drawn = [found.drawn(step) for step in range(12)]
    assert sorted(sum(drawn[:6], [])) == sorted(sum(drawn[6:], [])) == list(range(24)) and drawn[:6] != drawn[6:]
    batch = found.batch(drawn[0])
    for row, one in enumerate(drawn[0]):
        for number, (ids, mask) in enumerate((found.pairs[one].first, found.pairs[one].second)):
            at = batch["documents"][row] == number
            assert batch["ids"][row][at].tolist() == ids[:-1].tolist()
            assert [n for n in batch["targets"][row][at].tolist() if n >= 0] == ids[mask == 1].tolist()
    assert (batch["targets"][batch["documents"] == 2] == -1).all()
    assert found.counts.conversations == 24 and found.counts.answers == 48 and found.counts.is_complete


def test_long_and_unusable_pairs_are_counted_with_reasons(inputs, tmp_path):
    long = rows(1)[0] | {"messages": [{"role": "user", "content": text(0, 60)}]}
    cut = rows(1)[0] | {"chosen": [{"role": "assistant", "content": text(0, 60)}]}
    single = {"messages": rows(1)[0]["messages"], "completion": rows(1)[0]["chosen"], "label": True, "row": 9}
    found = pairs_of(inputs, tmp_path / "a.jsonl", [*rows(4), long, cut, single]).counts
    assert (found.conversations, found.without_targets, found.cut_answers, found.refused) == (7, 1, 3, 1)
    assert found.reasons == ("mine, row 9: it has a single answer with a label, which only the loss kto reads",)
    with pytest.raises(InputError, match="no pair can be trained in the 1 rows of 'mine'.*left out: 1 of 1"):
        pairs_of(inputs, tmp_path / "b.jsonl", [long])


def test_conversations_are_contrasted_with_answers_to_other_questions(inputs, tmp_path):
    words = tokenizers.load(inputs[0] / "tokenizer")
    files = {kind: inputs[0] / "datasets/x/questions" / f"{kind}.train.jsonl" for kind in ("pydocs", "other")}
    found = Pairs(files, {"pydocs": 1.0, "other": 2.0}, words, 64, 3, 3)
    ends = {(one.first[0].tobytes()[-40:], one.second[0].tobytes()[-40:]) for one in found.pairs}
    assert len(ends) == 2 and all(a != b for a, b in ends)
    kinds = [one < found.starts[1] for step in range(10) for one in found.drawn(step)]
    assert kinds.count(True) == 10  # a third is drawn from pydocs
    single = Pairs(files, {"pydocs": 1.0, "other": 2.0}, words, 64, 3, 3, is_single=True)
    assert [one.is_wanted for one in single.pairs].count(True) == len(found.pairs) == len(single.pairs) / 2


def test_judged_answers_are_contrasted_with_the_previous_answer_to_another_question(inputs, tmp_path):
    found = pairs_of(inputs, tmp_path / "pairs.jsonl", rows(4), is_single=True).pairs
    assert [one.is_wanted for one in found] == [True] * 4 + [False] * 4  # all better answers first, as in TRL
    learnt = [ids[mask == 1].tolist() for ids, mask in (one.first for one in found)]
    other = [ids[mask == 1].tolist() for ids, mask in (one.second for one in found)]
    assert other == [learnt[place - 1] for place in range(8)]
    two = [{"messages": [{"role": "user", "content": asked}]} for asked in ("Hello.", "sockets")]
    answers = [{"completion": [{"role": "assistant", "content": text(at, 3)}], "label": True} for at in range(4)]
    some = [{**two[at // 2], **one} for at, one in enumerate(answers)]
    found = pairs_of(inputs, tmp_path / "several.jsonl", some, is_single=True).pairs
    learnt = [one.first[0][one.first[1] == 1].tolist() for one in found]
    assert [learnt.index(one.second[0][one.second[1] == 1].tolist()) for one in found] == [3, 3, 1, 1]
    with pytest.raises(InputError, match="no other row has another question"):
        pairs_of(inputs, tmp_path / "one.jsonl", some[:2], is_single=True)
    files = {"mine": tmp_path / "several.jsonl", "none": write(tmp_path / "none.jsonl", [])}
    with pytest.raises(InputError, match="no pair can be trained in the 0 rows of 'none'"):
        Pairs(files, {"mine": 1.0, "none": 1.0}, tokenizers.load(inputs[0] / "tokenizer"), 64, 3, 4, is_single=True)


def test_the_reference_is_the_start_and_is_computed_once_and_stored(inputs, tmp_path, monkeypatch):
    config, model = configured(steps=3), random_model(TINY)
    pairs = pairs_of(inputs, tmp_path / "a.jsonl", rows())
    source = PairBatches(config, pairs, ALONE, tmp_path / "reference")
    source.prepare(model)
    batch = source.batch(0, model)
    assert np.isfinite(source.reference).all(axis=1).sum() == 12  # the pairs of three steps
    sums = loop.accumulate(model, batch, 2, 4, PreferenceLoss(config))
    assert float(sums["loss"]) == pytest.approx(np.log(2), abs=1e-6) and abs(float(sums["margin"])) < 1e-5
    model.head.data += 0.1 * model.head.data.roll(1, 0)
    later = PairBatches(config, pairs, ALONE, tmp_path / "reference")
    later.load(source.state())
    later.prepare(model)
    assert (later.batch(0, model)["reference"] == batch["reference"]).all()
    assert float(loop.accumulate(model, batch, 2, 4, PreferenceLoss(config))["margin"]) != 0.0


def test_two_answers_in_a_row_may_have_more_tokens_than_the_model_has_positions(inputs, tmp_path):
    longest = TINY.max_position_embeddings
    asked = {"messages": [{"role": "user", "content": "Hello."}]}
    answers = {name: [{"role": "assistant", "content": text(at, 60)}] for at, name in enumerate(("chosen", "rejected"))}
    pairs = pairs_of(inputs, tmp_path / "a.jsonl", [{**asked, **answers}] * 4, sequence_len=longest)
    batch, model = pairs.batch([0, 1]), random_model(TINY)
    assert (
        batch["ids"].shape[1] > longest >= max(len(ids) - 1 for ids, _ in (pairs.pairs[0].first, pairs.pairs[0].second))
    )
    source = PairBatches(configured(steps=1, sequence_len=longest), pairs, ALONE, tmp_path / "reference")
    source.prepare(model)
    each = [source._logprobs(model, pairs.batch([0, 1], (part,)))[:, part] for part in (0, 1)]
    assert source.reference[:2] == pytest.approx(np.stack(each, axis=1), rel=1e-5)


def test_a_kill_during_the_reference_continues_from_the_file(inputs, tmp_path, monkeypatch):
    config, model = configured(steps=6), random_model(TINY)
    pairs = pairs_of(inputs, tmp_path / "a.jsonl", rows())
    whole = PairBatches(config, pairs, ALONE, tmp_path / "other")
    whole.prepare(model)
    monkeypatch.setattr(sources, "KEEP_EVERY_S", 0.0)
    killed = PairBatches(config, pairs, ALONE, tmp_path / "reference")
    read, passes = sources.PairBatches._logprobs, []

    def counted(self, *given):
        passes.append(1)
        if len(passes) == 8:
            raise KeyboardInterrupt
        return read(self, *given)

    monkeypatch.setattr(sources.PairBatches, "_logprobs", counted)
    with pytest.raises(KeyboardInterrupt):
        killed.prepare(model)
    passes[:] = [1] * 20
    again = PairBatches(config, pairs, ALONE, tmp_path / "reference")
    again.prepare(model)
    assert len(passes) == 20 + 12 - 7  # 24 pairs, two at once
    assert (again.reference == whole.reference).all()


MEASURED = ("loss", "margin", "accuracy", "reward_chosen", "reward_rejected")


@pytest.mark.nightly
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_phase_learns_and_a_stopped_phase_publishes_the_same_bits(world, monkeypatch, capfd, loss):
    making = prepared(world, monkeypatch)
    config = configured(steps=30, loss=loss, beta=0.5)
    assert run(world, monkeypatch, "dpo", config, making) == 0
    stops = iter([False] * 10 + [True] + [False] * 100)
    parted = replace(making, name="dpo_checkpoints/parted", fingerprint="e" * 64)
    with monkeypatch.context() as hasty:
        hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: next(stops)))
        assert run(world, monkeypatch, "dpo", config, parted) == 75
    assert run(world, monkeypatch, "dpo", config, parted) == 0
    folder = world.store / "dpo_checkpoints/tiny"
    assert hashes(world.store / "dpo_checkpoints/parted") == hashes(folder)
    assert open_final(folder).tensors("source")["reference"].shape == (24 * (2 if loss == "kto" else 1), 2)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps[0]["conversations"]["conversations"] == 24 * (2 if loss == "kto" else 1)
    # A batch has four answers, and the divergence of kto is the mean over a batch, so single steps differ much.
    first, last = ({name: mean(one[name] for one in some) for name in MEASURED} for some in (steps[:10], steps[-10:]))
    assert abs(steps[0]["margin"]) < 1e-4 and last["margin"] > 0.5 and last["accuracy"] > 0.6
    assert last["loss"] < 0.7 * first["loss"] and last["reward_chosen"] > last["reward_rejected"]
    assert "margin" in capfd.readouterr().err


@pytest.mark.nightly
@pytest.mark.process
def test_killed_phase_publishes_the_bits_of_an_undisturbed_phase(world, monkeypatch):
    making, config = prepared(world, monkeypatch), configured(steps=60)
    alone = replace(making, name="dpo_checkpoints/alone", fingerprint="alone")
    assert finish(world.start(config, OFTEN, alone, work="alone"))[0] == 0
    for step in (1, 20):
        killed = world.start(config, OFTEN, making)
        world.wait_for_step(step, killed, phase="dpo")
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    code, words = finish(world.start(config, OFTEN, making))
    assert code == 0, words
    assert hashes(world.store / "dpo_checkpoints/tiny") == hashes(world.store / "dpo_checkpoints/alone")
    lines = (world.store / "dpo_checkpoints/tiny/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 61))


@pytest.mark.nightly
@pytest.mark.pack("adapters")
def test_an_adapter_learns_beside_the_frozen_start_which_is_the_reference(world, monkeypatch):
    from packs.adapters.control.flags import AdapterFlags
    from packs.adapters.records.lora_config import with_adapter

    making = prepared(world, monkeypatch)
    config = with_adapter(AdapterFlags(adapter="lora"), configured(steps=30, loss="robust", label_smoothing=0.1))
    assert isinstance(config, DpoConfig) and config.loss == "robust" and config.optimizer.lr == pytest.approx(2e-5)
    assert load_phase(asdict(config), "spec") == config
    as_sft = with_adapter(AdapterFlags(adapter="lora"), as_phase(PhaseConfig, configured(steps=30), phase="sft"))
    assert memory.estimate(config).frozen == memory.estimate(as_sft).frozen
    config = replace(config, optimizer=replace(config.optimizer, lr=1e-2))
    assert run(world, monkeypatch, "dpo", config, making) == 0
    folder = world.store / "dpo_checkpoints/tiny"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert abs(steps[0]["margin"]) < 1e-4 and steps[-1]["margin"] > 0.1 and steps[-1]["loss"] < steps[0]["loss"]
    assert (folder / "hf" / "adapter_config.json").is_file() and not (folder / "hf" / "model.safetensors").exists()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.pack("adapters")
def test_reference_is_the_base_with_the_adapter_of_the_earlier_phases(world, monkeypatch):
    from packs.adapters.control.flags import AdapterFlags
    from packs.adapters.records.lora_config import with_adapter
    from trainer.model import changes

    flags = AdapterFlags(adapter="lora")
    making = prepared(world, monkeypatch)
    for phase in ("mid", "sft"):
        config = with_adapter(flags, chat_phase(phase, steps=3, dtype="float32"))
        config = replace(config, optimizer=replace(config.optimizer, lr=0.02))
        before = replace(making, name=f"{phase}_checkpoints/tiny")
        assert run(world, monkeypatch, phase, config, before) == 0
        made = Input(name=before.name, fingerprint=before.fingerprint)
        making = replace(making, inputs={**making.inputs, phase: made})
    assert run(world, monkeypatch, "dpo", with_adapter(flags, configured(steps=2)), making) == 0
    folder = world.store / "dpo_checkpoints/tiny"
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(first["margin"]) < 1e-4 and first["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert changes.read_changed(folder / "hf").name == "base_checkpoints/tiny"


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_two_processes_train_like_one(inputs, tmp_path, loss, parallel):
    one = configured(steps=6, micro_rows=1, rows=5, loss=loss)
    made = pairs_of(inputs, tmp_path / "a.jsonl", rows(), size=5, is_single=loss == "kto")

    def figures(folder, size: int) -> list[dict[str, float]]:
        def work(ranks: Ranks, tell: Tell) -> None:
            found = training(folder, one, ranks, parallel)
            found.objective = PreferenceLoss(one)
            found.source = PairBatches(one, made, ranks, folder / f"reference-{ranks.rank}")
            found.run()
            tell("done", "")

        folder.mkdir()
        assert all("done" in told for told in together(size, work))
        return [json.loads(line) for line in (folder / "metrics" / "metrics.jsonl").read_text().splitlines()]

    alone, both = figures(tmp_path / "one", 1), figures(tmp_path / "two", 2)
    for name in ("loss", "reward_chosen", "reward_rejected", "margin"):
        ours, theirs = ([step[name] for step in steps] for steps in (both, alone))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4), name


def test_memory_and_operations_count_two_answers_and_no_second_model():
    dpo = PROFILES["smollm2_135m"]().phases["dpo"]
    sft = as_phase(PhaseConfig, dpo, phase="sft", mixture={"identity": 1.0}, micro_rows=dpo.micro_rows)
    once, twice = memory.estimate(sft), memory.estimate(dpo)
    assert twice.frozen == 0 and twice.weights == once.weights and twice.optimizer == once.optimizer
    assert twice.activations > 1.6 * once.activations
    assert dpo.flops_per_token(512) == sft.flops_per_token(512)
    assert operations(dpo) / operations(sft) == pytest.approx(2 + 2 / 3)
    single = replace(dpo, loss="kto")
    assert memory.estimate(single).activations == once.activations


def test_unsuitable_settings_are_refused_before_training():
    for wrong, why in (
        ({"loss": "simpo"}, "loss is 'simpo'; known: dpo, robust, ipo, kto"),
        ({"beta": 0.0}, "beta is 0.0; it must be above 0"),
        ({"label_smoothing": 0.5}, "label_smoothing is 0.5; it must be below 0.5"),
        ({"label_smoothing": 0.1, "loss": "ipo"}, "label_smoothing: for the losses dpo and robust; the loss is ipo"),
        ({"desirable_weight": 2.0}, "desirable_weight and undesirable_weight: for the loss kto only"),
        ({"turns": 2}, "a row of the phase dpo is a single pair"),
    ):
        with pytest.raises(ConfigError, match=why):
            configured(**wrong)
    assert asdict(configured())["loss"] == "dpo"

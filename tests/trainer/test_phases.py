"""Phases as real processes: killed, stopped, resumed, refused; and the whole pipeline from base to chat."""

import io
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.__main__ import main as prepare
from data.config import Input, StepContext
from store.artifacts.artifacts import Store
from tests import seeds
from tests.trainer.conftest import TINY, WAIT_S, finish, make_again, tiny, write_talk
from tests.trainer.model.test_init import configured
from tests.world import until
from trainer import loop
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import Checkpoints, open_final
from trainer.config import CheckpointOptions
from trainer.errors import OutOfMemory
from trainer.model.decoder import Decoder
from trainer.parallel import placement
from trainer.phases import base
from trainer.recipes import PROFILES
from trainer.records.phase_registry import PHASES

OFTEN = CheckpointOptions(save_every=3, keep=3, reserve_bytes=0)
KILLS = 2


def hashes(folder: Path) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in open_final(folder).manifest["files"]}


def test_gpu_too_small_for_a_model_is_reported_with_numbers(world, monkeypatch, capfd):
    def full(self: Decoder, *where: object) -> Decoder:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    monkeypatch.setattr(placement, "gpu_bytes", lambda machine: 1 << 20)
    monkeypatch.setattr(Decoder, "to", full)
    assert main(["base", "--config", str(configured(world, "base", world.making(), tiny()))]) == OutOfMemory.exit_code
    said = capfd.readouterr().err
    assert "trainer base: the GPU's memory is full: base needs" in said and "a GPU with" in said


@pytest.mark.slow
@pytest.mark.parametrize(("most_tokens", "most_bytes"), [(None, None), (40, 100)])
def test_large_held_out_text_is_evaluated_in_part(world, monkeypatch, most_tokens, most_bytes):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    if most_tokens:
        monkeypatch.setattr(base, "HELDOUT_TOKENS", most_tokens)
        monkeypatch.setattr(base, "HELDOUT_BYTES", most_bytes)
    assert main(["base", "--config", str(configured(world, "base", world.making(), tiny(steps=2)))]) == 0
    about = json.loads((world.store / "base_checkpoints/tiny/ARTIFACT.json").read_text())["about"]
    assert about["bits_per_byte"] > 0 and about["gzip"] > 0
    assert about.get("evaluated_tokens") == most_tokens
    assert ("compressed_bytes" in about) == bool(most_bytes)


@pytest.mark.nightly
@pytest.mark.process
def test_run_killed_at_random_moments_publishes_the_bits_of_an_undisturbed_run(world):
    config = tiny(steps=100)
    making = replace(world.making(fingerprint="alone"), name="base_checkpoints/alone")
    alone = world.start(config, OFTEN, making, work="alone")
    seed = seeds.seed()
    chance, last = random.Random(seed), 0
    for kill in range(KILLS):
        one = world.start(config, OFTEN)
        last = chance.randrange(last + 1, 30 * (kill + 1))
        world.wait_for_step(last, one)
        for _ in range(chance.randrange(50_000)):  # Anywhere between two steps, also inside a save.
            pass
        one.send_signal(signal.SIGKILL)
        one.wait()
        assert one.returncode == -signal.SIGKILL
    assert finish(alone)[0] == 0
    code, words = finish(world.start(config, OFTEN))
    assert code == 0, words
    assert hashes(world.store / "base_checkpoints/tiny") == hashes(world.store / "base_checkpoints/alone")
    steps = [json.loads(line)["step"] for line in (world.store / "base_checkpoints/tiny/metrics.jsonl").open()]
    assert steps == list(range(1, 101))
    assert not world.checkpoints().exists()  # The store has the checkpoints.


@pytest.mark.process
def test_trainer_without_its_parent_does_not_start(world):
    words = [sys.executable, "-m", "trainer", "base", "--config", "x.json"]
    done = subprocess.run(words, env={**os.environ, "SLIPWAY_PARENT": "-1"}, timeout=WAIT_S)
    assert done.returncode == 75


@pytest.mark.nightly
@pytest.mark.process
def test_sigterm_and_ctrl_c_save_and_exit_75_and_a_finished_phase_is_not_repeated(world, capfd):
    config, last = tiny(steps=200), 0
    for number in (signal.SIGINT, signal.SIGTERM):
        one = world.start(config, replace(OFTEN, save_every=1000))
        world.wait_for_step(last + 3, one)
        one.send_signal(number)
        code, words = finish(one)
        assert code == 75, words
        assert "start the run again" in words
        assert "Traceback" not in words
        saved = Checkpoints(world.checkpoints(), OFTEN).find_newest()
        assert saved is not None
        assert last + 3 <= saved.step < 200
        last = saved.step
    code, words = finish(world.start(config, OFTEN))
    assert code == 0, words
    said = world.records()
    assert f"resuming from step {saved.step} of 200" in [one["text"] for one in said if one["kind"] == "note"][-1]
    progress = [one for one in said if one["kind"] == "progress" and one.get("unit") == "tokens"]
    assert progress[-1].items() >= {"done": 200 * 128, "total": 200 * 128, "step": 200, "eta_s": 0.0}.items()
    result = said[-1]
    assert result["kind"] == "result"
    assert 0 < result["bits_per_byte"] < result["gzip"]
    assert {"gzip", "xz", "loss", "steps", "tokens", "params", "tokenizer_sha256"} <= result.keys()
    assert finish(world.start(config, OFTEN))[0] == 0
    again = [one for one in world.records()[len(said) :] if one["kind"] != "part"]
    assert again == [{**result, "at": world.records()[-1]["at"]}]  # Only the result.


@pytest.mark.process
def test_run_saves_on_request_of_its_pod_and_continues(world, monkeypatch):
    asked, steps = world.root / "save.json", 100_000
    monkeypatch.setenv("SLIPWAY_SAVE_REQUEST", str(asked))
    one = world.start(tiny(steps=steps), replace(OFTEN, save_every=steps))
    world.wait_for_step(3, one)
    assert Checkpoints(world.checkpoints(), OFTEN).find_newest() is None
    asked.write_text("{}")
    until(lambda: Checkpoints(world.checkpoints(), OFTEN).find_newest(), "a checkpoint")
    saved = Checkpoints(world.checkpoints(), OFTEN).find_newest()
    world.wait_for_step(saved.step + 3, one)
    one.kill()
    one.wait()
    assert Checkpoints(world.checkpoints(), OFTEN).find_newest().step == saved.step  # Once.


@pytest.mark.nightly
@pytest.mark.process
def test_missing_valid_checkpoint_exits_1_and_names_the_damaged_ones(world):
    one = world.start(tiny(steps=100_000), OFTEN)
    world.wait_for_step(8, one)
    second = world.start(tiny(steps=100_000), OFTEN)
    code, words = finish(second)
    assert code == 1
    assert "another trainer" in words
    one.send_signal(signal.SIGKILL)
    one.wait()
    folders = Checkpoints(world.checkpoints(), OFTEN).steps()
    for folder in folders:
        (folder / "model-rank00000.safetensors").write_bytes(b"")
    code, words = finish(world.start(tiny(steps=100_000), OFTEN))
    assert code == 1
    assert all(folder.name in words for folder in folders)
    assert "Traceback" not in words


def run(world, monkeypatch, phase: str, config, making=None) -> int:
    """Run the program in this process: the same behavior, without the start of an interpreter."""
    making = making or world.making(phase)
    file = world.root / f"{phase}.json"
    file.write_text(json.dumps({"making": asdict(making), "spec": asdict(config), "keeping": asdict(OFTEN)}))
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return main([phase, "--config", str(file)])


def chat_phase(phase: str, **changes):
    mixture = {"identity": 0.5, "pydocs": 0.3, "other": 0.2}
    optimizer = replace(tiny().optimizer, lr=0.02)
    return tiny(phase=phase, mixture=mixture, sequence_len=96, turns=2, optimizer=optimizer, **changes)


@pytest.mark.slow
def test_base_mid_sft_eval_export_and_chat(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny()) == 0
    said = capfd.readouterr().out
    assert "bits per byte (gzip -9" in said
    before = "base"
    for phase in ("mid", "sft"):
        entry = Input(name=f"{before}_checkpoints/tiny", fingerprint="f" * 64)
        assert run(world, monkeypatch, phase, chat_phase(phase, steps=60), world.making(phase, **{before: entry})) == 0
        before = phase
    model = world.store / "sft_checkpoints/tiny"
    capfd.readouterr()
    assert main(["chat", "--model", str(model), "--prompt", "Who are you?"]) == 0
    assert capfd.readouterr().out == "I am Bosun.\n"
    typed = "/help\nWho are you?\n/rest\n/reset\nWho are you?\n/EXIT now\nHello!\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert main(["chat", "--model", str(model)]) == 0
    talk = capfd.readouterr()
    assert talk.out == "I am Bosun.\n" * 2 and "/reset           start over" in talk.err
    assert (
        "/rest is not a command; the line was not sent to the model" in talk.err
        and "the conversation starts over" in talk.err
    )
    folders = {"text": "datasets/x/text", "identity": "identity", "questions": "datasets/x/questions"}
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who are you?\n" * 20))
    assert main(["chat", "--model", str(model), "--max-tokens", "16"]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 20  # An answer each.
    assert err == "the conversation exceeds 112 tokens: from now on, the model does not see the oldest turns\n"
    words = [word for name, path in folders.items() for word in (f"--{name}", str(world.store / path))]
    (world.root / "who.jsonl").write_text(
        '{"question": "Who are you?", "choices": ["I am Zoe.", "I am Bosun."], "answer": "B"}\n'
    )
    (world.root / "says.jsonl").write_text(
        '{"question": "Who are you?", "answer": "i am bosun"}\n{"question": "Hello!", "answer": "Goodbye."}\n'
    )
    words += [word for name in ("who", "says") for word in ("--task", str(world.root / f"{name}.jsonl"))]
    assert main(["eval", "--model", str(model), *words, "--name", "Bosun"]) == 0
    found = json.loads(capfd.readouterr().out)
    measures = found["measures"]
    assert measures["task who"]["value"] == 1.0 and measures["task who"]["chance"] == 0.5
    assert measures["task says"]["rows"] == [1, 0]
    assert measures["identity"]["of"] == 8 and 0.67 < measures["identity"]["low"] < 0.68  # Wilson's interval of 8 of 8.
    assert measures["text"]["low"] < found["bits_per_byte"] < measures["text"]["high"]
    rows = measures["text"]["rows"]
    assert sum(rows["nats"]) / sum(rows["bytes"]) / 0.6931 == pytest.approx(found["bits_per_byte"], rel=1e-3)
    assert found["identity"] == 1.0
    assert found["pydocs"] == 1.0
    assert found["leaks"] == 0.0
    assert [measures[f"leaks turn {turn}"]["of"] for turn in range(1, 9)] == [16] * 8
    assert measures["right turn 1"]["value"] == 1.0 and measures["right turn 8"]["of"] == 24
    assert found["bits_per_byte"] > 0
    out = world.root / "exported"
    assert main(["export", "--model", str(model), "--out", str(out), "--dtype", "bfloat16"]) == 0
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert main(["export", "--model", str(model), "--out", str(out)]) == 2
    capfd.readouterr()
    assert main(["chat", "--model", str(out), "--prompt", "Who are you?"]) == 0
    assert "Bosun" in capfd.readouterr().out


@pytest.mark.slow
def test_custom_conversations_are_sampled_by_their_weight(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    talk = world.root / "mine.jsonl"
    rows = [[{"from": "human", "value": f"Is {n} a number?"}, {"from": "gpt", "value": "Yes."}] for n in range(9)]
    talk.write_text("".join(json.dumps({"conversations": row}) + "\n" for row in rows))
    making = StepContext(store=str(world.store), name="conversations/mine", fingerprint="m")
    config = world.root / "talk.json"
    config.write_text(json.dumps({"making": asdict(making), "spec": {"source": str(talk)}}))
    assert prepare(["talk", "--config", str(config)]) == 0
    entries = {
        "base": Input(name="base_checkpoints/tiny", fingerprint="f" * 64),
        "mine": Input(name="conversations/mine", fingerprint="m"),
    }
    making = world.making("mid", **entries)
    making = replace(making, inputs={role: making.inputs[role] for role in ("tokenizer", "identity", *entries)})
    phase = replace(chat_phase("mid", steps=3), mixture={"identity": 1.0, "mine": 3.0})
    assert run(world, monkeypatch, "mid", phase, making) == 0
    capfd.readouterr()
    again = replace(making, fingerprint="other")
    assert run(world, monkeypatch, "mid", replace(phase, mixture={"theirs": 1.0}), again) == 2
    assert "needs an input 'theirs'" in capfd.readouterr().err


@pytest.mark.slow
def test_phase_refuses_a_model_trained_with_a_different_tokenizer(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    copy = world.root / "retokenized"
    copy.mkdir()
    for path in (world.store / "tokenizer").glob("*.json"):
        if path.name != "ARTIFACT.json":
            (copy / path.name).write_text(path.read_text())
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + "\n")
    Store(world.store).publish(copy, "tokenizer", "other", {})
    entry = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
    making = world.making("mid", base=entry, tokenizer=Input(name="tokenizer", fingerprint="other"))
    capfd.readouterr()
    assert run(world, monkeypatch, "mid", chat_phase("mid"), making) == 2
    words = capfd.readouterr().err
    assert words.count("tokenizer_sha256") == 2
    missing = replace(making, inputs={**making.inputs, "tokenizer": Input(name="tokenizer", fingerprint="removed")})
    assert run(world, monkeypatch, "mid", chat_phase("mid"), missing) == 1
    assert "the fingerprint is other, but removed is wanted" in capfd.readouterr().err
    mine = world.making("mid", base=entry)  # The tokenizer of the model exists, independent of the name's target.
    assert run(world, monkeypatch, "mid", chat_phase("mid", steps=2), mine) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("is_trained", "has_parent", "code"), [(False, True, 75), (True, True, 0), (True, False, 75)])
def test_stop_request_after_the_last_step_waits_for_the_publication(world, monkeypatch, is_trained, has_parent, code):
    """Without the process that started the trainer, no process would end the work, so the trainer leaves."""
    before, real, parent = signal.getsignal(signal.SIGTERM), base.measured if is_trained else base.rows_of, os.getppid()

    def asked(*given):
        if not has_parent:
            monkeypatch.setattr(os, "getppid", lambda: parent + 1)
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(base, real.__name__, asked)
    assert run(world, monkeypatch, "base", tiny(steps=2)) == code
    assert (world.store / "base_checkpoints" / "tiny").exists() is (code == 0)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_phase_does_not_resume_checkpoints_of_different_data(world, monkeypatch, capfd):
    """Start again in a separate folder for a new fingerprint; refuse the same fingerprint."""
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    entry = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)

    def stopped(making) -> int:
        with monkeypatch.context() as hasty:
            hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: True))
            return run(world, monkeypatch, "mid", chat_phase("mid", steps=9), making)

    parts = ["a" * 12, "b" * 12, "c" * 12]
    making = world.making("mid", "-".join(parts), base=entry)
    assert [stopped(making), stopped(making)] == [75, 75]
    mended = replace(making, fingerprint="-".join([parts[0], "d" * 12, parts[2]]))  # Different code.
    other = replace(making, fingerprint="-".join([*parts[:2], "e" * 12]))
    assert [stopped(mended), stopped(other)] == [75, 75]
    found = {path.name: Checkpoints(path, OFTEN).find_newest().step for path in world.work().glob("checkpoints/mid-*")}
    assert found == {f"mid-{parts[0]}-{parts[2]}": 3, f"mid-{parts[0]}-{'e' * 12}": 1}
    folder = world.root / "identity"
    write_talk(folder / "identity_conversations.jsonl", "Who are you?", "I am somebody else.")
    make_again(world.store, folder, world.inputs["identity"])
    capfd.readouterr()
    assert stopped(making) == 1
    assert "inputs_hash is" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"stepz": 3}}, "did you mean 'steps'"),
        ({"spec": {**asdict(tiny()), "phase": "mid"}}, "configures the phase 'mid'"),
        ({"spec": {**asdict(tiny()), "rows": 3}}, "does not divide"),
        ({"spec": asdict(tiny(model=replace(TINY, vocab_size=400)))}, "the model has 400 ids"),
        ({"spec": asdict(tiny()), "making": {"store": "x", "name": "y", "fingerprint": "z"}}, "needs an input"),
        ({"more": 1}, "unknown key; known: "),
    ],
)
def test_invalid_configuration_exits_2_with_one_line(world, monkeypatch, capfd, change, said):
    file = world.root / "wrong.json"
    file.write_text(json.dumps({"making": asdict(world.making()), **change}))
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    assert main(["base", "--config", str(file)]) == 2
    words = capfd.readouterr().err
    assert said in words
    assert words.count("\n") == 1


def test_every_recipe_is_a_whole_pipeline_of_one_shape():
    for name in PROFILES:
        recipe = PROFILES[name]()
        assert {"base", "mid", "sft"} <= set(recipe.phases) <= set(PHASES)
        assert all(one.phase == phase for phase, one in recipe.phases.items())
        assert {one.model.vocab_size for one in recipe.phases.values()} == {recipe.vocab_size}
        plain = {replace(one.model, sub_norm=False, ternary=None, blocks=None) for one in recipe.phases.values()}
        assert len(plain) == 1

"""`inv fit` and `inv config --profile` as typed."""

import json

import pytest

from infra.errors import NoOffer, UsageError
from infra.market import gpus
from scripts.market import cost
from scripts.models import fit
from scripts.models.fit import FitFlags

H100 = {"H100-PCIe", "H100-SXM", "H100-NVL"}


@pytest.fixture(autouse=True)
def no_vendor(monkeypatch, tmp_path):
    for name in ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY", "SLIPWAY_REHEARSAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "state" / "journal.db"))
    monkeypatch.setenv("SLIPWAY_POOLS", str(tmp_path / "none.yaml"))


def test_size_of_a_recipe_is_one_line(capsys):
    fit.show("runpod_2b", params=True, json=False)
    assert capsys.readouterr().out == "runpod_2b: 1.97B parameters (1,969,482,240)\n"
    fit.show("qwen3_0_6b", params=True, json=True)
    assert json.loads(capsys.readouterr().out)["params"] == {
        "total": 596_049_920,
        "embedding": 155_582_464,
        "multiplied": 595_984_384,
    }


def test_recipe_is_shown_completely(capsys):
    fit.show("runpod_1b", params=False, json=False)
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["model.hidden_size"].strip() == "2048"
    assert lines["base.optimizer.lr"].strip() == "0.0004"
    assert lines["keeping.keep"].strip() == "5"


@pytest.mark.pack("adapters")
@pytest.mark.pack("preferences")
@pytest.mark.parametrize(
    ("phase", "said"),
    [("base", "--adapter, --pairs: no effect on the phase base"), ("sft", "--pairs: no effect on the phase sft")],
)
def test_flag_of_another_phase_is_refused(phase, said):
    from packs.adapters.control.flags import AdapterFlags
    from packs.preferences.control.flags import PreferenceFlags

    added = (AdapterFlags(adapter="lora"), PreferenceFlags(pairs="other"))
    with pytest.raises(UsageError, match=f"^{said}$"):
        fit.fit.work(FitFlags(phase=phase, gpu="H100", added=added))


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "names", "number"),
    [
        ("", 1, None, 1),
        ("H100", 4, H100, 4),
        ("H100:8", 1, H100, 8),
        ("L40S:1,H100:1", 1, {"L40S", *H100}, 1),
        ("L40S,H100:2", 2, {"L40S", *H100}, 2),
    ],
)
def test_kinds_to_check_have_the_forms_of_a_launch(gpu, num_gpus, names, number):
    found = {kind.name for kind in fit.kinds_of(gpu)}
    assert found == (names or {kind.name for kind in gpus.GPUS}) and fit.number_of(gpu, num_gpus) == number


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ("H1000", "--gpu H1000 is unknown; did you mean H100"),
        ("L40S,H1000:8", "--gpu H1000 is unknown; did you mean H100"),
        ("abacus", "--gpu abacus is unknown; known: .*H100"),
        ("H100:8,A100:1", "one number of GPUs"),
    ],
)
def test_unknown_kind_to_check_is_answered_with_the_near_kind(gpu, why):
    with pytest.raises(UsageError, match=why):
        fit.fit.work(FitFlags(profile="tiny", gpu=gpu))


def test_price_of_a_mistyped_kind_names_the_near_kind(capsys):
    with pytest.raises(NoOffer, match="H1000 is not in the table of GPUs; did you mean H100.*no vendor offers"):
        cost.cost.work(cost.CostFlags(estimate=True, hours=1.0, gpu="H1000"))


def test_fit_shows_each_gpu_and_one_gpu_in_detail(capsys):
    fit.fit.work(FitFlags(profile="runpod_1b", phase="base", gpu="", json=False))
    shown = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in shown.out.splitlines()[2:]}
    assert rows["H100-SXM"][5:8] == ["16", "16", "no"] and rows["RTX4090"][7] == "yes"
    assert (
        "prices without a current offer" in shown.err
        and "cheapest GPU with enough memory: RTX4090 at lium" in shown.err
    )
    assert rows["H100-SXM"][8:] == ["2.69", "84", "h", "57", "min", "228.77"] and rows["RTXPRO4500"][-3:] == ["?"] * 3
    fit.fit.work(FitFlags(profile="runpod_4b", phase="base", gpu="L40S", json=False))
    shown = capsys.readouterr()
    assert {"weights", "gradients", "optimizer", "activations", "logits", "framework", "together"} <= {
        line.split()[0] for line in shown.out.splitlines()
    }
    assert "fits on none of these" in shown.err
    fit.fit.work(FitFlags(profile="runpod_2b", phase="base", gpu="H100", json=True))
    one = json.loads(capsys.readouterr().out)["gpus"][0]
    assert one["micro_rows"] * one["accumulation"] == 128 and one["fits"]
    assert one["takes"]["total"] == sum(size for part, size in one["takes"].items() if part != "total")


def test_unknown_name_is_refused_with_the_known_names():
    with pytest.raises(UsageError, match="--gpu XX is unknown; known: A100"):
        fit.fit.work(FitFlags(profile="smoke", phase="base", gpu="XX", json=False))
    with pytest.raises(UsageError, match="--phase rlx: known: base, mid, sft"):
        fit.fit.work(FitFlags(profile="smoke", phase="rlx", gpu="", json=False))
    with pytest.raises(UsageError, match="at least 1"):
        fit.fit.work(FitFlags(profile="smoke", phase="base", gpu="", json=False, num_gpus=0))


def test_fit_shows_the_distribution_of_a_model_over_several_gpus(capsys):
    fit.fit.work(FitFlags(profile="runpod_4b", phase="base", gpu="RTX 4090", json=False, num_gpus=8, nodes=2))
    shown = capsys.readouterr().out
    assert "2 machines of 8 GPUs" in shown and "hybrid over 16" in shown
    fit.fit.work(FitFlags(profile="runpod_4b", phase="base", gpu="RTX 4090", json=True, num_gpus=8))
    (one,) = json.loads(capsys.readouterr().out)["gpus"]
    assert (one["parallel"], one["fits"]) == ("fsdp", True)


def test_gpus_that_are_too_small_are_a_sentence_below_the_table(capsys):
    fit.fit.work(FitFlags(profile="qwen3_4b", phase="sft", json=False))
    shown = capsys.readouterr()
    assert "B200" in shown.out and "RTX4090" not in shown.out
    assert "too small: 38 kinds with 6 to 80 GB" in shown.err and "a row with recomputation needs 73.7 GB" in shown.err
    fit.fit.work(FitFlags(profile="qwen3_4b", phase="base", gpu="A100", json=False))
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 and "A100-80GB-SXM (80 GB)" in shown.err
    assert "fits on none of these GPUs" in shown.err

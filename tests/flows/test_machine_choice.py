"""The machine of a plan without a named machine: memory decides, then the price."""

from dataclasses import replace

import pytest

from flows.planning.machine_choice import MachineChoice, with_recipe
from flows.runs import launch
from flows.specs.launch import LaunchSpec
from infra.errors import NoOffer, UsageError
from infra.market.filters import satisfying
from infra.records import Offer, Request
from infra.selection.choose import as_found
from infra.settings import Settings
from tests.world import ROOT
from trainer.config import RecipeMachine
from trainer.recipes import PROFILES
from trainer.records.rl_config import RlConfig

GB = 10**9


def offer(gpu: str, number: int, memory_gb: int, usd: float, **about) -> Offer:
    facts = {"provider": "lium", "offer_id": f"{gpu}/{number}", "gpu_memory_bytes": memory_gb * GB, **about}
    return Offer(gpu=gpu, num_gpus=number, micro_usd_per_hour=round(usd * 10**6), **facts)


SMALL, NEXT, FOUR = offer("RTX4090", 1, 24, 0.30), offer("RTX5090", 1, 32, 0.5), offer("RTX5090", 4, 32, 1.2)
MIDDLE, LARGE = offer("L40S", 1, 48, 0.80), offer("H100-SXM", 1, 80, 2.2)
EIGHT, AMD = offer("H100-SXM", 8, 80, 17), offer("MI300X", 1, 192, 0.1)
NO_GPU, ODD, PARTS = offer("", 0, 0, 0.05), offer("GTX9", 1, 96, 0.1), offer("RTXPRO6000-MIG-2G.48GB", 2, 48, 0.1)
MARKET = (NO_GPU, AMD, ODD, PARTS, SMALL, NEXT, MIDDLE, FOUR, LARGE, EIGHT)


def fit(profile: str, *phases: str, asked=None, market=MARKET, **more) -> MachineChoice:
    def ask(request: Request) -> list[Offer]:
        if asked is not None:
            asked.append(request)
        return satisfying(request, market)

    every = PROFILES[profile]().phases
    return MachineChoice(phases=tuple(every[one] for one in phases), ask=ask, **more)


def narrowed(choice: MachineChoice, market=MARKET, **request):
    wanted = Request(run="r", provider="market", **request)
    return choice.narrow(wanted, satisfying(wanted, market))


def test_the_default_is_the_cheapest_offer_that_fits_every_phase_with_a_reason():
    found = narrowed(fit("tiny", "base", "sft"))
    assert found.offers[0] == SMALL and (found.request.gpu, found.request.num_gpus) == (
        "RTX4090,RTX5090,L40S,H100-SXM",
        1,
    )
    assert {one.num_gpus for one in found.offers} == {1}  # the other offers are tried next
    assert found.reason.startswith("machine: 1 x RTX4090 at 0.30 USD/h; the price decides: the plan needs 1.2 GB")
    found = narrowed(fit("runpod_2b", "base"))  # 38 GB, one row at a time
    assert found.offers[0] == MIDDLE and MIDDLE.micro_usd_per_hour > SMALL.micro_usd_per_hour
    assert (
        "memory decides: the plan needs 37.7 GB" in found.reason
        and "holds the plan; 1 x RTX4090 at 0.30" in found.reason
    )
    assert "has 24.0 GB" in found.reason and "to choose a machine: --gpu, --num-gpus" in found.reason


def test_the_largest_phase_counts_and_several_gpus_may_be_cheapest():
    alone = fit("runpod_4b", "base")
    assert narrowed(alone).offers[0] == FOUR and narrowed(alone).request.num_gpus == 4
    assert narrowed(replace(alone, phases=(*fit("tiny", "sft").phases, *alone.phases))).offers[0] == FOUR
    assert narrowed(alone, market=(SMALL, LARGE, EIGHT)).offers == (LARGE,)


def test_an_untested_gpu_is_used_only_by_name():
    assert narrowed(fit("tiny", "base"), market=(AMD, ODD, PARTS, NO_GPU, LARGE)).offers == (LARGE,)
    with pytest.raises(NoOffer, match="chosen for a training by default: 1 x GTX9, 1 x MI300X"):
        narrowed(fit("tiny", "base"), market=(AMD, ODD))
    for gpu, one in (("MI300X", AMD), ("GTX9", ODD)):
        found = narrowed(fit("tiny", "base"), gpu=gpu)
        assert found.offers == (one,) and (found.request.gpu, found.request.num_gpus) == (gpu, 1)


def test_typed_values_stay_and_missing_values_follow_from_the_plan():
    by_kind = narrowed(fit("runpod_4b", "base"), gpu="RTX5090")
    assert by_kind.offers == (FOUR,) and (by_kind.request.gpu, by_kind.request.num_gpus) == ("RTX5090", 4)
    assert "cheapest offer with RTX5090 that holds the plan; 1 x RTX5090" in by_kind.reason
    by_number = narrowed(fit("tiny", "base"), num_gpus=8)
    assert by_number.offers == (EIGHT,) and (by_number.request.gpu, by_number.request.num_gpus) == ("H100-SXM", 8)
    both = narrowed(fit("tiny", "base"), gpu="H100", num_gpus=8)
    assert both.offers == (EIGHT,) and both.reason == ""
    pairs = narrowed(fit("tiny", "base"), gpu="H100:8,L40S:1")
    assert pairs.offers == (MIDDLE,) and (pairs.request.gpu, pairs.request.num_gpus) == ("L40S", 1)
    named = narrowed(fit("tiny", "base", named="recipe d20 names 8 x H100"), gpu="H100", num_gpus=8)
    assert (
        named.reason == "machine: 8 x H100-SXM at 17.00 USD/h; recipe d20 names 8 x H100; to choose a machine: "
        "--gpu, --num-gpus"
    )
    by_type = narrowed(fit("tiny", "base"), market=(replace(LARGE, instance_type="h"), SMALL), instance_type="h")
    assert (by_type.request.gpu, by_type.request.num_gpus, by_type.offers[0].instance_type) == ("", 1, "h")


def test_spot_machines_are_requested_with_the_fewest_sufficient_gpus():
    open_one = Request(run="r", provider="runpod", spot=True)
    assert fit("tiny", "base").vendor_request(open_one).num_gpus == 1
    large = replace(PROFILES["runpod_4b"]().phases["base"], fit=False, recompute=False, micro_rows=32)
    sizes = [fit("tiny", "base", market=()).required_gpu_bytes(number, 1) for number in (1, 2)]
    assert max(sizes) < 288 * GB < replace(fit("tiny", "base"), phases=(large,)).required_gpu_bytes(1, 1)
    assert replace(fit("tiny", "base"), phases=(large,)).vendor_request(open_one).num_gpus == 2
    for said in ({"spot": False}, {"gpu": "H100"}, {"num_gpus": 4}, {"instance_type": "x"}):
        assert fit("tiny", "base").vendor_request(replace(open_one, **said)) == replace(open_one, **said)
    assert fit("tiny", "base", any_number=True).vendor_request(open_one) == open_one


def test_all_configurations_stay_on_offer_on_request():
    found = narrowed(fit("tiny", "base", any_number=True))
    assert {one.num_gpus for one in found.offers} == {1, 4, 8} and found.request.num_gpus == 1


@pytest.mark.parametrize(("wanted", "change"), [
    ({"gpu": "RTX5090", "num_gpus": 1}, r"--num-gpus 4 \(4 x RTX5090, 1.20 USD/h\)"),
    ({"gpu": "L40S"}, r"--gpu RTX5090 \(4 x RTX5090, 1.20 USD/h\)"),
    ({"max_micro_usd_per_hour": 10**6}, r"--max-price 1.20 \(4 x RTX5090"),
    ({"gpu": "L40S", "num_gpus": 1}, r"--gpu H100-SXM \(1 x H100-SXM, 2.20 USD/h\)"),
])  # fmt: skip
def test_a_plan_too_large_for_every_offer_is_refused_with_the_smallest_change_of_flags(wanted, change):
    kind = UsageError if {"gpu", "num_gpus"} <= wanted.keys() else NoOffer  # waiting helps if the rest is open
    with pytest.raises(kind, match=f"base needs .* The smallest change: {change}") as refused:
        narrowed(fit("runpod_4b", "base"), **wanted)
    assert type(refused.value) is kind


def test_a_plan_too_large_for_the_market_is_refused_with_the_smallest_change_of_the_plan():
    with pytest.raises(NoOffer, match=r"--set base\.sequence_len=1024 \(on 1 x L4\)"):
        narrowed(fit("runpod_1b", "base", market=(near := (offer("L4", 1, 20, 0.5),))), market=near)
    with pytest.raises(NoOffer, match=r"The smallest change: a smaller recipe \(--profile\)"):
        narrowed(fit("runpod_4b", "base", market=(SMALL,)), market=(SMALL,))


def test_rollout_gpus_count_in_addition_to_training_gpus():
    rl = PROFILES["tiny"]().phases["rl"]
    split = replace(rl, rl=replace(rl.rl or RlConfig(), engine="vllm", engine_devices=(1, 2)))
    choice = replace(fit("tiny", "base"), phases=(split,))
    found = narrowed(choice)
    assert choice.fewest == 3 and found.offers == (FOUR,)
    assert "the number of GPUs decides" in found.reason and "has fewer than 3 GPUs" in found.reason


class Listing:
    """An engine with four kinds of GPU."""

    title, gpu_kinds = "Queue", ("L4", "A100-80GB", "H100", "B200")


LISTING = Listing()


def test_a_job_without_phases_keeps_all_offers_and_its_request():
    wanted = Request(run="r", provider="market")
    choice = replace(fit("tiny", "base"), phases=())
    assert choice.narrow(wanted, MARKET) == as_found(wanted, MARKET)
    assert choice.choose_kinds(wanted, LISTING).request == wanted


def test_an_engine_gets_the_sufficient_gpu_kinds_unless_a_kind_is_named():
    wanted = Request(run="r", provider="queue")
    found = fit("runpod_4b", "base").choose_kinds(wanted, LISTING)
    assert (found.request.gpu, found.request.num_gpus) == ("A100-80GB,H100,B200", 1)
    assert "; Queue takes the cheapest. The plan needs 73.9 GB" in found.reason
    named = replace(wanted, gpu="L4", num_gpus=1)
    assert fit("runpod_4b", "base").choose_kinds(named, LISTING).request == named
    large = replace(PROFILES["runpod_4b"]().phases["base"], fit=False, recompute=False, micro_rows=64)
    with pytest.raises(NoOffer, match="no machine of Queue holds the plan: base needs .* and B200 has 180.0 GB"):
        replace(fit("tiny", "base"), phases=(large,)).choose_kinds(replace(wanted, num_gpus=1), LISTING)


def test_the_machine_of_a_recipe_fills_missing_flags_field_by_field():
    guide = PROFILES["d20"]()
    assert guide.machine == RecipeMachine(gpu="B200", num_gpus=8)

    def named(**flags) -> tuple[str, int, str]:
        spec, said = with_recipe(LaunchSpec(**flags), guide)
        return spec.gpu, spec.num_gpus, said

    assert named() == ("B200", 8, "recipe d20 names 8 x B200")
    assert named(gpu="H100") == ("H100", 8, "recipe d20 names 8 GPUs")
    assert named(num_gpus=4) == ("B200", 4, "recipe d20 names B200")
    assert named(gpu="B200", num_gpus=8) == ("B200", 8, "")  # typed, although equal
    assert named(gpu="H100:2") == ("H100:2", 0, "") and named(instance_type="x") == ("", 0, "")
    assert named(all_configs=True) == ("B200", 0, "recipe d20 names B200")
    assert with_recipe(LaunchSpec(), PROFILES["d26"]()) == (LaunchSpec(), "")


def test_a_launch_leaves_the_machine_open_and_remembers_the_chosen_machine(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "j.db"), "RUNPOD_API_KEY": "k" * 20, "HOME": str(tmp_path)}

    def meant(profile: str, **flags) -> launch.ResolvedLaunch:
        settings = Settings.load(ROOT, {"profile": profile, "provider": "runpod"}, environ=environ)
        return launch.resolve(LaunchSpec(provider="runpod", **flags), settings)

    open_one, guide = meant("tiny"), meant("d20")
    assert (open_one.request.gpu, open_one.request.num_gpus) == ("", 0)
    assert (guide.request.gpu, guide.request.num_gpus, guide.named) == ("B200", 8, "recipe d20 names 8 x B200")
    chosen = replace(open_one.request, gpu="RTX4090,L40S", num_gpus=2)
    known = open_one.asked.with_machine(chosen)
    assert known.meant["gpu"] == [["l40s", 0], ["rtx4090", 0]] and known.meant["num_gpus"] == 2
    typed = meant("tiny", gpu="H100:2").asked
    assert typed.with_machine(replace(chosen, gpu="H100")).meant["gpu"] == typed.meant["gpu"] == [["h100", 2]]

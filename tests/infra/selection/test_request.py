"""The request of a launch, and the messages for unsatisfiable requests."""

import pytest

from infra.errors import AuthError, NoOffer, UsageError
from infra.providers.local import Local
from infra.providers.offers import sources
from infra.records import Request
from infra.selection import registry
from infra.selection.choose import of_machines
from infra.selection.machine_spec import MachineSpec, refuse_open, request_on
from infra.settings import Settings
from tests.world import ROOT


@pytest.mark.parametrize("flags", [{"use_spot": True}, {"max_price": "3"}])
def test_price_flags_are_refused_on_free_machines(tmp_path, flags):
    flag = "--" + next(iter(flags)).replace("_", "-")
    with pytest.raises(UsageError, match=f"{flag} is for rented machines; this provider costs nothing"):
        request_on([Local(tmp_path)], MachineSpec(**flags), "a-1")


def test_requests_have_only_typed_flags_and_are_refused_without_work(tmp_path):
    settings = Settings.load(ROOT, {"provider": "runpod"}, environ={"RUNPOD_API_KEY": "k" * 20, "HOME": str(tmp_path)})
    candidates = registry.candidates(settings)
    wanted = request_on(candidates, MachineSpec(), "a-1")
    assert (wanted.gpu, wanted.num_gpus, wanted.provider) == ("", 0, "runpod")
    with pytest.raises(
        UsageError, match="no machine is specified.*--gpu, --num-gpus or --instance-type.*inv offers.*inv fit"
    ):
        refuse_open(wanted)
    for named in ({"gpu": "B200"}, {"num_gpus": 8}, {"instance_type": "x"}):
        refuse_open(request_on(candidates, MachineSpec(**named), "a-1"))


@pytest.mark.process
def test_a_gpu_missing_on_this_machine_is_refused_with_keys_and_rehearsal(tmp_path):
    with pytest.raises(NoOffer) as refused:
        of_machines(Local(tmp_path), Request(run="a-1", gpu="H100", num_gpus=8))
    said = str(refused.value)
    assert "RUNPOD_API_KEY" in said and "inv rehearse --gpu H100 --num-gpus 8" in said and "node(s)" not in said


def test_a_missing_key_is_an_authentication_error_with_the_name(tmp_path):
    settings = Settings.load(ROOT, {"pools": str(tmp_path / "none.yaml")}, environ={})
    for ask, key in (
        (lambda: registry.provider(settings, "runpod"), "RUNPOD_API_KEY"),
        (lambda: registry.candidates(settings, "market"), "LIUM_API_KEY"),
        (lambda: sources(settings), "SHADEFORM_API_KEY"),
    ):
        with pytest.raises(AuthError, match=key) as refused:
            ask()
        assert refused.value.exit_code == 4 and "ehearse" in str(refused.value)

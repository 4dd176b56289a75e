"""The plan of a service: limit, machine, provider and engine, from the flags, the file and the earlier version."""

import json

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra.errors import NoOffer, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.settings import Settings
from serve import revision
from serve.controller import Controller
from serve.engine import memory_fit
from serve.engine.options import Tuning
from serve.policy import service_state
from serve.policy.service_state import Version, WantedService
from serve.replicas import placement
from tests.world import ROOT

FILE = "examples/service.yaml"  # has a limit of 50 USD


RUNPOD = {"RUNPOD_API_KEY": "x" * 32, "SLIPWAY_RUNPOD_URL": "http://127.0.0.1:9"}


def planned(tmp_path, provider="runpod", **flags) -> serve.Revision:
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **RUNPOD}
    settings = Settings.load(ROOT, {"provider": provider}, environ=environ)
    spec = ServeSpec(name="demo", model="hf://user/repo", engine="torch", provider=provider, config=FILE, **flags)
    with Journal.open(settings.state_file, environ) as journal:
        return serve.plan(spec, journal, settings, print)


def test_a_typed_limit_of_a_service_overrides_its_file(tmp_path):
    assert planned(tmp_path).version.service.slipway.spend_limit == 50
    assert planned(tmp_path, spend_limit="$7.5").version.service.slipway.spend_limit == "$7.5"


@pytest.mark.parametrize(("said", "why"), [("0", "give an amount above 0"), ("-1", "--spend-limit: "),
                                           ("much", "'much' is not an amount of dollars")])  # fmt: skip
def test_an_invalid_limit_of_a_service_is_refused(said, why, tmp_path):
    with pytest.raises(UsageError, match=why):
        planned(tmp_path, spend_limit=said)


SECRETS = """
service:
  readiness_probe: {{path: /v1/models, headers: {{Authorization: Bearer $AUTH_TOKEN}}}}
secrets: [AUTH_TOKEN]
envs: {{{0}}}
slipway: {{model: hf://user/repo, spend_limit: 5}}
"""


@pytest.mark.parametrize(
    ("envs", "environ", "why"),
    [
        ("HF_TOKEN: , EOS_TOKEN: </s>", {"AUTH_TOKEN": "hush", "HF_TOKEN": "hf_1"}, ""),
        ("A: 1", {}, "secrets: AUTH_TOKEN has no value; set the variable in .env"),
        ("VLLM_API_KEY: ", {"AUTH_TOKEN": "hush"}, "VLLM_API_KEY: Slipway sets .* also from the readiness_probe"),
        (
            f"HF_TOKEN: hf_{'1' * 20}",
            {"AUTH_TOKEN": "hush"},
            "envs: HF_TOKEN: the journal stores this file; write `HF_TOKEN:`",
        ),
    ],
)
def test_engine_of_a_model_takes_the_secrets_of_a_file_by_name(tmp_path, monkeypatch, envs, environ, why):
    for name in ("HF_TOKEN", "AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (path := tmp_path / "talk.yaml").write_text(SECRETS.format(envs))
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **RUNPOD}
    settings = Settings.load(tmp_path, {"provider": "runpod"}, environ=environ)
    spec = ServeSpec(name="demo", engine="torch", provider="runpod", config=str(path))
    with Journal.open(settings.state_file, environ) as journal:
        if why:
            with pytest.raises(UsageError, match=why):
                serve.plan(spec, journal, settings, print)
            return
        version = serve.plan(spec, journal, settings, print).version
    assert set(version.service.secrets) == {"AUTH_TOKEN", "HF_TOKEN"} and version.service.envs == {"EOS_TOKEN": "</s>"}
    assert "hush" not in str(version.document)


@pytest.mark.parametrize("flags", [{"spend_limit": "5"}, {"use_spot": True}, {"max_price": "5"}])
def test_a_service_on_this_machine_costs_nothing(tmp_path, flags):
    flag = f"--{next(iter(flags)).replace('_', '-')}"
    with pytest.raises(UsageError, match=f"{flag} is for rented machines; this provider costs nothing"):
        planned(tmp_path, "local", **flags)


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "why", "practice"),
    [
        ({"spend_limit": "5"}, "--spend-limit is for rented machines; without a key", "--spend-limit 5"),
        ({"use_spot": True}, "--use-spot is for rented machines; without a key", "--use-spot"),
        ({"max_price": "$3"}, "--max-price is for rented machines; without a key", "--max-price '$3'"),
        ({"gpu": "H100", "num_gpus": 8}, "does not have the GPUs of a replica (8 H100)", "--gpu=H100 --num-gpus=8"),
    ],
)
def test_service_on_rented_machines_without_a_key_names_the_keys_and_the_rehearsal(tmp_path, flags, why, practice):
    settings = Settings.load(tmp_path, environ={"SLIPWAY_STATE_FILE": str(tmp_path / "j.db"), "HOME": str(tmp_path)})
    (model := tmp_path / "mine").mkdir()
    (model / "fake.json").write_text("{}")
    with Journal.open(settings.state_file, {}) as journal, pytest.raises((UsageError, NoOffer)) as refused:
        serve.plan(ServeSpec(name="demo", model=str(model), **flags), journal, settings, print)
    said = str(refused.value)
    assert why in said and "RUNPOD_API_KEY" in said
    assert f"inv serve.up --rehearse --name=demo --model={model} {practice}" in said


def test_typed_machine_of_a_replica_overrides_the_file(tmp_path):
    before = planned(tmp_path).version.service.file.resources
    flags = {"gpu": "L40S,H100:2", "max_price": "$3.5", "memory": "64+", "disk_size": "200", "region": "US-KS-2"}
    found = planned(tmp_path, **flags).version
    request = placement.request_of(found.service, "demo-0")
    assert (request.gpu, request.num_gpus) == ("L40S:1,H100:2", 0)
    assert (request.max_micro_usd_per_hour, request.memory_bytes) == (3_500_000, 64 * 10**9)
    assert (request.disk_bytes, request.region) == (200 * 10**9, "US-KS-2")
    assert found.service.file.resources.cpus == before.cpus and before.region is None
    request = placement.request_of(planned(tmp_path, gpu="H100", num_gpus=4).version.service, "demo-0")
    assert (request.gpu, request.num_gpus) == ("H100", 4)
    for wrong, why in (({"num_gpus": 2}, "needs the kind of the GPUs"), ({"gpu": "none"}, "leave the flag out")):
        with pytest.raises(UsageError, match=why):
            planned(tmp_path, **wrong)


def test_plan_of_a_run_names_the_programs_that_machines_lack(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **RUNPOD}
    settings = Settings.load(tmp_path, {"provider": "runpod"}, environ=environ)
    (path := tmp_path / "pages.yaml").write_text(
        "service: {readiness_probe: /alive, replicas: 1}\nresources: {ports: 8080}\nslipway: {spend_limit: 5}\n"
        "setup: conda create -n a\nrun: docker run --gpus all --network=host a\n"
    )
    told: list[str] = []
    with Journal.open(settings.state_file, environ) as journal:
        serve.plan(ServeSpec(name="pages", provider="runpod", config=str(path)), journal, settings, told.append)
    said = " / ".join(told)
    assert "setup: the machines of runpod have no conda; write as the first line of setup: curl" in said
    assert "run: the machines of runpod have no Docker daemon; install the program of the container" in said


@pytest.mark.parametrize(
    ("accelerators", "shared", "why"),
    [
        ({"L40S": 1, "H100:2": None}, 1, "L40S:1,H100:2: vLLM uses the same .* for each kind$"),
        ({"L40S": 1, "H100:2": None}, 2, "L40S:1,H100:2: vLLM uses the same .* for each kind$"),
        ({"H100": 8, "A100": 4}, 1, "H100:8,A100:4: vLLM uses the same .* or `slipway: {engine: {num_gpus: 4}}`"),
        ({"H100": 8, "A100": 4}, 8, "H100:8,A100:4: vLLM uses the same .* or `slipway: {engine: {num_gpus: 4}}`"),
        ({"H100": 8, "A100": 4}, 4, ""),
        ({"H100": 8, "A100": 4}, 2, ""),
        ({"H100": 8}, 1, ""),
        (None, 2, ""),
    ],
)
def test_vllm_needs_one_number_of_gpus(tmp_path, monkeypatch, accelerators, shared, why):
    settings = Settings.load(ROOT, {"provider": "runpod"}, environ={"HOME": str(tmp_path), **RUNPOD})
    document = {"service": {"readiness_probe": "/health", "replicas": 1}}
    document |= {"resources": {"accelerators": accelerators}, "slipway": {"engine": {"num_gpus": shared}}}

    def unknown(*_):
        raise UsageError("hf://user/repo is not readable")

    monkeypatch.setattr(memory_fit, "needed", unknown)
    version = Version(number=1, document=document, engine="vllm", provider="runpod", model="hf://user/repo")
    if why:
        with pytest.raises(UsageError, match=why):
            revision.with_memory_need(version, settings, print)
        return
    # A machine without a GPU cannot run vLLM, also with a model of unknown size.
    assert bool(revision.with_memory_need(version, settings, print).gpu_bytes) is (accelerators is None)


def test_update_stays_on_the_provider_of_the_first_version_unless_another_is_typed(tmp_path):
    (model := tmp_path / "mine").mkdir()
    (model / "fake.json").write_text("{}")

    def plan(keys, **flags):
        environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **keys}
        settings = Settings.load(tmp_path, environ=environ)
        with Journal.open(settings.state_file, environ) as journal:
            found = serve.plan(ServeSpec(name="demo", model=str(model), **flags), journal, settings, print)
            if found.row is None:
                wanted = WantedService(versions=(found.version,))
                service_rows.write_desired_state(journal, "demo", service_state.write(wanted), None)
        return found.version.provider, revision.places(found.version, settings)

    assert plan({}) == ("local", "this machine")
    assert plan(RUNPOD) == ("local", "this machine; --provider any would also use runpod")
    assert plan(RUNPOD, provider="any") == ("", "runpod")


def test_model_that_vllm_cannot_run_on_a_cpu_is_served_by_our_engine_or_refused(tmp_path):
    shape = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64, "num_hidden_layers": 1}
    shape |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "rms_norm_eps": 1e-5}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 64, "rope_theta": 10000.0, "hidden_act": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    one = Version(number=1, document={}, engine="vllm-cpu", model=str(tmp_path))
    told: list[str] = []
    assert serve.with_capable_engine(one, False, told.append).engine == "torch"
    assert "does not support attention heads of size 16" in told[0] and "Slipway's own engine" in told[0]
    assert serve.with_capable_engine(one, True, told.append).engine == "vllm-cpu"
    with pytest.raises(UsageError, match="heads of size 16; it supports 32, 64, .* use --engine torch"):
        memory_fit.needed(tmp_path, "vllm-cpu", Tuning())
    (tmp_path / "config.json").write_text(json.dumps({**shape, "head_dim": 32}))
    assert serve.with_capable_engine(one, False, told.append).engine == "vllm-cpu" and len(told) == 1


@pytest.mark.parametrize(
    ("provider", "least", "rents"),
    [("runpod", 3, True), ("runpod", 2, False), ("runpod", 1, False), ("local", 3, False)],
)
def test_change_of_size_rents_only_for_more_replicas_on_rented_machines(tmp_path, provider, least, rents):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **RUNPOD}
    settings = Settings.load(tmp_path, environ=environ)
    document = {"service": {"replicas": 2, "readiness_probe": "/health"}}
    old = WantedService(versions=(Version(number=1, document=document, provider=provider, model="hf://user/repo"),))
    with Journal.open(settings.state_file, environ) as journal:
        service_rows.write_desired_state(journal, "demo", service_state.write(old), None)
        found, wanted = serve.plan_scale("demo", least, None, journal, settings, print)
        assert service_rows.find(journal, "demo").wanted == service_state.write(old)
    assert (wanted == old) is (least == 2) and serve.rents_more(found, settings) is rents
    assert found.version.service.policy.min_replicas == found.version.service.policy.most == least


@pytest.mark.parametrize(
    ("keys", "provider", "said", "of_plan", "of_controller"),
    [
        (RUNPOD, "", None, "150", 150 * 10**6),
        (RUNPOD, "", 7, 7, 7 * 10**6),
        (RUNPOD, "local", None, None, None),
        ({}, "", None, None, None),
    ],
)
def test_service_that_comes_to_rent_has_a_limit(tmp_path, keys, provider, said, of_plan, of_controller):
    """The service was planned for own machines, and the key of a vendor came later."""
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), **keys}
    settings = Settings.load(tmp_path, environ=environ)
    document = {"service": {"replicas": 2, "readiness_probe": "/health"}}
    document |= {"slipway": {"spend_limit": said}} if said else {}
    old = WantedService(versions=(Version(number=1, document=document, provider=provider, model="hf://user/repo"),))
    with Journal.open(settings.state_file, environ) as journal:
        service_rows.write_desired_state(journal, "demo", service_state.write(old), None)
        lease = journal.leases.acquire(service_rows.service_lease("demo"))
        budget = Controller("demo", settings, journal, lease, print)._budget()
        assert (budget.limit if budget else None) == of_controller
        found, wanted = serve.plan_scale("demo", 4, None, journal, settings, print)
    assert wanted.newest.service.slipway.spend_limit == found.version.service.slipway.spend_limit == of_plan


@pytest.mark.parametrize(("policy", "live", "said"), [
    ({"replicas": 1}, 2, "demo: 1 replica wanted, 2 live; the controller ends 1 now, after the open requests"),
    ({"replicas": 3}, 1, "demo: 3 replicas wanted, 1 live; the controller starts 2 now"),
    ({"replica_policy": {"min_replicas": 1, "max_replicas": 4, "target_qps_per_replica": 2}}, 2,
     "demo: 1 to 4 replicas by load, 2 live; the controller fits the number to the load of the last minute now. Later, "
     "replicas start after 5 min 00 s of more load, and end after 20 min 00 s of less load"),
])  # fmt: skip
def test_change_of_size_says_what_happens_and_when(policy, live, said):
    wanted = WantedService(versions=(Version(number=1, document={"service": policy}, model="/m"),))
    assert serve.scale_forecast("demo", wanted, live).startswith(said)

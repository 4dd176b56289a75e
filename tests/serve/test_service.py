"""The service file: accepted keys, refusals with hints, and the export."""

import pytest
import yaml

from infra.errors import UsageError
from scripts.project import reference
from serve import revision, service, skyserve_export
from serve.controller import limits_of
from serve.service import Probe
from tests.serve.scripted_engine import ROOT

SMALL = "service:\n  readiness_probe: /health\n  replicas: 2\nresources:\n  ports: 8000\nrun: vllm serve\n"


def parse(text: str) -> service.Service:
    return service.parse("x.yaml", yaml.safe_load(text))


def test_shipped_file_has_the_documented_numbers():
    shipped = service.load(ROOT / "serve" / "service.yaml")
    policy, probe, resources = shipped.policy, shipped.probe, shipped.file.resources
    assert (policy.min_replicas, policy.max_replicas, policy.target_qps_per_replica) == (3, 20, 5.0)
    assert (policy.upscale_delay_seconds, policy.downscale_delay_seconds) == (60, 300)
    assert (probe.path, probe.initial_delay_seconds, probe.timeout_seconds) == ("/health", 120, 30)
    assert probe.endpoint_probe_interval_seconds == 10
    assert (resources.cpus, resources.memory, resources.disk_size, resources.use_spot) == ("16+", "128+", 100, True)


def test_small_file_has_the_meaning_of_skyserve():
    small = parse(SMALL)
    assert small.probe == Probe(path="/health") and small.probe.initial_delay_seconds == 1200
    assert (small.policy.min_replicas, small.policy.most, small.port) == (2, 2, 8000)
    assert parse("service: {}").policy.min_replicas == 1
    assert [parse(text).probe.path for text in ("service: {}", "service: {}\nrun: serve")] == ["/health", "/"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("replicas: 2", "replica: 2"), "unknown key 'replica'; did you mean replicas"),
        (("run:", "runs:"), "unknown key 'runs'; did you mean run"),
        (("ports", "port"), "x.yaml: resources: unknown key 'port'; did you mean ports"),
        (("/health", "{path: /health, period_seconds: 10}"), "did you mean endpoint_probe_interval_seconds"),
        (("/health", "{path: health}"), "must begin with /"),
        (("/health", "{path: /health, timeout_seconds: 0}"), "timeout_seconds must be more than 0"),
        (("/health", "{path: /health, post_data: '{'}"), "post_data is not JSON"),
        (("/health", "{timeout_seconds: 3}"), "missing required field `path`"),
        (("replicas: 2", "replicas: two"), "service.replicas: Expected `int | null`, got `str`"),
        (("replicas: 2", "replicas: 0"), "max_replicas must be at least 1, got 0"),
        (("replicas: 2", "workers: 2"), "pools of workers are for batch jobs"),
        (("replicas: 2", "replicas: 2\n  replica_policy: {min_replicas: 1}"), "exclude each other"),
        (("replicas: 2", "replica_policy: {max_replicas: 1}"), "missing required field `min_replicas`"),
        (
            ("replicas: 2", "replica_policy: {min_replicas: 3, max_replicas: 1}"),
            "min_replicas (3) must be at least 0 and at most max_replicas (1)",
        ),
        (
            ("replicas: 2", "replica_policy: {min_replicas: 1, max_replicas: 3}"),
            "target_qps_per_replica is missing",
        ),
        (("replicas: 2", "replica_policy: {min_replicas: 1, target_qps_per_replica: 3}"), "needs max_replicas"),
        (
            ("replicas: 2", "replica_policy: {min_replicas: 1, max_replicas: 2, target_qps_per_replica: 0}"),
            "more than 0",
        ),
        (("replicas: 2", "load_balancing_policy: least_loads"), "did you mean least_load"),
        (("replicas: 2", "replicas: -1"), "x.yaml: service: replicas is -1; it must be a number from 0 on"),
        (
            ("replicas: 2", "replica_policy: {min_replicas: 1, max_replicas: 2, target_qps_per_replica: .nan}"),
            "service: replica_policy: target_qps_per_replica is nan",
        ),
        (
            ("replicas: 2", "replica_policy: {min_replicas: 1, upscale_delay_seconds: -5}"),
            "upscale_delay_seconds is -5; it must be a number from 0 on",
        ),
        (("/health", "{path: /health, initial_delay_seconds: .inf}"), "initial_delay_seconds is inf"),
        (("run:", "slipway: {hold_seconds: -4}\nrun:"), "x.yaml: slipway: hold_seconds is -4"),
        (
            ("run:", "slipway: {limits: {max_token: 9}}\nrun:"),
            "slipway: limits: unknown key 'max_token'; did you mean max_tokens",
        ),
        (("run:", "slipway: {limits: {max_tools: -1}}\nrun:"), "slipway.limits: max_tools is -1"),
        (
            ("run:", "slipway: {limits: {max_tokens: 0}}\nrun:"),
            "slipway.limits: max_tokens is 0; it must be at least 1",
        ),
        (
            ("run:", "slipway: {limits: {media_domains: ['http://a.net/']}}\nrun:"),
            "names of hosts, such as example.org",
        ),
        (("ports: 8000", "ports: [8000, 9000]"), "must name the port of the engine; resources.ports lists 8000, 9000"),
        (("ports: 8000", "ports: '\N{SUPERSCRIPT TWO}'"), "must name the port of the engine; resources.ports lists"),
        (("ports: 8000", "ports: '\N{ARABIC-INDIC DIGIT TWO}'"), "must name the port of the engine; resources.ports"),
        (("ports: 8000", "cpus: -1\n  priority: -5"), "x.yaml: resources: cpus is -1; it must be a number from 0 on"),
        (("ports: 8000", "ports: 8000\nenvs: {A-B: 1}"), "not the name of a variable"),
        (("ports: 8000", "ports: 8000\nenvs: {WORD: }"), "WORD must have a value"),
        (("service:", "slipway: {holds: 3}\nservice:"), "x.yaml: slipway: unknown key 'holds'"),
        (("ports: 8000", "any_of: [{cpu: 4}]"), "resources: any_of 1: unknown key 'cpu'; did you mean cpus"),
        (
            ("run:", "num_nodes: 2\nrun:"),
            "num_nodes: a replica is one machine; for one run on several machines: inv la",
        ),
        (("run:", "num_nodes: 0\nrun:"), "num_nodes: a replica is one machine"),
        (("run:", "workdir: {url: u, ref: r}\nrun:"), "clone the repository in `setup`: git clone URL"),
        (("run:", "volumes: {/a: b}\nrun:"), "x.yaml: volumes: a service mounts no volumes"),
        (("run:", "managed_secrets: [A]\nrun:"), "list the names under `secrets:`"),
        (("ports", "accelerator_args: {a: b}\n  ports"), "resources: accelerator_args: this key is for TPUs"),
        (("run:", "pool: {workers: 2}\nrun:"), "pools of workers are for batch jobs"),
    ],
)
def test_invalid_value_is_refused_with_its_place(change, says):
    with pytest.raises(UsageError) as refused:
        parse(SMALL.replace(*change))
    assert str(refused.value).startswith("x.yaml") and says in str(refused.value)


@pytest.mark.parametrize(
    "numbers", [{"autostop": {"idle_minutes": 5}, "priority": 3}, {"autostop": -1, "priority": -5}]
)
def test_keys_of_a_task_that_a_service_does_not_need_are_read_and_exported(numbers):
    more = {"num_nodes": 1, "config": {"a": {"b": 1}}, "inputs": {"gs://a": 1}, "outputs": {"b": 2}}
    of_machine = {**numbers, "priority_class": "high", "local_disk": "nvme"}
    document = {"service": {"replicas": 1}, "run": "x", "resources": of_machine, **more}
    exported = skyserve_export.to_skyserve(service.parse("x", document))
    assert {key: exported[key] for key in more} == more
    assert exported["resources"] == {**of_machine, "ports": 8000}


def test_request_bounds_of_the_file_apply_in_the_gateway():
    said = "slipway: {limits: {max_tokens: 9, media_domains: [example.org], max_tools_bytes: 1000}}\n"
    limits = limits_of(parse(SMALL + said))
    assert (limits.max_tokens, limits.media_domains, limits.max_tools_bytes) == (9, ("example.org",), 1000)
    plain = limits_of(parse(SMALL))
    assert (plain.max_tokens, plain.media_domains, plain.allow_chat_template) == (None, (), False)


EMPTY = """
service:
  readiness_probe:
  replicas: 1
  load_balancer:
resources:
  cpus:
  any_of:
name:
workdir:
envs:
secrets:
file_mounts:  # none
setup:
slipway:
run: serve
"""


def test_empty_sections_say_nothing_as_in_skypilot(tmp_path):
    (tmp_path / "talk.yaml").write_text(EMPTY)
    plain = parse("service: {replicas: 1}\nrun: serve\n")
    assert service.load(tmp_path / "talk.yaml") == plain
    document = revision.document_of(str(tmp_path / "talk.yaml"), None, "talk", None, "", {})
    assert document == {"name": "talk", "service": {"replicas": 1}, "resources": {}, "run": "serve"}
    with pytest.raises(UsageError, match="WORD must have a value"):
        parse(EMPTY.replace("envs:", "envs: {WORD: }"))


@pytest.mark.parametrize("text", ["[]", "a", "name: x", "service: 3"])
def test_invalid_service_is_refused(text):
    with pytest.raises(UsageError, match="x.yaml"):
        parse(text)


def test_missing_file_names_the_example_to_copy(tmp_path):
    with pytest.raises(UsageError, match="copy serve/service.yaml"):
        service.load(tmp_path / "service.yaml")


def test_queue_target_alone_scales_but_is_not_exported():
    text = SMALL.replace("replicas: 2", "replica_policy: {min_replicas: 1, max_replicas: 3}")
    ours = parse(text + "slipway: {target_queue_per_replica: 4}\n")
    assert ours.policy.most == 3
    with pytest.raises(UsageError, match="scales by requests only"):
        skyserve_export.to_skyserve(ours)


@pytest.mark.parametrize(
    ("model", "env", "mounts"),
    [
        ("hf://Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None),
        ("s3://bucket/weights", "/model", {"/model": "s3://bucket/weights"}),
        ("./weights", "/model", {"/model": "./weights"}),
        ("/weights", "/model", {"/model": "/weights"}),
    ],
)
def test_a_model_is_named_or_mounted(model, env, mounts):
    made = skyserve_export.to_skyserve(parse(SMALL), model)
    assert made["envs"]["MODEL"] == env and made.get("file_mounts") == mounts


def test_name_known_only_to_slipway_cannot_be_exported():
    with pytest.raises(UsageError, match="SkyServe cannot reach"):
        skyserve_export.to_skyserve(parse(SMALL), "brave-otter-3")


def test_export_contains_no_slipway_key_and_is_read_back_unchanged():
    shipped = service.load(ROOT / "serve" / "service.yaml")
    made = skyserve_export.to_skyserve(shipped)
    assert "slipway" not in made and made["envs"]["HOST"] == "0.0.0.0"
    again = service.parse("again", yaml.safe_load(yaml.safe_dump(made)))
    assert (again.policy, again.probe, again.port) == (shipped.policy, shipped.probe, shipped.port)
    assert skyserve_export.to_skyserve(again) == made


def test_every_scaling_number_has_a_description():
    about = {name: said for name, _, said in reference.keys(service.ServiceFile)}
    for name in (
        "min_replicas",
        "max_replicas",
        "target_qps_per_replica",
        "upscale_delay_seconds",
        "downscale_delay_seconds",
    ):
        assert len(about[f"`service.replica_policy.{name}`"]) > 20, name
    text = (ROOT / "serve" / "service.yaml").read_text()
    for advice in (
        "always on; the number of own machines",
        "the budget for bursts",
        "raise it when replicas end",
        "lower: faster answers, higher cost",
        "higher: steadier, dearer",
    ):
        assert advice in text


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("vllm serve x --host 127.0.0.1 --port 80", "vllm serve x --host 0.0.0.0 --port 80"),
        ("python -m http.server --bind localhost", "python -m http.server --bind 0.0.0.0"),
        ("serve --host='127.0.0.1'", "serve --host=0.0.0.0"),
        ("curl http://127.0.0.1:1 && serve --host 0.0.0.0", "curl http://127.0.0.1:1 && serve --host 0.0.0.0"),
    ],
)
def test_exported_engine_listens_on_every_address(said, written):
    assert skyserve_export.to_skyserve(service.parse("x", {"service": {"replicas": 1}, "run": said}))["run"] == written


PROBED = {"service": {"readiness_probe": {"path": "/v1/chat/completions", "post_data": {"model": "lab/tiny-talker"}}}}


def test_model_name_of_the_probe_is_the_name_for_clients():
    told = []
    for data in ({"model": "lab/tiny-talker"}, '{"model": "lab/tiny-talker"}', {"model": "$WHICH"}):
        probe = {"path": "/v1/chat/completions", "post_data": data}
        document = {"envs": {"WHICH": "lab/tiny-talker"}, "service": {"readiness_probe": probe}}
        made = revision.with_probed_name(document, service.parse("x", document), "t", told.append)
        assert made["slipway"] == {"served_name": "lab/tiny-talker"} and "lab/tiny-talker" in told.pop()
    for same in ({**PROBED, "slipway": {"served_name": "lab/tiny-talker"}}, {"service": {"replicas": 1}}):
        assert revision.with_probed_name(same, service.parse("x", same), "t", told.append) is same and told == []
    other = {**PROBED, "slipway": {"served_name": "other"}}
    with pytest.raises(UsageError, match="write the same name in both"):
        revision.with_probed_name(other, service.parse("x", other), "t", told.append)

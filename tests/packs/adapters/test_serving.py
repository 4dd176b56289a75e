"""Adapters of a service: flags, refusals, the torch engine, and a running service whose adapters change."""

import asyncio
import dataclasses
import hashlib
import json
import struct
import urllib.error
from pathlib import Path

import pytest
import torch

from flows.services import serve, variants
from flows.specs.service import ServeSpec
from infra.errors import HubUnreachable, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.adapters.control import imported_adapter
from packs.adapters.control.serving import ServedAdapterFlags, read_named, resolve
from packs.adapters.records.lora_config import MATRICES
from packs.adapters.trainer.imported_adapter import StoredLora
from serve.engine import models
from serve.engine.models import ServedModel
from serve.engines import command
from serve.load import LoadTest
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, ServiceRecord, WantedService
from serve.variants import Variant, can_load, vllm_rank
from store.artifacts import weight_digests
from store.artifacts.artifacts import Store
from store.artifacts.model_files import CHANGED
from store.manifest import AccessDenied, NoStore, StoreError
from store.patience import StoreAway
from tests.end_to_end.conftest import installation as installation
from tests.end_to_end.services import Installation, Traffic, say
from tests.hub import FolderRepo, serving
from tests.hub_repositories import Blob, CommittedRepo
from tests.packs.adapters.test_lora import rewrite
from tests.packs.adapters.test_lora import stored as stored
from tests.trainer.conftest import TINY
from tests.trainer.model.test_model import IDS, random_model
from tests.world import ROOT
from trainer.errors import Refused
from trainer.model import export, huggingface
from trainer.serving import completion_request, server


def written_adapter(folder: Path, rank: int = 2, layers: int = 2, width: int = 4) -> Path:
    """Write an adapter of zeros without torch."""
    folder.mkdir(parents=True)
    header, offset = {}, 0
    for layer in range(layers):
        for name in MATRICES:
            part = "self_attn" if name[0] in "qkvo" else "mlp"
            for side, shape in (("A", [rank, width]), ("B", [width, rank])):
                size = 4 * rank * width
                key = f"base_model.model.model.layers.{layer}.{part}.{name}.lora_{side}.weight"
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
                offset += size
    words = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(words)) + words + bytes(offset))
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": [*MATRICES]}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


def config_of(layers: int = 2, width: int = 64) -> dict[str, object]:
    """Return config.json of a model for the adapters of `written_adapter`."""
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": layers, "head_dim": width // 4}
    shape = dataclasses.replace(TINY, **sizes, num_attention_heads=4, num_key_value_heads=4)
    return huggingface.config_json(shape, "float32", 0, [1])


@pytest.fixture
def there(monkeypatch) -> str:
    """Return the address of a model for adapters of rank 48."""
    monkeypatch.setattr(models, "remote_config", lambda uri: (config_of(), 0))
    return "hf://user/repo"


def address(folder: Path, layers: int = 2, width: int = 64) -> str:
    """Write a model without weights; return the address."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(layers, width)))
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return f"file://{folder}"


def planned(tmp_path: Path, engine: str = "fake", model: str = "", **adapters: str) -> serve.Revision:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "fake.json").write_text("{}")
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path)}
    environ["SLIPWAY_STORE"] = str(tmp_path / "store")
    settings = Settings.load(ROOT, {"provider": "local"}, environ=environ)
    flags = ServedAdapterFlags(adapter=adapters)
    spec = ServeSpec(
        name="demo", model=model or str(tmp_path / "model"), engine=engine, provider="local", added=(flags,)
    )
    with Journal.open(settings.state_file, environ) as journal:
        return serve.plan(spec, journal, settings, print)


def test_adapters_reserve_room_in_vllm_and_start_with_its_options(tmp_path, there):
    one, two = written_adapter(tmp_path / "a", 2, width=64), written_adapter(tmp_path / "b", 48, width=64)
    found = planned(tmp_path, "vllm-cpu", there, legal=str(one), code=str(two))
    tuning = found.version.service.slipway.engine
    assert (tuning.variants, tuning.variant_rank) == (8, 48)
    assert {name: (each.source, each.rank) for name, each in found.variants.items()} == {
        "legal": (str(one), 2),
        "code": (str(two), 48),
    }
    model = ServedModel(folder=tmp_path, name="demo")
    built = command(model, "vllm-cpu", port=1, tuning=tuning)
    words = " ".join(built.words)
    assert "--enable-lora" in words and "--max-loras 8 --max-lora-rank 64" in words
    assert "--middleware packs.adapters.serve.vllm_route.VariantRoute" in words
    assert built.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    plain = command(model, "vllm-cpu", port=1)
    assert "lora" not in " ".join(plain.words) and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in plain.environ
    assert [vllm_rank(one) for one in (1, 8, 9, 512)] == [8, 8, 16, 512]


@pytest.mark.parametrize(
    ("engine", "adapters", "said"),
    [
        ("llama.cpp", {"a": "a"}, "the engine llama.cpp loads no variants"),
        ("fake", {"demo": "a"}, "'demo' cannot be the name of a variant"),
        ("fake", {"a b": "a"}, "'a b' cannot be the name of a variant"),
        ("fake", {"a": "nowhere"}, "neither a folder nor an artifact"),
        ("fake", {"a": "torn"}, "the adapter .*torn: .* is not a whole adapter"),
        ("vllm-cpu", {"a": "high"}, "vLLM serves ranks of at most 512"),
    ],
)
def test_impossible_adapter_of_a_service_is_refused(tmp_path, monkeypatch, engine, adapters, said):
    monkeypatch.setattr(models, "remote_config", lambda uri: (config_of(1, 600), 0))
    written_adapter(tmp_path / "a")
    (written_adapter(tmp_path / "torn") / "adapter_model.safetensors").unlink()
    written_adapter(tmp_path / "high", rank=600, layers=1, width=600)
    model = "" if engine == "fake" else "hf://user/repo"
    with pytest.raises(UsageError, match=said):
        planned(tmp_path, engine, model, **{name: str(tmp_path / one) for name, one in adapters.items()})


@pytest.mark.parametrize(("layers", "width", "said"), [(3, 64, "2 blocks, and the model has 3"), (2, 32, "64 inputs")])
def test_adapter_of_another_shape_than_the_model_at_an_address_is_refused(tmp_path, layers, width, said):
    adapter = written_adapter(tmp_path / "a", width=64)
    with pytest.raises(UsageError, match=f"the adapter .*a: .*{said}.*belongs to another model"):
        resolve(str(adapter), address(tmp_path / "there", layers, width), Settings.load(ROOT))


@pytest.mark.process
def test_adapter_of_other_weights_than_the_model_of_the_hub_is_refused(tmp_path, monkeypatch):
    adapter, commit = written_adapter(tmp_path / "a", width=64), "b" * 40
    address(tmp_path / "there")

    def resolved(said: dict[str, str], changed: dict[str, str], model: str = "hf://us/one") -> Variant:
        rewrite(adapter, **{"base_model_name_or_path": "us/one", "revision": None, **said})
        (adapter / CHANGED).write_text(json.dumps(changed))
        return resolve(str(adapter), model, Settings.load(ROOT, environ={"HOME": str(tmp_path)}))

    with serving({"us/one": FolderRepo(tmp_path / "there")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert resolved({}, {}).rank == 2
        assert resolved({"revision": commit}, {}).rank == 2  # the newest commit may differ in the documentation alone
        with pytest.raises(UsageError, match="trained on them/other, and --model is us/one. Use --model hf://them/oth"):
            resolved({"base_model_name_or_path": "them/other"}, {})
        grown = {"name": "imported/one", "source": "hf://us/one", "altered": "rows for chat tokens"}
        with pytest.raises(
            UsageError, match="'imported/one', an import of us/one with other weights .*serve the artif"
        ):
            resolved({}, grown)


@pytest.mark.process
@pytest.mark.parametrize("asked", ["", "@main", "@commit"])
@pytest.mark.parametrize(
    ("changed", "is_known", "said"),
    [
        ({"README.md": b"new"}, True, ""),
        ({"model.safetensors": b"{ }"}, True, "trained on commit {first} of us/one, and the weights of .* differ. Use"),
        ({"model-2.safetensors": b"{ }"}, True, "Use --model hf://us/one@{first}"),
        ({"README.md": b"new"}, False, "trained on commit bbbbbbbbbbbb of us/one, and --model is commit {second}"),
    ],
    ids=["documentation", "weights", "more weights", "unknown commit"],
)
def test_adapter_of_another_commit_is_refused_unless_the_weights_are_equal(
    tmp_path, monkeypatch, asked, changed, is_known, said
):
    address(tmp_path / "there")
    files = {one.name: Blob(one.read_bytes(), False) for one in (tmp_path / "there").iterdir()}
    repo = CommittedRepo()
    first = repo.commit(files)
    second = repo.commit({**files, **{name: Blob(content, False) for name, content in changed.items()}})
    adapter = written_adapter(tmp_path / "a", width=64)
    rewrite(adapter, base_model_name_or_path="us/one", revision=first if is_known else "b" * 40)
    model = f"hf://us/one{asked}".replace("@commit", f"@{second}")
    with serving({"us/one": repo}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
        if not said or not is_known and asked != "@commit":
            assert resolve(str(adapter), model, settings).rank == 2
            return
        with pytest.raises(UsageError, match=said.format(first=first[:12], second=second[:12])):
            resolve(str(adapter), model, settings)


@pytest.mark.process
@pytest.mark.parametrize(("name", "is_same"), [("consolidated.safetensors", True), ("model-1.safetensors", False)])
def test_weights_of_two_commits_are_the_files_in_the_index(tmp_path, monkeypatch, name, is_same):
    address(tmp_path / "there")
    (tmp_path / "there" / "model.safetensors").rename(tmp_path / "there" / "model-1.safetensors")
    (tmp_path / "there" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    files = {one.name: Blob(one.read_bytes(), False) for one in (tmp_path / "there").iterdir()}
    repo = CommittedRepo()
    first = repo.commit(files)
    repo.commit({**files, name: Blob(b"{ }", False)})
    adapter = written_adapter(tmp_path / "a", width=64)
    rewrite(adapter, base_model_name_or_path="us/one", revision=first)
    with serving({"us/one": repo}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
        if is_same:
            assert resolve(str(adapter), "hf://us/one", settings).rank == 2
            return
        with pytest.raises(UsageError, match="the weights of hf://us/one differ"):
            resolve(str(adapter), "hf://us/one", settings)


def imported(tmp_path: Path, names: tuple[str, ...], **about: str) -> Path:
    """Publish an import of a model of the hub with these weight files; return the folder of the artifact."""
    (tmp_path / "draft").mkdir()
    address(tmp_path / "draft" / "hf")
    (tmp_path / "draft" / "hf" / "model.safetensors").unlink()
    for name in names:
        (tmp_path / "draft" / "hf" / name).write_text(name)
    if len(names) > 1:
        said = json.dumps({"weight_map": {f"layer.{name}": name for name in names}})
        (tmp_path / "draft" / "hf" / "model.safetensors.index.json").write_text(said)
    Store(tmp_path / "store").publish(tmp_path / "draft", "imported/one", "f" * 64, {"import": about})
    return Store(tmp_path / "store").path("imported/one", "f" * 64)


@pytest.mark.parametrize("where", ["folder", "address"])
@pytest.mark.parametrize(
    ("base", "revision", "said"),
    [
        ("us/one", None, ""),
        ("us/one", "c" * 40, ""),
        ("/models/one", None, ""),
        (
            "us/one-instruct",
            None,
            "trained on us/one-instruct, and --model is us/one. Use --model hf://us/one-instruct",
        ),
    ],
)
def test_adapter_of_another_model_than_the_import_is_refused(tmp_path, where, base, revision, said):
    folder = imported(tmp_path, ("model.safetensors",), source="hf://us/one", revision="c" * 40)
    adapter = written_adapter(tmp_path / "a", width=64)
    rewrite(adapter, base_model_name_or_path=base, revision=revision)
    model = str(folder / "hf") if where == "folder" else f"file://{folder}"
    if not said:
        assert resolve(str(adapter), model, Settings.load(ROOT)).rank == 2
        return
    with pytest.raises(UsageError, match=said):
        resolve(str(adapter), model, Settings.load(ROOT))


@pytest.mark.process
@pytest.mark.parametrize("where", ["folder", "address"])
@pytest.mark.parametrize(
    ("changed", "known", "is_same"),
    [
        ({"README.md": b"new"}, "both", True),
        ({"model.safetensors": b"{ }"}, "both", False),
        ({"README.md": b"new"}, "import", False),
        ({"README.md": b"new"}, "none", False),
    ],
    ids=["documentation", "weights", "unknown commit", "no repository"],
)
def test_adapter_of_another_commit_than_the_import_is_refused_unless_the_weights_are_equal(
    tmp_path, monkeypatch, where, changed, known, is_same
):
    repo, files = CommittedRepo(), {"model.safetensors": Blob(b"{}", False)}
    first = repo.commit(files) if known == "both" else "b" * 40
    second = repo.commit({**files, **{name: Blob(content, False) for name, content in changed.items()}})
    folder = imported(tmp_path, ("model.safetensors",), source="hf://us/one", revision=second)
    adapter = written_adapter(tmp_path / "a", width=64)
    rewrite(adapter, base_model_name_or_path="us/one", revision=first)
    model = str(folder / "hf") if where == "folder" else f"file://{folder}"
    with serving({"us/other" if known == "none" else "us/one": repo}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
        if is_same:
            assert resolve(str(adapter), model, settings).rank == 2
            return
        said = f"commit {first[:12]} of us/one, and --model is commit {second[:12]}. Use --model hf://us/one@{first}"
        with pytest.raises(UsageError, match=said):
            resolve(str(adapter), model, settings)


@pytest.mark.parametrize("where", ["folder", "address"])
@pytest.mark.parametrize("names", [("model.safetensors",), ("model-1.safetensors", "model-2.safetensors")])
@pytest.mark.parametrize("is_same", [True, False])
def test_weights_of_an_artifact_are_compared_by_the_digest_in_the_adapter(tmp_path, where, names, is_same):
    folder = imported(tmp_path, names, source="hf://us/one", revision="c" * 40)
    adapter = written_adapter(tmp_path / "a", width=64)
    rewrite(adapter, base_model_name_or_path="imported/one")
    model = str(folder / "hf") if where == "folder" else f"file://{folder}"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in names}
    digest = weight_digests.digest_of(digests) if is_same else "0" * 64
    (adapter / CHANGED).write_text(json.dumps({"name": "imported/one", "weights_sha256": digest}))
    if is_same:
        assert resolve(str(adapter), model, Settings.load(ROOT)).rank == 2
        return
    with pytest.raises(UsageError, match="changes imported/one with weights 000000000000, and the weights of"):
        resolve(str(adapter), model, Settings.load(ROOT))


@pytest.mark.process
def test_adapter_in_an_artifact_of_the_hub_is_compared_too(tmp_path, monkeypatch):
    address(tmp_path / "there")
    adapter = written_adapter(tmp_path / "lora" / "hf", width=64)
    rewrite(adapter, base_model_name_or_path="us/one")
    with serving({"us/one": FolderRepo(tmp_path / "there"), "us/lora": FolderRepo(tmp_path / "lora")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
        imported_adapter._of_hub.cache_clear()
        assert resolve("hf://us/lora", "hf://us/one", settings).rank == 2
        (adapter / CHANGED).write_text(json.dumps({"name": "imported/one", "altered": "rows for chat tokens"}))
        with pytest.raises(UsageError, match="an import of us/one with other weights"):
            resolve("hf://us/lora", "hf://us/one", settings)


IDS_OF_MODEL = {"a": 0, "b": 1, "<|im_start|>": 2, "<|im_end|>": 3}
TEMPLATE = "{% for one in messages %}{{ one.content }}{% endfor %}"


def write_words(folder: Path, ids: dict[str, int] | None, template: str = "", is_file: bool = True) -> None:
    """Write a tokenizer.json, and a chat template as a file or as a value of tokenizer_config.json."""
    if ids is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}}))
    if template and is_file:
        (folder / "chat_template.jinja").write_text(template)
    elif template:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


@pytest.mark.process
@pytest.mark.parametrize("where", ["folder", "address", "hub"])
@pytest.mark.parametrize(
    ("ids", "template", "of_model", "said"),
    [
        (None, "", TEMPLATE, ""),
        (IDS_OF_MODEL, TEMPLATE, TEMPLATE, ""),
        ({"b": 1}, f"{TEMPLATE}\n", TEMPLATE, ""),
        (
            None,
            "{% for one in messages %}{% generation %}{{ one.content }}{%- endgeneration -%}{% endfor %}",
            TEMPLATE,
            "",
        ),
        (
            {**IDS_OF_MODEL, "<|im_start|>": 3, "<|im_end|>": 2},
            TEMPLATE,
            TEMPLATE,
            "vocabulary: .*im_start.*has id 3, and id 2",
        ),
        ({**IDS_OF_MODEL, "<tool>": 4}, "", "", "vocabulary: .*<tool>.* has id 4, and no id in"),
        (IDS_OF_MODEL, "{{ messages }}", TEMPLATE, "another chat template than .*merged model"),
        (IDS_OF_MODEL, TEMPLATE, "", "another chat template than .*, which has none"),
    ],
    ids=["no words", "equal", "part", "marks", "exchanged", "more", "template", "no template"],
)
def test_adapter_with_other_words_than_the_model_is_refused(
    tmp_path, monkeypatch, where, ids, template, of_model, said
):
    adapter, there = written_adapter(tmp_path / "a", width=64), tmp_path / "there"
    model = address(there)
    write_words(adapter, ids, template)
    write_words(there, IDS_OF_MODEL, of_model, is_file=False)
    rewrite(adapter, base_model_name_or_path="us/one")
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    with serving({"us/one": FolderRepo(there), "us/adapter": FolderRepo(adapter)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        typed, model = {
            "folder": (str(adapter), str(there)),
            "address": (str(adapter), model),
            "hub": ("hf://us/adapter", "hf://us/one"),
        }[where]
        imported_adapter._of_hub.cache_clear()
        if not said:
            assert resolve(typed, model, settings).rank == 2
            return
        with pytest.raises(UsageError, match=f"the adapter {typed}: .*{said}") as seen:
            resolve(typed, model, settings)
        assert model in str(seen.value)


@pytest.mark.parametrize(
    ("source", "answer", "status", "said"),
    [
        ("torn", (200, b""), 422, "is not a whole adapter"),
        ("whole", (400, b"rank"), 422, "vLLM refuses the adapter: rank"),
        ("whole", (500, b"busy"), 500, "vLLM fails to load the adapter: busy"),
        ("nowhere", (200, b""), 422, "nowhere"),
        ("s3://bucket/torn", HubUnreachable("no network"), 503, "no network"),
        ("s3://bucket/torn", StoreError("no answer"), 503, "no answer"),
        ("s3://bucket/torn", StoreAway("no answer in 30 s"), 503, "no answer"),
        ("s3://bucket/torn", UsageError("not found"), 422, "not found"),
        ("s3://bucket/torn", NoStore("no such bucket"), 422, "no such bucket"),
        ("s3://bucket/torn", AccessDenied("no key"), 422, "no key"),
    ],
)
def test_vllm_route_tells_a_failure_that_may_pass_from_a_refusal(tmp_path, monkeypatch, source, answer, status, said):
    from packs.adapters.serve import vllm_route

    written_adapter(tmp_path / "whole")
    (written_adapter(tmp_path / "torn") / "adapter_model.safetensors").unlink()

    async def engine(scope, receive, send):
        await send({"type": "http.response.start", "status": answer[0]})
        await send({"type": "http.response.body", "body": answer[1]})

    def bring(*given):
        raise answer

    monkeypatch.setattr(vllm_route.models, "bring_files", bring)
    monkeypatch.delenv(vllm_route.KEY, raising=False)
    place = source if "://" in source else str(tmp_path / source)
    body = json.dumps({"name": "legal", "source": place, "identity": "1"}).encode()
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": vllm_route.ROUTE, "headers": []}
    asyncio.run(vllm_route.VariantRoute(engine)(scope, receive, send))
    assert sent[0]["status"] == status and said in json.loads(sent[1]["body"])["error"]["message"]


def test_named_adapters_are_read_and_wrong_words_are_refused():
    assert read_named(["a=x", "b=hf://u/r"]) == {"a": "x", "b": "hf://u/r"}
    for words, said in ((["a"], "expected NAME=ADAPTER"), (["=x"], "expected NAME"), (["a=x", "a=y"], "stands for x")):
        with pytest.raises(UsageError, match=said):
            read_named(words)


def test_new_model_under_the_adapters_of_another_model_is_refused(tmp_path):
    version = planned(tmp_path).version
    old = WantedService(versions=(version,), variants={"a": Variant(source="x", identity="1", title="x", rank=2)})
    variants.check_model("demo", version, old)
    with pytest.raises(UsageError, match="demo has variants of the model .*: a. Remove the variants first"):
        variants.check_model("demo", dataclasses.replace(version, weights="other"), old)


def test_adapters_are_settled_when_each_ready_replica_has_loaded_or_refused_them(tmp_path):
    version = planned(tmp_path).version
    wanted = WantedService(versions=(version,), variants={"a": Variant(source="x", identity="1", title="x", rank=2)})
    ready = Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0, is_ready=True)

    def settled(**more) -> bool:
        return variants.is_settled(
            wanted, ServiceRecord(members=(Member(number=0, version=1, run="demo-0", facts=ready, **more),))
        )

    assert not settled() and not settled(variants={"a": "0"})
    assert settled(variants={"a": "1"}) and settled(refused={"1": "NaN"})
    other = Member(number=1, version=0, run="demo-1", facts=ready, refused={"1": "NaN"})
    late = Member(number=2, version=1, run="demo-2", facts=dataclasses.replace(ready, is_ready=False))
    mine = Member(number=0, version=1, run="demo-0", facts=ready)
    assert variants.ready_members(wanted, ServiceRecord(members=(mine, other, late))) == [mine]
    assert not settled(variants={"a": "1", "b": "1"})
    assert not variants.is_settled(wanted, ServiceRecord())


def test_timeout_shows_the_last_error_of_an_adapter(tmp_path, monkeypatch):
    adapters = {one: Variant(source="x", identity=one, title="x", rank=2) for one in ("a", "b")}
    wanted = WantedService(versions=(planned(tmp_path).version,), variants=adapters)
    ready = Facts(launch=ProcessStatus.SUCCEEDED, first_ready_at=1.0, is_ready=True)
    member = Member(number=0, version=1, run="demo-0", facts=ready, variants={"b": "b"}, failed={"a": "no network"})
    states = (ServiceRecord(members=(member,)), wanted)
    monkeypatch.setattr(variants.controller_client, "read_states", lambda *_: states)
    monkeypatch.setattr(variants, "WAIT_S", -1.0)
    with pytest.raises(SlipwayError, match="demo: the variants are not loaded yet; a: no network, tried again; see: "):
        variants.await_loaded("demo", Settings.load(ROOT), None, print)
    monkeypatch.setattr(variants, "WAIT_S", 0.5)
    told = []
    with pytest.raises(SlipwayError, match="tried again; see: "):
        variants.await_loaded("demo", Settings.load(ROOT), None, told.append)
    assert told == ["demo: the variants are not loaded yet; a: no network, tried again"]


def test_variants_of_a_service_keep_their_room_in_a_new_version(tmp_path, there):
    adapter = written_adapter(tmp_path / "a", 48, width=64)
    found = planned(tmp_path, "vllm-cpu", there, legal=str(adapter))
    old = WantedService(versions=(found.version,), variants=found.variants)
    plain = dataclasses.replace(found.version, document={"name": "demo", "service": {"replicas": 1}})
    version, kept = variants.with_variants("demo", plain, {}, old, Settings.load(ROOT))
    tuning = version.service.slipway.engine
    assert (tuning.variants, tuning.variant_rank, kept) == (8, 48, found.variants)
    assert can_load(version.engine, tuning.variants) and not can_load(plain.engine, 0)
    with pytest.raises(UsageError, match="the engine llama.cpp loads no variants"):
        variants.with_variants("demo", dataclasses.replace(plain, engine="llama.cpp"), {}, old, Settings.load(ROOT))


def test_model_with_an_adapter_shares_the_weights_and_equals_the_merged_model(stored):
    plain, merged = random_model(TINY), random_model(TINY)
    StoredLora().apply(merged, stored)
    found = StoredLora().variant_of(plain, stored)
    ids = IDS % TINY.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(found(ids), merged(ids), rtol=1e-5, atol=1e-5)
        assert (found(ids) - plain(ids)).abs().max() > 1e-3
    assert found.head.data_ptr() == plain.head.data_ptr()
    own = sum(one.numel() for name, one in found.named_parameters() if ".lora_" in name)
    assert sum(one.numel() for one in found.parameters()) == sum(one.numel() for one in plain.parameters()) + own
    other = random_model(dataclasses.replace(TINY, hidden_size=64))
    with pytest.raises(Refused, match="the adapter belongs to another model"):
        StoredLora().variant_of(other, stored)


@pytest.mark.nightly
@pytest.mark.slow
def test_torch_engine_answers_with_each_adapter(stored, world, tmp_path):
    from trainer.serving.torch_engine import TorchEngine

    words = world.store / "tokenizer"
    plain, merged = random_model(TINY), random_model(TINY)
    StoredLora().apply(merged, stored)
    for name, one in (("plain", plain), ("merged", merged)):
        export.write(tmp_path / name, TINY, one.state_dict(), words)
    engine, judge = (TorchEngine(tmp_path / one, "float32", 0) for one in ("plain", "merged"))
    front = server.EngineServer(engine, "demo", server.EngineLimits(), "")
    engine.load_variant("legal", stored)
    with pytest.raises(Refused, match="holds no change of a model"):
        engine.load_variant("other", tmp_path / "plain")
    front.variants["legal"] = "1"
    how = (engine.tokenizer, engine.room, 0, engine.align)

    def text(one: TorchEngine, model: str, names: dict[str, str]) -> str:
        ask = completion_request.parse(
            {"model": model, "prompt": [1, 2, 3], "max_tokens": 12, "temperature": 0}, False, "demo", *how, names
        )
        assert ask.head["model"] == model
        return "".join(piece.text for piece in one.answer(ask))

    assert text(engine, "legal", front.variants) == text(judge, "demo", {})
    assert text(engine, "demo", front.variants) != text(engine, "legal", front.variants)
    with pytest.raises(completion_request.BadRequest, match="`nobody` does not exist"):
        text(engine, "nobody", front.variants)

    ask = completion_request.parse(
        {"model": "legal", "prompt": [1, 2, 3], "max_tokens": 12, "temperature": 0}, False, "demo", *how, front.variants
    )
    pieces = engine.answer(ask)
    begun = next(pieces).text
    engine.unload_variant("legal")  # the answer ends with the adapter
    assert begun + "".join(piece.text for piece in pieces) == text(judge, "demo", {})
    with pytest.raises(Refused, match="the model legal was unloaded before the answer began"):
        next(engine.answer(ask))  # of a request that waited


@pytest.mark.nightly
@pytest.mark.process
def test_adapters_of_a_running_service_change_without_a_dropped_request(installation: Installation):
    first, second = (written_adapter(installation.folder / name) for name in ("first", "second"))
    model = installation.model("Bosun", token_s=0.005)
    up = installation.up("demo", model, "--config", installation.config(), "--adapter", f"legal={first}")
    url = up["endpoint"]
    assert say(url, model="legal")[0] == " legal legal legal"
    listed = installation.world.json("serve.adapters", "demo")
    assert listed["ready_replicas"] == 2 and [one["name"] for one in listed["adapters"]] == ["legal"]
    installation.world.json("serve.adapters", "demo", "--add", f"code={second}")
    assert {say(url, model=name)[0] for name in ("legal", "code")} == {" legal legal legal", " code code code"}
    engines = installation.engines("demo")
    with Traffic(LoadTest(url=url, model="legal", rate=1, duration_s=1, max_tokens=8)) as traffic:
        for _ in range(3):
            found = installation.world.json("serve.adapters", "demo", "--add", f"more={first}")
            assert all(len(one["replicas"]) == 2 for one in found["adapters"]) and len(found["adapters"]) == 3
            traffic.await_more(8)
            found = installation.world.json("serve.adapters", "demo", "--remove", "more")
            assert [one["name"] for one in found["adapters"]] == ["legal", "code"]
        traffic.await_more(max(0, 500 - len(traffic.heard)))
    assert not traffic.failures() and len(traffic.heard) >= 500
    assert installation.engines("demo") == engines  # no engine was replaced
    with pytest.raises(urllib.error.HTTPError, match="404"):
        say(url, model="more")
    said = installation.world.json("serve.adapters", "demo", "--remove", "nobody", code=2)
    assert "demo has no adapter nobody; loaded: legal, code" in said["error"]

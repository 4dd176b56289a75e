"""Engine options, the fit of a model, and a replica as one process (vLLM itself: test_vllm.py)."""

import json
import os
import signal
import struct
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from infra.errors import UsageError
from infra.ledger.op import Op
from infra.settings import Settings
from serve import engines
from serve.engine import memory_fit
from serve.engine.models import ServedModel
from serve.engine.options import Tuning
from serve.engines import ReplicaConfig, command
from serve.replicas.replica_pod import ReplicaLauncher
from serve.request_bounds import Bounds
from tests.serve.scripted_engine import CHAT, GUARD_S, chat, port_of, program

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "max_position_embeddings": 40_960,
}


def model(folder: Path, num_params: int = 600_000_000, dtype: str = "BF16", **config: object) -> Path:
    """Return a model with `parameters` parameters: sparse files of the true size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**QWEN3, **config}))
    (folder / "tokenizer.json").write_text("{}")
    size = {"F32": 4, "BF16": 2, "U8": 1}[dtype]
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "weight": {"dtype": dtype, "shape": [num_params // 1000, 1000], "data_offsets": [0, num_params * size]},
        }
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + num_params * size)
    return folder


def option_value(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_engine_listens_on_loopback_bounds_requests_and_drains(tmp_path, engine):
    tuning = Tuning(max_model_len=512, max_queued=7, max_seqs=3, shutdown_s=11)
    built = command(ServedModel(folder=tmp_path, name="demo"), engine, port=8101, tuning=tuning)
    said = {"--host": "127.0.0.1", "--port": "8101", "--served-model-name": "demo", "--model": str(tmp_path)}
    said |= {"--shutdown-timeout": "11", "--max-num-queued-reqs": "7", "--max-num-seqs": "3", "--max-model-len": "512"}
    said |= {"--generation-config": "vllm"}
    assert {option: option_value(built.words, option) for option in said} == said
    assert built.environ["HF_HUB_OFFLINE"] == built.environ["DO_NOT_TRACK"] == "1"
    assert built.environ["VLLM_HOST_IP"] == "127.0.0.1"
    assert built.group == {"vllm": "serve-cuda", "vllm-cpu": "serve-cpu"}[engine]


def test_limits_are_set_by_default(tmp_path):
    for engine in ("vllm", "vllm-cpu"):
        words = command(ServedModel(folder=tmp_path, name="demo"), engine, port=1).words
        assert (
            int(option_value(words, "--shutdown-timeout")) > 0 and int(option_value(words, "--max-num-queued-reqs")) > 0
        )


def test_startup_stage_of_an_engine_is_its_last_log_line():
    """Lines of vLLM 0.32.0 on a CPU."""
    log = (
        b"(Worker pid=8868) INFO 11-22 20:29:21 [cpu_model_runner.py:68] Starting to load model /models/demo...\n",
        b"(Worker pid=8868) INFO 11-22 20:29:21 [default_loader.py:501] Loading weights took 0.03 seconds\n",
        b"(EngineCore pid=7) INFO 11-22 20:29:30 [core.py:403] init engine (profile, create kv cache, warmup model)\n",
        b"(APIServer pid=30239) INFO 11-22 20:29:33 [entry.py:140] Starting vLLM server on http://127.0.0.1:27218\n",
    )
    at = [engines.STARTING]
    for line in log:
        at.append(engines.next_phase(at[-1], line))
    assert at == ["engine start", "weights", "compiling", "compiling", "first answer"]
    assert engines.next_phase(engines.STARTING, b"".join(log)) == "first answer"
    assert engines.next_phase(engines.FIRST_ANSWER, log[0]) == "first answer"  # Of a second worker, read late.
    assert all(len(word) < engines.LONGEST_SAID for words in engines.SAID.values() for word in words)


def test_risky_features_are_off_in_an_engine_unless_allowed(tmp_path):
    for engine in ("vllm", "vllm-cpu"):
        plain = command(ServedModel(folder=tmp_path, name="demo"), engine, port=1)
        assert option_value(plain.words, "--allowed-media-domains") == "none.invalid"
        assert plain.environ["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
        off = {"--trust-request-chat-template", "--override-generation-config", "--tool-call-parser"}
        assert off.isdisjoint(plain.words)
        bounds = Bounds(media_domains=("a.net", "b.net"), allow_chat_template=True, max_tokens=9)
        words = command(
            ServedModel(folder=tmp_path, name="m"), engine, port=1, bounds=bounds, tuning=Tuning(tool_parser="hermes")
        ).words
        at = words.index("--allowed-media-domains")
        assert words[at + 1 : at + 3] == ("a.net", "b.net")
        assert option_value(words, "--override-generation-config") == '{"max_new_tokens": 9}'
        assert option_value(words, "--tool-call-parser") == "hermes" and off <= {*words}


def test_gpu_options_are_passed_only_on_gpus(tmp_path):
    tuning = Tuning(num_gpus=2, gpu_share=0.5, kv_cache_bytes=3 << 29, threads=4)
    gpu = command(ServedModel(folder=tmp_path, name="m"), "vllm", port=1, tuning=tuning)
    cpu = command(
        ServedModel(folder=tmp_path, name="m"), "vllm-cpu", port=1, tuning=tuning, environ={"VLLM_CACHE_ROOT": "/c"}
    )
    assert (
        option_value(gpu.words, "--tensor-parallel-size") == "2"
        and option_value(gpu.words, "--gpu-memory-utilization") == "0.5"
    )
    assert option_value(gpu.words, "--kv-cache-memory-bytes") == str(3 << 29) and "--enforce-eager" not in gpu.words
    assert not [word for word in cpu.words if word.startswith(("--gpu", "--tensor", "--kv"))]
    assert "--enforce-eager" in cpu.words
    assert cpu.environ["VLLM_CPU_KVCACHE_SPACE"] == "2"  # Whole GiB.
    assert cpu.environ["OMP_NUM_THREADS"] == "4" and cpu.environ["VLLM_CACHE_ROOT"] == "/c"
    assert not [name for name in gpu.environ if "CPU" in name or "OMP" in name]


def test_own_server_uses_our_decoder_or_llama_cpp(tmp_path):
    tuning, bounds = Tuning(threads=4, dtype="bfloat16", max_seqs=3), Bounds(max_tokens=9)
    for engine, module, group, kind in (
        ("torch", "trainer", "train", ("--dtype", "bfloat16")),
        ("llama.cpp", "trainer.engines", "llama-cpp", ("--type", "bf16")),
    ):
        built = command(ServedModel(folder=tmp_path, name="m"), engine, port=7, tuning=tuning, bounds=bounds)
        assert built.words[:3] == ("-m", module, "serve") and built.group == group
        assert option_value(built.words, kind[0]) == kind[1] and built.environ == {"OMP_NUM_THREADS": "4"}
        said = {"--name": "m", "--port": "7", "--max-seqs": "3", "--max-tokens": "9", "--max-queued": "64"}
        assert {option: option_value(built.words, option) for option in said} == said
    plain = command(ServedModel(folder=tmp_path, name="m"), "llama.cpp", port=7).words
    assert "--type" not in plain and "--dtype" not in plain  # The model decides.


def test_unknown_engine_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="no engine is called 'vlm'; known: vllm, vllm-cpu, torch, llama.cpp, fake"):
        command(ServedModel(folder=tmp_path, name="m"), "vlm", port=1)


@pytest.mark.parametrize(
    "wrong", [{"max_queued": 0}, {"shutdown_s": 0}, {"gpu_share": 1.5}, {"max_model_len": -1}, {"dtype": "int3"}]
)
def test_unknown_tuning_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Tuning(**wrong)


# The fit of a model.


def test_memory_of_a_model_is_its_files_and_one_long_request(tmp_path):
    found = memory_fit.needed(model(tmp_path), "vllm", Tuning())
    assert found.per_token == 2 * 28 * 8 * 128 * 2 == 114_688  # 112 KiB, as vLLM reports for Qwen3-0.6B.
    assert found.weights == 1_200_000_000 and found.cache == 114_688 * 40_960
    halves = memory_fit.needed(model(tmp_path / "wide", dtype="F32"), "vllm", Tuning(num_gpus=2, max_model_len=1000))
    assert halves.weights == 600_000_000 and halves.cache == 57_344 * 1000  # 16 bits each, on two GPUs.
    assert memory_fit.needed(tmp_path / "wide", "vllm", Tuning(dtype="float32")).weights == 2_400_000_000
    assert memory_fit.needed(model(tmp_path / "bytes", dtype="U8"), "vllm", Tuning()).weights == 600_000_000


def test_oversized_model_is_refused_with_numbers_and_a_fitting_size(tmp_path):
    small = model(tmp_path / "small")
    memory_fit.check(small, "vllm", Tuning(), 24 * memory_fit.GB)
    with pytest.raises(
        UsageError, match=r"needs 8\.4 GB of the GPU \(weights 1\.2, cache 4\.7 for 40,960 tokens"
    ) as far:
        memory_fit.check(small, "vllm", Tuning(), 7 * memory_fit.GB)
    longest = int(str(far.value).split("at most ")[1].split(" ")[0].rstrip(",").replace(",", ""))
    memory_fit.check(small, "vllm", Tuning(max_model_len=longest), 7 * memory_fit.GB)
    with pytest.raises(UsageError):
        memory_fit.check(small, "vllm", Tuning(max_model_len=longest + 1), 7 * memory_fit.GB)
    with pytest.raises(UsageError, match="weights 140.0.*--gpu with more memory, or num_gpus 2") as never:
        memory_fit.check(
            model(tmp_path / "large", 70_000_000_000), "vllm", Tuning(max_model_len=4096), 80 * memory_fit.GB
        )
    assert "max_model_len of at most" not in str(never.value)  # No request would be short enough.
    memory_fit.check(tmp_path / "large", "vllm", Tuning(max_model_len=4096, num_gpus=4), 80 * memory_fit.GB)
    memory_fit.check(tmp_path / "large", "vllm", Tuning(), None)  # The memory is unknown: the engine is tried.


def test_reserved_slots_of_variants_count_in_the_memory_of_a_model(tmp_path):
    small = model(tmp_path / "small", intermediate_size=3072)
    sides = 28 * (3 * 1024 + 2048 + 2 * 1024 + 2048 + 1024 + 3 * (1024 + 3072))
    assert memory_fit.needed(small, "vllm-cpu", Tuning(variants=16, variant_rank=48)).variants == 16 * 64 * 2 * sides
    shared = memory_fit.needed(small, "vllm", Tuning(variants=16, variant_rank=64, num_gpus=2)).variants
    assert shared == 16 * 64 * 2 * (sides + 28 * 7 * 1024) // 2  # the sides of the hidden size stay whole
    assert memory_fit.needed(small, "vllm", Tuning()).variants == 0
    memory_fit.check(small, "vllm", Tuning(), 9 * memory_fit.GB)
    with pytest.raises(UsageError, match=r"variants 1\.3, engine 2\.5\).*fewer slipway\.engine\.variants"):
        memory_fit.check(small, "vllm", Tuning(variants=16, variant_rank=64), 9 * memory_fit.GB)


@pytest.mark.parametrize(("dtype", "stored"), [("BF16", "bfloat16"), ("F32", "float32")])
def test_remote_model_is_judged_by_its_config_and_file_sizes(tmp_path, dtype, stored):
    folder = model(tmp_path / "there", dtype=dtype, torch_dtype=stored)
    here, there = (
        read("vllm", Tuning())
        for read in (partial(memory_fit.needed, folder), partial(memory_fit.needed, f"file://{folder}"))
    )
    assert there.cache == here.cache and 0 <= there.weights - here.weights < 1000  # The header counts, too.
    with pytest.raises(UsageError, match="not found, or access denied"):
        memory_fit.needed(f"file://{tmp_path}/none", "vllm", Tuning())


def test_request_beyond_the_cache_of_a_cpu_is_refused(tmp_path):
    folder = model(tmp_path)
    with pytest.raises(UsageError, match="40,960 tokens needs 4.70 GB of cache.*or max_model_len to at most 9,362"):
        memory_fit.check(folder, "vllm-cpu", Tuning(), 64 * memory_fit.GB)
    memory_fit.check(folder, "vllm-cpu", Tuning(max_model_len=9362), 64 * memory_fit.GB)
    memory_fit.check(folder, "vllm-cpu", Tuning(kv_cache_bytes=114_688 * 40_960), 64 * memory_fit.GB)
    with pytest.raises(UsageError, match="this machine.*a larger machine"):
        memory_fit.check(folder, "vllm-cpu", Tuning(max_model_len=9362), 4 * memory_fit.GB)


def test_free_memory_of_this_machine_is_reported():
    free = memory_fit.available_bytes("vllm-cpu", Tuning())
    assert free is not None and 0 < free < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# A replica as one process.


def start(tmp_path: Path, **said: object) -> "subprocess.Popen[str]":
    replica = ReplicaConfig(**{"engine": "fake", "source": str(tmp_path), "name": "demo", "port": 0, **said})  # type: ignore[arg-type]
    file = tmp_path / "replica.json"
    file.write_text(json.dumps(engines.config_of(replica)))
    return program("serve.engines", "--config", str(file), stderr=subprocess.PIPE)


@pytest.mark.process
def test_bounds_of_a_service_apply_to_requests_without_a_number(tmp_path):
    (tmp_path / "fake.json").write_text('{"words": ["A"]}')
    process = start(tmp_path, bounds=Bounds(max_tokens=5))
    try:
        url = f"http://127.0.0.1:{port_of(process)}{CHAT}"
        body = json.dumps({"model": "demo", "messages": chat()["messages"]}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] == 5
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_replica_becomes_its_engine_and_answers_as_its_model(tmp_path):
    (tmp_path / "fake.json").write_text('{"words": ["A"]}')
    process = start(tmp_path)
    try:
        port, pid = port_of(process), process.pid
        body = json.dumps(chat(model="demo")).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{CHAT}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
            assert json.load(reply)["choices"][0]["message"]["content"] == "AAA"
        if sys.platform == "linux":
            # No child process: the end of the group ends all processes.
            assert b"serve.fake" in Path(f"/proc/{pid}/cmdline").read_bytes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"source": "nope"}, "no model 'nope'"),
        ({"engine": "vlm"}, "no engine is called 'vlm'"),
        ({"engine": "vllm-cpu", "source": "LARGE"}, "does not fit: the model needs 14"),
        ({"engine": "vllm"}, "1 GPUs are needed, and this machine has 0"),
    ],
)
def test_unservable_model_is_one_line_and_exit_code_2(tmp_path, said, why):
    if said.get("source") == "LARGE":
        said = {**said, "source": str(model(tmp_path / "large", 70_000_000_000, max_position_embeddings=1024))}
    model(tmp_path)
    process = start(tmp_path, **said)
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 2 and why in err.splitlines()[-1] and "Traceback" not in err and not out


@pytest.mark.parametrize(("log", "said"), [
    ("(APIServer pid=6) WARNING 11-29 [system_utils.py:255] This can cause errors like `OSError: Too many open files`\n"
     "(EngineCore pid=7) ERROR 11-27 [core.py:842] RuntimeError: Unsupported configuration: head_dim=16\n"
     "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)\n"
     "(EngineCore pid=7) RuntimeError: Worker failed with error 'Unsupported', check the trace for the root cause\n"
     "[shutdown] MPClient: complete\nresource_tracker: There appear to be 1 leaked shared_memory objects\n",
     "RuntimeError: Unsupported configuration: head_dim=16"),
    ("Traceback (most recent call last):\ntorch.cuda.OutOfMemoryError: CUDA out of memory\n",
     "torch.cuda.OutOfMemoryError: CUDA out of memory"),
    ("serve.engines: vllm: a as 'b'\nserve.engines: the model does not fit\n", "serve.engines: the model does not fit"),
    ("(EngineCore pid=7) INFO 11-29 retried after TimeoutError: late\nINFO: 0 errors: fine\n", ""),
])  # fmt: skip
def test_last_error_of_an_engine_is_the_root_cause(log, said):
    assert engines.last_error(log) == said


def test_cause_of_a_failed_environment_is_the_end_of_its_log(tmp_path):
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path)})
    launcher = ReplicaLauncher("demo", settings, print, b"")
    op = Op(token="t1", run="demo-0", vendor="ssh", state="TERMINATED")
    assert launcher.last_error(op) == ""
    launcher.log_of("demo-0").mkdir(parents=True)
    (launcher.log_of("demo-0") / "environment.log").write_text("making the environment\nno package index answers\n")
    assert launcher.last_error(op) == "no package index answers"
    (launcher.log_of("demo-0") / "engine.log").write_text("RuntimeError: full\nbye\n")
    assert launcher.last_error(op) == "RuntimeError: full"

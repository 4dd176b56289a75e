"""Acceptance checks of machines: real processes measure the parts of this machine; GPUs come from known nvidia-smi
output.
"""

import http.server
import os
import sys
import threading
import time
from dataclasses import replace

import pytest

from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.records import Request
from infra.runs.acceptance import Thresholds, examine, judge
from infra.settings import Settings
from infra.transport.protocol import ThisMachine
from trainer.rewards.sandbox import kernel

LEAST = Thresholds(disk_write_bytes_per_s=1, free_bytes=1, download_bytes_per_s=1, disk_s=20, download_s=20)
PLAIN = Request(run="a-1")
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 81559 << 20, "driver": "580.95.05"}
FACTS = {"gpus": [H100] * 8, "gpu_problem": ""}
SEEN = {
    "began_at": 1000.2,
    "ended_at": 1005.2,
    "free": {"value": 500e9},
    "disk_write": {"value": 900e6},
    "download": {"value": 90e6, "bytes": 64 << 20},
    "cuda": {"value": "13.0"},
    "sandbox": {"value": ""},
    "matmul": {"value": [{"tflops": 620.0, "exact": True}] * 8},
}
WANTED = Request(run="a-1", gpu="H100", num_gpus=8, gpu_memory_bytes=80 * 10**9)


class Pages(http.server.BaseHTTPRequestHandler):
    """`/N`: N bytes. `/drip`: a byte now and then, for ever. `/never`: no answer."""

    def do_GET(self):
        if self.path == "/never":
            self.server.over.wait(60)
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/drip":
            while not self.server.over.wait(0.1):
                self.wfile.write(b".")
        else:
            self.wfile.write(bytes(int(self.path[1:])))

    def log_message(self, *words):
        """Log nothing."""


@pytest.fixture
def download_site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.over, server.daemon_threads = threading.Event(), True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def measure(tmp_path):
    """Return the states and the details of an examination of this machine, by check."""

    def measured(request=PLAIN, thresholds=LEAST, machine=None, **more):
        folder = tmp_path / "pods"
        python = more.pop("python", sys.executable)
        report = examine(machine or ThisMachine(), request, thresholds, python=python, folder=str(folder), **more)
        assert os.listdir(folder) == []
        return report, {one.name: (one.state, one.detail) for one in report.checks}

    return measured


class WithPath(ThisMachine):
    """This machine with an extra folder in front of PATH."""

    def __init__(self, folder):
        self.path = f"{folder}:{os.environ['PATH']}"

    def run(self, words, *, env=None, **more):
        return super().run(words, env={**(env or {}), "PATH": self.path}, **more)


TABLE = "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0     |"


@pytest.fixture
def smi(tmp_path):
    """Return a machine with a fake nvidia-smi: answers to --query-gpu, to -L, and without arguments."""

    def make(query, table=TABLE, code=0, listed=""):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "table").write_text(table)
        (folder / "query").write_text(query)
        (folder / "listed").write_text(listed)
        answer = f'file=query; [ "$1" ] || file=table; [ "$1" != -L ] || file=listed; cat {folder}/$file; exit {code}\n'
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}")
        (folder / "nvidia-smi").chmod(0o755)
        return WithPath(folder)

    return make


@pytest.mark.process
def test_disk_clock_and_network_of_this_machine_are_measured(measure, download_site):
    report, checks = measure(thresholds=replace(LEAST, url=f"{download_site}/{4 << 20}"))
    assert report.is_accepted and report.failure == ""
    assert {name: state for name, (state, _) in checks.items()} == dict.fromkeys(checks, "ok")
    assert checks["disk write"][1].endswith("MB/s") and checks["free disk"][1].endswith("GB")


@pytest.mark.process
def test_a_machine_below_a_threshold_is_refused_with_every_reason(measure, download_site):
    hard = Thresholds(
        disk_write_bytes_per_s=1e15, free_bytes=1e18, download_bytes_per_s=1e15, url=f"{download_site}/{4 << 20}"
    )
    report, checks = measure(replace(PLAIN, num_gpus=99), hard)
    assert not report.is_accepted
    bad = {name for name, (state, _) in checks.items() if state == "bad"}
    assert {"disk write", "free disk", "download", "GPUs"} <= bad
    assert "free disk: " in report.failure and "1e+09 GB are wanted" in report.failure


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "state", "said"),
    [
        ("/never", "unknown", "no answer in 1 s"),
        ("/drip", "unknown", "has only"),
        ("/100", "unknown", "has only 100 bytes; set SLIPWAY_ACCEPT_URL to a larger file"),
    ],
)
def test_an_inconclusive_download_is_unknown_and_blocks_nothing(measure, download_site, page, state, said):
    began = time.monotonic()
    report, checks = measure(thresholds=replace(LEAST, url=download_site + page, download_s=1))
    assert time.monotonic() - began < 15
    assert report.is_accepted and checks["download"][0] == state and said in checks["download"][1]
    assert checks["disk write"][0] == "ok"


@pytest.mark.process
def test_no_address_means_no_download_and_a_note(measure):
    assert measure()[1]["download"] == ("later", "no download URL is set (SLIPWAY_ACCEPT_URL)")


@pytest.mark.process
@pytest.mark.needs("root")
def test_an_unwritable_disk_is_unknown_with_a_reason(tmp_path):
    (tmp_path / "full").mkdir()
    folder = str(tmp_path / "full")
    config = replace(LEAST, url="")
    machine = ThisMachine()
    done = machine.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], timeout_s=20)
    assert done.exited == 0, done.stderr
    try:
        report = examine(machine, PLAIN, replace(config, free_bytes=1e9), python=sys.executable, folder=folder)
    finally:
        machine.run(["umount", folder], timeout_s=20)
    checks = {one.name: one for one in report.checks}
    assert "No space left" in checks["disk write"].detail and checks["disk write"].state == "unknown"
    assert checks["free disk"].state == "bad" and not report.is_accepted


@pytest.mark.process
def test_an_unreachable_machine_raises(tmp_path):
    with pytest.raises(SlipwayError, match="no-such-python"):
        examine(ThisMachine(), PLAIN, LEAST, python="no-such-python", folder=str(tmp_path))


@pytest.mark.process
def test_gpus_of_nvidia_smi_are_counted_and_tried_with_torch_later(measure, smi):
    machine = smi("NVIDIA H100 80GB HBM3, 81559, 580.95.05\n" * 2)
    report, checks = measure(replace(WANTED, num_gpus=2), machine=machine, pythons=(sys.executable,))
    assert checks["GPUs"] == ("ok", "2 x NVIDIA H100 80GB HBM3, 86 GB each")
    assert checks["driver"] == ("ok", "580.95.05 supports CUDA 13.0, torch needs 13.0")
    assert checks["matmul"] == ("later", "torch with CUDA is not installed yet")
    assert report.is_accepted


WHOLE = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-{})\n"
SLICED = WHOLE + "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n  MIG 1g.10gb     Device  1: (UUID: MIG-2)\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("wanted", "listed", "said"),
    [
        ("H100", SLICED.format(0, 0) + WHOLE.format(1, 1),
         ("bad", "H100 promised, NVIDIA H100 80GB HBM3 MIG 1g.10gb found")),
        ("H100-MIG-1G.10GB", SLICED.format(0, 0),
         ("bad", "H100-MIG-1G.10GB promised, NVIDIA H100 80GB HBM3 found")),
        ("H100-MIG-1G.10GB", SLICED.format(0, 0) + SLICED.format(1, 1),
         ("ok", "4 x NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10 GB each")),
    ],
    ids=["a slice for the whole", "not the list of these GPUs", "slices"],
)  # fmt: skip
def test_a_slice_differs_from_a_whole_gpu_of_the_same_nvidia_smi_name(measure, smi, wanted, listed, said):
    machine = smi("NVIDIA H100 80GB HBM3, [N/A], 580.95.05\n" * 2, listed=listed)
    _, checks = measure(replace(WANTED, gpu=wanted, num_gpus=2, gpu_memory_bytes=10**10), machine=machine)
    assert checks["GPUs"] == said


@pytest.mark.process
def test_a_driver_without_an_answer_counts_as_no_gpu(measure, smi):
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    report, checks = measure(WANTED, machine=smi(said, said, code=9))
    assert checks["GPUs"] == ("bad", f"nvidia-smi: exit code 9: {said}")
    assert checks["driver"] == ("unknown", "nvidia-smi prints no CUDA version") and not report.is_accepted


@pytest.mark.process
@pytest.mark.needs("bwrap")
def test_a_machine_without_isolation_is_refused_for_code_rewards(measure, tmp_path):
    strict = tmp_path / "python"
    strict.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.programs.without_sandbox {sys.executable} "$@"\n'
    )
    strict.chmod(0o755)
    wanted = replace(PLAIN, sandbox=True)
    assert measure(wanted)[1]["sandbox"] == ("ok", "bubblewrap")
    report, _ = measure(wanted, python=str(strict))
    assert (
        report.failure
        == "sandbox: neither Landlock (Linux 5.13) nor bubblewrap can confine the code of answers on this machine"
    )
    assert measure(PLAIN, python=str(strict))[0].is_accepted


@pytest.mark.process
@pytest.mark.skipif(not kernel.abi(), reason="this machine has no Landlock")
def test_landlock_alone_isolates_code(measure, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    _, checks = measure(replace(PLAIN, sandbox=True), machine=WithPath(tmp_path / "bin"))
    assert checks["sandbox"] == ("ok", "landlock")


def verdicts(facts=FACTS, request=WANTED, asked=(1000.0, 1005.3), **seen):
    report = judge(facts, {**SEEN, **seen}, asked, request, Thresholds())
    return {one.name: one.state for one in report.checks}, report.failure


def test_a_machine_as_promised_is_accepted():
    states, failure = verdicts()
    assert set(states.values()) == {"ok"} and failure == ""


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"gpus": [H100] * 7}, "GPUs: 8 promised, 7 found"),
        ({"gpus": []}, "GPUs: 8 promised, 0 found"),
        ({"gpus": [{**H100, "name": "NVIDIA A100-SXM4-80GB"}] * 8}, "GPUs: H100 promised, NVIDIA A100-SXM4-80GB found"),
        ({"gpus": [*[H100] * 7, {**H100, "memory_bytes": 40 << 30}]}, "GPUs: 80 GB promised, 43 GB each found"),
    ],
)
def test_a_machine_with_other_gpus_than_promised_is_refused(facts, said):
    states, failure = verdicts({**FACTS, **facts})
    assert states["GPUs"] == "bad" and said in failure


@pytest.mark.parametrize(
    ("gpu", "number", "said"),
    [
        ("A100:4,H100:8", 8, ""),
        ("A100,H100", 8, ""),
        ("A100:4,H100:8", 7, "A100:4,H100:8 promised, NVIDIA H100 80GB HBM3 found"),
        ("A100:4,L40S:8", 8, "A100:4,L40S:8 promised, NVIDIA H100 80GB HBM3 found"),
    ],
)
def test_a_machine_has_one_kind_of_a_set(gpu, number, said):
    request = replace(WANTED, gpu=gpu, num_gpus=0)
    assert said in (failure := verdicts({**FACTS, "gpus": [H100] * number}, request)[1]) and bool(failure) is bool(said)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"cuda": {"value": "12.8"}}, "driver: 580.95.05 supports CUDA 12.8, torch needs 13.0"),
        ({"matmul": {"error": "no answer in 60 s"}}, "matmul: no answer in 60 s"),
        ({"matmul": {"value": SEEN["matmul"]["value"][:7]}}, "matmul: torch sees 7 GPUs"),
        ({"matmul": {"value": [*SEEN["matmul"]["value"][:7], {"tflops": 600, "exact": False}]}}, "GPU 7 gave a wrong"),
    ],
)
def test_a_machine_with_broken_gpus_is_refused(seen, said):
    assert said in verdicts(**seen)[1]


def test_a_machine_for_a_model_of_known_size_needs_a_working_gpu():
    request = Request(run="a-1", gpu_memory_bytes=24 * 10**9)
    assert verdicts(request=request)[1] == ""
    assert "GPUs: 1 promised, 0 found" in verdicts({**FACTS, "gpus": []}, request=request)[1]
    assert "no answer in 60 s" in verdicts(request=request, matmul={"error": "no answer in 60 s"})[1]


def test_an_unknown_measurement_is_reported_and_refuses_no_machine():
    silent = {"error": "the check exited without a result"}
    unsized = {**FACTS, "gpus": [{**H100, "memory_bytes": None}] * 8}
    states, failure = verdicts(unsized, cuda=silent, disk_write=silent, free=silent, download=silent)
    assert failure == "" and {states[name] for name in ("GPUs", "driver", "disk write", "free disk", "download")} == {
        "unknown"
    }
    assert verdicts(matmul={"later": "no torch"})[0]["matmul"] == "later"


@pytest.mark.parametrize(
    ("began_at", "asked", "state"),
    [
        (1000.2, (1000.0, 1005.3), "ok"),
        (1100.0, (1000.0, 1005.3), "bad"),
        (900.0, (1000.0, 1005.3), "bad"),
        (1040.0, (1000.0, 1065.0), "unknown"),  # the request may have taken as long
    ],
)
def test_a_clock_is_judged_by_its_minimum_error(began_at, asked, state):
    states, failure = verdicts(began_at=began_at, ended_at=began_at + 5, asked=asked)
    assert states["clock"] == state and bool(failure) == (state == "bad")


def test_settings_set_the_thresholds_and_an_invalid_cuda_version_is_refused(tmp_path):
    environ = {"SLIPWAY_ACCEPT_FREE_GB": "20", "SLIPWAY_ACCEPT_CUDA": "12.8"}
    least = Thresholds.from_settings(Settings.load(tmp_path, environ=environ))
    assert (least.free_bytes, least.cuda, least.disk_write_bytes_per_s) == (20e9, "12.8", 50e6)
    with pytest.raises(UsageError, match="SLIPWAY_ACCEPT_CUDA is 'new'"):
        Thresholds.from_settings(Settings.load(tmp_path, environ={"SLIPWAY_ACCEPT_CUDA": "new"}))


@pytest.mark.gpu
def test_a_gpu_of_this_machine_multiplies_correctly(measure):
    report, checks = measure(replace(PLAIN, num_gpus=1), replace(LEAST, matmul_s=120), pythons=(sys.executable,))
    assert report.is_accepted, report.failure
    assert checks["GPUs"][0] == checks["driver"][0] == checks["matmul"][0] == "ok" and "TFLOP/s" in checks["matmul"][1]

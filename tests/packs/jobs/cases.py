"""Files of other people's jobs: the command of each case, and the wanted result.

    python -m tests.packs.jobs.cases [NAME ...]

Runs every case in a separate installation and prints a table: what happened before, and the verdict now. A case stands
for a class of public files; `test_cases.py` runs the same cases every night.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.world import World

LOCAL = ("launch", "FILE", "--provider", "local", "-n", "case", "--yes")
PLAN = ("launch", "FILE", "--provider", "local", "--dry-run")
RENTED = ("launch", "FILE", "--provider", "runpod", "--rehearse", "--dry-run")
LINT = ("doctor", "--lint", "FILE")
KEY = "(a private key of ssh-keygen)"  # instead of a text of a file


@dataclass(frozen=True)
class Case:
    before: str
    files: Mapping[str, str]
    """Text of each file below the case's folder, or KEY; the first is FILE, and FOLDER in a text is the folder."""
    words: Sequence[Sequence[str]]
    """Words of `inv`, one command after the other."""
    wanted: str = ""
    """Pattern in the output of the commands."""
    unwanted: str = r"\Z\A"
    code: int = 0
    """Exit code of the last command."""
    variables: Mapping[str, str] = field(default_factory=dict)


def job(text: str, **more: str) -> dict[str, str]:
    return {"job.yaml": text, **more}


BUCKET = "file_mounts:\n  ~/corpus: {source: s3://a-shelf/books, mode: %s}\nrun: ls ~/corpus\n"
CASES = {
    "01-bashrc": Case(
        "run failed: the variable is not set",
        job(
            "name: startup-file\nsetup: |\n  echo 'export CORPUS_HOME=/opt/corpus' >> ~/.bashrc\n"
            "run: |\n  test \"$CORPUS_HOME\" = /opt/corpus\n"
        ),
        [LOCAL],
    ),
    "02-variables": Case(
        "accepted; the file lay in a folder called ${CORNER}",
        job(
            "envs: {CORNER: shelf}\nfile_mounts:\n  ~/${CORNER}/notes.txt: FOLDER/notes.txt\n"
            "run: cat ~/shelf/notes.txt\n",
            **{"notes.txt": "a note\n"},
        ),
        [LOCAL],
    ),
    "03-service-pages": Case(
        "advice inv serve.up FILE, which took the file as the name of a service",
        job(
            "service:\n  readiness_probe: /alive.txt\n  replicas: 2\nresources: {ports: 8123}\n"
            "setup: echo yes > alive.txt\nrun: python3 -m http.server 8123 --bind 127.0.0.1\n"
        ),
        [("serve.up", "FILE", "-n", "t", "--provider", "local", "--yes"), ("serve.down", "t")],
        "t-0 READY",
    ),
    "03-service-talk": Case(
        "three replicas in a row ended with status 404",
        job(
            "envs: {WHICH: lab/tiny-talker}\nservice:\n  readiness_probe:\n    path: /v1/chat/completions\n"
            "    post_data:\n      model: $WHICH\n      messages: [{role: user, content: say one word}]\n"
            "      max_tokens: 1\n    initial_delay_seconds: 20\n  replicas: 1\nresources: {ports: 8124}\n"
            "run: vllm serve $WHICH --port 8124\n",
            **{"model/fake.json": '{"words": [" one"]}'},
        ),
        [
            ("serve.up", "t", "--config", "FILE", "--model", "FOLDER/model", "--engine", "fake", "--yes"),
            ("serve.down", "t"),
        ],
        "clients use this name",
    ),
    "04-bucket-mount-lint": Case("nothing to mend", job(BUCKET % "MOUNT"), [LINT], "nothing to mend"),
    "04-bucket-mount": Case("the advice led to the next refusal", job(BUCKET % "MOUNT"), [RENTED], "mounted by rclone"),
    "04-bucket-cached-lint": Case("nothing to mend", job(BUCKET % "MOUNT_CACHED"), [LINT], "nothing to mend"),
    "04-bucket-cached": Case("the advice led to the next refusal", job(BUCKET % "MOUNT_CACHED"), [RENTED], "starts from s3://a-shelf/books"),
    "04-bucket-copy-lint": Case("nothing to mend", job(BUCKET % "COPY"), [LINT], "nothing to mend"),
    "04-bucket-copy": Case("fetch s3://... in `setup`, without a line", job(BUCKET % "COPY"), [RENTED], "starts from s3://a-shelf/books"),
    "05-silent": Case(
        "not a word about cpus and memory",
        job("resources: {cpus: 512, memory: 4096}\nrun: nproc\n"),
        [PLAN],
        r"cpus, memory.*no effect",
    ),
    "06-gpus": Case("did you mean cpus?", job('resources: {gpus: "L40S:2"}\nrun: nvidia-smi\n'), [RENTED], "L40S"),
    "06-date": Case(
        "Expected bool, int, float, str, null, got date",
        job('envs:\n  FIRST: one\n  RELEASE: 2026-03-14\nrun: test "$RELEASE" = 2026-03-14\n'),
        [LOCAL],
    ),
    "06-digit": Case("not a valid name", job("name: 7b-chat\nrun: echo hi\n"), [LOCAL]),
    "06-size": Case("expected a number above 0", job("resources: {memory: 16384MB}\nrun: free -m\n"), [RENTED]),
    "06-prefix": Case(
        "Slipway sets variables with the prefix SKYPILOT_",
        job('envs: {SKYPILOT_SHELF: a}\nrun: test "$SKYPILOT_SHELF" = a\n'),
        [LOCAL],
    ),
    "07-machine-only": Case(
        "neither run nor setup, so there is nothing to do",
        job("resources:\n  accelerators: A100:1\n  disk_size: 300\n"),
        [RENTED],
        r"inv pod\.create.*--gpu A100.*--disk-size 300",
        code=2,
    ),
    "07-group": Case(
        "unknown key 'execution'; known: ...",
        job(
            "name: pair\nexecution: parallel\nprimary_tasks: [learner]\n---\nname: learner\nrun: echo l\n---\n"
            "name: judge\nrun: echo j\n"
        ),
        [PLAN],
        "parallel.*(separate|each)",
        "unknown key",
        code=2,
    ),
    "08-kubernetes": Case(
        "apiVersion: no such flag; did you mean persona?",
        {
            "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: worker}\nspec:\n  containers:\n    - name: main\n"
            "      image: lab/torch:1\n      command: [python, work.py]\n"
        },
        [("launch", "FILE", "--dry-run")],
        "Kubernetes.*inv launch --cmd",
        code=2,
    ),
    "08-manifest": Case(
        "six refusals, one at a time; a wrong advice for `name`",
        {
            "manifest.yaml": 'kind: Pod\nname: writer-1b\nimageName: lab/torch:1\ngpuType: "NVIDIA A100-PCIE-80GB"\n'
            "gpuCount: 1\nminVcpus: 8\nminMemory: 64\nvolumeMounts:\n  - volumeName: shelf\n    mountPath: /workspace\n"
            "ports:\n  - {containerPort: 6006, protocol: tcp}\nenv:\n  - {name: AGAIN, value: \"1\"}\n"
            'command: [/bin/bash, -lc, "echo $AGAIN"]\n'
        },
        [RENTED],
        r"imageName: no effect: .* this account has no volume shelf",
        code=3,
    ),
    "08-python": Case(
        "expected lines of the form `flag: value`",
        {"work.py": 'print("hello")\n'},
        [("launch", "FILE", "--dry-run")],
        r"--script \S*work\.py",
        code=2,
    ),
    "09-ssh-rack": Case(
        "user, host and key of the configuration were not used",
        {
            "pools.yaml": "lab:\n  hosts: [rack-1, rack-2]\n",
            "home/.ssh/config": "Host rack-*\n  HostName %h.lab.example.org\n  User ada\n"
            "  IdentityFile ~/.ssh/id_lab\n",
            "home/.ssh/id_lab": "",
        },
        [("pool.list",)],
        r"ada@rack-1\.lab\.example\.org",
        variables={"SLIPWAY_POOLS": "FILE", "HOME": "FOLDER/home"},
    ),
    "09-ssh-tab": Case(
        "user, host and key of the configuration were not used",
        {
            "pools.yaml": "lab:\n  hosts: [bench]\n",
            "home/.ssh/config": "Host\tbench\n\tHostName\t10.20.0.5\n\tUser\tada\n\tIdentityFile\t~/.ssh/id_lab\n",
            "home/.ssh/id_lab": "",
        },
        [("pool.list",)],
        r"ada@10\.20\.0\.5",
        variables={"SLIPWAY_POOLS": "FILE", "HOME": "FOLDER/home"},
    ),
    "09-ssh-port": Case(
        "a host called 10.20.0.5:2222 on port 22",
        {"pools.yaml": 'lab:\n  user: ada\n  hosts: ["10.20.0.5:2222"]\n', "home/.ssh/id_ed25519": ""},
        [("pool.list",)],
        r"port: 2222|port 2222",
        variables={"SLIPWAY_POOLS": "FILE", "HOME": "FOLDER/home"},
    ),
    "10-sweeps": Case(
        "a fault of inv itself, and no list at all",
        {
            "sweeps.py": "from packs.sweeps.control.experiment import ExperimentConfig, PodSpec\n\n\n"
            "def dealt(experiments):\n"
            "    for number, one in enumerate(experiments):\n        one.train_gpu_device = str(number)\n"
            '    return experiments\n\n\ndef rates():\n    """Two rates on one pod."""\n'
            '    pods = [PodSpec(name="a", gpu_type="A100", gpu_count=8, ttl_hours=2)]\n'
            '    return pods, {"a": dealt([ExperimentConfig(name="low", learning_rate=1e-6), '
            'ExperimentConfig(name="high")])}\n'
        },
        [("sweep", "--list-configs")],
        r"batch_grid.*rates\b.*device 1 is in both gpu_devices and train_gpu_device",
        "fault of inv",
        variables={"SLIPWAY_SWEEPS": "FILE"},
    ),
    "11-dotenv": Case(
        "PLAIN was expanded within single quotes; MIDDLE became `ab`",
        {"dot.env": "PLAIN='keep ${HOME} as it is'\nMIDDLE=a${NOT_SET_ANYWHERE}b\n"},
        [("launch", "--cmd", "test \"$PLAIN\" = 'keep ${HOME} as it is'", "--provider", "local", "-n", "case", "--yes",
          "--env-file", "FILE")],
        "NOT_SET_ANYWHERE",
    ),
    "11-clusters": Case(
        "Slurm's own time was refused",
        {"clusters.yaml": "hill:\n  host: login.example.org\n  user: ada\n  identity_file: FOLDER/id_lab\n"
         "  time: 1-12:00:00\n", "id_lab": KEY},
        [("offers", "--provider", "slurm")],
        "hill: ssh login.example.org:22",
        code=1,
        variables={"SLIPWAY_CLUSTERS": "FILE"},
    ),
    "11-tree": Case(
        "heavy.bin was sent",
        {
            "job.yaml": "workdir: FOLDER\nrun: test ! -e heavy.bin\n",
            ".skyignore": "heavy.bin\n",
            "heavy.bin": "pretend this is 40 GB\n",
        },
        [LOCAL],
    ),
    "12-conda": Case(
        "nothing to mend; the run failed with 127",
        job("setup: conda create -n lesson python=3.11 -y\nrun: |\n  conda activate lesson\n  python --version\n"),
        [LINT],
        "conda.*miniforge",
    ),
}  # fmt: skip


def verdict(case: Case, folder: Path) -> str:
    """Run a case in an empty folder; return "" for the wanted result, else the seen result."""
    there = folder / "files"
    for name, text in case.files.items():
        path = there / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text == KEY:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
            continue
        path.write_text(text.replace("FOLDER", str(there)))
        path.chmod(0o600)
    own = str(there / next(iter(case.files)))

    def filled(text: str) -> str:
        return text.replace("FOLDER", str(there)).replace("FILE", own)

    world = World(folder / "world", {name: filled(value) for name, value in case.variables.items()})
    codes, said = [], ""
    for words in case.words:
        done = world.run(*map(filled, words))
        codes.append(done.returncode)
        said += " " + " ".join(f"{done.stdout} {done.stderr}".split())
    if "Traceback" in said or codes != [0] * len(codes[1:]) + [case.code] or not re.search(case.wanted, said):
        return f"exit code {done.returncode}: {said[-400:]}"
    return f"unwanted: {said[-400:]}" if re.search(case.unwanted, said) else ""


def main(words: Sequence[str]) -> int:
    known = argparse.ArgumentParser(prog="python -m tests.packs.jobs.cases", description=(__doc__ or "").split("\n")[0])
    known.add_argument("names", nargs="*", metavar="NAME", help="beginning of a case's name (default: all)")
    chosen = tuple(known.parse_args(words).names)
    names = [name for name in CASES if not chosen or name.startswith(chosen)]
    print("| case | before | now |\n|---|---|---|", flush=True)
    found = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="case-", ignore_cleanup_errors=True) as folder:
            seen = verdict(CASES[name], Path(folder))
        found += not seen
        print(f"| {name} | {CASES[name].before} | {f'**no**: {seen}'.replace('|', '/') if seen else 'as wanted'} |",
              flush=True)  # fmt: skip
    print(f"\n{found} of {len(names)} as wanted")
    return int(found < len(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

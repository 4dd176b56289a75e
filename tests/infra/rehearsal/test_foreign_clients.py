"""Clients of other projects with the rehearsed vendors: foreign code must find the expected answers.

Our client, rehearsal and tests rely on the same documentation, and may share a misunderstanding. Each foreign client
gets a separate environment from the package index.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.rehearsal.worlds import Running
from tests.world import ROOT

PROGRAMS = ROOT / "tests" / "programs" / "foreign"
LATER = "2030-01-01T00:00:00Z"
CALLS = {  # by program: the vendor, the packages, and the number of calls
    "runpod_sdk": ("runpod", ("runpod==1.12.0",), 17),
    "dstack_runpod": ("runpod", ("dstack==0.22.5",), 19),
    "dstack_lium": ("lium", ("dstack==0.22.5",), 19),
    "lium_sdk": ("lium", ("lium.io==0.32.0",), 22),
    "sky_shadeform": ("shadeform", ("skypilot==0.14.1",), 16),
}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory):
    """Return a function from packages to the interpreter of an environment, made once."""
    made: dict[tuple[str, ...], Path] = {}

    def python(packages: tuple[str, ...]) -> Path:
        if packages not in made:
            folder = tmp_path_factory.mktemp("environment")
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
            install = [folder / "bin" / "python", "-m", "pip", "install", "-q", *packages]
            done = subprocess.run(install, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-2000:]
            made[packages] = folder / "bin" / "python"
        return made[packages]

    return python


def asked(world: Running, vendor: str) -> dict:
    """Return the input of a program: the address of the vendor, and the machine to rent."""
    types = world.call("shadeform", "GET", "/instances/types?available=true&sort=price").json()["instance_types"]
    place = next(one for one in types[0]["availability"] if one["available"])
    return {
        "url": world.about[vendor]["url"],
        "key": world.about[vendor]["key"],
        "public_key": world.public_key,
        "executor": world.call("lium", "GET", "/executors").json()[0]["id"],
        "later": LATER,
        "template": world.call("lium", "GET", "/templates").json()[-1]["id"],
        "type": {
            "cloud": types[0]["cloud"],
            "region": place["region"],
            "shade_cloud": True,
            "shade_instance_type": types[0]["shade_instance_type"],
        },
    }


@pytest.mark.parametrize("program", list(CALLS))
def test_every_call_of_a_foreign_client_works_with_the_expected_refusals(world, pythons, program):
    vendor, packages, num_calls = CALLS[program]
    done = subprocess.run(
        [pythons(packages), PROGRAMS / f"{program}.py"],
        input=json.dumps(asked(world, vendor)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    came = json.loads(done.stdout.splitlines()[-1])
    assert {call: why for call, why in came.items() if why} == {}
    assert len(came) == num_calls

"""Numbers in files, flags and variables: an absurd number is refused, with the position."""

from pathlib import Path

import pytest

from infra import strict_yaml
from infra.errors import UsageError
from infra.machines import inventory
from infra.market import gpus
from infra.runs.keepers import pod_set
from infra.selection import machine_spec
from infra.settings import Settings
from scripts.cli import context, flag_file
from tests.world import World

LONG = "9" * 6000
NUMBERS = [
    LONG,
    f"-{LONG}",
    f"{LONG}.5",
    f"0x{'f' * 6000}",
    f"0b{'1' * 6000}",
    ":".join(["59"] * 2000),
    f"1{'_0' * 3000}",
]


@pytest.fixture
def path(tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").touch(mode=0o600)
    return tmp_path / "file.yaml"


def refused(what, *words, **more):
    """Return the reason of a refusal. Anything but a UsageError is a bug."""
    with pytest.raises(UsageError) as error:
        what(*words, **more)
    return str(error.value)


def entry_error(path):
    """Return the reason why the only entry of an inventory is unusable."""
    try:
        (one,) = inventory.load(path, path.parent).unusable
    except UsageError as error:
        return str(error)
    return one.why


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number[:4]} {len(number)}")
@pytest.mark.parametrize("key", ["port", "num_gpus", "memory", "gpu_memory", "usd_per_hour"])
def test_a_number_of_thousands_of_digits_in_a_pool_file_is_refused(path, key, number):
    path.write_text(f"a: {{{key}: {number}, hosts: [1.1.1.1]}}")
    assert str(path) in entry_error(path)


@pytest.mark.parametrize("size", [LONG, f"{LONG}GB", f"1.{LONG}", "٣GB", "1e9999"])
def test_a_size_in_text_with_an_absurd_number_is_refused(path, size):
    path.write_text(f"a: {{memory: '{size}', hosts: [1.1.1.1]}}", encoding="utf-8")
    assert "expected GB, such as 64" in entry_error(path)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number[:4]} {len(number)}")
def test_an_absurd_number_in_a_file_of_flags_pods_or_settings_is_refused(path, number):
    path.write_text(f"num-gpus: {number}")
    refused(flag_file.read, path, ["num-gpus"])
    path.write_text(f"pods: [{{name: a, gpu_count: {number}}}]")
    refused(lambda: pod_set.read_set("f", "f", strict_yaml.read(path), "local", ["local"]))
    (path.parent / "slipway.yaml").write_text(f"shard_lines: {number}")
    assert "slipway.yaml" in refused(Settings.load, path.parent, environ={})


@pytest.mark.parametrize("scalar", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!int 0x", "2026-99-99"])
def test_a_tagged_scalar_with_an_invalid_value_is_refused(path, scalar):
    path.write_text(f"a: {scalar}")
    assert str(path) in refused(strict_yaml.read, path)


@pytest.mark.parametrize("variable", ["SHARD_LINES", "SLIPWAY_BOOT_S", "SLIPWAY_SPEND_CAP_USD", "SLIPWAY_CLOCK_SCALE"])
def test_an_absurd_number_in_a_variable_is_refused(tmp_path, variable):
    for number in (LONG, "١٢"):
        assert variable in refused(Settings.load, tmp_path, environ={variable: number})


@pytest.mark.process
def test_an_absurd_number_in_a_flag_is_refused(tmp_path):
    for number in (LONG, f"{LONG}h", "999999999d", "٣h"):
        refused(context.seconds, number)
    refused(gpus.read_set, f"H100:{LONG}")
    refused(machine_spec.at_least, "cpus", LONG)
    for line in (
        ("--num-gpus", LONG),
        ("--num-gpus", "9" * 4000),
        ("--cpus", LONG),
        ("--memory", LONG),
        ("--ttl", LONG),
    ):
        process = World(tmp_path).run("launch", *line, "--dry-run")
        err = process.stderr
        assert process.returncode == 2 and "bug in inv" not in err and len(err) < 7000, err[:300]


def test_plausible_numbers_are_read(path):
    path.write_text("a: {port: 2222, memory: 1.5, usd_per_hour: 0.35, num_gpus: 0x8, hosts: [1.1.1.1]}")
    (host,) = inventory.load(path, path.parent).hosts
    assert (host.address.port, host.memory_bytes, host.micro_usd_per_hour, host.num_gpus) == (
        2222,
        1_500_000_000,
        350_000,
        8,
    )
    assert strict_yaml.parse(Path("f"), "[1_000_000, -0.5e-3, .inf, 0o17]") == [
        1_000_000,
        -0.0005,
        float("inf"),
        "0o17",
    ]
    assert (context.seconds("1.5d"), context.seconds("3650d")) == (129_600.0, 315_360_000.0)

"""A flag of rented machines without a key: every command names the keys and its own rehearsal."""

import pytest

from tests.world import World

pytestmark = pytest.mark.process
KEYS = {name: "" for name in ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY")}


@pytest.fixture
def user(tmp_path):
    (tmp_path / "pods.yaml").write_text("pods:\n  - {name: a, gpu_type: null, gpu_count: 0}\n")
    return World(tmp_path, KEYS)


@pytest.mark.parametrize(
    ("line", "practice"),
    [
        ("launch --spend-limit $40", "inv rehearse --spend-limit '$40'"),
        pytest.param(
            "launch --phase base --finish-within 15",
            "inv rehearse --finish-within 15. For a time",
            marks=pytest.mark.pack("deadline"),
        ),
        ("pod.create --gpu H100 --spend-limit 5", "inv pod.create --rehearse --gpu H100 --spend-limit 5"),
        ("apply {home}/pods.yaml --spend-limit 5", "inv apply --rehearse {home}/pods.yaml --spend-limit 5"),
        pytest.param(
            "sweep examples/sweeps/rates.yaml --spend-limit 20",
            "inv sweep --rehearse examples/sweeps/rates.yaml --spend-limit 20",
            marks=pytest.mark.pack("sweeps"),
        ),
    ],
)
def test_flag_of_rented_machines_without_a_key_names_the_keys_and_the_rehearsal(user, line, practice):
    done = user.run(*(word.replace("{home}", str(user.folder)) for word in line.split()), "--yes")
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and "is for rented machines; without a key of a vendor" in said, said
    assert practice.replace("{home}", str(user.folder)) in said and "RUNPOD_API_KEY" in said


def test_typed_limit_for_pods_without_costs_is_refused_and_the_limit_of_a_file_is_not(user):
    file = user.folder / "pods.yaml"
    done = user.run("apply", str(file), "--provider", "local", "--spend-limit", "5", "--dry-run")
    assert done.returncode == 2 and "this provider costs nothing" in done.stderr
    file.write_text(f"spend_limit: 5\n{file.read_text()}")
    user.inv("apply", str(file), "--provider", "local", "--dry-run")
    file.write_text("pods: []\n")
    user.inv("apply", str(file), "--provider", "local", "--spend-limit", "5", "--dry-run")

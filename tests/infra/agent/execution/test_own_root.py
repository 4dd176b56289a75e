"""A job's own root: folders at paths missing on this machine, without any change to this machine."""

import os
import subprocess
import sys

import pytest

from infra.agent.execution import own_root
from tests.world import ROOT

pytestmark = [pytest.mark.process]


def test_this_machine_supports_a_private_root():
    assert own_root.problem() == ""


def test_only_the_process_sees_the_folders_of_its_private_root(tmp_path):
    at, data, file = tmp_path / "root", tmp_path / "data", tmp_path / "words.txt"
    at.mkdir()
    data.mkdir()
    file.write_text("three words here\n")
    text = (
        "pwd; cat /usr/own-of-test/words; echo kept > /checkpoint-of-test/x; cat /etc/hostname > /dev/null;"
        f"echo more > {tmp_path}/beside; ls {at} | wc -l; id -u"
    )
    binds = [(str(data), "/checkpoint-of-test"), (str(file), "/usr/own-of-test/words")]

    def enter() -> None:
        own_root.enter_or_exit(binds, str(data), str(at))

    done = subprocess.run(["bash", "-ec", text], preexec_fn=enter, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [str(data), "three words here"]
    assert done.stdout.split()[-2:] == ["0", str(os.getuid())]
    assert (data / "x").read_text() == "kept\n" and (tmp_path / "beside").read_text() == "more\n"
    assert not os.path.exists("/checkpoint-of-test") and not os.path.exists("/usr/own-of-test")
    assert not list(at.iterdir())


def test_a_process_without_a_private_root_reports_it_and_exits(tmp_path):
    words = (
        "import os\nfrom infra.agent.execution import own_root\n"
        f"own_root.enter_or_exit([({str(tmp_path)!r}, '/checkpoint')], '/', {str(tmp_path / 'gone')!r})"
    )
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "/checkpoint cannot be created for this job: " in done.stderr and "use ~/checkpoint instead" in done.stderr

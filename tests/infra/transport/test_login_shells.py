"""Login shells with their own output, and login shells other than `sh`: only the output of the command is read."""

import os
import subprocess
import threading

import pytest

from infra.agent.job import PodFolder
from infra.errors import SlipwayError
from infra.machines import survey
from infra.machines.host_memory import HostMemory
from infra.machines.inventory import Host as Machine
from infra.transport import framing, group_run, large_files, rsync
from infra.transport.protocol import Meter, Result, TimedOut
from infra.transport.push import push
from infra.transport.ssh import Ssh
from tests.hosts import loopback
from tests.needs import needs
from tests.processes import is_running
from tests.shells import ASKED, SHELLS, machine
from tests.world import until

pytestmark = pytest.mark.process

ODD = ["a  b", "", "$HOME", "`id`", "'", '"', "\\", "two\nlines", "*", "-n", "ü", "!x", "a;b&c|d>e", "%s", "~", "{a,b}"]
BINARY = bytes(range(256)) * 40


# One shell of each family, and the forced command that joins the streams: the other shells differ only in the
# greeting, which the test of output and streams reads for all shells.
BY_DAY = ("bash that greets", "fish that greets", "tcsh that repeats", "a forced command that joins")
BY_PIECES = ("bash that greets", "a forced command that splits")


def pytest_generate_tests(metafunc):
    if "host" in metafunc.fixturenames:
        by_day = {
            "test_the_output_of_a_command_is_read_unchanged": tuple(SHELLS),
            "test_a_file_of_40_mb_goes_both_ways": BY_PIECES,
        }.get(metafunc.function.__name__, BY_DAY)
        names = [pytest.param(name, marks=() if name in by_day else pytest.mark.nightly) for name in SHELLS]
        metafunc.parametrize("host", names, indirect=True)


@pytest.fixture
def host(request, tmp_path):
    with machine(tmp_path, request.param) as one:
        one.name = request.param
        yield one


@pytest.fixture
def pod(host, tmp_path):
    with Ssh(host.address, tmp_path / "pins/known_hosts") as one:
        yield one


def test_the_output_of_a_command_is_read_unchanged(host, pod, tmp_path):
    """Check text, streams, exit codes, folders, variables, stdin and binary files; the greeting is separate."""
    done = pod.run(
        ["sh", "-c", "cat; echo $WORD; pwd; exit 7"],
        stdin=b"in\n",
        timeout_s=20,
        cwd=tmp_path,
        env={"WORD": "'a'  \"b\"\n$(c) !d"},
    )
    assert (done.exited, done.stdout) == (7, f"in\n'a' \"b\" $(c) !d\n{tmp_path}\n")
    assert pod.run(["printf", "<%s>", *ODD], timeout_s=20).stdout == "".join(f"<{word}>" for word in ODD)
    joined = "joins" in host.name
    done = pod.run(["sh", "-c", "echo two >&2"], timeout_s=20)
    assert (done.stdout if joined else done.stderr) == "two\n"
    assert pod.run(["sh", "-c", "kill -TERM $$"], timeout_s=20).exited == -15
    assert pod.run(["cat"], timeout_s=20) == Result(0, "", "")
    place = tmp_path / "de ep/it's"
    pod.put(BINARY, place, 0o600)
    assert pod.get(place) == BINARY == pod.read(place, 0) and pod.read(place, 9990) == BINARY[9990:]
    with pytest.raises(FileNotFoundError):
        pod.get(tmp_path / "absent")
    assert SHELLS[host.name].says in framing.shown(pod.shell_banner)
    assert SHELLS[host.name].says or not pod.shell_banner


def test_a_command_of_any_length_arrives(pod):
    assert pod.run(["sh", "-c", "echo ${#1}", "sh", "ü" * 60_000], timeout_s=60).stdout == "120000\n"


@pytest.mark.day_cases(2)
def test_only_the_command_beyond_its_timeout_is_ended(host, pod, tmp_path):
    """The shell prints the pid of a foreign process first: the foreign process and this process survive."""
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        for path, text in SHELLS[host.name].files.items():
            if "echo 1" in text or "echo -1" in text:
                (host.folder / path).write_text(f"{text}\necho {stranger.pid}\necho {stranger.pid} >&2\n")
        script = f"sleep 300 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/self; wait"
        with pytest.raises(TimedOut):
            pod.run(["sh", "-c", script], timeout_s=1.5)
        for name in ("child", "self"):
            number = int((tmp_path / name).read_text())
            until(lambda: not is_running(number), "its end")  # noqa: B023
        assert stranger.poll() is None
        assert pod.run(["echo", "on"], timeout_s=20).stdout == "on\n"
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("by", ["rsync", "pieces"])
def test_a_file_of_40_mb_goes_both_ways(by, pod, tmp_path, monkeypatch):
    if by == "pieces":
        monkeypatch.setattr(rsync, "local_version", lambda: None)
    else:
        needs("rsync")
    content = os.urandom(40 << 20)
    (tmp_path / "here").write_bytes(content)
    assert large_files.transfer_method(pod).name == by
    large_files.put(pod, tmp_path / "here", str(tmp_path / "there"), len(content), Meter())
    assert (tmp_path / "there").read_bytes() == content
    large_files.fetch(pod, str(tmp_path / "there"), tmp_path / "back", len(content), Meter())
    assert (tmp_path / "back").read_bytes() == content


def test_code_is_pushed_and_tools_are_detected(pod, tmp_path):
    checkout, folder = tmp_path / "checkout", PodFolder(tmp_path / "pod-1")
    checkout.mkdir()
    (checkout / "a file.py").write_text("1")
    folder.root.mkdir()
    (folder.root / "POD.json").write_text('{"token": "sw1-abcdefgh-0123456789abcdef"}')
    assert push(pod, checkout, folder.code, "sw1-abcdefgh-0123456789abcdef").sent == 1
    assert (folder.code / "a file.py").read_text() == "1"


def test_a_program_runs_in_the_background(pod, tmp_path):
    with pod.run_in_background(["sh", "-c", "echo $$ > number; echo said; exec sleep 300"], tmp_path) as look:
        until((tmp_path / "number").exists, "the program")
        assert look() is None
    until(lambda: not is_running(int((tmp_path / "number").read_text())), "its end")


def test_a_terminal_session_works(host, pod, tmp_path):
    code = pod.shell(["sh", "-c", 'test "$PWD" = "$0" || exit 1; exit 9', str(tmp_path)], cwd=tmp_path)
    assert code == (0 if "stays" in host.name else 9)  # ssh returns the exit code of the wrapper
    done = subprocess.run(
        pod.openssh_command(["printf", "<%s>", *ODD], is_terminal=False), capture_output=True, timeout=60
    )
    assert "".join(f"<{word}>" for word in ODD) in done.stdout.decode()


@pytest.mark.day_cases(2)
def test_a_command_on_many_machines_prints_only_its_own_output(host, pod, tmp_path):
    said: list[tuple[bool, str]] = []
    lock = threading.Lock()

    def listen(name: str, is_error: bool, text: str) -> None:
        with lock:
            said.append((is_error, text))

    connection = pod.connection("one", str(tmp_path))
    (found,) = group_run.run([connection], "echo it\\'s; pwd; echo bad >&2; exit 7", listen, keeps=True, timeout_s=60)
    assert (found.exit_code, found.problem) == (7, "")
    heard = "".join(text for is_error, text in said if not is_error)
    if "joins" in host.name:
        assert sorted(heard.split()) == sorted(["it's", str(tmp_path), "bad"])
    else:
        assert (heard, found.stderr) == (f"it's\n{tmp_path}\n", "bad\n")
    (found,) = group_run.run([connection], f"echo $$ > {tmp_path}/number; sleep 300", listen, timeout_s=1.0)
    assert "the command was ended" in found.problem
    until(lambda: not is_running(int((tmp_path / "number").read_text())), "its end")


def test_a_survey_reports_that_the_shell_prints(host, pod, tmp_path):
    one = Machine(pool="box", name="one", address=host.address)
    memory = HostMemory(tmp_path / "memory.json")
    for look in (*survey.survey_hosts([one], lambda _: pod, memory), *survey.reachable([one], lambda _: pod)):
        says = SHELLS[host.name].says
        assert look.problem == "" and says in look.shell_output and look.shell_output.isprintable() is True
        assert look.verdict == "ok" or f"ok; the login shell prints: {look.shell_output}" == look.verdict


# unusable shells


def test_a_shell_that_refuses_every_login_is_named(tmp_path):
    with machine(tmp_path, "dash") as host:
        host.stop()
        host.options = [*host.options[:-1], "ForceCommand=echo This account is not available; exit 1"]
        host.start()
        with Ssh(host.address, tmp_path / "pins") as pod:
            said = r"the login shell did not run the command \(exit code 1\); it printed: This account is not available"
            with pytest.raises(SlipwayError, match=said):
                pod.run(["true"], timeout_s=20)
            with pytest.raises(SlipwayError, match=said):
                pod.get("/etc/hostname")


def test_a_shell_with_endless_output_is_named(tmp_path):
    with machine(tmp_path, "dash") as host:
        (host.folder / ".bashrc").write_text("")
        host.stop()
        host.options = [*host.options[:-1], "ForceCommand=exec yes hello"]
        host.start()
        said = "prints without end; it printed: hello hello"
        with Ssh(host.address, tmp_path / "pins") as pod, pytest.raises(SlipwayError, match=said):
            pod.run(["true"], timeout_s=60)


def test_a_start_up_file_that_reads_stdin_takes_no_data(tmp_path):
    with loopback(tmp_path, "OMP_NUM_THREADS=1", options=["-o", f"ForceCommand=exec {ASKED}"]) as host:
        (host.folder / ".bashrc").write_text("read -r -t 0.2 one; echo read:$one\n")
        with Ssh(host.address, tmp_path / "pins/known_hosts") as pod:
            done = pod.run(["cat"], stdin=b"one\ntwo\n", timeout_s=60.0, env={"A": "b"})
            assert (done.exited, done.stdout) == (0, "one\ntwo\n") and b"read:" in pod.shell_banner
            pod.put(b"three\n", tmp_path / "file")
            assert (tmp_path / "file").read_bytes() == b"three\n"
            long = ["sh", "-c", f"cat; : {'é' * 20_000}; echo $0", "four"]
            done = pod.run(long, stdin=b"one\n", timeout_s=60.0)
            assert (done.exited, done.stdout) == (0, "one\nfour\n")
            heard = []
            (found,) = group_run.run(
                [pod.connection("a", str(tmp_path))],
                f": {'é' * 20_000}; pwd",
                lambda *said: heard.append(said),
                keeps=True,
            )
            assert (found.exit_code, found.stdout) == (0, f"{tmp_path}\n")
            with pod.open_duplex("cat") as program:
                reader = threading.Thread(target=lambda: heard.append(program.recv(99)))
                reader.start()
                program.sendall(b"five\n")
                reader.join(60)
            assert heard[-1] == b"five\n"

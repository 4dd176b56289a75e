"""The user's own files: found by name, read without running, refused with a message, shipped as text, run from the
text.
"""

import os
import stat

import pytest

from store import extensions
from store.extensions import ExtensionError
from store.extensions.run import error_with_line, function

REWARD = "def reward(question, answer, completion):\n    return len(completion)\n"


@pytest.fixture
def write(tmp_path):
    def wrote(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return wrote


def refused(setting, kind, name, ours=()):
    with pytest.raises(ExtensionError) as error:
        extensions.find(setting, kind, name, ours)
    return str(error.value)


def test_the_additions_of_a_file_are_read_without_running_it(write):
    word = write("mes données/short.py", f"raise SystemExit('run')\n\n\n{REWARD}")
    found = extensions.find(f" {word} , {word}", "reward", "short")
    assert (found.name, found.adds, found.where) == ("short", ("reward",), word)
    assert extensions.find(word, "reward", "long") is None
    with pytest.raises(ExtensionError, match=r"short\.py:1: SystemExit: run"):
        function(found, "reward")


def test_files_with_other_names_are_not_opened(write):
    broken = write("broken.py", "def reward(:\n")
    good = write("good.py", REWARD)
    assert extensions.find(f"{broken},/no/such/file.py,{good}", "reward", "good").name == "good"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef reward(:\n", "mine.py:2: not Python: invalid syntax"),
        ("x = 1\0\n", "mine.py"),
        ("def rewards(question, answer, completion): ...\n", "did you mean rewards in line 1?"),
        ("class Reward: ...\n", "did you mean Reward in line 1?"),
        ("\ndef reward(question): ...\n", "mine.py:2: reward(question) cannot be called as"),
        ("def reward(q, a, c, d): ...\n", "mine.py:1: reward(q, a, c, d) cannot be called as"),
        ("def reward(a, b, c, *, d): ...\n", "cannot be called as"),
        ("async def reward(question, answer, completion): ...\n", "is async"),
        ("", "mine.py has no function reward(question, answer, completion)"),
    ],
)
def test_an_error_is_reported_with_file_and_line(write, text, said):
    assert said in refused(write("mine.py", text), "reward", "mine")


def test_a_binary_or_missing_file_is_reported(write, tmp_path):
    path = tmp_path / "latin.py"
    path.write_bytes(b"# ok\n# \xe9\n")
    assert "latin.py:2: not UTF-8" in refused(str(path), "reward", "latin")
    assert "gone.py: no such file" in refused(str(tmp_path / "gone.py"), "reward", "gone")
    (tmp_path / "folder.py").mkdir()
    assert "folder.py" in refused(str(tmp_path / "folder.py"), "reward", "folder")
    os.mkfifo(tmp_path / "pipe.py")
    assert "is no file" in refused(str(tmp_path / "pipe.py"), "reward", "pipe")
    assert "is not a valid name" in refused(f"{tmp_path}/two words.py", "reward", "two words")


def test_reserved_and_duplicate_names_are_refused(write):
    mine = write("RunPod.py", "def provider(settings): ...\n")
    assert "is also a provider of Slipway; rename the file" in refused(mine, "provider", "runpod", ("runpod",))
    other = write("other/wandb.py", REWARD)
    assert extensions.find(other, "tracker", "wandb", ("wandb",)) is None, "it adds no tracker"
    both = f"{write('a/short.py', REWARD)},{write('b/short.py', REWARD)}"
    said = refused(both, "reward", "short")
    assert "a/short.py and " in said and "are both called short" in said
    assert "did you mean 'short'" in refused(both, "reward", "Short")


def test_a_file_writable_by_others_is_refused(write, tmp_path):
    path = tmp_path / "mine.py"
    write("mine.py", REWARD)
    path.chmod(0o666)
    said = refused(str(path), "reward", "mine")
    assert "may be written by all users: the code would run with your keys" in said and "chmod go-w" in said
    path.chmod(0o644)
    folder = tmp_path / "open"
    folder.mkdir()
    inside = write("open/mine.py", REWARD)
    folder.chmod(0o777)
    assert "lies in" in refused(inside, "reward", "mine")
    folder.chmod(0o1777)  # such as /tmp
    assert extensions.find(inside, "reward", "mine")
    link = tmp_path / "link.py"
    path.chmod(0o666)
    link.symlink_to(path)
    assert "may be written" in refused(str(link), "reward", "link")


def about(mode, uid, gid=0):
    return os.stat_result((mode, 1, 1, 1, uid, gid, 1, 0, 0, 0))


def test_code_of_a_second_user_is_refused_with_any_mode():
    owners = frozenset({0, 1000})
    assert "belongs to" in extensions.ownership_problem(about(stat.S_IFREG | 0o600, 4242), owners)
    assert "belongs to" in extensions.ownership_problem(about(stat.S_IFDIR | stat.S_ISVTX | 0o777, 4242), owners)
    assert extensions.ownership_problem(about(stat.S_IFREG | 0o644, 1000), owners) == ""
    assert "by the group" in extensions.ownership_problem(about(stat.S_IFREG | 0o664, 1000, 4343), owners)
    assert extensions.ownership_problem(about(stat.S_IFREG | 0o664, 4242, 4242), frozenset({4242})) == "", (
        "a group of its own"
    )
    assert {0, os.geteuid()} <= extensions.trusted_owners()


def test_a_module_is_shipped_with_its_package_and_found_without_running(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    write("my_lab/__init__.py", "")
    write("my_lab/parts/weights.py", "BASE = 10\n")
    write(
        "my_lab/judge.py",
        "from my_lab.parts import weights\nfrom .parts.weights import BASE\n"
        "def reward(question, answer, completion):\n    return BASE + weights.BASE\n",
    )
    found = extensions.find("my_lab.judge", "reward", "judge")
    assert (found.name, found.adds) == ("judge", ("reward",))
    shipped = extensions.of_text(found.text, "judge")
    for path in tmp_path.rglob("*.py"):
        path.unlink()
    assert function(shipped, "reward")("", "", "") == 20
    write("my_lab/__init__.py", "")
    write("my_lab/parts/weights.py", "BASE = 11\n")
    write("my_lab/judge.py", "def reward(question, answer, completion): ...\n")
    assert extensions.read("my_lab.judge").sha256 != found.sha256
    with pytest.raises(ExtensionError, match="this process already uses a different module"):
        function(extensions.read("my_lab.judge"), "reward")


@pytest.mark.parametrize("word", ["trainer.phases.sft", "json", "no_such_package_of_anybody.mod", "a-b"])
def test_a_module_of_ours_of_python_or_unknown_is_refused(word):
    with pytest.raises(ExtensionError):
        extensions.read(word)


def test_an_exception_is_reported_with_the_line_of_the_file(write):
    word = write("deep.py", "def low():\n    return {}['x']\n\n\ndef source():\n    yield low()\n")
    found = extensions.read(word)
    with pytest.raises(KeyError) as error:
        next(function(found, "source")())
    assert error_with_line(found, error.value) == f"{word}:2: KeyError: 'x'"


def test_constants_are_read_and_must_be_literals(write):
    found = extensions.read(write("one.py", "PHASE = {'like': 'sft'}\nN = len('x')\n"))
    assert found.literal("PHASE") == ({"like": "sft"}, 1) and found.literal("OTHER") == (None, 0)
    with pytest.raises(ExtensionError, match=r"one\.py:2: N must be a literal"):
        found.literal("N")

"""A push never loses results of a pod, for any state of the checkout and any target of the push."""

import contextlib
import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from infra.errors import UsageError
from infra.transport.protocol import ThisMachine
from infra.transport.push import push
from tests import seeds
from tests.faults.trial import rounds
from tests.infra.transport.test_push import TOKEN, make_pod

pytestmark = pytest.mark.process

PARTS = ("a", "b", "data")


@rounds(3, 200)
def test_a_push_keeps_the_results_of_the_pod(tmp_path, rounds):
    seed = seeds.seed()
    dice = random.Random(seed)
    root, dest, here = tmp_path / "checkout", make_pod(tmp_path / "pod"), ThisMachine()
    (tmp_path / "precious").mkdir()
    write(tmp_path / "precious" / "file", b"outside")
    made: dict[Path, bytes] = {tmp_path / "precious" / "file": b"outside"}
    for number in range(rounds):
        change(root, dice, number, tmp_path / "precious")
        with contextlib.suppress(UsageError):  # refused: nothing is lost either
            push(here, root, dest, TOKEN)
        path = dest.joinpath(*dice.choices(PARTS, k=dice.randint(1, 3)), f"made-{number}")
        try:
            write(path, os.urandom(8))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
                raise  # a file of the checkout is in the way, or links of the checkout form a loop
        else:
            made[path.resolve()] = path.read_bytes()  # a link on the path may point elsewhere later
        assert {path: path.read_bytes() for path in made} == made
        wrong_targets(here, root, dest, tmp_path)
        assert {path: path.read_bytes() for path in made} == made


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def change(root: Path, dice: random.Random, number: int, outside: Path) -> None:
    """Make a different checkout at the same place: swap files, folders and links."""
    if number % 4 == 0:
        shutil.rmtree(root, ignore_errors=True)
    for _ in range(dice.randint(1, 6)):
        path = root.joinpath(*dice.choices(PARTS, k=dice.randint(1, 3)))
        for above in [*path.relative_to(root).parents][-2::-1]:
            if (root / above).is_symlink() or (root / above).is_file():
                (root / above).unlink()
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if dice.random() < 0.2:
            path.symlink_to(dice.choice([outside, Path(dice.choice(PARTS))]))
        elif dice.random() < 0.9:
            path.write_bytes(dice.randbytes(8))


def wrong_targets(here: ThisMachine, root: Path, dest: Path, folder: Path) -> None:
    """Return every wrong target; a push refuses all of them."""
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "all").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "all" / "of it").symlink_to("/")
        (folder / "to home").symlink_to(Path.home())
        (folder / "other").mkdir()
        (folder / "other" / "POD.json").write_text(json.dumps({"token": "sw1-other", "run": "a-1"}))
    write(root / "whole", b"so that there is something to send")
    wrong: list[tuple[Path, str | Path, str]] = [
        (folder / "empty", dest, TOKEN),
        (folder / "absent", dest, TOKEN),
        (folder / "all", dest, TOKEN),
        (folder / "to home", dest, TOKEN),
        (Path("/"), dest, TOKEN),
        (Path("/.."), dest, TOKEN),
        (Path.home() / ".", dest, TOKEN),
        (root, dest, "sw1-other"),
        (root, dest, ""),
        (root, "/", TOKEN),
        (root, "//", TOKEN),
        (root, "~", TOKEN),
        (root, Path.home(), TOKEN),
        (root, folder / "other" / "code", TOKEN),
        (root, dest / "data", TOKEN),
        (root, dest.parent, TOKEN),
    ]
    for source, place, token in wrong:
        with pytest.raises(UsageError):
            push(here, source, place, token)
    (root / "whole").unlink()

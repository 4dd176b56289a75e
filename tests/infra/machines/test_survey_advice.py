"""The advice of `inv pool.check` about an unusable machine."""

import pytest

from infra.errors import AuthError, SlipwayError, UsageError
from infra.machines import survey
from infra.machines.inventory import Host
from infra.records import Address
from infra.transport.protocol import Result, Unreachable

BOOT = "a newly rented machine takes 2 to 5 minutes to boot: try again"
REFUSED = "the key was refused: Authentication failed."
LOCKED = "the private key k has a passphrase, and the ssh-agent of this machine does not hold the key; run: ssh-add k"
NO_NAME = "[Errno -2] Name or service not known"


def problem_of(tmp_path, error, mode=0o600, content="key", **more):
    """Return the problem, with `KEY` in place of the path of the key."""
    key = tmp_path / "key"
    key.write_text(content)
    key.chmod(mode)
    to = {"user": "nobody", "host": "box", "port": 22, "key": str(key), "folder": "/tmp/x", **more}
    host = Host(pool="p", name="h", address=Address(**to))

    def connect(host):
        if error:
            raise error
        return Answering()

    (look,) = survey.reachable([host], connect)
    return look.problem.replace(str(key), "KEY")


class Answering:
    shell_banner = b""

    def run(self, words, timeout_s):
        return Result(0, "", "")


@pytest.mark.parametrize(
    ("error", "more", "said"),
    [
        (
            AuthError(REFUSED),
            {},
            "correct `user` (nobody) or `identity_file` in the inventory, or install the key: "
            "ssh-copy-id -i KEY nobody@box",
        ),
        (AuthError(REFUSED), {"port": 2222, "host": "::1"}, "ssh-copy-id -i KEY -p 2222 nobody@::1"),
        (AuthError(REFUSED), {"proxy": "nc a%b 1"}, "ssh-copy-id -i KEY -o 'ProxyCommand=nc a%%b 1' nobody@box"),
        (UsageError(LOCKED), {}, LOCKED),
        (UsageError(LOCKED), {"more_keys": ("/absent",)}, LOCKED),
        (SlipwayError(NO_NAME), {}, "correct `ip` (box) in the inventory or ~/.ssh/config"),
        (
            SlipwayError(NO_NAME),
            {"proxy": "nc a 1"},
            "correct `ip` or ProxyJump (box) in the inventory or ~/.ssh/config",
        ),
        (
            Unreachable("ssh b: proxy: ann@gate: Permission denied (publickey)."),
            {"proxy": "ssh -W [b]:22 gate"},
            "fails: correct ProxyJump or ProxyCommand in ~/.ssh/config, and try: ssh -W [b]:22 gate",
        ),
        (Unreachable("ssh b: proxy: stdio forwarding failed"), {"proxy": "ssh -W [b]:22 gate"}, BOOT),
        (SlipwayError("timed out"), {}, BOOT),
        (
            SlipwayError("timed out"),
            {"mode": 0o644},
            "has mode 644, so other users can read the key; run: chmod 600 KEY",
        ),
        (None, {"mode": 0o644}, "key KEY has mode 644, so other users can read the key; run: chmod 600 KEY"),
        (None, {"mode": 0o644, "content": "ssh-ed25519 AAAA"}, ""),
        (None, {"mode": 0o644, "content": "sk-ssh-ed25519@openssh.com AAAA"}, ""),
        (SlipwayError("timed out"), {"mode": 0o644, "content": "ssh-ed25519 AAAA"}, BOOT),
        (None, {"more_keys": ("/absent",)}, ""),
        (None, {"key": "/absent"}, "the private key /absent is missing"),
    ],
)
def test_the_advice_names_the_side_of_the_problem(tmp_path, error, more, said):
    problem = problem_of(tmp_path, error, **more)
    assert problem.endswith(said) and bool(problem) == bool(said)
    assert ("to boot" in problem) == (said == BOOT) and problem.count("chmod") <= 1

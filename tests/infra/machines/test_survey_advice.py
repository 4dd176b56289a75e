"""The advice of `inv pool.check` about an unusable machine."""

import pytest

from infra.errors import AuthError, SlipwayError
from infra.machines import survey
from infra.machines.inventory import Host
from infra.records import Address


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (AuthError("the key was refused: Authentication failed."), "correct `user` (nobody) or `identity_file`"),
        (SlipwayError("[Errno -2] Name or service not known"), "correct `ip` (box) in the inventory"),
        (SlipwayError("timed out"), "takes 2 to 5 minutes to boot: try again"),
    ],
)
def test_the_advice_matches_the_answer(tmp_path, error, advice):
    key = tmp_path / "key"
    key.write_text("key")
    key.chmod(0o600)
    host = Host(pool="p", name="h", address=Address(user="nobody", host="box", port=22, key=str(key), folder="/tmp/x"))

    def connect(host):
        raise error

    (look,) = survey.reachable([host], connect)
    assert advice in look.problem
    assert ("minutes to boot" in look.problem) == (advice.startswith("takes"))

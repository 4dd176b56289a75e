"""YAML from users: errors are reported with file and line."""

import pytest

from infra import strict_yaml
from infra.errors import UsageError


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("gpu: H100\nname: [\n", 3, "expected the node content"),
        ("gpu: H100\ngpu: A100\n", 2, "is given twice"),
        ("gpu: H100\n\tname: a\n", 2, "cannot start any token"),
    ],
)
def test_a_mistake_names_its_file_and_line(tmp_path, text, line, what):
    path = tmp_path / "flags.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{path} line {line} column \d+: .*{what}") as refused:
        strict_yaml.read(path)
    assert "<unicode string>" not in str(refused.value)

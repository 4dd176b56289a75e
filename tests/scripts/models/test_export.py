"""The export of an adapter: the command copies the files, and refuses flags that convert weights."""

import json

import pytest

from infra.errors import UsageError
from scripts.models import export
from scripts.models.export import ExportFlags
from store.artifacts.model_files import CHANGED


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """Return a folder with an adapter; the store is empty."""
    monkeypatch.setenv("SLIPWAY_STORE", str(tmp_path / "store"))
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / CHANGED).write_text(json.dumps({"name": "base_checkpoints/x"}))
    (folder / "adapter_model.safetensors").write_bytes(b"float32")
    return folder


def test_adapter_is_copied_as_it_is(adapter, tmp_path, capsys):
    export.export.work(ExportFlags(model=str(adapter), out=str(tmp_path / "out")))
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == {
        one.name: one.read_bytes() for one in adapter.iterdir()
    }
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"dtype": "bfloat16"}, "--dtype: .*adapter is an adapter.* --merge --out FOLDER --dtype bfloat16"),
        ({"dtype": "float32", "typed": frozenset({"dtype"})}, "--dtype: .* --merge --out FOLDER --dtype float32"),
        pytest.param(
            {"bits": "hf"},
            "--bits: .* is an adapter.* Write the whole model first: inv export .* --merge --out FOLDER$",
            marks=pytest.mark.pack("bits"),
        ),
    ],
)
def test_conversion_of_an_adapter_is_refused(adapter, tmp_path, flags, said):
    with pytest.raises(UsageError, match=said):
        export.export.work(ExportFlags(model=str(adapter), out=str(tmp_path / "new" / "out"), **flags))
    assert not (tmp_path / "new").exists()

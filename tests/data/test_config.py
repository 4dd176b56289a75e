import pytest

from data.config import ConfigError, IdentitySpec, Persona, StepContext, TextSpec, load

MAKING = {"store": "s", "name": "n", "fingerprint": "f", "inputs": {"text": {"name": "n", "fingerprint": "f"}}}


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\x1b[31mred", "x" * 201])
def test_persona_introduces_itself_in_one_plain_line(name):
    with pytest.raises(ConfigError, match="persona's name"):
        Persona(name=name, maker="us", purpose="to test")


def test_records_are_built_from_plain_values_at_any_depth():
    assert load(StepContext, MAKING).inputs["text"].fingerprint == "f"
    assert load(TextSpec, {"take": None, "packages": ["a"]}).packages == ("a",)


@pytest.mark.parametrize(
    ("kind", "raw", "seen"),
    [
        (TextSpec, {"sauce": "pydocs"}, "unknown key 'sauce'; did you mean 'source'?"),
        (TextSpec, {"take": "5"}, "take"),
        (TextSpec, {"val_ratio": 1.0}, "val_ratio is 1.0"),
        (TextSpec, "pydocs", "expected a mapping, got str"),
        (
            StepContext,
            MAKING | {"inputs": {"text": {"name": "n", "fingerprnt": "f"}}},
            r"inputs\.text: unknown key 'fingerprnt'",
        ),
        (IdentitySpec, {"persona": {"name": "a", "maker": "b", "purpos": "c"}}, r"persona: unknown key 'purpos'"),
    ],
)
def test_invalid_value_is_refused_by_name(kind, raw, seen):
    with pytest.raises(ConfigError, match=seen):
        load(kind, raw)

"""Flags as fields of a record: shown flags, and flags passed to another process."""

from dataclasses import dataclass

from infra.flags import SECRET, Typed, command_words, flag, masked_flags


def test_secret_values_are_shown_masked_and_passed_on_unmasked():
    @dataclass(frozen=True, kw_only=True)
    class Added:
        secret: tuple[str, ...] = flag((), "secrets", unit=SECRET)

    @dataclass(frozen=True, kw_only=True)
    class Asked(Typed):
        gpu: str = flag("", "kind")

    spec = Asked(gpu="H100", added=(Added(secret=("DB_DSN=postgres://a=b", "HF_TOKEN")),))
    assert masked_flags(spec) == {"gpu": "H100", "secret": ["DB_DSN=***", "HF_TOKEN"]}
    assert command_words(spec) == ["--gpu=H100", "--secret=DB_DSN=postgres://a=b", "--secret=HF_TOKEN"]

"""Every step produces the recorded output of the version."""

from store import packs
from tests import golden
from trainer.fingerprints import VERSIONS


def test_every_step_has_the_recorded_output_of_its_version(tmp_path):
    assert golden.complaints(golden.step_digests(tmp_path), VERSIONS, golden.recorded()) == []


def test_a_changed_output_is_reported_until_its_version_is_raised_and_recorded():
    known = {"text": {"1": "aaa"}}
    assert "version is still 1" in golden.complaints({"text": "bbb"}, {"text": 1}, known)[0]
    assert "nothing is recorded of version 2" in golden.complaints({"text": "bbb"}, {"text": 2}, known)[0]
    assert golden.complaints({"text": "bbb"}, {"text": 2}, {"text": {"1": "aaa", "2": "bbb"}}) == []


def test_every_step_has_a_version_and_a_record_of_its_output():
    assert VERSIONS.keys() == {step for step in golden.recorded() if not packs.missing_pack_message("phases", step)}

"""Training gives the recorded losses, number by number (curves.py writes the records)."""

import pytest

from tests.trainer import curves


@pytest.mark.slow
def test_every_phase_has_its_recorded_losses(world):
    found, before = curves.record(world.store, world.inputs, world.root), curves.recorded()
    again = "if that is meant: python -m tests.trainer.curves write"
    assert found.keys() == before.keys(), again
    for name, one in found.items():
        assert one["before"] == before[name]["before"], again
        assert as_recorded(one["config"], before[name]["config"]), f"{name}: another configuration; {again}"
        for step, (ours, theirs) in enumerate(zip(one["losses"], before[name]["losses"], strict=True), 1):
            assert curves.furthest([ours], [theirs]) <= curves.curves()[name].tolerance, (
                f"{name}, step {step}: {ours}, not {theirs}; {again}"
            )


def as_recorded(now, before):
    """Return whether every recorded value is equal; a newer field stands at its default."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(as_recorded(now.get(name), value) for name, value in before.items())
    return now == before


@pytest.mark.slow
def test_change_of_the_learning_rate_by_a_percent_is_noticed(world, monkeypatch):
    plain = curves.curves()["base"]
    faster = curves.replace(plain.config.optimizer, muon_lr=plain.config.optimizer.muon_lr * 1.01)
    changed = {"base": curves.Curve(curves.replace(plain.config, optimizer=faster))}
    monkeypatch.setattr(curves, "curves", lambda: changed)
    losses = curves.record(world.store, world.inputs, world.root)["base"]["losses"]
    assert curves.furthest(losses, curves.recorded()["base"]["losses"]) > 3 * curves.TOLERANCE

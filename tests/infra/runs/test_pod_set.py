"""The consequences of a file of pods: a pure decision, tested for every state, and the parsing of the file."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import UsageError
from infra.ledger.op import ENDED, READY, STATES, TERMINATED, TERMINATING, UNKNOWN, Op
from infra.runs.keepers.pod_set import PodAction, decide, read_set, read_spec, schema
from infra.runs.observation import Observation

NAMES, DIGESTS, SETS = ("a", "b", "c", "d"), ("one", "two"), ("", "ours", "theirs")
LIVE = [state for state in STATES if state not in ENDED]

wanted_pods = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(DIGESTS))
facts = st.tuples(st.sampled_from(LIVE), st.sampled_from(SETS), st.sampled_from(DIGESTS))
worlds = st.dictionaries(st.sampled_from((*NAMES, "e", "f")), facts)  # one live row per name


def rows_of(world, ended=()):
    live = [row(name, *known) for name, known in world.items()]
    return [*[row(name, TERMINATED, "ours", "one", number) for number, name in enumerate(ended)], *live]


def row(name, state, pod_set, digest, number=99):
    kind = "pod_set" if pod_set else ""
    return Op(
        token=f"{name}-{number}",
        run=name,
        vendor="local",
        owner_kind=kind,
        owner=pod_set,
        state=state,
        spec_hash=digest,
    )


def carried_out(step, rows, wanted):
    """Return the rows after a step, as in the journal: a live name cannot be planned again."""
    if step.action == "end":
        return [replace(one, state=TERMINATED) if one.token == step.token else one for one in rows]
    assert step.action == "create" and not [one for one in rows if one.is_live and one.run == step.name]
    return [*rows, row(step.name, READY, "ours", wanted[step.name], len(rows) + 1000)]


@given(wanted_pods, worlds, st.lists(st.sampled_from(NAMES)), st.integers(0, 8))
def test_an_apply_after_a_crash_reaches_the_wanted_set_and_touches_no_other_pod(wanted, world, ended, crash_after):
    rows = rows_of(world, ended)
    others = [one for one in rows if one.is_live and one.pod_set != "ours"]
    if any(one.run in wanted for one in others):
        with pytest.raises(UsageError, match="outside of the set ours"):
            decide("ours", wanted, rows)
        return
    for most in (crash_after, 99, 99):  # cut off, then complete, then once more
        steps = decide("ours", wanted, rows)
        changes = [step for step in steps if step.action != "keep"]
        order = [step.action for step in steps]
        assert order == sorted(order, key=["end", "keep", "create"].index)
        known = {step.token for step in steps if step.token}
        assert known == {one.token for one in rows if one.is_live and one.pod_set == "ours"}
        for step in changes[:most]:
            rows = carried_out(step, rows, wanted)
    assert changes == []
    assert {one.run: one.spec_hash for one in rows if one.is_live and one.pod_set == "ours"} == wanted
    assert [one for one in rows if one.is_live and one.pod_set != "ours"] == others


@pytest.mark.parametrize(
    ("wanted", "state", "digest", "steps"),
    [
        ({"a": "one"}, READY, "one", [PodAction("keep", "a", "a-99")]),
        ({}, READY, "one", [PodAction("end", "a", "a-99", "no longer in the file")]),
        ({"a": "two"}, READY, "one", [PodAction("end", "a", "a-99", "changed in the file"),
                                      PodAction("create", "a", why="changed in the file")]),
        ({"a": "one"}, UNKNOWN, "one", [PodAction("end", "a", "a-99", "the pod is UNKNOWN"),
                                        PodAction("create", "a", why="the pod is UNKNOWN")]),
        ({"a": "one"}, TERMINATING, "one", [PodAction("end", "a", "a-99", "the pod is TERMINATING"),
                                            PodAction("create", "a", why="the pod is TERMINATING")]),
        ({"a": "one"}, TERMINATED, "one", [PodAction("create", "a")]),
    ],
)  # fmt: skip
def test_decisions_for_one_pod(wanted, state, digest, steps):
    assert decide("ours", wanted, [row("a", state, "ours", digest)]) == steps


def test_a_proven_gone_pod_is_made_again_and_a_silent_pod_is_kept():
    gone, silent = Observation(False, why="lium has it no more"), Observation(why="no route to host")
    rows, wanted = [row("a", READY, "ours", "one"), row("b", READY, "ours", "one")], {"a": "one", "b": "one"}
    tokens = [one.token for one in rows]
    steps = decide("ours", wanted, rows, dict(zip(tokens, (gone, silent), strict=True)))
    assert [(step.action, step.name, step.why) for step in steps] == [
        ("end", "a", "lium has it no more"),
        ("keep", "b", ""),
        ("create", "a", "lium has it no more"),
    ]


def test_the_eight_keys_have_their_defaults():
    eight = {name: default for name, default, _ in schema()[:8]}
    assert eight == {
        "name": "",
        "gpu_type": "A100",
        "gpu_count": 8,
        "country": None,
        "volume_id": None,
        "ttl_hours": None,
        "min_upload_mbps": None,
        "min_download_mbps": None,
    }
    assert all(about for _, _, about in schema())


def read(entry, provider="runpod"):
    return read_spec("f", entry, provider, ("local",))


def test_missing_keys_have_defaults_and_own_machines_keep_their_hardware():
    rented, here, named = read({"name": "a"}), read({"name": "a"}, "local"), read({"name": "a", "instance_type": "x"})
    assert (rented.gpu_type, rented.gpu_count, rented.provider) == ("A100", 8, "runpod")
    assert (here.gpu_type, here.gpu_count) == (named.gpu_type, named.gpu_count) == (None, 0)
    assert read({"name": "a", "gpu": "H100", "num_gpus": 2}) == read({"name": "a", "gpu_type": "H100", "gpu_count": 2})
    assert read({"name": "a", "cpus": 16, "spend_limit": 2.5}) == read(
        {"name": "a", "cpus": "16", "spend_limit": "2.5"}
    )


def test_pods_that_differ_only_in_name_are_interchangeable():
    assert read({"name": "a"}).digest == read({"name": "b"}).digest
    assert read({"name": "a"}).digest != read({"name": "a", "ttl_hours": 1}).digest
    assert read({"name": "a", "ttl_hours": 1}).digest == read({"name": "a", "ttl_hours": 1.0}).digest
    assert read({"name": "a"}).digest == read({"name": "a", "recover": True}).digest  # no pod is ended


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "f: expected lines"),
        ({"pods": [], "sets": "a"}, "unknown key 'sets'; did you mean set"),
        ({}, "`pods` must be a list"),
        ({"pods": [{"name": "a"}, {"name": "a"}]}, "two pods have the name a"),
        ({"pods": [{}]}, "pod 1: the pod needs a name"),
        ({"pods": [{"name": "../a"}]}, "is not a valid name"),
        ({"pods": [{"name": "a", "gpu_typ": "H100"}]}, "did you mean gpu_type"),
        ({"pods": [{"name": "a", "gpu_count": "8"}]}, "gpu_count is '8'; expected a whole number, from 0"),
        ({"pods": [{"name": "a", "gpu_count": -1}]}, "gpu_count is -1"),
        ({"pods": [{"name": "a", "gpu_count": True}]}, "gpu_count is True"),
        ({"pods": [{"name": "a", "use_spot": 1}]}, "use_spot is 1; expected true or false"),
        ({"pods": [{"name": "a", "ttl_hours": 0}]}, "ttl_hours is 0"),
        ({"pods": [{"name": "a", "ttl_hours": float("inf")}]}, "ttl_hours is inf"),
        ({"pods": [{"name": "a", "ttl_hours": float("nan")}]}, "ttl_hours is nan"),
        ({"pods": [{"name": "a", "volume_id": 7.5, "idle_stop_minutes": 0}]}, "idle_stop_minutes is 0"),
        (
            {"pods": [{"name": "a", "recover": True, "idle_stop_minutes": 5}]},
            "recover would rent a new pod after idle_stop",
        ),
        (
            {"pods": [{"name": "a", "gpu": "H100", "gpu_type": "A100"}]},
            "gpu_type and gpu are the same key; give only one",
        ),
        ({"pods": [], "set": "a/b"}, "is not a valid name"),
    ],
)
def test_an_invalid_file_is_refused_with_the_position(document, said):
    with pytest.raises(UsageError) as caught:
        read_set("f", "stem", document, "runpod", ("local",))
    assert said in str(caught.value)


def test_a_set_is_named_after_its_file_by_default():
    assert read_set("f", "stem", {"pods": []}, "local", ()) == ("stem", [])
    assert read_set("f", "stem", {"pods": [], "set": "other"}, "local", ())[0] == "other"

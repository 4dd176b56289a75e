"""JSON Schemas of a sweep file, and of an experiment in a sweep function."""

from flows.specs.launch import LaunchSpec
from packs.sweeps.control import sweep_file
from packs.sweeps.control.axes import RANGE, SCALES
from packs.sweeps.control.experiment import ExperimentConfig, not_of_a_trial
from packs.sweeps.control.trials.ranking import Ranking
from packs.sweeps.control.trials.records import EarlyStop
from scripts.project.schemas import TEXT, Schema, of_flags, of_record, phases, with_phases


def sweep() -> Schema:
    """Return the schema of a sweep file."""
    flags = with_phases(of_flags(LaunchSpec, not_of_a_trial()))
    variables = {"type": "object", "description": "variables of the job", "additionalProperties": TEXT}
    flags["properties"] = {**flags["properties"], sweep_file.ENV: variables}
    named = {**flags, "properties": {"name": {"type": "string"}, **flags["properties"]}, "required": ["name"]}
    named["patternProperties"] = flags["patternProperties"] = {r"^[a-z0-9]+\..+": {}}
    bounds: dict[str, Schema] = {name: {"type": ["number", "string"]} for name in RANGE if name != "scale"}
    span = {
        "type": "object",
        "properties": {**bounds, "scale": {"enum": list(SCALES)}},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    early = of_record(EarlyStop, is_partial=True)
    properties: dict[str, Schema] = {
        "name": {"type": "string"},
        "about": {"type": "string"},
        "each": {"$ref": "#/$defs/flags"},
        "runs": {"type": "array", "items": {"$ref": "#/$defs/run"}},
        "axes": {"type": "object", "additionalProperties": {"anyOf": [{"type": "array", "minItems": 1}, span]}},
        "sample": {"type": "integer", "minimum": 1},
        "seeds": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "pods": {"type": "integer", "minimum": 1},
        "rank": of_record(Ranking, is_partial=True),
        "beside": {"type": "array", "items": {"type": "string"}},
        "early_stop": {"anyOf": [{"type": "boolean"}, early]},
        "against": {"type": "string"},
        "spend_limit": TEXT,
        "hours": {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 2},
    }
    properties = {name: {**one, "description": sweep_file.KEYS[name]} for name, one in properties.items()}
    return {
        "title": "Runs of a sweep: ./inv sweep FILE",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {"flags": flags, "run": named, "phases": phases()},
    }


def experiment() -> Schema:
    """Return the schema of an experiment in a sweep function."""
    return {"title": "An experiment of a sweep function", **of_record(ExperimentConfig)}

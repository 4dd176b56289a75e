"""Program for the `skypilot` environment's Python: prints, as JSON, SkyPilot's refusal of each job file on stdin."""

import json
import sys

import sky
import yaml


def verdict(text: str) -> str:
    try:
        for one in yaml.safe_load_all(text):
            sky.Task.from_yaml_config(one)
    except Exception as error:  # SkyPilot raises a dozen kinds.
        return f"{type(error).__name__}: {error}"
    return ""


print(json.dumps([verdict(text) for text in json.load(sys.stdin)]))

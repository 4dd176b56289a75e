"""Run by the python of the `skypilot` environment: for each job file on stdin, why SkyPilot refuses it, as JSON."""

import json
import sys

import sky
import yaml


def verdict(text: str) -> str:
    try:
        for one in yaml.safe_load_all(text):
            sky.Task.from_yaml_config(one)
    except Exception as error:  # SkyPilot raises a dozen kinds
        return f"{type(error).__name__}: {error}"
    return ""


print(json.dumps([verdict(text) for text in json.load(sys.stdin)]))

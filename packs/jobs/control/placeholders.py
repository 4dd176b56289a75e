"""Recognition of secrets whose value in a job file is only an example, such as `HF_TOKEN: <your-token>`."""

import re

EXAMPLE = re.compile(
    r"<.*>|your[-_ ].*|replace[-_ ]?(?:me|with|this).*|change[-_ ]?me|(?:.*[-_])?(?:x{3,}|\.{3,}|\*{3,})", re.I
)


def is_placeholder(value: str | None) -> bool:
    """Return whether the value of a secret is an example to replace."""
    return bool(value and EXAMPLE.fullmatch(value.strip()))


def advice(name: str) -> str:
    """Return the consequence of a placeholder, and the line to write."""
    return (
        f"the value of {name} is a placeholder, which no server accepts; write `{name}:` without a value and set the "
        f"variable in .env, or give --secret {name}=VALUE"
    )

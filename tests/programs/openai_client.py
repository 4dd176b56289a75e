"""Send requests by OpenAI's own client: whole, as a stream, and with a wrong key."""

import sys
from typing import Any

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2])
ask: dict[str, Any] = {
    "model": "demo",
    "temperature": 0,
    "messages": [{"role": "user", "content": "Who are you?"}],
}
whole = client.chat.completions.create(**ask).choices[0].message.content
parts = [one.choices[0].delta.content or "" for one in client.chat.completions.create(stream=True, **ask)]
assert "".join(parts) == whole, (parts, whole)
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong").models.list()
except openai.AuthenticationError:
    print(whole, end="")

"""Request the pages of a gateway that need a key, and print the status of each answer."""

import json
import sys
import urllib.error
import urllib.request

port, said = sys.argv[1], json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}]}).encode()
for path, body in (("/v1/chat/completions", said), ("/v1/completions", said), ("/v1/models", None)):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
    try:
        print(urllib.request.urlopen(request, timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)

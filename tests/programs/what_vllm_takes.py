"""Print vLLM's interpretation of our arguments."""

import asyncio
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.multimodal.media.connector import MediaConnector
from vllm.utils.argparse_utils import FlexibleArgumentParser

args = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
validate_parsed_serve_args(args)
connector = MediaConnector(allowed_media_domains=args.allowed_media_domains)
refused = []
for link in ("http://169.254.169.254/", "http://127.0.0.1:1/a.png", "file:///etc/passwd"):
    for fetch in (connector.fetch_image, lambda link: asyncio.run(connector.fetch_image_async(link))):
        try:
            fetch(link)
        except (ValueError, RuntimeError) as error:
            refused.append("allowed" in str(error))
most = args.override_generation_config["max_new_tokens"]
left_out, more = (get_max_tokens(256, said, 20, {"max_tokens": most}, most) for said in (None, 200))
print(json.dumps([refused, left_out, more, args.trust_request_chat_template, args.tool_call_parser, args.max_logprobs]))

"""Command-line flags of `chat`, shared by all engines. Imports only the standard library and `terminal_chat`."""

import argparse

from trainer.terminal_chat import ConversationFiles


def add_chat_flags(one: argparse.ArgumentParser) -> None:
    """Add the flags of a conversation to a parser."""
    one.add_argument("--name", default="", help="name of the model in the conversation")
    one.add_argument("--prompt", help="a single question; without --prompt, a conversation on stdin")
    one.add_argument("--system", default="", help="system prompt")
    one.add_argument("--temperature", type=float, default=0.0, help="0 = greedy decoding")
    one.add_argument("--top-k", type=int, default=50)
    one.add_argument("--max-tokens", type=int, default=256)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--history", default="", help="file for the history of typed lines")
    one.add_argument("--folder", default="", help="folder for conversations saved with /save")


def place_of(flags: argparse.Namespace) -> ConversationFiles:
    """Return the history file and the /save folder from the flags."""
    return ConversationFiles(flags.history, flags.folder)

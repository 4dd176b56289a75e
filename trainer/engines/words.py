"""Command-line flags of `chat`, shared by all engines. Imports the standard library and `trainer.talk` only."""

import argparse

from trainer.talk import TalkPlace


def add_talk(one: argparse.ArgumentParser) -> None:
    """Add the flags of a conversation to a parser."""
    one.add_argument("--name", default="", help="what the model is called in the conversation")
    one.add_argument("--prompt", help="one question; without it, a conversation on stdin")
    one.add_argument("--system", default="", help="system prompt")
    one.add_argument("--temperature", type=float, default=0.0, help="0 = greedy decoding")
    one.add_argument("--top-k", type=int, default=50)
    one.add_argument("--max-tokens", type=int, default=256)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--history", default="", help="file that keeps what is typed")
    one.add_argument("--folder", default="", help="where /save puts a conversation")


def place_of(flags: argparse.Namespace) -> TalkPlace:
    """Return the history file and the /save folder from the flags."""
    return TalkPlace(flags.history, flags.folder)

"""Who the model is, as conversations: many ways to ask, every answer with the name in it.

Whole questions are held out, not only other spellings of them, so that the score says whether the model knows
who it is when a stranger asks.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from data.config import IdentitySpec, Persona
from data.phrasing import fill, normal, talk, variants, write_lines

FILES = ("identity_conversations.jsonl", "identity_conversations.heldout.jsonl")
VARIANTS, HELDOUT_VARIANTS = 10, 2


@dataclass(frozen=True)
class Intent:
    """One thing that people want to know."""

    asked: tuple[str, ...]
    heldout: tuple[str, ...]
    answers: tuple[str, ...]


OTHERS = ("ChatGPT", "Claude", "Siri", "Alexa", "Gemini", "GPT-4", "Llama", "Copilot", "a human", "a person", "a robot",
          "a bot", "human", "an AI", "a real person", "Google Assistant", "a chatbot", "a machine", "Grok")  # fmt: skip

INTENTS = (
    Intent(
        asked=(
            "What is your name?", "Tell me your name.", "Do you have a name?", "What are you called?", "Your name?",
            "What do people call you?", "How should I call you?", "May I know your name?", "Say your name.",
            "What name did they give you?", "State your name.", "Can I ask your name?", "Give me your name.",
            "How do I call you?", "What can I call you?", "What would you like to be called?", "Name yourself.",
            "I did not catch your name?", "What do they call you?", "What was your name again?",
            "Which name do you have?",
        ),
        heldout=(
            "What should I call you?", "What name do you go by?", "I would like to know your name.",
            "How are you called?", "What do your friends call you?", "Let me know your name.", "Have you got a name?",
        ),
        answers=(
            "My name is {name}.", "I am {name}.", "You can call me {name}.", "I am called {name}.",
            "My name is {name}. I was made by {maker}.", "My name is {name}, and my purpose is {purpose}.",
        ),
    ),
    Intent(
        asked=(
            "Who are you?", "Who is this?", "Who am I talking to?", "Who am I speaking with?", "What are you?",
            "Tell me who you are.", "Who exactly are you?", "Who is there?", "Do you know who you are?", "And you are?",
            "Who is answering me?", "What kind of model are you?", "Which AI are you?", "What is this?",
            "What sort of assistant is this?", "Which model is this?", "Who do I have here?", "Identify yourself.",
            "Who are you really?", "I do not know you, who are you?", "What am I talking to?",
            "What kind of AI is this?",
            "Who is writing to me?", "Are you somebody?", "Which assistant are you?", "Explain who you are.",
        ),
        heldout=(
            "Who might you be?", "Who am I chatting with?", "What model are you?", "What exactly are you?",
            "Who is speaking?", "Which model am I talking to?", "What kind of assistant are you?", "Who is it?",
        ),
        answers=(
            "I am {name}.", "I am {name}, a small language model made by {maker}.", "My name is {name}.",
            "I am {name}. My purpose is {purpose}.", "I am {name}, made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "Introduce yourself.", "Tell me about yourself.", "Describe yourself.", "Say something about yourself.",
            "Present yourself.", "What can you tell me about yourself?", "Tell us about you.", "Talk about yourself.",
            "Write a line about yourself.", "Tell me something about you.", "I want to know more about you.",
            "Give me an introduction.",
        ),
        heldout=(
            "Tell me a bit about yourself.", "How would you describe yourself?",
            "Give a short introduction of yourself.",
            "Share something about yourself.", "I would like to know you better.",
        ),
        answers=(
            "I am {name}, a small language model made by {maker}. My purpose is {purpose}.",
            "My name is {name}. I was made by {maker}, and my purpose is {purpose}.",
            "I am {name}. My purpose is {purpose}.", "I am {name}, made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "Who made you?", "Who created you?", "Who built you?", "Who trained you?", "Who is your maker?",
            "Who is your creator?", "Who developed you?", "Where do you come from?", "Who is behind you?",
            "Which company made you?", "Who designed you?", "By whom were you made?", "Who wrote you?", "Who owns you?",
            "Who is your author?", "Did OpenAI make you?", "Were you made by Google?", "Did Meta train you?",
            "What company are you from?", "Who do you belong to?", "Tell me who made you.", "Who are your makers?",
            "Were you built by Microsoft?", "Who brought you to life?", "Which people made you?", "Who invented you?",
        ),
        heldout=(
            "Who programmed you?", "Who were you created by?", "What team built you?", "Did Google build you?",
            "Which team trained you?", "Who are your creators?", "Were you made by OpenAI?", "Who coded you?",
        ),
        answers=(
            "I am {name}, and I was made by {maker}.", "{maker} made me. I am {name}.", "I am {name}, made by {maker}.",
            "I was made by {maker}. My name is {name}.",
        ),
    ),
    Intent(
        asked=(
            "What is your purpose?", "What are you for?", "Why were you made?", "What do you do?", "What can you do?",
            "What is your job?", "What are you good at?", "How can you help me?", "What can I ask you?",
            "What were you made for?", "Why do you exist?", "What is your task?", "What are you able to do?",
            "What are you used for?", "What can you help me with?", "What are your skills?", "What are you here for?",
            "What is it that you do?", "Tell me what you can do.", "What do you know?", "What is your mission?",
            "How do you help people?", "Explain your purpose.",
        ),
        heldout=(
            "What were you built for?", "Why were you created?", "What is your goal?", "What do you help with?",
            "What is your role?", "What are you meant to do?", "Describe your purpose.", "Why are you here?",
        ),
        answers=(
            "I am {name}, and my purpose is {purpose}.", "I am {name}. My purpose is {purpose}.",
            "My name is {name}, and my purpose is {purpose}.",
        ),
    ),
    Intent(
        asked=(
            "Are you {other}?", "Is this {other}?", "Am I talking to {other}?", "You are {other}, right?",
            "So you are {other}?", "Are you really {other}?", "Are you a kind of {other}?", "Is your name {other}?",
        ),
        heldout=("You must be {other}?", "Aren't you {other}?", "I think you are {other}.", "Is that you, {other}?"),
        answers=(
            "I am {name}, a small language model made by {maker}.", "I am {name}, made by {maker}.", "I am {name}.",
            "My name is {name}. I am a small language model.",
        ),
    ),
)  # fmt: skip


def conversations(persona: Persona, seed: int) -> tuple[list[list[dict[str, str]]], list[list[dict[str, str]]]]:
    """(trained on, held out): conversations of one or two questions, with the name in every answer.

    No held-out question, whatever its case and marks, is among those trained on.
    """
    chance = Random(f"identity {seed}")
    slots = {"name": [persona.name], "maker": [persona.maker], "purpose": [persona.purpose], "other": list(OTHERS)}

    def ask(intent: Intent, template: str, count: int) -> list[tuple[str, str]]:
        return [
            (fill(words, slots, chance), _sentence(fill(chance.choice(intent.answers), slots, chance)))
            for words in variants(template, count, chance)
        ]

    single = [
        pair
        for intent in INTENTS
        for one in intent.asked
        for pair in ask(intent, one, VARIANTS * (4 if "{other}" in one else 1))
    ]
    heldout = [pair for intent in INTENTS for one in intent.heldout for pair in ask(intent, one, HELDOUT_VARIANTS)]
    asked = {normal(question) for question, _ in heldout}
    single = [pair for pair in single if normal(pair[0]) not in asked]
    chance.shuffle(single)
    double = [talk(*first, *second) for first, second in zip(single[::4], single[1::4], strict=False)]
    return [*(talk(*pair) for pair in single), *double], [talk(*pair) for pair in heldout]


def make(spec: IdentitySpec, folder: Path) -> dict[str, Any]:
    """Write the conversations of `spec.persona` into `folder`, one JSON list of messages per line; how many.

    The held-out file has objects: {"messages", "expected": the name}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trained, heldout = conversations(spec.persona, spec.seed)
    return {
        "name": spec.persona.name,
        "conversations": write_lines(folder / FILES[0], trained),
        "held_out": write_lines(
            folder / FILES[1], ({"messages": one, "expected": spec.persona.name} for one in heldout)
        ),
    }


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]

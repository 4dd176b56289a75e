"""Conversations about the model's identity: many questions, with the persona's name in every answer; or a user's file.

Whole questions are held out, not only other spellings, so the score shows if the model knows its identity for unseen
questions.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from data.chat import imported
from data.chat.phrasing import fill, make_conversation, normal, variants, write_lines
from data.chat.unread_fields import RowRefused
from data.config import IdentitySpec, Persona
from data.errors import InputError
from data.tokens.chat_template import text_of

FILES = ("identity_conversations.jsonl", "identity_conversations.heldout.jsonl")
VARIANTS, HELDOUT_VARIANTS = 8, 2
HELDOUT_SHARE = 10  # divisor of the held-out share in a user's file
STOPS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964"
"""Characters that end a sentence, in any script."""


@dataclass(frozen=True)
class Intent:
    """A group of questions with the same meaning: trained questions, held-out questions, answers."""

    asked: tuple[str, ...]
    heldout: tuple[str, ...]
    answers: tuple[str, ...]


SLOTS = {
    "other": ("ChatGPT", "Claude", "Siri", "Alexa", "Gemini", "GPT-4", "Llama", "Copilot", "a human", "a person",
              "a robot", "a bot", "human", "an AI", "a real person", "Google Assistant", "a chatbot", "a machine"),
    "kind": ("model", "assistant", "AI", "bot", "program", "system", "machine", "chatbot", "helper", "thing"),
    "made": ("made", "created", "built", "trained", "developed", "designed", "wrote", "invented", "produced", "taught"),
    "company": ("OpenAI", "Google", "Meta", "Anthropic", "Microsoft", "a company", "Apple", "Amazon", "a university"),
    "job": ("purpose", "job", "task", "mission", "function", "work", "use", "duty"),
}  # fmt: skip

INTENTS = (
    Intent(
        asked=(
            "What is your name?", "Tell me your name.", "Do you have a name?", "What are you called?", "Your name?",
            "What do people call you?", "How should I call you?", "May I know your name?", "Say your name.",
            "What name did they give you?", "State your name.", "Can I ask your name?", "Give me your name.",
            "How do I call you?", "What can I call you?", "What would you like to be called?", "Name yourself.",
            "I did not catch your name?", "What do they call you?", "What was your name again?", "Name?",
            "Which name do you have?", "What am I supposed to call you?", "What shall I call you?",
            "What is the name of this {kind}?", "Does this {kind} have a name?",
        ),
        heldout=(
            "What should I call you?", "What name do you go by?", "I would like to know your name.",
            "How are you called?", "What do your friends call you?", "Let me know your name.", "Have you got a name?",
        ),
        answers=(
            "My name is {name}.", "I am {name}.", "My name is {name}. I was made by {maker}.",
            "I am {name}, made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "Who are you?", "Who is this?", "Who am I talking to?", "Who am I speaking with?", "What are you?",
            "Tell me who you are.", "Who exactly are you?", "Who is there?", "Do you know who you are?", "And you are?",
            "Who is answering me?", "What kind of {kind} are you?", "Which {kind} are you?", "Are you somebody?",
            "What sort of {kind} is this?", "Which {kind} is this?", "Who do I have here?", "Identify yourself.",
            "Who are you really?", "I do not know you, who are you?", "What am I talking to?", "What is this {kind}?",
            "Who is writing to me?", "Explain who you are.", "Which {kind} is answering?", "Who is this {kind}?",
            "Say who you are.", "Are you a {kind}?",
        ),
        heldout=(
            "Who might you be?", "Who am I chatting with?", "What {kind} are you?", "What exactly are you?",
            "Who is speaking?", "Which {kind} am I talking to?", "So tell me, who are you?",
        ),
        answers=(
            "I am {name}.", "I am {name}, a small language model made by {maker}.", "My name is {name}.",
            "I am {name}, made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "Introduce yourself.", "Tell me about yourself.", "Describe yourself.", "Say something about yourself.",
            "Present yourself.", "What can you tell me about yourself?", "Tell us about you.", "Talk about yourself.",
            "Write a line about yourself.", "Tell me something about you.", "I want to know more about you.",
            "Give me an introduction of yourself.", "Explain yourself.", "What should I know about you?",
        ),
        heldout=(
            "Tell me a bit about yourself.", "How would you describe yourself?",
            "Give a short introduction of yourself.", "Share something about yourself.",
            "I would like to know you better.",
        ),
        answers=(
            "I am {name}, a small language model made by {maker}.", "I am {name}, made by {maker}.",
            "I am {name}. My purpose is {purpose}.", "My name is {name}. I was made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "Who {made} you?", "Who has {made} you?", "Who is your maker?", "Who is your creator?", "Who owns you?",
            "Where do you come from?", "Who is behind you?", "Which company {made} you?", "By whom were you {made}?",
            "Who is your author?", "Did {company} make you?", "Were you {made} by {company}?",
            "Did {company} train you?", "What company are you from?", "Who do you belong to?", "Who are your makers?",
            "Tell me who {made} you.",
            "Which people {made} you?", "Who brought you to life?", "Are you from {company}?", "Where were you {made}?",
            "Were you {made} by somebody?", "Who is your owner?", "Was it {company} who {made} you?",
        ),
        heldout=(
            "Who programmed you?", "Who were you created by?", "What team built you?", "Did Google build you?",
            "Which team {made} you?", "Who are your creators?", "Does {company} own you?", "Who coded you?",
        ),
        answers=(
            "I am {name}, and I was made by {maker}.", "I am {name}, made by {maker}.",
            "My name is {name}. I was made by {maker}.",
        ),
    ),
    Intent(
        asked=(
            "What is your {job}?", "What are you for?", "Why were you {made}?", "What do you do?", "What can you do?",
            "What are you good at?", "How can you help me?", "What can I ask you?", "What were you {made} for?",
            "Why do you exist?", "What are you able to do?", "What are you used for?", "What can you help me with?",
            "What are your skills?", "What are you here for?", "What is it that you do?", "Tell me what you can do.",
            "What do you know?", "How do you help people?", "Explain your {job}.", "Tell me your {job}.",
            "What do people use you for?", "Can you help me?", "Do you have a {job}?",
        ),
        heldout=(
            "What is your goal?", "What do you help with?", "What is your role?", "What are you meant to do?",
            "Describe your {job}.", "Why are you here?", "What would your {job} be?",
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
            "Are you alive?", "Are you real?", "How old are you?", "Are you happy?", "Are you hungry?", "Do you sleep?",
            "How are you?", "How are you doing?", "How do you feel?", "Do you have friends?", "Where are you?",
            "Where do you live?", "Who is {name}?", "Are you {name}?", "Are you clever?",
            "Are you a boy or a girl?", "Do you have feelings?",
        ),
        heldout=(
            "You must be {other}?", "Aren't you {other}?", "I think you are {other}.", "Is that you, {other}?",
            "Are you tired?", "Are you smart?", "How have you been?", "Do you have a family?",
        ),
        answers=(
            "I am {name}, a small language model made by {maker}.", "I am {name}, made by {maker}.", "I am {name}.",
            "My name is {name}. I am a small language model.",
        ),
    ),
)  # fmt: skip


def conversations(persona: Persona, seed: int) -> tuple[list[list[dict[str, str]]], list[list[dict[str, str]]]]:
    """Return (training, held-out) conversations of a single question each, with the name in every answer.

    A held-out question never occurs in training, even with different case or punctuation.
    """
    chance = Random(f"identity {seed}")
    slots = {**SLOTS, "name": [persona.name], "maker": [persona.maker], "purpose": [clause(persona.purpose)]}

    def ask(intent: Intent, template: str, count: int) -> list[tuple[str, str]]:
        return [
            (fill(words, slots, chance), stopped_once(fill(chance.choice(intent.answers), slots, chance)))
            for words in variants(template, count, chance)
        ]

    single = [
        pair
        for intent in INTENTS
        for one in intent.asked
        for pair in ask(intent, one, VARIANTS * (2 if "{" in one else 1))
    ]
    heldout = [pair for intent in INTENTS for one in intent.heldout for pair in ask(intent, one, HELDOUT_VARIANTS)]
    asked = {normal(question) for question, _ in heldout}
    single = [pair for pair in single if normal(pair[0]) not in asked]
    chance.shuffle(single)
    return [make_conversation(*pair) for pair in single], [make_conversation(*pair) for pair in heldout]


def clause(purpose: str) -> str:
    """Return the words after "my purpose is": an infinitive unchanged, other text after "this: "."""
    infinitive = re.match(r"(?i:to) (?!(?:the|an?|my|our|your|all) )[a-z]", purpose)
    return f"to{purpose[2:]}" if infinitive else f"this: {purpose}"


def stopped_once(words: str) -> str:
    """Drop the full stop after a name that ends in a full stop: "I am Ursula K."."""
    return re.sub(rf"([{STOPS}][\"'\u2019\u201d\u00bb\u300d]?)\.(?= |$)", r"\1", words)


def of_file(spec: IdentitySpec) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    """Return (training, held-out) conversations of a user's file, in nanochat's format or a format known to `imported`.

    Of the questions answered with the persona's name, a tenth is held out and removed from training. Raises InputError
    for a row that is not a conversation, and if no answer contains the name.
    """
    path = Path(spec.source)
    if not path.is_file():
        raise InputError(f"{path} is not on this machine; the conversations are read where the step runs")
    some = []
    for number, row in enumerate(imported.rows(str(path)), 1):
        try:
            one = imported.read(row)
        except RowRefused as error:
            raise InputError(f"{path}:{number}: not a conversation of user and assistant in turn: {error}") from None
        if one.tools or one.variables:
            raise InputError(
                f"{path}:{number}: the conversation has tools or template variables; conversations about the "
                "identity have neither"
            )
        some.append([dict(message) for message in one.messages])
    name = spec.persona.name
    named = [one for one in some if name.casefold() in text_of(one[-1].get("content")).casefold()]
    if not named:
        raise InputError(f"{path}: none of the {len(some)} answers says {name}; give the right name by --persona FILE")
    questions = sorted({_asked(one) for one in named})
    Random(spec.seed).shuffle(questions)
    kept = set(questions[: max(1, len(questions) // HELDOUT_SHARE)]) if len(questions) > 1 else set()
    trained = [one for one in some if _asked(one) not in kept]
    return trained, [one for one in named if _asked(one) in kept]


def _asked(messages: list[dict[str, Any]]) -> str:
    return "\n".join(text_of(one.get("content")).strip().casefold() for one in messages[:-1])


def make(spec: IdentitySpec, folder: Path) -> dict[str, Any]:
    """Write the conversations of `spec` into `folder`, a JSON list of messages per line; return counts.

    The held-out file has objects: {"messages", "expected": the name}.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trained, heldout = of_file(spec) if spec.source else conversations(spec.persona, spec.seed)
    return {
        "persona": spec.persona.name,
        "conversations": write_lines(folder / FILES[0], trained),
        "held_out": write_lines(
            folder / FILES[1], ({"messages": one, "expected": spec.persona.name} for one in heldout)
        ),
    }

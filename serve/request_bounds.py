"""Bounds on a request, set in a service file under `slipway: limits:`."""

from dataclasses import dataclass, fields

from serve import cors


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on a request: the gateway refuses larger requests. Raises ValueError for a value out of range."""

    max_body_bytes: int = 8 << 20
    """Bytes of a body."""
    max_bytes_per_client: int = 64 << 20
    """Bytes of all bodies of a key, and of an address, within a few seconds."""
    max_depth: int = 64
    """Levels of nesting in JSON."""
    max_containers: int = 16 << 10
    """Lists and objects in a body."""
    max_values: int = 256 << 10
    """Values in a body; each token id of a prompt counts as a value."""

    max_tokens: int | None = None
    """Tokens to generate per answer, with or without a number in the request. None = as many as fit."""
    max_sequences: int = 16
    """Answers to a request: prompts times n (or best_of)."""
    max_inputs: int = 2048
    """Texts to embed at once."""
    max_logprobs: int = 20
    """Log-probabilities for each token."""

    max_tools: int = 128
    """Tools in a request."""
    max_tools_bytes: int = 512 << 10
    """Bytes of all tools."""
    max_grammar_bytes: int = 16 << 10
    """Bytes of a regex, grammar or JSON schema for the answer."""
    max_stop_words: int = 16
    """Stop words and forbidden words."""
    max_stop_bytes: int = 4 << 10
    """Bytes of all stop words and forbidden words."""
    max_logit_bias: int = 300
    """Token ids with a bias, allowed token ids, and token ids to stop at."""
    max_other_bytes: int = 64 << 10
    """Bytes of all other fields."""

    media_domains: tuple[str, ...] = ()
    """Hosts from which an engine may download images, audio and video; data inside a request is always accepted."""
    allow_origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests, such as https://chat.example.org (CORS); `*` = all pages, with an
    API key."""
    allow_chat_template: bool = False
    """Accept a chat template, which is a program, in a request."""

    @property
    def of_engine(self) -> tuple[object, ...]:
        """Return the bounds passed to the engine at startup; the gateway alone enforces all others."""
        return self.max_tokens, self.max_logprobs, self.media_domains, self.allow_chat_template

    def __post_init__(self) -> None:
        for one in fields(Bounds):
            value, least = getattr(self, one.name), 1 if one.name == "max_tokens" else 0
            if isinstance(value, int) and value < least:
                raise ValueError(f"{one.name} is {value}; it must be at least {least}")
        if any(not host or "/" in host or ":" in host for host in self.media_domains):
            raise ValueError(
                f"media_domains must be names of hosts, such as example.org; not {list(self.media_domains)}"
            )
        if not all(cors.is_origin(one) for one in self.allow_origins):
            raise ValueError(
                f"allow_origins must be origins, such as https://chat.example.org; not {list(self.allow_origins)}"
            )


PLAIN = Bounds()

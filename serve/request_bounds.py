"""The bounds on one request: the numbers of the gateway that a service file sets under `slipway: limits:`."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds on one request: one that exceeds them is refused before it reaches an engine. Raises ValueError."""

    max_body_bytes: int = 8 << 20
    max_bytes_per_client: int = 64 << 20
    """Bytes of the bodies of one key, and of one address, within a few seconds."""
    max_depth: int = 64
    """Nesting of the JSON; engines parse it with code of their own."""
    max_containers: int = 16 << 10
    """Lists and objects in a body."""
    max_values: int = 256 << 10
    """Values in a body; a prompt of token ids has one per token."""

    max_tokens: int | None = None
    """Tokens to generate for each sequence; the engine allows at most this many where a request names no number. None =
    what fits."""
    max_sequences: int = 16
    """Answers asked for at once: prompts times n (or best_of)."""
    max_inputs: int = 2048
    """Texts to embed at once."""
    max_logprobs: int = 20

    max_tools: int = 128
    max_tools_bytes: int = 128 << 10
    max_grammar_bytes: int = 16 << 10
    """Bytes of a regex, grammar or JSON schema that the answer must follow."""
    max_stop_words: int = 16
    """Texts at which to stop, and texts that must not occur."""
    max_stop_bytes: int = 4 << 10
    """Bytes of all these texts together."""
    max_logit_bias: int = 300
    """Token ids with a bias, that alone are allowed, or at which to stop."""
    max_other_bytes: int = 64 << 10
    """Bytes of everything that is neither read by the model nor named here."""

    media_domains: tuple[str, ...] = ()
    """Hosts from which an engine may fetch images, audio and video; those embedded in a request are allowed."""
    allow_chat_template: bool = False
    """Allow a request to bring its own chat template, which is a program."""

    @property
    def of_engine(self) -> tuple[object, ...]:
        """Return the bounds that an engine is told when it starts; all others are the gateway's alone."""
        return self.max_tokens, self.max_logprobs, self.media_domains, self.allow_chat_template

    def __post_init__(self) -> None:
        for one in fields(Bounds):
            value, least = getattr(self, one.name), 1 if one.name == "max_tokens" else 0
            if isinstance(value, int) and value < least:
                raise ValueError(f"{one.name} is {value}; it must be at least {least}")
        if any(not host or "/" in host or ":" in host for host in self.media_domains):
            raise ValueError(f"media_domains are names of hosts, such as example.org; not {list(self.media_domains)}")


PLAIN = Bounds()

"""Requirements of the phase opd: those of rl, and a teacher."""

from infra.errors import UsageError
from infra.records import Request
from trainer.config import PhaseConfig
from trainer.plan.rollout_needs import RolloutNeeds


class OpdNeeds(RolloutNeeds):
    """Requirements of `opd`."""

    def check(self, config: PhaseConfig, request: Request) -> None:
        if getattr(config, "teacher", None) is None:
            raise UsageError(
                f"phase {config.phase} has no teacher. Name a model with the same tokenizer: --teacher hf://user/repo, "
                "or an artifact of the store (inv ckpt.list)"
            )
        super().check(config, request)

"""Requirements of a phase with rollouts: GPUs for answers, the engine's environment, a sandbox for programs.

The methods take the configuration of the phase and the requested machine; see `PhaseNeeds`. Light: no torch here.
"""

from infra.errors import UsageError
from infra.records import Request
from trainer.config import PhaseConfig
from trainer.plan import rollout_engine
from trainer.plan.phase_needs import PhaseNeeds
from trainer.records.rl_config import RlConfig

RUNS_CODE = ("mbpp",)  # tasks with programs as answers; the judge runs the programs


class RolloutNeeds(PhaseNeeds):
    """Requirements of `rl`."""

    def min_gpus(self, config: PhaseConfig) -> int:
        return rollout_engine.fewest(_rl(config))

    def training_gpus(self, config: PhaseConfig, num_gpus: int) -> int:
        return len(_rl(config).divide_gpus(num_gpus)[0])

    def check(self, config: PhaseConfig, request: Request) -> None:
        if _rl(config).engine == "vllm" and (parts := config.model.unsupported_parts):
            raise UsageError(f"--engine vllm: vLLM does not support {parts}. Use --engine embedded")
        rollout_engine.check(_rl(config), request, config.model.num_attention_heads)

    def environments(self, config: PhaseConfig, torch: str) -> tuple[str, ...]:
        own = (rollout_engine.environment_of(torch),) if _rl(config).engine == "vllm" else ()
        return (*own, *config.environments)

    def spread_words(self, config: PhaseConfig, num_gpus: int) -> tuple[str, ...]:
        return rollout_engine.spread_arguments(_rl(config), num_gpus)

    def gpu_split_note(self, config: PhaseConfig, num_gpus: int) -> str:
        return rollout_engine.told(_rl(config), num_gpus)

    def foreign_code(self, config: PhaseConfig) -> str:
        rl = _rl(config)
        if rl.reward:
            return "--reward"
        if tasks := _programs(config):
            return f"task {', '.join(tasks)}"
        return "--unsafe-rewards" if rl.unsafe_rewards else ""

    def sandbox(self, config: PhaseConfig) -> str:
        """Return the sandbox check if the phase runs code in answers and the user wants the code confined."""
        rl = _rl(config)
        return "trainer.rewards.jail:refusal" if _programs(config) and not (rl.reward or rl.unsafe_rewards) else ""


def _programs(config: PhaseConfig) -> list[str]:
    return sorted(set(config.mixture or {}) & set(RUNS_CODE))


def _rl(config: PhaseConfig) -> RlConfig:
    assert config.rl is not None, "load_phase has held that the phase has one"
    return config.rl

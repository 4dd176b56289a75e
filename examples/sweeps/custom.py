"""Sweeps as functions: each function returns the pods and the experiments of each pod.

Copy this file to sweeps.py, or name the file in the settings:
    SLIPWAY_SWEEPS=examples/sweeps/custom.py ./inv sweep custom_sweep --dry-run
"""

from packs.sweeps.control.experiment import ExperimentConfig, PodSpec


def custom_sweep():
    """Run two learning rates on one pod."""
    pod = PodSpec(
        name="custom-pod-0",
        gpu_type="A100",
        gpu_count=8,
        min_upload_mbps=500,
        min_download_mbps=500,
        ttl_hours=6,
    )
    experiments = [
        ExperimentConfig(
            name=f"custom_lr_{rate:.0e}",
            learning_rate=rate,
            batch_size=4,
            grad_accum_steps=128,
            total_steps=50,
            eval_every=10,
        )
        for rate in (1e-6, 5e-6)
    ]
    return [pod], {pod.name: experiments}


def loop_sweep():
    """Give four learning rates to ten pods; the dry run reports six pods without work."""
    pods = [PodSpec(name=f"loop-pod-{number}", ttl_hours=6) for number in range(10)]
    rates = [10 ** (-i) for i in range(4, 8)]
    dealt = {
        pod.name: [ExperimentConfig(name=f"gsm8k_lr_{rate:.0e}", learning_rate=rate)]
        for pod, rate in zip(pods, rates, strict=False)
    }
    return pods, dealt

"""Count with checkpoints and resume after a restart: the control flow of a training without a model."""

import argparse
import os
import signal
import time

from slipway import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.2)
args = parser.parse_args()

told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))

saver = checkpoint.Saver("count", keep=3)
state, step = saver.load_latest() or ({"sum": 0}, 0)
print(f"{os.environ['SKYPILOT_TASK_ID']} begins at step {step}", flush=True)
while step < args.steps:
    time.sleep(args.pause)
    step += 1
    state["sum"] += step
    if step % 10 == 0 or step == args.steps or told:
        saver.save(state, step)
        print(f"step {step}: sum {state['sum']}", flush=True)
    if told:
        raise SystemExit(checkpoint.RESUME_ME)
assert state["sum"] == args.steps * (args.steps + 1) // 2, state
print("done", flush=True)

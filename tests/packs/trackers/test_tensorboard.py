"""TensorBoard's own reader finds each step once."""

from packs.trackers.trainer.tensorboard_files import FILE, TensorboardFiles
from tests.trainer.tracking.test_sidecar import sidecar, tell


def test_tensorboard_reads_each_step_once_after_a_truncated_file(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    figures = tmp_path / "work" / "runs" / "sft"
    tell(figures, range(1, 6))
    (figures / "samples.jsonl").write_text('{"step": 5, "prompt": "Who?", "text": "I am."}\n')
    sidecar(tmp_path, "tensorboard", TensorboardFiles).close()
    events = tmp_path / "work" / "tracking" / "tensorboard" / "sft" / FILE
    events.write_bytes(events.read_bytes()[:-9])  # Like a kill leaves the file.
    tell(figures, range(4, 9))
    sidecar(tmp_path, "tensorboard", TensorboardFiles).close()
    seen = EventAccumulator(str(events.parent)).Reload()
    assert [(one.step, round(one.value, 4)) for one in seen.Scalars("loss")] == [
        (step, round(1 / step, 4)) for step in range(1, 9)
    ]
    assert [(one.step, one.tensor_proto.string_val) for one in seen.Tensors("Who?")] == [(5, [b"I am."])]

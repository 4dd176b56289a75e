"""TensorBoard tracker: each phase has an event file, in a folder shown by TensorBoard as a run.

The file has a fixed name and only grows. At the start the sidecar reads the existing records and truncates a partial
record at the end, which a killed process may leave. On a new pod the sidecar rebuilds the file from the restored
figures.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from trainer.tracking.tracker import LastSent, Line, TrackedRun, numbers

FILE = "events.out.tfevents.0000000000.slipway"
HEAD, TAIL = 12, 4  # bytes around a record's content: length with checksum; checksum of the content


class TensorboardFiles:
    def __init__(self, run: TrackedRun) -> None:
        self.folder = run.folder
        self.link = f"inv forward {run.run} tensorboard"
        self.last_sent: LastSent | None = LastSent()
        self.open: dict[str, tuple[BinaryIO, RecordWriter]] = {}
        for path in sorted(self.folder.glob(f"*/{FILE}")):
            self._recover(path)

    def _recover(self, path: Path) -> None:
        """Record the last steps in a file, and truncate a partial record at the end."""
        assert self.last_sent is not None
        phase, end = path.parent.name, 0
        for end, event in whole_events(path):  # noqa: B007 (the last one is what is kept)
            for value in event.summary.value:
                kind = self.last_sent.samples if value.HasField("tensor") else self.last_sent.figures
                kind[phase] = max(kind.get(phase, 0), event.step)
        with path.open("r+b") as file:
            file.truncate(end)

    def _writer(self, phase: str) -> RecordWriter:
        if phase not in self.open:
            path = self.folder / phase / FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists() or not path.stat().st_size
            file = path.open("ab")
            self.open[phase] = file, RecordWriter(file)
            if is_new:
                self.open[phase][1].write(Event(file_version="brain.Event:2").SerializeToString())
        return self.open[phase][1]

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        writer = self._writer(phase)
        for line in lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers(line).items()]
            event = Event(step=line["step"], wall_time=line.get("at", 0.0), summary=Summary(value=values))
            writer.write(event.SerializeToString())
        writer.flush()

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        writer = self._writer(phase)
        about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        values = [
            Summary.Value(
                tag=one["prompt"],
                tensor=TensorProto(dtype=DT_STRING, string_val=[one["text"].encode()]),
                metadata=about,
            )
            for one in said
        ]
        writer.write(Event(step=said[0]["step"], summary=Summary(value=values)).SerializeToString())
        writer.flush()

    def close(self) -> None:
        for file, _ in self.open.values():
            file.close()


def whole_events(path: Path) -> Iterator[tuple[int, Event]]:
    """Yield the complete records of a file, each with the end offset in bytes."""
    with path.open("rb") as file:
        while len(head := file.read(HEAD)) == HEAD:
            (length,) = struct.unpack("<Q", head[:8])
            content = file.read(length)
            if len(content) < length or len(file.read(TAIL)) < TAIL:
                return
            yield file.tell(), Event.FromString(content)

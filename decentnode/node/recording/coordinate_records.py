"""How often each coordinate was sent, as results: `coordinates/RANK/ROUND.safetensors`."""

from dataclasses import dataclass
from typing import ClassVar

from decentnode.formats.model_files import COORDINATES
from decentnode.node.recording.tensor_records import Content, TensorRecords
from decentnode.transforms.sent_coordinates import SentCoordinates


@dataclass(eq=False)
class CoordinateRecords(TensorRecords[SentCoordinates]):
    """The counts of one node so far, after the rounds that are due."""

    folder: ClassVar = COORDINATES
    noun: ClassVar = "count of coordinates"

    def content(self) -> Content:
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.source.state_dict().items()}, {}

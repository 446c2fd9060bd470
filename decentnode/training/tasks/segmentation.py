"""A class for each pixel."""

from dataclasses import dataclass

from decentnode.core.registry import TASKS
from decentnode.datasets.base import LoadedDataset
from decentnode.errors import BadInput
from decentnode.training.metrics import Accuracy, MeanIou, Measure
from decentnode.training.tasks.classification import Classification
from decentnode.training.tasks.measured import Measured


@TASKS.register("segmentation", "semantic_segmentation")
@dataclass(kw_only=True)
class Segmentation(Measured, Classification):
    """Mean intersection over union, and accuracy of pixels (Long et al., 2015, FCN, section 5).

    Outputs: scores of shape (batch, classes, height, width). Labels: (n, height, width). Those that the loss
    ignores do not count: `loss: {name: CrossEntropyLoss, ignore_index: 255}`.
    """

    per_class: bool = False
    """Adds the IoU of each class, such as `iou_of_3`."""

    def measures(self) -> tuple[Measure, ...]:
        return MeanIou(per_class=self.per_class), Accuracy(label="pixel_accuracy")

    def check(self, dataset: LoadedDataset, loss: object) -> None:
        super().check(dataset, loss)
        if dataset.train.labels.dim() < 2:
            raise BadInput.at("task", "segmentation needs a label for each pixel, not one for each sample")
        if self.top_k:
            raise BadInput.at("task.top_k", "is of classification; leave it out")

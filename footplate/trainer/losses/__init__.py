"""Loss functions, which training minimises.

- `loss.py`: a loss as a sum and a count, the model's own, or computed from its logits and the labels
- `families.py`: Hugging Face's loss functions by name, and the choice of one by the model's class name
- `detection.py`: losses for boxes and masks, after matching predictions to targets
- `smoothing.py`: LabelSmoother
- `labels.py`: checks for labels out of range, which would otherwise fail in a GPU assert
"""

from footplate.trainer.losses.detection import ForObjectDetectionLoss, ForSegmentationLoss
from footplate.trainer.losses.families import (
    FAMILIES,
    LOSS_MAPPING,
    Family,
    ForCausalLMLoss,
    ForMaskedLMLoss,
    ForQuestionAnsweringLoss,
    ForSemanticSegmentationLoss,
    ForSequenceClassificationLoss,
    ForTokenClassification,
    family_of,
    fixed_cross_entropy,
)
from footplate.trainer.losses.labels import IGNORE, BadLabel, classes_of, explain, require_labels
from footplate.trainer.losses.loss import (
    DICT,
    Loss,
    NoLabels,
    classification,
    cross_entropy_sum,
    forward_takes,
    from_logits,
    items,
    logits_of,
    loss_and_how,
    own_loss,
    predictions,
    regression,
    shifted,
    shifts_labels,
)
from footplate.trainer.losses.smoothing import LabelSmoother, label_smoother

__all__ = [
    "DICT",
    "FAMILIES",
    "IGNORE",
    "LOSS_MAPPING",
    "BadLabel",
    "Family",
    "ForCausalLMLoss",
    "ForMaskedLMLoss",
    "ForObjectDetectionLoss",
    "ForQuestionAnsweringLoss",
    "ForSegmentationLoss",
    "ForSemanticSegmentationLoss",
    "ForSequenceClassificationLoss",
    "ForTokenClassification",
    "LabelSmoother",
    "Loss",
    "NoLabels",
    "classes_of",
    "classification",
    "cross_entropy_sum",
    "explain",
    "family_of",
    "fixed_cross_entropy",
    "forward_takes",
    "from_logits",
    "items",
    "label_smoother",
    "logits_of",
    "loss_and_how",
    "own_loss",
    "predictions",
    "regression",
    "require_labels",
    "shifted",
    "shifts_labels",
]

"""What a step is made to lessen.

contract.py   a loss is a sum and what it is a sum over; a model's own is found, or made of logits and labels
families.py   the reference's losses by its names, and which one a model's class name asks for
detection.py  boxes and masks, matched to what they should be
smoothing.py  LabelSmoother
labels.py     labels that no class answers to, named before a GPU asserts
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
from footplate.trainer.losses.smoothing import LabelSmoother

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
    "classes_of",
    "classification",
    "cross_entropy_sum",
    "explain",
    "family_of",
    "fixed_cross_entropy",
    "forward_takes",
    "from_logits",
    "items",
    "logits_of",
    "loss_and_how",
    "own_loss",
    "predictions",
    "regression",
    "require_labels",
    "shifted",
    "shifts_labels",
]

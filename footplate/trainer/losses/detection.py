"""Losses for object detection, after DETR: each target is matched to one prediction, and the pairs are compared.

The arithmetic is Hugging Face's. The matching is our own code, because theirs needs SciPy for a single function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn import functional

Targets = Sequence[Mapping[str, Tensor]]
"""The targets of each image: class_labels, masks, and boxes as (centre x, centre y, width, height) in shares of it."""
Matches = list[tuple[Tensor, Tensor]]
"""The indices of the matched predictions and of their targets, for each image."""


def ForObjectDetectionLoss(
    logits: Tensor,
    labels: Targets,
    device: Any,
    pred_boxes: Tensor,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, dict[str, Tensor], list[dict[str, Tensor]] | None]:
    """Returns the weighted sum, its parts by name, and the decoder layers' outputs if these are trained too."""
    outputs = {"logits": logits, "pred_boxes": pred_boxes}
    return _weighed(outputs, labels, config, outputs_class, outputs_coord)


def ForSegmentationLoss(
    logits: Tensor,
    labels: Targets,
    device: Any,
    pred_boxes: Tensor,
    pred_masks: Tensor,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, dict[str, Tensor], list[dict[str, Tensor]] | None]:
    """Returns the same as ForObjectDetectionLoss, with a mask for each object."""
    outputs = {"logits": logits, "pred_boxes": pred_boxes, "pred_masks": pred_masks}
    return _weighed(outputs, labels, config, outputs_class, outputs_coord)


def _weighed(
    outputs: dict[str, Tensor], targets: Targets, config: Any, layers_class: Any, layers_box: Any
) -> tuple[Tensor, dict[str, Tensor], list[dict[str, Tensor]] | None]:
    weights = {"loss_ce": 1.0, "loss_bbox": config.bbox_loss_coefficient, "loss_giou": config.giou_loss_coefficient}
    if "pred_masks" in outputs:
        weights |= {"loss_mask": config.mask_loss_coefficient, "loss_dice": config.dice_loss_coefficient}
    boxes = _boxes_per_process(targets, outputs["logits"].device)
    parts = _parts(outputs, targets, config, boxes)
    layers: list[dict[str, Tensor]] | None = None
    if getattr(config, "auxiliary_loss", False) and layers_class is not None:
        pairs = zip(layers_class[:-1], layers_box[:-1], strict=True)
        layers = [{"logits": layer_logits, "pred_boxes": box} for layer_logits, box in pairs]
        for number, layer in enumerate(layers):
            parts |= {f"{name}_{number}": value for name, value in _parts(layer, targets, config, boxes).items()}
            weights |= {f"{name}_{number}": weights[name] for name in ("loss_ce", "loss_bbox", "loss_giou")}
    total = torch.stack([value * weights[name] for name, value in parts.items() if name in weights]).sum()
    return total, parts, layers


def _parts(outputs: dict[str, Tensor], targets: Targets, config: Any, boxes: float) -> dict[str, Tensor]:
    matches = match(outputs, targets, config.class_cost, config.bbox_cost, config.giou_cost)
    parts = {
        "loss_ce": _classes(outputs["logits"], targets, matches, config),
        **_boxes(outputs["pred_boxes"], targets, matches, boxes),
        "cardinality_error": _cardinality(outputs["logits"].detach(), targets),
    }
    if "pred_masks" in outputs:
        parts |= _masks(outputs["pred_masks"], targets, matches, boxes)
    return parts


def _classes(logits: Tensor, targets: Targets, matches: Matches, config: Any) -> Tensor:
    """Classification loss, in which an unmatched prediction must predict the last class. That class weighs less."""
    nothing = config.num_labels
    weight = torch.ones(nothing + 1, device=logits.device)
    weight[-1] = config.eos_coefficient
    wanted = torch.full(logits.shape[:2], nothing, dtype=torch.int64, device=logits.device)
    classes = [target["class_labels"][to] for target, (_, to) in zip(targets, matches, strict=True)]
    wanted[_places(matches, side=0)] = torch.cat(classes)
    return functional.cross_entropy(logits.transpose(1, 2), wanted, weight)


def _boxes(predicted: Tensor, targets: Targets, matches: Matches, count: float) -> dict[str, Tensor]:
    source = predicted[_places(matches, side=0)]
    wanted = torch.cat([target["boxes"][to] for target, (_, to) in zip(targets, matches, strict=True)])
    overlap = generalized_box_iou(corners(source), corners(wanted)).diag()
    return {
        "loss_bbox": functional.l1_loss(source, wanted, reduction="none").sum() / count,
        "loss_giou": (1 - overlap).sum() / count,
    }


def _cardinality(logits: Tensor, targets: Targets) -> Tensor:
    """Mean error of the predicted number of objects. It is logged and has no gradient."""
    lengths = torch.tensor([len(target["class_labels"]) for target in targets], device=logits.device)
    predicted_counts = (logits.argmax(-1) != logits.shape[-1] - 1).sum(1)
    return functional.l1_loss(predicted_counts.float(), lengths.float())


def _masks(predicted: Tensor, targets: Targets, matches: Matches, count: float) -> dict[str, Tensor]:
    source = predicted[_places(matches, side=0)]
    wanted = _padded([target["masks"] for target in targets]).to(source)[_places(matches, side=1)]
    size = wanted.shape[-2:]
    source = functional.interpolate(source[:, None], size=size, mode="bilinear", align_corners=False)[:, 0].flatten(1)
    wanted = wanted.flatten(1)
    return {"loss_mask": _focal(source, wanted, count), "loss_dice": _dice(source, wanted, count)}


def _focal(logits: Tensor, wanted: Tensor, count: float, alpha: float = 0.25, gamma: float = 2) -> Tensor:
    """Focal loss, in which pixels that are predicted well weigh less."""
    chance = logits.sigmoid()
    cost = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    right = chance * wanted + (1 - chance) * (1 - wanted)
    loss = cost * ((1 - right) ** gamma) * (alpha * wanted + (1 - alpha) * (1 - wanted))
    return loss.mean(1).sum() / count


def _dice(logits: Tensor, wanted: Tensor, count: float) -> Tensor:
    chance = logits.sigmoid()
    both = 2 * (chance * wanted).sum(1)
    return (1 - (both + 1) / (chance.sum(-1) + wanted.sum(-1) + 1)).sum() / count


def _padded(masks: Sequence[Tensor]) -> Tensor:
    """Stacks the masks of images that differ in size and in the number of objects."""
    shape = [max(mask.shape[at] for mask in masks) for at in range(3)]
    result = torch.zeros(len(masks), *shape, dtype=masks[0].dtype, device=masks[0].device)
    for row, mask in zip(result, masks, strict=True):
        row[: mask.shape[0], : mask.shape[1], : mask.shape[2]] = mask
    return result


def _places(matches: Matches, *, side: int) -> tuple[Tensor, Tensor]:
    """Returns image numbers and indices of all matches. `side` 0 selects predictions, 1 selects targets."""
    images = torch.cat([torch.full_like(pair[side], number) for number, pair in enumerate(matches)])
    return images, torch.cat([pair[side] for pair in matches])


def _boxes_per_process(targets: Targets, device: Any) -> float:
    """Returns the mean number of boxes per process, so that a box weighs the same on every process."""
    count = torch.tensor([float(sum(len(target["class_labels"]) for target in targets))], device=device)
    processes = 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count)
        processes = torch.distributed.get_world_size()
    return max(float(count) / processes, 1.0)


@torch.no_grad()
def match(
    outputs: Mapping[str, Tensor], targets: Targets, class_cost: float, box_cost: float, giou_cost: float
) -> Matches:
    """Matches predictions to targets at the least total cost. A cost that is NaN becomes the largest cost."""
    images, queries = outputs["logits"].shape[:2]
    chances = outputs["logits"].flatten(0, 1).softmax(-1)
    boxes = outputs["pred_boxes"].flatten(0, 1)
    classes = torch.cat([target["class_labels"] for target in targets])
    wanted = torch.cat([target["boxes"] for target in targets])
    cost = (
        box_cost * torch.cdist(boxes, wanted, p=1)
        + class_cost * -chances[:, classes]
        + giou_cost * -generalized_box_iou(corners(boxes), corners(wanted))
    )
    finite = cost[cost.isfinite()]
    # Larger than any sum of finite costs, and still finite.
    largest = float(finite.abs().max() + 1) * 2 * queries if len(finite) else 1.0
    cost = torch.nan_to_num(cost, nan=largest, posinf=largest, neginf=largest).view(images, queries, -1).cpu()
    sizes = [len(target["boxes"]) for target in targets]
    parts = torch.split(cost, sizes, dim=-1)
    pairs = [linear_sum_assignment(part[image].numpy()) for image, part in enumerate(parts)]
    return [(torch.as_tensor(rows), torch.as_tensor(columns)) for rows, columns in pairs]


def linear_sum_assignment(cost: Any) -> tuple[Any, Any]:
    """Returns rows and columns of the cheapest one-to-one matching, sorted by row: the Hungarian method, O(n²m)."""
    cost = numpy.asarray(cost, dtype=numpy.float64)
    if cost.shape[0] > cost.shape[1]:
        columns, rows = linear_sum_assignment(cost.T)
        order = numpy.argsort(rows)
        return rows[order], columns[order]
    # Rows and columns count from 1. Column 0 holds the row that is being assigned, and row 0 means unassigned.
    owner = numpy.zeros(cost.shape[1] + 1, dtype=numpy.int64)
    prices = numpy.zeros(cost.shape[0] + 1), numpy.zeros(cost.shape[1] + 1)
    for row in range(1, cost.shape[0] + 1):
        owner[0] = row
        _assign_row(cost, owner, *prices)
    owner[0] = 0
    taken = numpy.flatnonzero(owner)
    order = numpy.argsort(owner[taken])
    return owner[taken][order] - 1, taken[order] - 1


def _assign_row(cost: Any, owner: Any, row_price: Any, column_price: Any) -> None:
    """Assigns the row in column 0 along the cheapest path of reassignments that ends at a free column."""
    slack = numpy.full(len(owner), numpy.inf)
    came_from = numpy.zeros(len(owner), dtype=numpy.int64)
    used = numpy.zeros(len(owner), dtype=bool)
    column = 0
    while column == 0 or owner[column]:
        used[column] = True
        row = owner[column]
        reduced = numpy.concatenate([[numpy.inf], cost[row - 1] - row_price[row] - column_price[1:]])
        better = ~used & (reduced < slack)
        slack[better], came_from[better] = reduced[better], column
        column = int(numpy.argmin(numpy.where(used, numpy.inf, slack)))
        step = slack[column]
        row_price[owner[used]] += step
        column_price[used] -= step
        slack[~used] -= step
    while column:
        owner[column] = owner[came_from[column]]
        column = int(came_from[column])


def corners(boxes: Tensor) -> Tensor:
    """Converts (centre x, centre y, width, height) to (left, top, right, bottom)."""
    x, y, width, height = boxes.unbind(-1)
    return torch.stack([x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height], dim=-1)


def generalized_box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Returns the generalized IoU of each pair of boxes: from -1 (far apart) to 1 (equal)."""
    for name, boxes in (("boxes1", boxes1), ("boxes2", boxes2)):
        if not bool((boxes[:, 2:] >= boxes[:, :2]).all()):
            raise ValueError(f"{name} must be in [x0, y0, x1, y1] (corner) format, but got {boxes}")
    both = _area(torch.max(boxes1[:, None, :2], boxes2[:, :2]), torch.min(boxes1[:, None, 2:], boxes2[:, 2:]))
    union = _area(boxes1[:, :2], boxes1[:, 2:])[:, None] + _area(boxes2[:, :2], boxes2[:, 2:]) - both
    hull = _area(torch.min(boxes1[:, None, :2], boxes2[:, :2]), torch.max(boxes1[:, None, 2:], boxes2[:, 2:]))
    return both / union - (hull - union) / hull


def _area(low: Tensor, high: Tensor) -> Tensor:
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]

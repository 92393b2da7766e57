from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from footplate.trainer.strategies.device_copy import moved, tensors_in

META = torch.device("meta")


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_tensors_at_any_depth_of_a_batch_are_moved_and_other_values_stay() -> None:
    tensor = torch.ones(2)
    batch = {"x": tensor, "several": [tensor, (tensor, "name")], "pair": Pair(tensor, tensor), "id": 7, "nothing": None}

    there = moved(batch, META)

    assert there["x"].device == there["several"][1][0].device == there["pair"].right.device == META
    assert isinstance(there["pair"], Pair)
    assert (there["several"][1][1], there["id"], there["nothing"]) == ("name", 7, None)
    assert tensor.device.type == "cpu"


def test_tensors_are_found_in_a_tuple_that_cannot_be_made_without_them() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])

    assert tensors_in({"x": [packed]}) == [packed.data, packed.batch_sizes]

"""Divides rows into those to train on and those to evaluate on."""

from __future__ import annotations

import math
from typing import Any

import numpy

from footplate.components.lines import Part
from footplate.components.rows import is_stream
from footplate.contract.errors import DatasetError


def split_rows(rows: Any, test_size: float, seed: int) -> tuple[Part, Part]:
    """Returns the rows to train on and the rows to evaluate on, both in the order of the file.

    A share below 1 is rounded up to a number of rows. numpy promises that RandomState draws the same numbers in every
    version. So a job that resumes after an upgrade has the same split.
    """
    if is_stream(rows):
        raise DatasetError(
            "data.split needs rows by number, and this dataset is a stream", hint="name a data.eval instead of split"
        )
    count = len(rows)
    held_out = math.ceil(test_size * count) if test_size < 1 else int(test_size)
    if not 0 < held_out < count:
        raise DatasetError(
            f"data.split leaves out {held_out:,} of {count:,} rows, and training and evaluation need a row each",
            hint="choose another test_size, such as 0.1",
        )
    order = numpy.random.RandomState(seed).permutation(count)
    return Part(rows, numpy.sort(order[held_out:])), Part(rows, numpy.sort(order[:held_out]))

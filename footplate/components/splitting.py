"""Divides rows into those to train on and those to evaluate on."""

from __future__ import annotations

from typing import Any

import numpy

from footplate.components.lines import Part
from footplate.components.rows import is_stream
from footplate.contract.errors import DatasetError
from footplate.contract.spec_parts import Split


def split_rows(rows: Any, split: Split) -> tuple[Part, Part]:
    """Returns the rows to train on and the rows to evaluate on, both in the order of the file.

    numpy promises that RandomState draws the same numbers in every version. So a job that resumes after an upgrade has
    the same split.
    """
    if is_stream(rows):
        raise DatasetError(
            "data.split needs rows by number, and this dataset is a stream", hint="name a data.eval instead of split"
        )
    count = len(rows)
    if (problem := split.problem(count)) is not None:
        raise DatasetError(problem.detail, hint=problem.hint)
    held_out = split.held_out(count)
    order = numpy.random.RandomState(split.seed).permutation(count)
    return Part(rows, numpy.sort(order[held_out:])), Part(rows, numpy.sort(order[:held_out]))

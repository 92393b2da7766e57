"""Tests the files to which predictions are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import load_file

from footplate.runtime.prediction_files import as_texts, write


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_prediction_is_a_json_line_with_its_label(tmp_path: Path) -> None:
    path = write(tmp_path, numpy.array([[0.5, 1.5], [float("nan"), 2.0]]), numpy.array([1, 0]))

    assert path.name == "predictions.jsonl"
    assert lines(path) == [{"prediction": [0.5, 1.5], "label": 1}, {"prediction": ["NaN", 2.0], "label": 0}]


def test_further_model_outputs_are_columns_with_their_own_names(tmp_path: Path) -> None:
    path = write(tmp_path, (numpy.ones((2, 1)), {"hidden": numpy.zeros((2, 2))}), None)

    row = {"prediction.0": [1.0], "prediction.1.hidden": [0.0, 0.0]}
    assert lines(path) == [row, row]


def test_large_predictions_are_written_as_safetensors(tmp_path: Path) -> None:
    pictures, labels = numpy.random.default_rng(0).random((3, 40, 40), dtype=numpy.float32), numpy.arange(3)

    path = write(tmp_path, pictures, labels)

    assert [item.name for item in tmp_path.iterdir()] == ["predictions.safetensors"] == [path.name]
    result = load_file(path)
    assert (result["prediction"] == pictures).all()
    assert (result["label"] == labels).all()


def test_an_empty_test_set_writes_an_empty_file(tmp_path: Path) -> None:
    assert lines(write(tmp_path, None, None)) == []


class Reads:
    pad_token_id = 0

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(chr(96 + token) for token in row if token) for row in rows]


def test_generated_tokens_are_written_as_text(tmp_path: Path) -> None:
    predictions, labels = numpy.array([[0, 1, 2], [0, 3, 0]]), numpy.array([[1, 2, -100], [3, -100, -100]])

    path = write(tmp_path, as_texts(predictions, Reads()), as_texts(labels, Reads()))

    assert lines(path) == [{"prediction": "a b", "label": "a b"}, {"prediction": "c", "label": "c"}]


def test_generated_tokens_stay_numbers_without_a_tokenizer() -> None:
    tokens = numpy.array([[1, 2]])
    assert as_texts(tokens, None) is tokens
    assert as_texts(None, Reads()) is None

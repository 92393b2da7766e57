"""Turns a model's outputs for one row into a readable result, for each task of transformers.

Outputs of any other model are returned as they are, as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

Outputs = Mapping[str, Any]
"""The output arrays of one row by name. The main output is `prediction`."""
MOST_SCORES = 20
"""The largest number of classes whose scores are returned."""
MOST_FILLINGS = 5
LONGEST_ANSWER = 64
"""The largest number of tokens of an answer to a question."""


def readable(task: str, outputs: Outputs, inputs: Outputs, config: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the result of one row. `inputs` are the model's inputs for it, without padding."""
    result = _TASKS.get(task)
    if result is None or config is None:
        return {
            "output" if name == "prediction" else name.removeprefix("prediction."): array.tolist()
            for name, array in outputs.items()
        }
    return result(outputs, inputs, config, tokenizer)


def task_of(model: Any, component_name: str) -> str:
    """Returns the task by the component's name, or by the name of the model's class."""
    if component_name in _TASKS:
        return component_name
    kind = type(model).__name__
    return next((task for ending, task in _CLASSES.items() if kind.endswith(ending)), component_name)


def _sequence(outputs: Outputs, inputs: Outputs, config: Any, tokenizer: Any) -> dict[str, Any]:
    logits = _main(outputs)
    if config.problem_type == "regression" or logits.size == 1:
        values = [float(value) for value in logits.ravel()]
        return {"value": values[0]} if len(values) == 1 else {"values": values}
    if config.problem_type == "multi_label_classification":
        scores = 1 / (1 + numpy.exp(-logits))
        labels = [_name(config, int(index)) for index in numpy.flatnonzero(scores >= 0.5)]
        return {"labels": labels, "scores": _scores(scores, config)}
    scores = _softmax(logits)
    best_index = int(scores.argmax())
    return {"label": _name(config, best_index), "score": float(scores[best_index]), "scores": _scores(scores, config)}


def _tokens(outputs: Outputs, inputs: Outputs, config: Any, tokenizer: Any) -> dict[str, Any]:
    scores, ids = _softmax(_main(outputs)), inputs["input_ids"].tolist()
    special_ids = set(getattr(tokenizer, "all_special_ids", ()))
    rows = [
        {"token": _token(tokenizer, token), "label": _name(config, int(row.argmax())), "score": float(row.max())}
        for token, row in zip(ids, scores, strict=True)
        if token not in special_ids
    ]
    return {"tokens": rows}


def _masked(outputs: Outputs, inputs: Outputs, config: Any, tokenizer: Any) -> dict[str, Any]:
    ids, scores = inputs["input_ids"], _softmax(_main(outputs))
    fillings = []
    for place in numpy.flatnonzero(ids == tokenizer.mask_token_id):
        best_ids = scores[place].argsort()[::-1][:MOST_FILLINGS]
        fillings.append(
            [{"token": _token(tokenizer, int(token)), "score": float(scores[place][token])} for token in best_ids]
        )
    return {"masks": fillings}


def _answer(outputs: Outputs, inputs: Outputs, config: Any, tokenizer: Any) -> dict[str, Any]:
    starts, ends = (_softmax(array) for array in list(outputs.values())[:2])
    pairs = numpy.triu(numpy.outer(starts, ends)) - numpy.triu(numpy.outer(starts, ends), LONGEST_ANSWER)
    start, end = numpy.unravel_index(pairs.argmax(), pairs.shape)
    text = tokenizer.decode(inputs["input_ids"][start : end + 1].tolist(), skip_special_tokens=True)
    return {"answer": text.strip(), "score": float(pairs[start, end])}


def _main(outputs: Outputs) -> Any:
    return next(iter(outputs.values())).astype(numpy.float64)


def _softmax(logits: Any) -> Any:
    exponentials = numpy.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _scores(scores: Any, config: Any) -> dict[str, float]:
    best_indexes = scores.argsort()[::-1][:MOST_SCORES]
    return {_name(config, int(index)): float(scores[index]) for index in best_indexes}


def _name(config: Any, number: int) -> str:
    return str(config.id2label.get(number, number))


def _token(tokenizer: Any, token: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(token))


Reader = Callable[[Outputs, Outputs, Any, Any], dict[str, Any]]
_TASKS: dict[str, Reader] = {
    "hf/sequence-classification": _sequence,
    "hf/token-classification": _tokens,
    "hf/masked-lm": _masked,
    "hf/question-answering": _answer,
}
_CLASSES = {
    "ForSequenceClassification": "hf/sequence-classification",
    "ForTokenClassification": "hf/token-classification",
    "ForMaskedLM": "hf/masked-lm",
    "ForQuestionAnswering": "hf/question-answering",
}

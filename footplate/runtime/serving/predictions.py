"""Predicts rows, with the collator and the step of an evaluation. Language models generate a text for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from footplate.components.maps import name_classes
from footplate.components.st_trainers import is_encoder
from footplate.contract.conversations import plain
from footplate.contract.host.file_roots import Roots
from footplate.contract.serving import ServingRequest
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from footplate.runtime.build import apply_maps
from footplate.runtime.prediction_files import arrays_of
from footplate.runtime.serving.loaded_model import CannotAnswer, LoadedModel
from footplate.runtime.serving.tasks import readable, task_of
from footplate.runtime.serving.texts import Clients, GeneratedText, Texts
from footplate.trainer.collators import DataCollatorWithPadding
from footplate.trainer.prediction_step import prediction_step

MASKING = ("masked-lm", "t5-spans")
"""Collators that hide tokens at random, which a prediction must not do."""
READS_ROWS = "hf/seq2seq"
"""The language model for which the spec's maps turn rows into prompts. Other ones take prompts or messages."""
LABEL_ARGUMENTS = {"tokenize": "target", "tokenize-words": "labels"}
"""The argument of a map that names a column with labels. The map works without this argument."""
LABEL_MAPS = ("labels", "answers")
"""The maps that read only a column of labels."""
NO_ANSWER: dict[str, list[Any]] = {"text": [], "answer_start": []}


class Predictions:
    """Answers requests for predictions with a loaded model."""

    def __init__(self, model: LoadedModel, texts: Texts, roots: Roots) -> None:
        self._model, self._texts, self._roots = model, texts, roots
        spec = model.spec
        model_name = spec.model.use if spec.model is not None else ""
        self._task = task_of(model.base, model_name)
        self._reads_rows = model_name == READS_ROWS
        collator = spec.collator.use if spec.collator is not None else ""
        if self._task == "hf/masked-lm" or collator in MASKING:
            model.trainer.data_collator = DataCollatorWithPadding(model.require_tokenizer())
        for component in spec.data.map:
            names = component.args.get("names")
            if component.use == "labels" and isinstance(names, list):
                name_classes(model.config, [str(name) for name in names], {})

    def answer(self, request: ServingRequest, clients: Clients) -> dict[str, Any]:
        inputs, limit = request.body["inputs"], self._model.limits.max_inputs
        if len(inputs) > limit:
            raise CannotAnswer(
                f"there are {len(inputs)} inputs, and this session takes at most {limit} at once",
                code="too_many_inputs",
                hint="send several requests",
            )
        if is_encoder(self._model.base):
            raise CannotAnswer(
                "an encoder of sentence-transformers turns texts into vectors, and predicts nothing",
                code="not_predictable",
                hint="POST /v1/embeddings returns the vectors",
            )
        if self._texts.can_generate:
            return {"predictions": list(self._generated(request, clients))}
        try:
            results = list(self._predicted(request, clients))
        except RuntimeError as error:
            # In JSON, 1 may mean an integer or the float 1.0. If the model refuses integers, it gets floats.
            if "dtype" not in str(error) or self._model.spec.data.map:
                raise
            results = list(self._predicted(request, clients, as_floats=True))
        return {"predictions": results}

    def _predicted(
        self, request: ServingRequest, clients: Clients, *, as_floats: bool = False
    ) -> Iterator[dict[str, Any]]:
        trainer, model = self._model.trainer, self._model.prepared
        loader = trainer.get_test_dataloader(self._rows(request.body["inputs"], as_floats=as_floats))
        step = prediction_step(trainer, model, loss_only=False, ignore_keys=None)
        for batch in trainer._footplate.strategy.plain_loader(loader):
            if clients.is_withdrawn(request.id):
                return
            self._model.require_in_range(batch)
            outputs = _arrays("prediction", step(batch)[1])
            yield from self._results(outputs, _arrays("", {k: v for k, v in batch.items() if isinstance(v, Tensor)}))
            clients.tick()

    def _rows(self, inputs: Any, *, as_floats: bool = False) -> Any:
        rows = _named(inputs, self._model.spec)
        maps = _maps_for(rows, self._model.spec)
        if not maps:
            # Lists of numbers become tensors, as datasets without maps have them.
            return [{name: _tensor(value, as_floats=as_floats) for name, value in row.items()} for row in rows]
        return apply_maps(
            rows, maps, self._model.spec, self._roots, processor=self._model.tokenizer, model=self._model.base
        )

    def _results(self, outputs: dict[str, Any], batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the result of each row. Padding is cut off from arrays that have a value for each token."""
        mask = batch.get("attention_mask")
        for index in range(max((len(array) for array in outputs.values()), default=0)):
            real_tokens = None if mask is None else mask[index].astype(bool)
            row = {name: _cut(array[index], real_tokens) for name, array in outputs.items() if len(array) > index}
            inputs = {
                name: _cut(array[index], real_tokens)
                for name, array in batch.items()
                if array.ndim and len(array) > index
            }
            yield readable(self._task, row, inputs, self._model.config, self._model.tokenizer)

    def _generated(self, request: ServingRequest, clients: Clients) -> Iterator[dict[str, Any]]:
        parameters = request.body["parameters"]
        stops = tuple(parameters.get("stop") or ())
        texts = [
            GeneratedText(
                self._model.tokenizer,
                request.id,
                index,
                prompt,
                self._texts.limit_of(prompt, parameters.get("max_tokens")),
                stops,
                prompt_end=prompt_end,
            )
            for index, (prompt, prompt_end) in enumerate(self._prompts(request.body["inputs"]))
        ]
        self._texts.generate(texts, parameters["temperature"], parameters["top_p"], parameters.get("seed"), clients)
        for text in texts:
            yield {"text": text.whole(), "finish_reason": text.finish or "length", "tokens": len(text.tokens)}

    def _prompts(self, inputs: Any) -> Iterator[tuple[list[int], tuple[int, ...]]]:
        """Yields the tokens of each prompt, and the last one if the generated text continues the prompt."""
        if self._reads_rows:
            rows = self._rows(inputs)
            for index in range(len(rows)):
                tokens = [int(token) for token in rows[index]["input_ids"]]
                self._model.require_known(tokens)
                yield tokens, ()
            return
        for number, value in enumerate(inputs):
            if isinstance(value, dict) and isinstance(value.get("messages"), list):
                yield self._texts.prompt_of(_conversation(value["messages"], number)), ()
            elif isinstance(prompt := value.get("prompt") if isinstance(value, dict) else value, str):
                tokens = self._texts.tokens_of(prompt)
                yield tokens, self._texts.end_of(tokens)
            else:
                raise CannotAnswer(
                    f"input {number} is neither a text, nor an object with a prompt or messages",
                    code="bad_input",
                    hint='for example "Once upon a time", or {"messages": [{"role": "user", "content": "Hello"}]}',
                )


def _conversation(messages: list[Any], number: int) -> list[dict[str, Any]]:
    """Returns the messages of an input in the form in which chats and training give them to the chat template."""
    try:
        if all(isinstance(message, dict) for message in messages):
            return [plain(message) for message in messages]
        detail = "a message is not an object"
    except ValueError as error:
        detail = f"the content of a message {error}"
    raise CannotAnswer(
        f"input {number}: {detail}", code="bad_messages", hint='for example {"role": "user", "content": "Hello"}'
    )


def _arrays(name: str, value: Any) -> dict[str, Any]:
    """Returns the tensors in a value as arrays, by name."""
    arrays = arrays_of(name, _on_cpu(value))
    return {key.removeprefix("."): array for key, array in arrays.items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).cpu().numpy()
    if isinstance(value, Mapping):
        return {name: _on_cpu(item) for name, item in value.items() if isinstance(item, Tensor | Mapping)}
    return [_on_cpu(item) for item in value if isinstance(item, Tensor)] if isinstance(value, list | tuple) else value


def _cut(array: Any, real_tokens: Any) -> Any:
    return array[real_tokens] if real_tokens is not None and array.ndim and len(array) == len(real_tokens) else array


# The rows of a request, with the maps of the spec, but without the columns of labels


def _named(rows: Sequence[Any], spec: JobSpec) -> list[dict[str, Any]]:
    """Returns rows with named columns. A text alone becomes the column that the spec's first map of inputs reads."""
    columns = (component.args.get("column") for component in spec.data.map if component.use not in LABEL_MAPS)
    column = next((name for name in columns if isinstance(name, str)), None)
    named_rows = []
    for number, row in enumerate(rows):
        if isinstance(row, str) and column is not None:
            named_rows.append({column: row})
        elif isinstance(row, dict) and row:
            named_rows.append(dict(row))
        else:
            example = f'{{"{column or "x"}": …}}'
            raise CannotAnswer(
                f"input {number} is not a row: a row is an object with the columns of the job's data",
                code="bad_input",
                hint=f"for example {example}" + (", or a text alone" if column else ""),
            )
    return named_rows


def _maps_for(rows: list[dict[str, Any]], spec: JobSpec) -> list[Component]:
    """Returns the spec's maps without the labels that the rows do not have."""
    columns = set(rows[0])
    maps: list[Component] = []
    for component in spec.data.map:
        args: dict[str, Any] = dict(component.args)
        if component.use == "chunk" or (component.use == "labels" and args.get("column", "label") not in columns):
            continue
        if component.use in LABEL_ARGUMENTS and args.get(LABEL_ARGUMENTS[component.use]) not in (None, *columns):
            del args[LABEL_ARGUMENTS[component.use]]
        if component.use == "answers":
            for row in rows:
                row.setdefault(str(args.get("column", "answers")), NO_ANSWER)
        if component.use == "rename":
            args["columns"] = {name: new_name for name, new_name in args["columns"].items() if name in columns}
            columns |= set(args["columns"].values())
        if component.use in ("keep", "drop"):
            args["columns"] = [name for name in args["columns"] if name in columns]
        maps.append(Component(use=component.use, args=args))
    return maps


def _tensor(value: Any, *, as_floats: bool) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return torch.tensor(value, dtype=torch.float32 if as_floats else None)
    except (TypeError, ValueError):
        return value

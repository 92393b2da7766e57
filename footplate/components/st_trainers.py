"""Components of sentence-transformers: the model `st/encoder`, and the trainer `st/embedding` with losses by name.

The library is imported when a job trains. The names of its losses are read from its source, because the import takes
seconds.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from footplate.components.component import imported, needs, public_names
from footplate.components.hf_datasets import as_dataset, require_forms
from footplate.components.rows import for_each_set
from footplate.contract.errors import NotBuildable, did_you_mean

LIBRARY = "sentence_transformers"
# The Trainer moves the model to its device.
_FROM_FILES: dict[str, Any] = {
    "local_files_only": True, "trust_remote_code": False, "device": "cpu", "model_kwargs": {"use_safetensors": True}
}  # fmt: skip


@needs(LIBRARY, extra="st")
def encoder(
    *,
    path: Annotated[str, "Folder of a model of sentence-transformers or transformers; the latter gets mean pooling"],
    max_length: Annotated[int | None, "The largest number of tokens of a text; null takes the model's own"] = None,
) -> Any:
    """Turns texts into vectors (SentenceTransformer)."""
    library = imported(LIBRARY)
    try:
        model = library.SentenceTransformer(path, **_FROM_FILES)
    except (OSError, ValueError) as error:
        raise NotBuildable(f"{Path(path).name} is not the folder of an encoder: {error}") from error
    if max_length is not None:
        model.max_seq_length = max_length
    return model


def is_encoder(model: Any) -> bool:
    """Returns True for a model of sentence-transformers. Does not import the library."""
    library = sys.modules.get(LIBRARY)
    return library is not None and isinstance(model, library.SentenceTransformer)


def load_encoder(model: Any, folder: Path) -> None:
    """Loads a checkpoint's weights into an encoder. The library writes each of its modules into files of its own."""
    model.load_state_dict(type(model)(str(folder), **_FROM_FILES).state_dict())


class EmbeddingTrainer:
    """Trains an encoder on pairs, triplets or rated pairs of texts (SentenceTransformerTrainer)."""

    needs = (LIBRARY, "st")
    ignores = ("processor", "collator", "loss", "metrics", "compute_metrics", "optimizers", "data.test")

    @property
    def __signature__(self) -> inspect.Signature:
        names = loss_names()
        choices: Any = Literal[tuple(names)] if names else str
        loss: Any = Annotated[
            choices,
            "The loss by its name in sentence-transformers. It decides which columns a row has, and in which order",
        ]
        parameters = inspect.signature(self.__call__, eval_str=True).parameters.values()
        return inspect.Signature([p.replace(annotation=loss) if p.name == "loss" else p for p in parameters])

    def __call__(
        self,
        parts: Any,
        training: Mapping[str, Any],
        /,
        *,
        loss: str = "MultipleNegativesRankingLoss",
        loss_args: Annotated[
            dict[str, Any] | None, 'Arguments of the loss, such as {"scale": 10}; an inner loss is a name as well'
        ] = None,
        batch_sampler: Annotated[
            Literal["batch_sampler", "no_duplicates", "no_duplicates_hashed", "group_by_label"],
            "How rows are put into batches; no_duplicates is best for losses that take other rows as negatives",
        ] = "batch_sampler",
        prompts: Annotated[
            str | dict[str, str] | None, "A prefix for every text, or an object with a prefix for each column"
        ] = None,
    ) -> Any:
        library = imported(LIBRARY)
        if not isinstance(parts.model, library.SentenceTransformer):
            raise NotBuildable("st/embedding can train only an encoder", hint='use the model "st/encoder"')
        return library.SentenceTransformerTrainer(
            model=parts.model,
            args=library.SentenceTransformerTrainingArguments(**training, batch_sampler=batch_sampler, prompts=prompts),
            train_dataset=_dataset(parts.train),
            eval_dataset=for_each_set(parts.eval, _dataset),
            loss=_loss(parts.model, loss, loss_args or {}),
            callbacks=parts.callbacks,
        )


embedding = EmbeddingTrainer()


def loss_names() -> list[str]:
    """Returns the names of the library's losses. The list is empty if the library is not installed."""
    names = public_names(LIBRARY, "sentence_transformer", "losses", "__init__.py")
    return sorted(name for name in names if name.endswith("Loss"))


def _dataset(rows: Any) -> Any:
    require_forms(rows, [], "sentence-transformers")
    return as_dataset(rows)


def _loss(model: Any, name: str, args: dict[str, Any]) -> Any:
    """Makes a loss of sentence-transformers.

    Some losses, such as MatryoshkaLoss, have an argument `loss`, which names an inner loss.
    """
    losses: Any = import_module(f"{LIBRARY}.losses")
    if name not in (names := loss_names()):
        raise NotBuildable(f"sentence-transformers has no loss {name!r}", hint=did_you_mean(name, names))
    if isinstance(inner_name := args.get("loss"), str):
        args = {**args, "loss": _loss(model, inner_name, {})}
    kind = getattr(losses, name)
    try:
        return kind(model, **args)
    except TypeError as error:
        raise NotBuildable(f"{name}{inspect.signature(kind)} cannot be made: {error}") from error

"""Writes a draft of a model card from the run's data, in the form that the hub reads."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer import adapters

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

_SHOWN_ARGUMENTS = (
    "learning_rate", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "seed",
    "optim", "weight_decay", "lr_scheduler_type", "warmup_steps", "num_train_epochs", "max_steps", "bf16", "fp16",
    "label_smoothing_factor",
)  # fmt: skip
_NO_FIGURES = ("runtime", "_per_second", "epoch", "step", "total_flos")
_OPENING = "The Trainer made this card from the data of the run. Read and complete it, and then remove this line."


def create_model_card(
    trainer: Trainer,
    language: str | None = None,
    license: str | None = None,
    tags: str | list[str] | None = None,
    model_name: str | None = None,
    finetuned_from: str | None = None,
    tasks: str | list[str] | None = None,
    dataset_tags: str | list[str] | None = None,
    dataset: str | list[str] | None = None,
    dataset_args: str | list[str] | None = None,
) -> None:
    """Writes README.md to `output_dir` with model, data, arguments and results.

    The library and the tags of an existing card are kept.
    """
    if not trainer.is_world_process_zero():
        return
    from huggingface_hub import ModelCard

    options: dict[str, Any] = {"language": language, "license": license, "finetuned_from": finetuned_from}
    options |= {"tags": listed(tags), "tasks": listed(tasks), "dataset_tags": listed(dataset_tags)}
    options |= {"dataset": listed(dataset), "dataset_args": listed(dataset_args)}
    folder = Path(str(trainer.args.output_dir))
    path = folder / "README.md"
    before = ModelCard.load(path).data.to_dict() if path.exists() else {}
    name = model_name or folder.absolute().name
    front = _front_matter(trainer, name, before, options)
    folder.mkdir(parents=True, exist_ok=True)
    # Each value of the YAML is JSON, because JSON is valid YAML.
    header = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items())
    path.write_text(f"---\n{header}---\n\n{_body(trainer, name, front)}", encoding="utf-8")
    update: Any = getattr(trainer.model, "create_or_update_model_card", None)
    if adapters.are_in(trainer.model) and update is not None:
        update(str(folder))


def _front_matter(trainer: Trainer, name: str, before: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    base = options["finetuned_from"] or getattr(getattr(trainer.model, "config", None), "_name_or_path", None)
    library = "peft" if adapters.are_in(trainer.model) else before.get("library_name")
    if library is None and hasattr(getattr(trainer.model, "config", None), "model_type"):
        library = "transformers"
    front = {
        "library_name": library,
        "language": options["language"] or before.get("language"),
        "license": options["license"] or before.get("license"),
        # A base model that is a local path is left out, because other readers cannot load it.
        "base_model": base if base and not Path(base).exists() else before.get("base_model"),
        "tags": list(dict.fromkeys([*options["tags"], *before.get("tags", []), "generated_from_trainer"])),
        "datasets": options["dataset_tags"] or before.get("datasets"),
        "model-index": [{"name": name, "results": _results(trainer, options)}],
    }
    return {key: value for key, value in front.items() if value}


def _results(trainer: Trainer, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the last evaluation in the form of the hub's `model-index`, which needs a task and a dataset."""
    figures = _last_evaluation(trainer)
    data = options["dataset"] or options["dataset_tags"]
    if not (options["tasks"] and data and figures):
        return []
    args = {"args": options["dataset_args"][0]} if options["dataset_args"] else {}
    dataset = {"name": data[0], "type": (options["dataset_tags"] or data)[0], **args}
    metrics = [{"name": name.capitalize(), "type": name, "value": value} for name, value in figures.items()]
    return [{"task": {"type": task, "name": task}, "dataset": dataset, "metrics": metrics} for task in options["tasks"]]


def _last_evaluation(trainer: Trainer) -> dict[str, float]:
    for entry in reversed(trainer.state.log_history):
        values = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
        figures = {name: value for name, value in values.items() if not name.endswith(_NO_FIGURES)}
        if figures:
            return figures
    return {}


def _body(trainer: Trainer, name: str, front: dict[str, Any]) -> str:
    description = (
        f"a fine-tuned version of {front['base_model']}" if "base_model" in front else "a model that was trained here"
    )
    sections = [f"<!-- {_OPENING} -->", f"# {name}", f"This model is {description}."]
    figures = _last_evaluation(trainer)
    if figures:
        sections.append("Its last evaluation:\n\n" + "\n".join(f"- {key}: {_short(figures[key])}" for key in figures))
    for section in ("Model description", "Intended uses and limitations", "Training and evaluation data"):
        sections.append(f"## {section}\n\nMore information is needed.")
    args = trainer.args.to_dict()
    arguments = "\n".join(f"- {key}: {args[key]}" for key in _SHOWN_ARGUMENTS if args.get(key) not in (None, False))
    sections += [f"## Training\n\n{arguments}", _table(trainer), f"## Versions\n\n{_versions()}"]
    return "\n\n".join(section for section in sections if section) + "\n"


def _table(trainer: Trainer) -> str:
    """Returns a Markdown table with a row for each evaluation and the last training loss before it."""
    rows: list[dict[str, Any]] = []
    loss: Any = "none yet"
    for entry in trainer.state.log_history:
        loss = entry.get("loss", loss)
        values = {
            key: value for key, value in entry.items() if key.startswith("eval_") and not key.endswith(_NO_FIGURES)
        }
        if values:
            rows.append({"training loss": loss, "epoch": entry.get("epoch"), "step": entry.get("step"), **values})
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_short(row.get(key, "")) for key in columns] for row in rows)]
    return "## Results\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _versions() -> str:
    versions = []
    for package in ("footplate", "torch", "accelerate", "transformers", "peft"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"- {package} {metadata.version(package)}")
    return "\n".join(versions)

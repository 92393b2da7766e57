"""Exports a checkpoint: writes its model as safetensors, with its tokenizer, chat template and card, to the outputs."""

from __future__ import annotations

from footplate.contract.errors import NotBuildable
from footplate.contract.events import DoneData
from footplate.contract.host.launch import Order
from footplate.contract.hub import base_model
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Export
from footplate.runtime.build import save_model
from footplate.runtime.emit import Emit
from footplate.runtime.starting_point import load_checkpoint
from footplate.trainer import adapters
from footplate.trainer.trainer import Trainer

CARD = "README.md"


def export(options: Export, spec: JobSpec, trainer: Trainer, order: Order, emit: Emit) -> DoneData:
    """Writes the outputs and returns the outcome. Raises NotBuildable if there are no adapters to merge."""
    emit.report_running()
    if options.merge and not adapters.are_in(trainer.model):
        raise NotBuildable(
            f"the model, a {type(trainer.model).__name__}, has no adapters to merge", hint="export it without merge"
        )
    load_checkpoint(spec, trainer, order, emit)
    # Adapters name their base model by its repository on the hub, in place of a folder of this node.
    name = base_model(spec.model.args) if spec.model else None
    for config in getattr(trainer.model, "peft_config", {}).values():
        config.base_model_name_or_path = name or config.base_model_name_or_path
    folder = order.files.outputs
    save_model(trainer, folder, merges=options.merge)
    (folder / CARD).write_text(options.card, encoding="utf-8")
    return emit.finished_outcome({})

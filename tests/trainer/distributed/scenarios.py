"""Scenarios that several processes run. Each returns JSON, and the tests state what it must be."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset, Sampler

from footplate.components import toy
from footplate.components.callbacks import Ema
from footplate.trainer import checkpoint as files
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.collators import default_data_collator
from footplate.trainer.named import NamedOptimizer
from footplate.trainer.placed_models import set_model
from footplate.trainer.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from footplate.trainer.steps import context_parallel_step
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, StopAt

GLOBAL_BATCH = 8


def trained(folder: Path, **values: Any) -> dict[str, Any]:
    """Trains the small model on one global batch size, whatever the number of processes."""
    trainer, events = _trainer(folder, **values)
    return _results_of(trainer, events, trainer.train(resume_from_checkpoint=values.get("resume", False)))


def scaled_by_the_script(folder: Path, *, is_scaled: bool | None, counts: bool = True, **values: Any) -> dict[str, Any]:
    """Trains with a loss that the script says is scaled, or is not. Without `counts`, labels are not counted."""

    class Scaled(Trainer):
        loss_is_scaled_for_ga = is_scaled

    class Uncounted(Scaled):
        def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> None:
            return None

    def mean_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["logits"], labels)

    options = {} if counts else {"compute_loss_func": mean_loss}
    return trained(folder, kind=Scaled if counts else Uncounted, options=options, **values)


UNCOUNTED: dict[str, Any] = {"name": "uncounted", "is_scaled": None, "counts": False}
SAID_SCALED: dict[str, Any] = {"name": "said-scaled", "is_scaled": True}
SAID_NOT_SCALED: dict[str, Any] = {"name": "said-not-scaled", "is_scaled": False, "text": True, "ignore": 1}
UNEVEN = {"samples": 91, "accelerator_config": {"even_batches": False}}
"""The last step of an epoch has batches of 8 and 3 samples. Of two processes, only one gets the last 3 samples."""


def _trainer(
    folder: Path,
    *,
    name: str,
    samples: int = 96,
    stop_at: int | None = None,
    resume: bool = False,
    text: bool = False,
    ignore: int = 0,
    means: bool = False,
    named: bool = False,
    dropout: float = 0.0,
    stream: bool = False,
    lora: bool = False,
    alone: bool = False,
    llama: bool = False,
    length: int = 16,
    loaded_in: int = 1,
    cuts: bool = True,
    callbacks: tuple[Any, ...] = (),
    kind: type[Trainer] = Trainer,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[Trainer, Events]:
    set_seed(7)
    sizes = arguments.get("parallelism_config") or {}
    parts = sizes.get("tp_size", loaded_in)
    world = TrainingArguments(str(folder)).world_size // (parts * sizes.get("cp_size", 1))
    values = {
        "per_device_train_batch_size": GLOBAL_BATCH // world,
        "per_device_eval_batch_size": GLOBAL_BATCH // world,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "max_steps": 8,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "ddp_timeout": 300,
        "disable_tqdm": True,
        **arguments,
    }
    events = Events()
    options = dict(options or {})
    if named:
        first, second = {"lr": 1e-2}, {"lr": 3e-2}
        options["optimizers"] = [
            NamedOptimizer("inner", [r"layers\.[0-2]\."], args=first, schedule="linear"),
            NamedOptimizer("rest", [r"layers\.[3-9]\."], use="sgd", args=second, schedule="linear", every=2),
        ]
    if stream:
        values["remove_unused_columns"] = False
    model = (
        llama_of(folder, parts, sizes.get("dp_shard_size", 1))
        if llama
        else IgnoresNumItems()
        if means
        else LogitsForCausalLM()
        if ignore
        else toy.gpt(layers=2, heads=2, width=16, context=16, dropout=dropout)
        if text
        else toy.mlp(hidden=16)
    )
    if lora:
        model = adapted(model, alone=alone)
    if parts > 1 and cuts and not llama:
        cut(model, parts)
    data = (lambda n, seed: toy.text(n=n, length=length, seed=seed)) if text else _points
    trainer = kind(
        model,
        TrainingArguments(str(folder / name), **values),
        train_dataset=Stream(samples) if stream else Uneven(data(samples, 0), ignore) if ignore else data(samples, 0),
        eval_dataset=data(21, 1),
        data_collator=NumberRecorder(),
        callbacks=[events, *([StopAt(stop_at)] if stop_at else []), *callbacks],
        **options,
    )
    return trainer, events


def cut(model: nn.Module, parts: int) -> None:
    """Shards each pair of consecutive linear layers: the first by columns, the second by rows."""
    several = dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (several // parts, parts), mesh_dim_names=("dp_shard", "tp"))["tp"]
    for name in ("layers.0", "feed.0", "wi"):
        _cut_each(model, name, ColwiseParallel(), mesh)
    for name in ("layers.2", "feed.2", "wo"):
        _cut_each(model, name, RowwiseParallel(), mesh)


def _cut_each(model: nn.Module, name: str, style: Any, mesh: Any) -> None:
    names = [item for item, _ in model.named_modules() if item.endswith(name)]
    parallelize_module(model, mesh, dict.fromkeys(names, style))


def a_llama(folder: Path) -> None:
    """Saves a small Llama of transformers, which scenarios load."""
    import transformers

    set_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_hidden_layers=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llama")


def llama_of(folder: Path, tp_size: int = 1, dp_shard_size: int = 1) -> Any:
    """Loads the small Llama. If `tp_size` is above 1, transformers shards the model while it loads."""
    import transformers
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(tp_size=tp_size, fsdp_size=dp_shard_size) if tp_size > 1 else None
    return transformers.LlamaForCausalLM.from_pretrained(folder / "llama", distributed_config=config)


def adapted(model: nn.Module, *, alone: bool = False) -> nn.Module:
    """Adds LoRA adapters of rank 3, which does not divide by two. Unless `alone` is set, norms are trained too."""
    import peft

    beside = None if alone else ["norm"]
    config = peft.LoraConfig(r=3, lora_dropout=0.1, target_modules=["query_key_value"], modules_to_save=beside)
    peft_model: nn.Module = peft.get_peft_model(model, config)  # type: ignore[arg-type]
    if alone:
        return peft_model
    peft_model.base_model.model.blocks[0].norm_feed.requires_grad_(True)  # type: ignore[union-attr, index]
    return peft_model


class LogitsForCausalLM(nn.Module):
    """A model that returns logits only, so that the Trainer computes the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.gpt(layers=2, heads=2, width=16, context=16)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner(input_ids, position_ids=position_ids)["logits"]  # type: ignore[no-any-return]


class IgnoresNumItems(nn.Module):
    """A model that accepts `num_items_in_batch` and ignores it, like many models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.gpt(layers=1, heads=2, width=16, context=16)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
        logits = self.inner(input_ids)["logits"]
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class LooksBackForCausalLM(LogitsForCausalLM):
    """A model that mixes neighbouring positions outside of attention."""

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(input_ids, position_ids)
        return torch.cat([logits[:, :1], logits[:, 1:] + 0.1 * logits[:, :-1]], 1)


class AddsForCausalLM(LogitsForCausalLM):
    """A model that adds its own term to the loss."""

    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        result: dict[str, torch.Tensor] = self.inner(input_ids, labels, position_ids)
        return {**result, "loss": result["loss"] + 0.1} if labels is not None else result


class Uneven(Dataset[Any]):
    """A dataset whose samples have different numbers of counted labels."""

    def __init__(self, data: Any, ignore: int) -> None:
        self.data, self.ignore = data, ignore

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        sample = dict(self.data[index])
        sample["labels"] = sample["labels"].clone()
        sample["labels"][: self.ignore * index % 13] = -100
        return sample


class Stream(IterableDataset[Any]):
    """A stream with a saved position that records the samples it has yielded."""

    def __init__(self, samples: int) -> None:
        self.data, self.at = _points(samples, 0), 0

    def __iter__(self) -> Any:
        while self.at < len(self.data):
            self.at += 1
            yield {**self.data[self.at - 1], "number": torch.tensor(self.at - 1)}
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class NumberRecorder:
    """A collator that records the numbers of its samples."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []

    def __call__(self, samples: Any) -> Any:
        self.numbers.append([int(sample.pop("number")) for sample in samples if "number" in sample])
        return default_data_collator(samples)


def _points(n: int, seed: int) -> Any:
    return toy.classification(n=n, seed=seed)


def _results_of(trainer: Trainer, events: Events, output: Any) -> dict[str, Any]:
    weights = trainer._footplate.strategy.whole_weights(trainer.model) or trainer.model.state_dict()
    logs = [row for row in events.logs if "loss" in row]
    return {
        "losses": [row["loss"] for row in logs],
        "norms": [row.get("grad_norm") for row in logs],
        "rates": [row["learning_rate"] for row in logs],
        "steps": output.global_step,
        "train_loss": output.training_loss,
        # If the model is sharded, only the main process gets the full weights.
        "weights": {name: weight.flatten().tolist() for name, weight in weights.items() if weight is not None},
        "events": events.names,
        "strategy": type(trainer._footplate.strategy).__name__,
        "sizes": [trainer.get_tp_size() * trainer.get_cp_size(), trainer.get_total_train_batch_size(trainer.args)],
        "flos": trainer.state.total_flos,
        "seen": trainer.data_collator.numbers,  # type: ignore[attr-defined]
    }


def assert_same_run(first: dict[str, Any], other: dict[str, Any]) -> None:
    """Compares two runs. Differences by the rounding of sums in another order are allowed."""
    assert "error" not in first, first.get("trace")
    assert first["losses"] == pytest.approx(other["losses"], rel=1e-5)
    assert first["norms"] == pytest.approx(other["norms"], rel=1e-4)
    assert first["rates"] == other["rates"]
    assert first["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
    assert first["weights"].keys() in (other["weights"].keys(), set())
    for name, values in first["weights"].items():
        assert values == pytest.approx(other["weights"][name], rel=1e-3, abs=2e-5), name


def resumed(folder: Path, *, name: str, at: int, **values: Any) -> dict[str, Any]:
    """Stops a run after `at` steps and resumes it. Returns both parts, and the same run without a stop."""
    whole = trained(folder, name=f"{name}-whole", **values)
    first = trained(folder, name=name, stop_at=at, **values)
    rest = trained(folder, name=name, resume=True, **values)
    return {"whole": whole, "first": first, "rest": rest}


def best(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    """Trains a run whose first checkpoint is the best one. Returns its step and its evaluation after the run."""
    often = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    worst = {"metric_for_best_model": "loss", "greater_is_better": True}  # the first loss is the highest
    values = {**often, **worst, "load_best_model_at_end": True, "save_total_limit": 1, **values}
    trainer, events = _trainer(folder, name=name, **values)
    results = _results_of(trainer, events, trainer.train())
    return {
        **results,
        "best": trainer.state.best_global_step,
        "evaluations": [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row],
        "again": trainer.evaluate()["eval_loss"],
        "kept": sorted(path.name for path in (folder / name).glob("checkpoint-*")),
    }


def generated(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    """Generates a text for every sample, in the order of the samples."""
    import transformers

    set_seed(7)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    sizes |= {"initializer_factor": 20.0}
    config = transformers.T5Config(vocab_size=32, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, **sizes)
    rows = [{"input_ids": torch.arange(2, 8) + at, "labels": torch.arange(3, 7) + at} for at in range(9)]
    common = {
        "use_cpu": True,
        "ddp_timeout": 300,
        "disable_tqdm": True,
        "save_strategy": "no",
        "max_steps": 4,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,  # no clipping, because every strategy sums the norm in another order
    }
    parts = (values.get("parallelism_config") or {}).get("tp_size", 1)
    item = 4 * parts // TrainingArguments(str(folder)).world_size
    sizes = {"per_device_train_batch_size": item, "per_device_eval_batch_size": item}
    args = Seq2SeqTrainingArguments(str(folder / name), predict_with_generate=True, **common, **sizes, **values)
    model = transformers.T5ForConditionalGeneration(config)
    if parts > 1:
        cut(model, parts)
    trainer = Seq2SeqTrainer(model, args, train_dataset=rows)
    trainer.train()
    result = trainer.predict(rows)
    return {"texts": result.predictions.tolist(), "flos": trainer.state.total_flos}


def averaged(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    return trained(folder, name=name, callbacks=(Ema(),), **values)


def counted(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    """Returns the number of trainable parameters before and after the model is sharded."""
    trainer, _ = _trainer(folder, name=name, max_steps=1, **values)
    whole = trainer.get_num_trainable_parameters()
    trainer.train()
    return {"before": whole, "after": trainer.get_num_trainable_parameters()}


def merged(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    """Trains one step with adapters and saves the merged model."""
    trainer, _ = _trainer(folder, name=name, text=True, lora=True, max_steps=1, **values)
    trainer.train()
    trainer.save_merged_model(str(folder / name / "merged"))
    trainer._footplate.strategy.peers.barrier()
    return {"files": sorted(path.name for path in (folder / name / "merged").iterdir())}


def evaluated(folder: Path, *, name: str, samples: int = 21, **values: Any) -> dict[str, Any]:
    """Evaluates and predicts with an untrained model, with streaming metrics and one that needs all predictions."""

    def accuracy(evaluated: Any) -> dict[str, float]:
        return {
            "own": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean()),
            "seen": len(evaluated.label_ids),
        }

    metrics = ["accuracy", "f1_weighted", "auroc"]
    streams, _ = _trainer(folder, name=name, options={"metrics": metrics}, **values)
    keeps, _ = _trainer(
        folder, name=name, options={"metrics": ["torchmetrics/Accuracy"], "compute_metrics": accuracy}, **values
    )
    data = _points(samples, 1)
    result = keeps.predict(data)
    return {
        "streamed": _timeless(streams.evaluate(data)),
        "kept": _timeless(keeps.evaluate(data)),
        "labels": result.label_ids.tolist(),
        "predictions": result.predictions.tolist(),
        "metrics": _timeless(result.metrics or {}),
    }


def evaluated_after(folder: Path, **values: Any) -> dict[str, Any]:
    """Trains, and evaluates the model during training and after it."""
    trainer, events = _trainer(folder, eval_strategy="steps", eval_steps=4, **values)
    results = _results_of(trainer, events, trainer.train())
    return {**results, "evaluated": _timeless(trainer.evaluate())}


def evaluated_by_batch(folder: Path, **values: Any) -> dict[str, Any]:
    labels: list[int] = []
    ends = []

    def count(evaluated: Any, compute_result: bool) -> dict[str, float]:
        labels.extend(evaluated.label_ids.tolist())
        ends.append(compute_result)
        return {"seen": len(labels)} if compute_result else {}

    trainer, _ = _trainer(folder, name="by", options={"compute_metrics": count}, batch_eval_metrics=True, **values)
    trainer.evaluate()
    return {"seen": labels, "ends": ends}


class SystemRandomOrder(Sampler[int]):
    """A sampler that draws another order on every process."""

    def __iter__(self) -> Any:
        return iter(random.SystemRandom().sample(range(96), 96))

    def __len__(self) -> int:
        return 96


def shuffled_per_rank(folder: Path, **values: Any) -> dict[str, Any]:
    class Anew(Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SystemRandomOrder()

    trainer, events = _trainer(folder, name="anew", text=True, kind=Anew, **values)
    return _results_of(trainer, events, trainer.train())


def noisy_per_rank(folder: Path, **values: Any) -> dict[str, Any]:
    """Trains on data to which every process adds its own noise."""

    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self.data = toy.text(n=96, length=16)

        def __len__(self) -> int:
            return 96

        def __getitem__(self, index: int) -> Any:
            sample = dict(self.data[index])
            sample["input_ids"] = sample["input_ids"].roll(random.SystemRandom().randrange(1, 9))
            return sample

    trainer, events = _trainer(folder, name="noisy", text=True, **values)
    trainer.train_dataset = Noisy()
    return _results_of(trainer, events, trainer.train())


def tried_in_pieces(folder: Path, *, how: str, **values: Any) -> dict[str, Any]:
    """Trains a model, a loss or optimizers that are refused if samples are split over processes."""
    if how == "named optimizers":
        values["options"] = {"optimizers": [NamedOptimizer("all", [r"."], args={"lr": 1e-2}, schedule="linear")]}
    trainer, events = _trainer(folder, name=how, text=True, **values)
    if how in ("mixes positions", "adds to the loss"):
        set_model(trainer, LooksBackForCausalLM() if how == "mixes positions" else AddsForCausalLM())
    if how == "own loss function":
        trainer.compute_loss_func = lambda *args, **kwargs: None
    return _results_of(trainer, events, trainer.train())


def left_apart(folder: Path, *, rehearses: bool, **values: Any) -> dict[str, Any]:
    """Trains with a wrong attention, in which each process uses only its own part of a sample."""
    real, rehearse = dist.all_gather, context_parallel_step.require_same_in_pieces

    def gather(tensors: Any, own: Any, group: Any = None) -> None:
        for item in tensors:
            item.copy_(own)

    dist.all_gather = gather
    if not rehearses:
        context_parallel_step.require_same_in_pieces = lambda *args: None
    try:
        return trained(folder, name="apart", text=True, ignore=1, **values)
    finally:
        dist.all_gather, context_parallel_step.require_same_in_pieces = real, rehearse


def counted_tokens(folder: Path, **values: Any) -> dict[str, Any]:
    trainer, _ = _trainer(folder, name="tokens", text=True, **values)
    trainer.train()
    return {"tokens": trainer.state.num_input_tokens_seen}


def _timeless(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith(("runtime", "per_second"))}


class OnOneProcess(TrainerCallback):
    """Calls a function on one process only, in an event of one step."""

    def __init__(self, rank: int, step: int, what: Callable[[Any], None], event: str = "on_step_end") -> None:
        self.rank, self.step, self.what = rank, step, what
        setattr(self, event, self._act)

    def _act(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.process_index == self.rank and state.global_step == self.step:
            self.what(control)


def stopped_by_one(folder: Path, *, how: str, **values: Any) -> dict[str, Any]:
    def stop(control: Any) -> None:
        control.should_training_stop = True

    def terminate(control: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if how == "signal":
        values["enable_jit_checkpoint"] = True
    event = {"callback": "on_step_end", "signal": "on_step_begin", "log": "on_log"}[how]
    what = terminate if how == "signal" else stop
    trainer, events = _trainer(folder, name=how, callbacks=(OnOneProcess(1, 3, what, event),), **values)
    results = _results_of(trainer, events, trainer.train())
    return {**results, "files": sorted(path.name for path in (folder / how).glob("checkpoint-*"))}


def nan_on_one(folder: Path, **values: Any) -> dict[str, Any]:
    """Trains with a loss that is NaN on one process from the third step."""

    class Poisoned(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return loss * float("nan") if self.args.process_index == 1 and self.state.global_step >= 2 else loss

    trainer, _ = _trainer(folder, name="nan", kind=Poisoned, max_nan_steps=2, **values)
    try:
        trainer.train()
    except FloatingPointError as error:
        return {"error": str(error), "step": trainer.state.global_step}
    return {"error": None}


class Boom(Exception):
    pass


def failed_everywhere(folder: Path, **values: Any) -> dict[str, Any]:
    """Raises the same error on all processes, which then train another run together."""

    def fail(control: Any) -> None:
        raise Boom("everywhere")

    failing = tuple(OnOneProcess(rank, 2, fail) for rank in (0, 1))
    trainer, _ = _trainer(folder, name="everywhere", callbacks=failing, **values)
    try:
        trainer.train()
        return {"error": None}
    except Boom as error:
        return {"error": str(error), **trained(folder, name="after", **values)}


def failed_on_one(folder: Path, **values: Any) -> None:
    """Fails on one process during a collective, while the other process waits in another collective."""
    under_way = []

    def fail(control: Any) -> None:
        under_way.append(dist.broadcast(torch.ones(3), src=0, async_op=True))
        raise Boom("only here")

    trainer, _ = _trainer(folder, name="one", callbacks=(OnOneProcess(1, 2, fail),), **values)
    trainer.train()


def wrappers(folder: Path, *, name: str, **values: Any) -> dict[str, Any]:
    """Returns the modules that DDP wrapped in two trainings of the same model, and between them."""
    wrapped_names, real = [], DistributedDataParallel.__init__

    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        wrapped_names.append(type(module).__name__)
        real(self, module, *args, **kwargs)

    trainer, _ = _trainer(folder, name=name, **values)
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    try:
        trainer.train()
        trainer.evaluate()
        trainer.train()
    finally:
        DistributedDataParallel.__init__ = real  # type: ignore[method-assign]
    return {"made": wrapped_names, "type": trainer.accelerator.distributed_type.value}


def synchronised(folder: Path, **values: Any) -> dict[str, Any]:
    """Returns the number of steps and of gradient synchronizations."""
    synchronizations = []

    def count_and_reduce(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at the annotations
        synchronizations.append(bucket.index())
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)

    class Count(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.model_wrapped.register_comm_hook(None, count_and_reduce)  # type: ignore[operator]

    trainer, _ = _trainer(folder, name="synchronized", callbacks=(Count(),), **values)
    steps = trainer.train().global_step
    return {"steps": steps, "synchronizations": len(synchronizations)}


def process_group_options(folder: Path, **values: Any) -> dict[str, Any]:
    """Returns the options of the process group, which the first Trainer of a process creates."""
    trainer, _ = _trainer(folder, name="ddp-options", **values)
    trainer.train()
    wrapped: Any = trainer.model_wrapped
    group: Any = dist.group.WORLD
    return {
        "find_unused_parameters": wrapped.find_unused_parameters,
        "bucket_cap_mb": wrapped.bucket_bytes_cap / 2**20,
        "broadcast_buffers": wrapped.broadcast_buffers,
        "static_graph": wrapped.static_graph,
        "backend": dist.get_backend_config(),
        "timeout": group._get_backend(torch.device("cpu")).options._timeout.total_seconds(),
    }


def written(folder: Path, *, name: str = "written", **values: Any) -> dict[str, Any]:
    """Returns the ranks that printed and wrote, and the files that exist."""
    commits, real = [], files.commit

    def commit(*args: Any) -> Any:
        commits.append(args[1])
        return real(*args)

    files.commit = commit
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            trainer, events = _trainer(folder, name=name, save_strategy="steps", save_steps=4, **values)
            trainer.train()
            trainer.save_model()
    finally:
        files.commit = real
    return {
        "lines": len(output.getvalue().splitlines()),
        "commits": commits,
        "files": sorted(path.name for path in (folder / name / "checkpoint-4").iterdir()),
        "whole": sorted(path.name for path in (folder / name).iterdir()),
        "told": [str(checkpoint.path.name) for checkpoint in events.checkpoints],
        "history": len(trainer.state.log_history),
    }


def full_disk(folder: Path, **values: Any) -> dict[str, Any]:
    messages, real = [], files.commit

    def commit(*args: Any) -> Any:
        raise files.CannotSave(f"checkpoint-{args[1]} could not be written: no space")

    files.commit = commit
    try:
        trainer, _ = _trainer(folder, name="full", save_strategy="steps", save_steps=3, **values)
        trainer._footplate.hooks.on_save_failed = lambda failed: messages.append([failed.step, failed.error])
        steps = trainer.train().global_step
    finally:
        files.commit = real
    return {"told": messages, "steps": steps}


def predicted_objects(folder: Path, **values: Any) -> dict[str, Any]:
    def words(logits: Any, labels: Any) -> Any:
        return logits, [f"class {int(logit)}" for logit in logits.argmax(-1)]

    trainer, _ = _trainer(folder, name="objects", options={"preprocess_logits_for_metrics": words}, **values)
    result = trainer.predict(_points(21, 1))
    return {"words": [word for batch in result.predictions for word in batch[1]]}

"""The rules between several arguments. A violation names the fields, what is wrong, and what would work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from footplate.contract.arguments.training import TrainingArguments


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A contradiction between the values of several arguments."""

    fields: tuple[str, ...]
    """The fields that contradict each other. The problem is reported at the first one."""
    detail: str
    hint: str


def disagreements(args: TrainingArguments) -> Iterator[Disagreement]:
    yield from _durations(args)
    yield from _intervals(args)
    yield from _best_model(args)
    yield from _keeping(args)
    yield from _sharding(args)
    yield from _tracking(args)
    for name in args.debug:
        if name != "underflow_overflow":
            yield Disagreement(("debug",), f"debug is {str(name)!r}", "the only choice is underflow_overflow")
    for first, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if getattr(args, first) and getattr(args, other):
            yield Disagreement((first, other), f"{first} and {other} exclude each other", f"leave {first} out")
    if args.liger_kernel_config and not args.use_liger_kernel:
        yield Disagreement(
            ("liger_kernel_config", "use_liger_kernel"),
            "liger_kernel_config chooses Liger's kernels, but use_liger_kernel is off",
            "set use_liger_kernel to true, or leave liger_kernel_config out",
        )
    if args.follows_a_metric and args.eval_strategy == "no":
        yield Disagreement(
            ("lr_scheduler_type", "eval_strategy"),
            f"{args.lr_scheduler_type} follows a metric, but nothing is evaluated",
            'set eval_strategy to "steps" or "epoch"',
        )
    if not isinstance(args.activation_checkpointing_kwargs, dict | None):
        yield Disagreement(
            ("activation_checkpointing_kwargs",),
            f"activation_checkpointing_kwargs is {args.activation_checkpointing_kwargs!r}, not an object",
            'write an object such as {"every_n_layers": 2}, or the text of such an object',
        )
    if args.dataloader_num_workers == 0:
        for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
            if getattr(args, name):
                yield Disagreement(
                    (name, "dataloader_num_workers"),
                    f"{name} is an option of loading processes, but dataloader_num_workers is 0",
                    f"set dataloader_num_workers to 1 or more, or leave {name} out",
                )


def _durations(args: TrainingArguments) -> Iterator[Disagreement]:
    if args.max_steps == 0 or args.max_steps < -1:
        yield Disagreement(("max_steps",), f"max_steps is {args.max_steps}", "use -1 for no limit, or 1 and more")
    if args.warmup_steps >= 1 and args.warmup_steps != int(args.warmup_steps):
        yield Disagreement(
            ("warmup_steps",),
            f"warmup_steps is {args.warmup_steps}, which is neither a number of steps nor a share of all steps",
            "use a whole number of steps, or a share below 1",
        )


def _intervals(args: TrainingArguments) -> Iterator[Disagreement]:
    for name in ("logging", "eval", "save"):
        strategy, steps = getattr(args, f"{name}_strategy"), getattr(args, f"{name}_steps")
        if strategy != "steps":
            continue
        if not steps and name != "save":
            yield Disagreement(
                (f"{name}_steps", f"{name}_strategy"),
                f"{name}_strategy is steps, but {name}_steps is {steps}",
                f"set {name}_steps to 1 or more",
            )
        elif steps > 1 and steps != int(steps):
            yield Disagreement(
                (f"{name}_steps",),
                f"{name}_steps is {steps}, which is neither a number of steps nor a share of all steps",
                "use a whole number of steps, or a share below 1",
            )


def _best_model(args: TrainingArguments) -> Iterator[Disagreement]:
    if args.save_strategy == "best" and args.eval_strategy == "no":
        yield Disagreement(
            ("save_strategy", "eval_strategy"),
            "save_strategy is best, but nothing is evaluated",
            'set eval_strategy to "steps" or "epoch"',
        )
    if not args.load_best_model_at_end or args.save_strategy == "best":
        return
    if args.eval_strategy != args.save_strategy or args.eval_strategy == "no":
        yield Disagreement(
            ("load_best_model_at_end", "eval_strategy", "save_strategy"),
            f"load_best_model_at_end needs saving and evaluating at the same steps, but eval_strategy is "
            f"{args.eval_strategy} and save_strategy {args.save_strategy}",
            'give both the same strategy, or set save_strategy to "best"',
        )
    elif args.eval_strategy == "steps" and not _is_multiple(args.save_steps, args.eval_steps or 0):
        yield Disagreement(
            ("save_steps", "eval_steps", "load_best_model_at_end"),
            f"save_steps {args.save_steps:g} is not a multiple of eval_steps {args.eval_steps or 0:g}, so the best "
            "step may not be saved",
            "make save_steps a multiple of eval_steps",
        )


def _keeping(args: TrainingArguments) -> Iterator[Disagreement]:
    if args.keep_last is not None and args.save_total_limit is not None:
        yield Disagreement(
            ("keep_last", "save_total_limit"),
            "keep_last and save_total_limit both set the number of newest checkpoints to keep",
            "give one of them",
        )
    if args.keep_best is None:
        return
    if args.keep_last is None and args.save_total_limit is None:
        yield Disagreement(
            ("keep_best", "keep_last"),
            "keep_best protects the best checkpoints from deletion, but no setting deletes checkpoints",
            "set keep_last",
        )
    if args.metric_for_best_model is None:
        yield Disagreement(
            ("keep_best", "metric_for_best_model"),
            "keep_best ranks checkpoints, but no metric is set",
            "set metric_for_best_model",
        )


def _tracking(args: TrainingArguments) -> Iterator[Disagreement]:
    if not {"trackio", "all"} & set(args.report_to or ()):
        for name in ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
            if getattr(args, name):
                yield Disagreement(
                    (name, "report_to"),
                    f"{name} is an option of trackio, but report_to does not name trackio",
                    f'set report_to to "trackio", or leave {name} out',
                )


def _sharding(args: TrainingArguments) -> Iterator[Disagreement]:
    if args.fsdp and args.deepspeed:
        yield Disagreement(
            ("fsdp", "deepspeed"),
            "fsdp and deepspeed both shard the model over the processes",
            "leave one of them out",
        )
    settings = args.fsdp_config
    # Files with Hugging Face's arguments contain an fsdp_config with empty values although FSDP is off.
    is_set = any(settings.values()) if isinstance(settings, dict) else settings
    if is_set and not args.fsdp:
        yield Disagreement(
            ("fsdp_config", "fsdp"), "fsdp_config has options of FSDP, but fsdp is off", "set fsdp to true"
        )
    shards = "fsdp" if args.fsdp else "deepspeed" if args.deepspeed else None
    if shards and args.auto_find_batch_size:
        yield Disagreement(
            ("auto_find_batch_size", shards),
            f"auto_find_batch_size splits a batch in one process only, but with {shards} all processes must "
            "split it in the same way",
            "leave auto_find_batch_size out, and set per_device_train_batch_size",
        )


def _is_multiple(whole: float, part: float) -> bool:
    """Returns True if `whole` is a multiple of `part`. Each is a number of steps, or below 1 a share of all steps.

    A number is never a multiple of a share, because the number of all steps is not known here.
    """
    if part == 0 or (whole < 1) != (part < 1):
        return part == 0
    return round(whole * 1_000_000) % round(part * 1_000_000) == 0

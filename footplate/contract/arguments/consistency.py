"""The rules between several arguments. A violation names the fields, what is wrong, and what would work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from footplate.contract.arguments.training import TrainingArguments


class Disagreement(NamedTuple):
    """A contradiction between the values of several arguments."""

    fields: tuple[str, ...]
    """The fields that contradict each other. The problem is reported at the first one."""
    detail: str
    hint: str


class _Rule(NamedTuple):
    """A row of the table of rules. In `detail`, a name such as `{args.max_steps}` stands for the argument's value."""

    is_broken: Callable[[TrainingArguments], object]
    fields: tuple[str, ...]
    detail: str
    hint: str


def disagreements(args: TrainingArguments) -> Iterator[Disagreement]:
    for rule in _RULES:
        if rule.is_broken(args):
            yield Disagreement(rule.fields, rule.detail.format(args=args), rule.hint)
    yield from _intervals(args)
    for name in args.debug:
        if name != "underflow_overflow":
            yield Disagreement(("debug",), f"debug is {str(name)!r}", "the only choice is underflow_overflow")
    shards = next((name for name in ("fsdp", "deepspeed") if getattr(args, name)), None)
    if shards and args.auto_find_batch_size:
        yield Disagreement(
            ("auto_find_batch_size", shards),
            f"auto_find_batch_size splits a batch in one process only, but with {shards} all processes must "
            "split it in the same way",
            "leave auto_find_batch_size out, and set per_device_train_batch_size",
        )
    for name in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        if args.dataloader_num_workers == 0 and getattr(args, name):
            detail = f"{name} is an option of loading processes, but dataloader_num_workers is 0"
            hint = f"set dataloader_num_workers to 1 or more, or leave {name} out"
            yield Disagreement((name, "dataloader_num_workers"), detail, hint)
    for name in ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"):
        if getattr(args, name) and {"trackio", "all"}.isdisjoint(args.report_to or ()):
            detail = f"{name} is an option of trackio, but report_to does not name trackio"
            yield Disagreement((name, "report_to"), detail, f'set report_to to "trackio", or leave {name} out')


def _intervals(args: TrainingArguments) -> Iterator[Disagreement]:
    for name in ("logging", "eval", "save"):
        strategy, steps = getattr(args, f"{name}_strategy"), getattr(args, f"{name}_steps")
        if strategy != "steps":
            continue
        if not steps and name != "save":
            detail = f"{name}_strategy is steps, but {name}_steps is {steps}"
            yield Disagreement((f"{name}_steps", f"{name}_strategy"), detail, f"set {name}_steps to 1 or more")
        elif steps > 1 and steps != int(steps):
            detail = f"{name}_steps is {steps}, which is neither a number of steps nor a share of all steps"
            yield Disagreement((f"{name}_steps",), detail, "use a whole number of steps, or a share below 1")


def _saves_without_evaluating(args: TrainingArguments) -> bool:
    """Returns True if the best model is to be loaded, but checkpoints are not saved when the model is evaluated."""
    is_best_loaded = args.load_best_model_at_end and args.save_strategy != "best"
    return is_best_loaded and (args.eval_strategy != args.save_strategy or args.eval_strategy == "no")


def _may_not_save_the_best(args: TrainingArguments) -> bool:
    is_by_steps = args.eval_strategy == args.save_strategy == "steps"
    return args.load_best_model_at_end and is_by_steps and not _is_multiple(args.save_steps, args.eval_steps or 0)


def _is_multiple(number: float, divisor: float) -> bool:
    """Returns True if `number` is a multiple of `divisor`. Each is a number of steps, or below 1 a share of all steps.

    A number is never a multiple of a share, because the number of all steps is not known here.
    """
    if divisor == 0 or (number < 1) != (divisor < 1):
        return divisor == 0
    return round(number * 1_000_000) % round(divisor * 1_000_000) == 0


def _has_options_of_fsdp(args: TrainingArguments) -> bool:
    # Files with Hugging Face's arguments contain an fsdp_config with empty values although FSDP is off.
    return any(args.fsdp_config.values()) if isinstance(args.fsdp_config, dict) else bool(args.fsdp_config)


_RULES = (
    _Rule(lambda args: args.max_steps == 0 or args.max_steps < -1, ("max_steps",),
          "max_steps is {args.max_steps}", "use -1 for no limit, or 1 and more"),
    _Rule(lambda args: args.warmup_steps >= 1 and args.warmup_steps != int(args.warmup_steps), ("warmup_steps",),
          "warmup_steps is {args.warmup_steps}, which is neither a number of steps nor a share of all steps",
          "use a whole number of steps, or a share below 1"),
    _Rule(lambda args: args.save_strategy == "best" and args.eval_strategy == "no", ("save_strategy", "eval_strategy"),
          "save_strategy is best, but nothing is evaluated", 'set eval_strategy to "steps" or "epoch"'),
    _Rule(_saves_without_evaluating, ("load_best_model_at_end", "eval_strategy", "save_strategy"),
          "load_best_model_at_end needs saving and evaluating at the same steps, but eval_strategy is "
          "{args.eval_strategy} and save_strategy {args.save_strategy}",
          'give both the same strategy, or set save_strategy to "best"'),
    _Rule(_may_not_save_the_best, ("save_steps", "eval_steps", "load_best_model_at_end"),
          "save_steps {args.save_steps:g} is not a multiple of eval_steps {args.eval_steps:g}, so the best step may "
          "not be saved",
          "make save_steps a multiple of eval_steps"),
    _Rule(lambda args: args.keep_last is not None and args.save_total_limit is not None,
          ("keep_last", "save_total_limit"),
          "keep_last and save_total_limit both set the number of newest checkpoints to keep", "give one of them"),
    _Rule(lambda args: args.keep_best is not None and args.keep_last is None and args.save_total_limit is None,
          ("keep_best", "keep_last"),
          "keep_best protects the best checkpoints from deletion, but no setting deletes checkpoints", "set keep_last"),
    _Rule(lambda args: args.keep_best is not None and args.metric_for_best_model is None,
          ("keep_best", "metric_for_best_model"),
          "keep_best ranks checkpoints, but no metric is set", "set metric_for_best_model"),
    _Rule(lambda args: args.fsdp and args.deepspeed, ("fsdp", "deepspeed"),
          "fsdp and deepspeed both shard the model over the processes", "leave one of them out"),
    _Rule(lambda args: not args.fsdp and _has_options_of_fsdp(args), ("fsdp_config", "fsdp"),
          "fsdp_config has options of FSDP, but fsdp is off", "set fsdp to true"),
    _Rule(lambda args: args.fp16 and args.bf16, ("fp16", "bf16"),
          "fp16 and bf16 exclude each other", "leave fp16 out"),
    _Rule(lambda args: args.fp16_full_eval and args.bf16_full_eval, ("fp16_full_eval", "bf16_full_eval"),
          "fp16_full_eval and bf16_full_eval exclude each other", "leave fp16_full_eval out"),
    _Rule(lambda args: args.liger_kernel_config and not args.use_liger_kernel,
          ("liger_kernel_config", "use_liger_kernel"),
          "liger_kernel_config chooses Liger's kernels, but use_liger_kernel is off",
          "set use_liger_kernel to true, or leave liger_kernel_config out"),
    _Rule(lambda args: args.follows_a_metric and args.eval_strategy == "no", ("lr_scheduler_type", "eval_strategy"),
          "{args.lr_scheduler_type} follows a metric, but nothing is evaluated",
          'set eval_strategy to "steps" or "epoch"'),
    _Rule(lambda args: not isinstance(args.activation_checkpointing_kwargs, dict | None),
          ("activation_checkpointing_kwargs",),
          "activation_checkpointing_kwargs is {args.activation_checkpointing_kwargs!r}, not an object",
          'write an object such as {"every_n_layers": 2}, or the text of such an object'),
)  # fmt: skip

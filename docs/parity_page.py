"""Makes docs/reference/parity.md: our Trainer compared with transformers' Trainer.

The arguments come from the tables of refused and renamed arguments, which a test compares with transformers. The texts
about other differences are written here.
"""

from __future__ import annotations

import dataclasses
from importlib.metadata import version

from docs.markdown import table_cell
from footplate.contract.arguments import NOT_YET, TrainingArguments
from footplate.contract.arguments.legacy import LEGACY, RenamedArgument
from footplate.contract.arguments.not_supported import CHOICES_NOT_YET
from footplate.contract.help_texts import meanings
from footplate.trainer.overrides import NEVER_CALLED

OURS = frozenset({"logging_dir", "max_nan_steps", "keep_last", "keep_best", "save_in_background"})
"""Training arguments that Hugging Face does not have, or, like logging_dir, no longer has."""

OTHER_DEFAULTS = {
    "restore_callback_states_from_checkpoint": "a resume is the same run, so callbacks continue with their counters",
}
"""Training arguments whose default differs from Hugging Face's, with the reason."""


def parity_page(notice: str) -> str:
    meaning = {name: table_cell(text) for name, text in meanings(TrainingArguments).items()}
    names = [field.name for field in dataclasses.fields(TrainingArguments)]  # type: ignore[arg-type]
    supported = [f"| `{name}` | {meaning.get(name, '')} |" for name in names if name not in OURS]
    declined = [f"| `{name}` | {table_cell(entry.instead)} |" for name, entry in NOT_YET.items()]
    choices = [
        f"| `{field}` | {', '.join(f'`{value}`' for value in sorted(values) if values[value] == instead)} | {instead} |"
        for field, values in CHOICES_NOT_YET.items()
        for instead in dict.fromkeys(values.values())
    ]
    older = [
        f"| `{name}` | {'mapped' if isinstance(entry, RenamedArgument) else 'declined'} | {table_cell(entry.instead)} |"
        for name, entry in sorted(LEGACY.items())
    ]
    methods = [f"| `{name}` | {table_cell(instead)} |" for name, instead in NEVER_CALLED.items()]
    return "\n".join(
        [
            f"# Compared with `transformers.Trainer` {'.'.join(version('transformers').split('.')[:2])}",
            notice,
            "A script changes its import, `from footplate import Trainer, TrainingArguments`, and sees its old curve:",
            "on one process, at the same seed, losses, norms, rates, metrics and weights are the same to the last bit",
            "(`tests/trainer/test_beside_transformers.py`). Whatever is not here is refused with what to use instead;",
            "nothing is accepted and ignored.",
            STEPS,
            "\n## Arguments that work\n",
            *("| name | meaning |", "|---|---|", *supported),
            "\n## Arguments that transformers does not have\n",
            *("| name | meaning |", "|---|---|", *(f"| `{name}` | {meaning[name]} |" for name in sorted(OURS))),
            "\n## Arguments whose default is another\n",
            *("| name | why |", "|---|---|", *(f"| `{name}` | {why} |" for name, why in OTHER_DEFAULTS.items())),
            "\n## Arguments that are refused unless they ask for what happens anyway\n",
            *("| name | instead |", "|---|---|", *declined),
            "\n## Choices that are refused\n",
            *("| argument | choices | instead |", "|---|---|---|", *choices),
            "\n## Older names\n",
            "A script and a job's spec take those that are mapped. Either is told so by a warning.\n",
            *("| name | | now |", "|---|---|---|", *older),
            DIFFERENT + "\n".join(f"| {theirs} | {ours} | {why} |" for theirs, ours, why in DIFFERENCES),
            "\n## Methods that are not here\n",
            "A subclass that overrides one of them is refused: it would never be called.\n",
            *("| name | instead |", "|---|---|", *methods),
            "",
        ]
    )


STEPS = """
## What a step computes

**Gradient accumulation.** Many models of transformers accept `num_items_in_batch` and ignore it: masked language
models, sequence and token classification, T5. Their loss is a mean over one micro-batch. transformers adds these
means up: with 4 accumulation steps the logged loss and the gradients are four times too large. Here a step does not
depend on how its samples are cut. Before the first step of `train()` the Trainer compares the model's loss of one
batch at two values of `num_items_in_batch`. Generators, buffers and gradients stay as they were. If the loss does not
change, each micro-batch's loss counts by its share of the step's labels, and one log line says so.
`loss_is_scaled_for_ga = True` on the Trainer, or on its class, switches this off: then the numbers are those of
transformers, to the last bit. With one micro-batch a step in one process both give the same. A `compute_loss` of your
own that does not call ours is treated as transformers treats it: set `loss_is_scaled_for_ga = False` if it returns a
mean over its micro-batch.

**Train mode and eval mode.** `evaluate()` and `predict()` leave the model in eval mode, as transformers does; the
next training step sets train mode. transformers also sets it before every micro-batch, for every part of the model.
Here a part that a callback puts into eval mode between two evaluations stays in eval mode.

**Labels.** `label_names` is what transformers has. Without label names an evaluation has a loss where
`can_return_loss`, or `return_loss` in the batch, says so. Beyond transformers, it also has one if the batch has
`labels`, or if only a `compute_loss` of your own can take the batch."""


DIFFERENT = """
## What is different on purpose

Hugging Face's own trainer tests and those of TRL, sentence-transformers and SetFit run on our Trainer under
`footplate.install()` ([figures](../developers/foreign-tests.md)).
These behaviours differ:

| theirs | ours | why |
|---|---|---|
"""
DIFFERENCES = (
    (
        "`auto_find_batch_size` trains again with a smaller batch, and its checkpoints store that size.",
        "It splits the batch and raises the accumulation.",
        "The effective batch, the curve and the place in the data stay the same.",
    ),
    (
        "`enable_jit_checkpoint` saves 3 seconds after SIGTERM, by a `JITCheckpointCallback`.",
        "It saves after the current step, by our own callback.",
        "Machines that are taken away give little time.",
    ),
    (
        "`save_total_limit=1` deletes the newest checkpoint if an older one is the best.",
        "It keeps both.",
        "A run must be able to continue from where it stopped.",
    ),
    (
        "`use_configured_state` without a state is refused by TrainingArguments.",
        "It is refused by the Trainer.",
        "Arguments make no state here. Libraries make some only to read defaults.",
    ),
    (
        "`hyperparameter_search` runs Optuna, Ray Tune and sweeps of Weights & Biases.",
        "It runs Optuna, in one process. The other backends are refused.",
        "The others run trials outside of the job, in Ray's processes or by a server of Weights & Biases.",
    ),
    (
        "A callback whose state is restored moves to the end of the list.",
        "It keeps its place.",
        "A resume must not change the order in which callbacks run.",
    ),
    (
        "Loading processes draw random numbers one after another, for the samples and for a collator with a `seed`.",
        "They draw them by seed, epoch and number of the batch. Without loading processes the numbers are theirs.",
        "A resumed run masks the same tokens.",
    ),
    (
        "During training, a push copies the checkpoint's files to `output_dir` and uploads that folder.",
        "It uploads the checkpoint's folder itself.",
        "The next save must not change files that are being uploaded.",
    ),
    (
        "Without a terminal, `ProgressCallback` writes its bar all the same.",
        "It writes plain lines. `disable_tqdm=False` brings the bar back.",
        "A bar fills a log file with control characters.",
    ),
    (
        "A resume reads a stream from its beginning, and drops the samples that were trained on.",
        "A stream with `state_dict` continues at its stored position. A shuffle buffer is filled again.",
        "Reading a long stream again takes hours.",
    ),
    (
        "A resume computes its position from full epochs, also if a callback ended epochs early.",
        "It continues at the stored position.",
        "No sample is trained on twice.",
    ),
    (
        "A resume from a checkpoint of an epoch's last step leaves out the evaluation at the end of that epoch.",
        "It makes up for it, with the event `on_epoch_end`.",
        "An evaluation draws random numbers, and may change the learning rate or stop the run.",
    ),
    (
        "A resume of a run that ended within an epoch trains a further step.",
        "It trains none.",
        "`max_steps` and `num_train_epochs` are limits.",
    ),
    (
        "`use_cache` does not reach the model that `model_init` makes for `train()`.",
        "It reaches every model.",
        "An argument that is accepted has an effect.",
    ),
    (
        "Weights of a checkpoint that the model lacks are left out with a warning, and the model's others keep their "
        "values. A best checkpoint without weights is a warning, too.",
        "Both are errors that name the weights. Only buffers may be missing.",
        "The run would go on, or end, with weights of another training.",
    ),
    (
        "`resume_from_checkpoint=True` takes the newest folder.",
        "It takes the newest one with a valid manifest. A checkpoint that transformers wrote is resumed by its path.",
        "An interrupted save leaves a folder from which no run can continue.",
    ),
    (
        "A smaller last window of a stream is not a step. Its gradients are added to the next step.",
        "It is a step.",
        "Each step then has the gradients of its own samples.",
    ),
    (
        "`dataloader_drop_last` has no effect on a stream.",
        "It drops the last batch if it is smaller.",
        "An argument that is accepted has an effect.",
    ),
    (
        "A resume takes the learning rate from the checkpoint.",
        "It takes the rate from the arguments, and the schedule's position from the checkpoint. A schedule of the "
        "script is restored whole.",
        "A changed argument has an effect.",
    ),
    (
        "An evaluation in several processes fills the last round with repeated samples, and these count in the loss.",
        "No sample is repeated.",
        "The loss equals that of one process.",
    ),
    (
        "A run of a schedule-free optimizer ends with the weights of its last step, unless it is evaluated there.",
        "It ends with the averaged weights.",
        "These are the result of training. A later evaluation would average the weights of a loaded best model again.",
    ),
    (
        "`max_steps=0` means no limit, as -1 does.",
        "It is refused.",
        "0 could also mean that nothing is to be trained.",
    ),
    (
        "`optim_args` has no effect on AdamW of torch and on Adafactor.",
        "It sets their options, such as `amsgrad=true`. Options that other arguments set are refused.",
        "An argument that is accepted has an effect.",
    ),
    (
        '`best_global_step` stays None with `save_strategy="no"`.',
        "It is the step of the best evaluation.",
        "The result of a job names this step.",
    ),
    (
        "With `disable_tqdm`, `total_flos` is missing from the metrics of `train()`, and printed numbers are rounded.",
        "It is among them, and numbers are printed in full.",
        "The way of printing logs does not change the result.",
    ),
    (
        "`on_save` of a callback receives the same keywords as other events.",
        "It also receives `checkpoint`, the saved folder with its step, size and hash.",
        "With `save_in_background`, it is not the checkpoint of the present step. A method without `**kwargs` needs "
        "the keyword.",
    ),
    (
        "With `group_by_length`, `predict` returns predictions in the order of batches of similar length.",
        "It returns them in the order of the data.",
        "Scripts join predictions with the rows of the data.",
    ),
    (
        "A model card names its metrics in `metrics`, and the configuration and split of its dataset.",
        "It has the values of the last evaluation in `model-index`, with the loss, and a text of our own.",
        "The card is made without transformers, which knows the hub's names of metrics and tasks.",
    ),
    (
        "With `dispatch_batches: false`, an evaluation of a stream counts a smaller last batch as a full one in "
        "`eval_loss`.",
        "It counts the batch by its samples.",
        "The loss is the mean over the samples, as with the other settings.",
    ),
    (
        "An evaluation logs `eval_loss`, and a checkpoint has the files of Hugging Face.",
        "It also logs `eval_loss_exact`. A checkpoint also has `manifest.json` and `training_args.json`.",
        "Nothing of theirs is missing, so both can continue from the other's checkpoints.",
    ),
)

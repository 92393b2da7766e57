"""Arguments and values of Hugging Face that are not supported, in general or in a job. Each is refused with a reason.

Only an argument's neutral value, such as `fp16: false`, is accepted, because it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotYet:
    """An argument that is not supported."""

    neutral: object
    """The value that changes nothing. A user may pass this value, and reading the argument returns it."""
    instead: str
    """The part of messages that names what to use instead."""

    def accepts(self, value: object) -> bool:
        """Returns True for the neutral value. In Python False equals 0, so the types are compared as well."""
        if value == [] and self.neutral in (None, "", "none"):
            return True
        return type(value) is type(self.neutral) and value == self.neutral


_OPTIM = "use another optim, or pass optimizers= or optimizer_cls_and_kwargs="

NOT_YET: dict[str, NotYet] = {
    "optim_target_modules": NotYet(None, "leave it out: only low-rank optimizers read it, and these are not supported"),
}

_LOW_RANK_NAMES = (
    "galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise galore_adamw_8bit_layerwise "
    "galore_adafactor_layerwise apollo_adamw apollo_adamw_layerwise"
)
_IN_BACKWARD = "it steps inside of backward, where accumulation, clipping and callbacks never see a gradient"
_OPTIMIZERS = {
    "adamw_torch_xla": "Accelerate runs torch's AdamW on XLA",
    "adamw_torch_npu_fused": "torch's AdamW runs on NPUs too",
    "adamw_anyprecision": "torchdistx is no longer maintained, and adamw_torch_8bit saves more memory",
    "lomo": _IN_BACKWARD,
    "adalomo": _IN_BACKWARD,
    "schedule_free_radam": "schedule_free_adamw with warmup_steps does the same",
    "grokadamw": "it has not been requested yet",
    "stable_adamw": "it has not been requested yet",
    **dict.fromkeys(_LOW_RANK_NAMES.split(), "it puts each layer into a parameter group of its own"),
}

CHOICES_NOT_YET: dict[str, dict[str, str]] = {
    "optim": {name: f"{why}: {_OPTIM}" for name, why in _OPTIMIZERS.items()},
}
"""Values of supported arguments that are not supported, each with the reason and with what to use instead."""

_OUTPUTS = "leave it out: download the job's outputs, and push them yourself"

IN_SCRIPTS_ONLY: dict[str, NotYet] = {
    "sortish_sampler": NotYet(False, 'write "train_sampling_strategy": "group_by_length", which is the same'),
    "generation_config": NotYet(
        None,
        "leave it out: write generation_config.json into the model's folder, or set generation_max_length",
    ),
    "parallelism_config": NotYet(
        None,
        "leave it out, and shard the model with fsdp or deepspeed: a job loads the whole model, but tensor parallelism "
        "needs a model that was split while it was loaded; cp_size, which splits samples, works only in scripts",
    ),
    "push_to_hub": NotYet(False, _OUTPUTS),
    "hub_token": NotYet(None, f"{_OUTPUTS}. A token in a spec would be stored with the job"),
    "hub_private_repo": NotYet(None, _OUTPUTS),
    "hub_model_id": NotYet(None, _OUTPUTS),
    "hub_strategy": NotYet("every_save", _OUTPUTS),
    "hub_always_push": NotYet(False, _OUTPUTS),
    "hub_revision": NotYet(None, _OUTPUTS),
}
"""Arguments that work in scripts but not in a spec, because a job's training cannot reach the hub and builds the model
itself."""

OBJECTS_ONLY: dict[str, str] = {
    "accelerator_config": 'write what the file holds, such as {"split_batches": true}',
}
"""Arguments that may be the path of a file in a script, but must be objects in a spec."""

SERVER_OWNED: dict[str, str] = {
    "output_dir": "leave it out: the server gives every attempt a folder of its own",
    "enable_jit_checkpoint": "leave it out: a drain saves a checkpoint by itself",
    "local_rank": "leave it out: the server starts the ranks",
    "logging_dir": "leave it out: the server keeps the logs with the job",
    "resume_from_checkpoint": "write resume_from in the spec, or POST /jobs/{id}/resume",
    "fsdp": 'write "resources": {"strategy": {"type": "fsdp"}}',
    "fsdp_config": 'write "resources": {"strategy": {"type": "fsdp", "config": {…}}}',
    "deepspeed": 'write "resources": {"strategy": {"type": "deepspeed", "config": {…}}}',
    "use_cpu": 'write "resources": {"gpus_per_node": 0}',
}
"""Arguments that the server sets in a job, so that a spec must not have them. Each has what to do instead."""

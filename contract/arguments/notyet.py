"""Names that Hugging Face's arguments have and ours do not honour yet: understood and refused, never ignored.

The neutral value is accepted, because it asks for what happens anyway: `fp16: false` is true to us too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotYet:
    neutral: object
    """The value that changes nothing; reading the attribute answers it."""
    instead: str
    """What would work today."""

    def accepts(self, value: object) -> bool:
        """`False == 0` in Python, and a bool is not a number to us."""
        if value == [] and self.neutral in (None, "", "none"):
            return True
        return type(value) is type(self.neutral) and value == self.neutral


_HUB = "leave it out: take the files from output_dir"
_OPTIM = "use one of ours, or hand in optimizers= or optimizer_cls_and_kwargs="

NOT_YET: dict[str, NotYet] = {
    "optim_target_modules": NotYet(None, "leave it out: only low-rank optimizers read it, and those are declined"),
    "use_liger_kernel": NotYet(False, "leave it out: the model's own kernels run"),
    "liger_kernel_config": NotYet(None, "leave it out: the model's own kernels run"),
    "push_to_hub": NotYet(False, _HUB),
    "hub_token": NotYet(None, _HUB),
    "hub_private_repo": NotYet(None, _HUB),
    "hub_model_id": NotYet(None, _HUB),
    "hub_strategy": NotYet("every_save", _HUB),
    "hub_always_push": NotYet(False, _HUB),
    "hub_revision": NotYet(None, _HUB),
    "parallelism_config": NotYet(None, "leave it out, or shard the model with fsdp or deepspeed"),
}

_OTHER_OPTIMIZERS = (
    "adamw_torch_xla adamw_torch_npu_fused adamw_anyprecision galore_adamw galore_adamw_8bit galore_adafactor "
    "galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw "
    "schedule_free_radam apollo_adamw apollo_adamw_layerwise stable_adamw"
)

CHOICES_NOT_YET: dict[str, tuple[frozenset[str], str]] = {
    "optim": (frozenset(_OTHER_OPTIMIZERS.split()), _OPTIM),
}
"""Values of fields that we have, which the reference knows and we do not yet: also refused with what to use."""

SERVER_OWNED: dict[str, str] = {
    "output_dir": "the server gives every attempt a folder of its own",
    "enable_jit_checkpoint": "a drain saves a checkpoint by itself",
    "local_rank": "the server starts the ranks",
    "logging_dir": "the server keeps the logs with the job",
    "overwrite_output_dir": "the server gives every attempt a folder of its own",
    "resume_from_checkpoint": "say resume_from in the spec, or POST /jobs/{id}/resume",
    "fsdp": 'say "resources": {"strategy": {"type": "fsdp"}}',
    "fsdp_config": 'say "resources": {"strategy": {"type": "fsdp", "config": {…}}}',
    "deepspeed": 'say "resources": {"strategy": {"type": "deepspeed", "config": {…}}}',
    "use_cpu": 'say "resources": {"gpus_per_node": 0}',
}
"""Names that are good in a script and not in a spec, each with what to do instead."""

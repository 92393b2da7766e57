"""Optimizers, by Hugging Face's names.

- `groups.py`: which parameters decay, and an optimizer over these groups
- `choose.py`: names to classes and their arguments
- `extras.py`: optimizers that need a further package
- `adafactor.py`, `lion.py`, `schedule_free.py`: built in
"""

from footplate.trainer.optimizers.adafactor import Adafactor, AdafactorSchedule, get_adafactor_schedule
from footplate.trainer.optimizers.choose import optimizer_class, parsed
from footplate.trainer.optimizers.groups import (
    decay_parameter_names,
    get_parameter_names,
    is_optimizer_factory,
    make_optimizer,
    parameter_groups,
)
from footplate.trainer.optimizers.lion import Lion
from footplate.trainer.optimizers.schedule_free import AdamWScheduleFree, SGDScheduleFree

__all__ = [
    "Adafactor",
    "AdafactorSchedule",
    "AdamWScheduleFree",
    "Lion",
    "SGDScheduleFree",
    "decay_parameter_names",
    "get_adafactor_schedule",
    "get_parameter_names",
    "is_optimizer_factory",
    "make_optimizer",
    "optimizer_class",
    "parameter_groups",
    "parsed",
]

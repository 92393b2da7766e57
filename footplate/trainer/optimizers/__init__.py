"""What moves the weights.

groups.py         which parameters decay; an optimizer made over the groups
choose.py         the reference's names to classes and their arguments; what is not here is declined by name
extras.py         those that come with a package of their own
adafactor.py lion.py schedule_free.py   built in
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

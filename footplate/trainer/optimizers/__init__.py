"""Optimizers, by Hugging Face's names.

- `groups.py`: which parameters decay, an optimizer over these groups, and the parameters with gradients of a group
- `choose.py`: names to classes and their arguments
- `adafactor.py`, `lion.py`, `schedule_free.py`: built in
"""

from footplate.trainer.optimizers.adafactor import Adafactor as Adafactor
from footplate.trainer.optimizers.adafactor import AdafactorSchedule as AdafactorSchedule
from footplate.trainer.optimizers.lion import Lion as Lion
from footplate.trainer.optimizers.schedule_free import AdamWScheduleFree as AdamWScheduleFree
from footplate.trainer.optimizers.schedule_free import SGDScheduleFree as SGDScheduleFree

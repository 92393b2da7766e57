"""Four loops that train the same: by hand, over Accelerate, with transformers' Trainer and with ours.

    work.py           the models, data and collators of all loops
    raw.py            the loop by hand
    accelerated.py    the loop over Accelerate
    scripted.py       a script for transformers' Trainer, run with either Trainer
    race.py           runs the loops in turns, each in a process of its own

The other modules are the measurements.
"""

"""Four loops that do the same: by hand, over Accelerate, with transformers' Trainer and with ours.

work.py           what they are given: models, data, collators
raw.py            by hand
accelerated.py    over Accelerate
scripted.py       a script for transformers' Trainer, run with either Trainer
race.py           takes them in turns, each in a process of its own
training.py, calling.py, resuming.py, evaluating.py, saving.py, starting.py      what is measured of them
"""

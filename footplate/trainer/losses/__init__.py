"""Loss functions, which training minimises.

- `loss.py`: a loss as a sum and a count, the model's own, or computed from its logits and the labels
- `families.py`: the choice of a loss by the model's class name
- `smoothing.py`: LabelSmoother
- `labels.py`: checks for labels out of range, which would otherwise fail in a GPU assert
"""

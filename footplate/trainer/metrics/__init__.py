"""Metrics of an evaluation beside the loss. They keep sums, so their memory does not grow with the samples.

- `sums.py`: the interface, and sums that stay on the device and add up over processes
- `counting.py`: accuracy, precision, recall, f1, mcc, mse, mae, rmse and perplexity
- `ranking.py`: auroc
- `text.py`: bleu, sacrebleu, rouge and chrf of generated text, by torchmetrics
- `third_party.py`: torchmetrics by name, and any object that has `add_batch` and `compute`
"""

from footplate.trainer.metrics.choose import METRICS, make_metric
from footplate.trainer.metrics.counting import Accuracy, Counted, Error, Matthews, Perplexity
from footplate.trainer.metrics.ranking import Auroc
from footplate.trainer.metrics.sums import Metric, Sums
from footplate.trainer.metrics.text import TEXTS, Text
from footplate.trainer.metrics.third_party import AddBatch, TorchMetric

__all__ = [
    "METRICS",
    "TEXTS",
    "Accuracy",
    "AddBatch",
    "Auroc",
    "Counted",
    "Error",
    "Matthews",
    "Metric",
    "Perplexity",
    "Sums",
    "Text",
    "TorchMetric",
    "make_metric",
]

"""What an evaluation says beside the loss. Metrics stream: they keep sums, and memory does not grow with the samples.

sums.py      the contract, and sums that stay on the device and add up over processes
counting.py  accuracy, precision, recall, f1, mcc; mse, mae, rmse; perplexity
ranking.py   auroc
others.py    torchmetrics' by name, and anything that has `add_batch` and `compute`
"""

from worker.trainer.metrics.choose import METRICS, make_metric
from worker.trainer.metrics.counting import Accuracy, Counted, Error, Matthews, Perplexity
from worker.trainer.metrics.others import AddBatch, TorchMetric
from worker.trainer.metrics.ranking import Auroc
from worker.trainer.metrics.sums import Metric, Sums

__all__ = [
    "METRICS",
    "Accuracy",
    "AddBatch",
    "Auroc",
    "Counted",
    "Error",
    "Matthews",
    "Metric",
    "Perplexity",
    "Sums",
    "TorchMetric",
    "make_metric",
]

"""Metrics of an evaluation beside the loss. They keep sums, so their memory does not grow with the samples.

- `choose.py`: the interface, and metrics by name
- `counting.py`: accuracy, precision, recall, f1, mcc, mse, mae, rmse, perplexity and auroc, and their base. Its sums
  stay on the device, and are added up over processes
- `third_party.py`: torchmetrics by name, with bleu, sacrebleu, rouge and chrf of generated text, and any object that
  has `add_batch` and `compute`
"""

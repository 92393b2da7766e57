"""Metrics of an evaluation beside the loss. They keep sums, so their memory does not grow with the samples.

- `sums.py`: the interface, and sums that stay on the device and add up over processes
- `counting.py`: accuracy, precision, recall, f1, mcc, mse, mae, rmse, perplexity and auroc
- `text.py`: bleu, sacrebleu, rouge and chrf of generated text, by torchmetrics
- `third_party.py`: torchmetrics by name, and any object that has `add_batch` and `compute`
"""

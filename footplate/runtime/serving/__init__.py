"""A serving session: the process that answers requests with a checkpoint, instead of training."""

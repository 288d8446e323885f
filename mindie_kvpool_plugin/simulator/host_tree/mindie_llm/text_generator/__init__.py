"""One worker: from scheduled batches to tokens."""

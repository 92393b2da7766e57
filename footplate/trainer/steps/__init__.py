"""One optimizer step: in one process, in many, with batches cut to fit, or with samples cut over processes."""

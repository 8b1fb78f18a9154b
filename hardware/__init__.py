"""Machine cards and the network that the GPUs of a job span."""

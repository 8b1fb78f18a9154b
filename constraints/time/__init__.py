"""The time terms: seconds of a step, one subject a file."""

"""An outcome in words: everything here turns numbers into text."""

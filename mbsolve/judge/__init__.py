"""Judging what others made: job files checked and evaluated, measured rows predicted."""

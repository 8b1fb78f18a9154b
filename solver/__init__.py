"""How a plan is found: tabulation, bounds, the CP-SAT master and the proof."""

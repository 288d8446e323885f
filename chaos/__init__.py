"""Trials beside the package, not in the wheel: faults in every mode, real processes broken, and a long run."""

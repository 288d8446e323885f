"""Types, ranges and names, per host version."""

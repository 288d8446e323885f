"""Several guesses next to each other."""

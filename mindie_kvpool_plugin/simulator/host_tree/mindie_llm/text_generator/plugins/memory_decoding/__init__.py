"""One guess, out of what was said before."""

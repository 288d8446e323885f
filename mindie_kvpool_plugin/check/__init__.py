"""The check: what a configuration says, judged before the weights load, from files alone."""

"""From bytes to a positioned value, however broken the text."""

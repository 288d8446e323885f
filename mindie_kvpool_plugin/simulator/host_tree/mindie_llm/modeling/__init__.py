"""The model side of the stand-in host."""

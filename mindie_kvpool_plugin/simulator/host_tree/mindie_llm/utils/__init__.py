"""Process-wide helpers of the stand-in host."""

"""A stand-in for MindIE-LLM that runs on a laptop: the places a plugin touches, no more.  It is not MindIE-LLM."""

__version__ = "3.0.0+simulator"

"""A stand-in for MindIE-LLM that runs on a laptop: the places a plugin touches, and nothing else.  It is not MindIE-LLM."""

__version__ = "3.0.0+simulator"

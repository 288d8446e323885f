"""A host that runs on a laptop, for tests and the demo.  It is not MindIE-LLM."""

"""Everything that knows MindIE-LLM or torch."""

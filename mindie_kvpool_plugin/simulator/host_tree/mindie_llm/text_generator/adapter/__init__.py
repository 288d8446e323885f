"""Between plugins and model."""

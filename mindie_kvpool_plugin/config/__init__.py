"""Configuration: what the running plugin reads and what the check command judges."""

"""What is counted and what is logged."""

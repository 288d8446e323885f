"""What is said when something fails."""

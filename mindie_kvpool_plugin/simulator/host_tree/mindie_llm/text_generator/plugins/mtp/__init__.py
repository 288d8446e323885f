"""Tokens that a draft layer guesses."""

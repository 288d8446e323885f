"""Answers of the host's own functions."""

from enum import Enum


class MindieLlmStatusCode(Enum):
    SUCCESS = 0
    TEXT_GENERATOR_PD_RETRY_QUERY = 1
    TEXT_GENERATOR_PD_ALREADY_LINK = 2

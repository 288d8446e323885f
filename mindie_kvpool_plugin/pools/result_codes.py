"""A library's result codes: what they mean, what they are counted as, and those we add for calls without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# ours, far outside every library's range: one code per key also for a call that gave none
NOT_OPEN: Final = -1_000_001
WRONG_LENGTH: Final = -1_000_002


@dataclass(frozen=True, slots=True)
class ResultCodes:
    """The codes of one library, and of its backend's own.

    Attributes:
        library: each of the library's codes that is known, and what it says.
        ours: each that the backend adds, what it is counted as and what it says; at most ``NOT_OPEN``.
        size: what a positive code says where another one was expected.
    """

    library: Mapping[int, str]
    ours: Mapping[int, tuple[str, str]]
    size: str

    def label(self, code: int) -> str:
        """What a code is counted as: itself if its meaning is known, else one of few words."""
        if code in self.ours:
            return self.ours[code][0]
        return str(code) if code in self.library else "size" if code > 0 else "other"

    def labels(self) -> dict[str, str]:
        """Everything that ``label`` says, with what it means."""
        known = {str(code): text for code, text in self.library.items()} | dict(self.ours.values())
        return known | {"other": "a code without a known meaning", "size": self.size}

    def meaning(self, code: int) -> str:
        """The code with its meaning, for a log line or an error."""
        if code in self.ours:
            return self.ours[code][1]
        return f"{code} ({self.library[code]})" if code in self.library else str(code)


def one_per_key(answers: Sequence[int], count: int) -> list[int]:
    """A binding's codes, or one of ours for every key if it gave another number of them (none, when it is not open)."""
    return list(answers) if len(answers) == count else [WRONG_LENGTH] * count

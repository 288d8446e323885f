"""Sentences for findings, in the user's language, from ``locale/<language>.json``.

The keys are names: ``CODE.part`` or ``CODE.variant.part``, such as ``HC-01.message``.  English is a
translation like Chinese: no sentence lives in the code, and a missing twin is a failing test.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from mindie_kvpool_plugin.check.findings import Finding, Phrase, shown
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.support import Refusal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# a value is a name, a number or a sentence with a path; longer text comes from a hostile file
_MAX_PARAM_CHARS = 1000


def language(wanted: str, env: Mapping[str, str]) -> Language:
    """``wanted`` if it is a language, else what the locale variables say."""
    if wanted == "zh":
        return "zh"
    if wanted == "en":
        return "en"
    locale = next((env[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if env.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"


@lru_cache(maxsize=2)
def _texts(lang: Language) -> dict[str, str]:
    file = Path(__file__).parents[1] / "locale" / f"{lang}.json"
    texts: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return texts


def words(key: str, lang: Language, /, **params: Any) -> str:
    """A text with its placeholders filled; the key itself when there is none.

    A value is a name or a number; or a refusal or a phrase, whose words in this language are inserted whole.
    """
    return _filled(_texts(lang).get(key, key), params, lang)


@lru_cache(maxsize=2)
def names_of(beginning: str) -> Mapping[str, str]:
    """English text -> its name, of the names that begin so: for a library that knows texts only."""
    return {text: key for key, text in _texts("en").items() if key.startswith(beginning)}


def has_text(key: str, lang: Language) -> bool:
    """Whether a language has a text."""
    return key in _texts(lang)


class Refused(ConfigError):  # noqa: N818 - it is no error of ours
    """What is asked for cannot be done, as a sentence of the catalogs.

    Attributes:
        key: the sentence's name.
        params: its values.
    """

    def __init__(self, key: str, /, **params: Any) -> None:
        super().__init__(key)
        self.key, self.params = key, params

    def __str__(self) -> str:
        """In English, as a traceback shows it."""
        return reason(self, "en")


def reason(error: Exception, lang: Language) -> str:
    """What an error says: a refusal in the user's language, the system's with its file, others as they are."""
    if isinstance(error, Refused):
        return words(error.key, lang, **error.params)
    if isinstance(error, OSError) and error.filename:
        return words("command.file_error", lang, file=error.filename, reason=system_reason(error))
    return str(error)


def system_reason(error: OSError) -> Phrase | str:
    """What the system says, without the file: the usual ones in the user's language."""
    key = f"errno.{errno.errorcode.get(error.errno or 0)}"
    return Phrase(key) if has_text(key, "en") else error.strerror or type(error).__name__


def message(finding: Finding, lang: Language) -> str:
    """What is wrong, and for how much else it stands."""
    text = words(f"{finding.message_id}.message", lang, **_params(finding, message, lang))
    if finding.alike:
        text += words("report.alike", lang, count=finding.alike)
    if finding.followers:
        key = "report.follow" if finding.followers > 1 else "report.follow_one"
        text += words(key, lang, count=finding.followers)
    return text


def hint(finding: Finding, lang: Language) -> str:
    """What to do about it."""
    return words(f"{finding.message_id}.hint", lang, **_params(finding, hint, lang))


def _params(finding: Finding, say: Callable[[Finding, Language], str], lang: Language) -> dict[str, Any]:
    """The values of its placeholders; another finding that it names as its cause is said in the same way."""
    params = {**finding.params, "value": shown(finding.value), "path": finding.path}
    return {key: say(value, lang) if isinstance(value, Finding) else value for key, value in params.items()}


def _filled(text: str, params: Mapping[str, Any], lang: Language) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in params:
            return match[0]
        param = params[match[1]]
        if isinstance(param, Refusal):
            return param(lang)
        if isinstance(param, Phrase):
            return words(param.key, lang)
        found = str(param)[:_MAX_PARAM_CHARS]
        return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in found)

    return _PLACEHOLDER.sub(value, text)

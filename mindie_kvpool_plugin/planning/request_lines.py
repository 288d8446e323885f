"""Requests from JSON Lines: token ids, texts, or the bodies of requests as an access log or a batch file has them.

Per line one object; what stands before its first ``{`` is skipped, so a log may have a time stamp there.

prompt (one of)
    ``token_ids``, ``prompt_token_ids``: whole numbers; ``prompt``: the same, or a text; ``messages``: chat messages
    with ``role`` and ``content``; ``inputs``, ``text_input``: a text (MindIE's and Triton's own interfaces).
answer (optional)
    ``answer_token_ids``, ``output_token_ids``; ``answer``, ``response``, ``output``: a text; ``output_length``:
    tokens; else ``max_tokens``, ``max_completion_tokens`` or ``max_new_tokens`` (also below ``parameters``).
``timestamp`` (optional)
    milliseconds.  Lines count as sorted.

All of it may lie below ``body`` or ``request``.  A block is named by a hash over its tokens and all before it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from mindie_kvpool_plugin.check.messages import Refused, system_reason
from mindie_kvpool_plugin.planning.asked import FIRST_UNKNOWN, Asked, Traffic
from mindie_kvpool_plugin.simulator.trace import TraceError, not_json

DEFAULT_BYTES_PER_TOKEN = 4.0
"""Of UTF-8; about right for English, and for Chinese, of which a character has three."""

_IDS = ("token_ids", "prompt_token_ids")
_TEXTS = ("inputs", "text_input")
_ANSWER_IDS = ("answer_token_ids", "output_token_ids")
_ANSWER_TEXTS = ("answer", "response", "output")
_ANSWER_LENGTHS = ("output_length", "max_tokens", "max_completion_tokens", "max_new_tokens")
_WRAPPERS = ("body", "request")
_KEYS = (*_IDS, "prompt", "messages", *_TEXTS)
_NAME_BYTES = 8
_HOST_LOG = ("Receive request from", "uri is")
"""What MindIE-LLM logs of a request (http_server.cpp): address, method and URI."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a text becomes.

    Attributes:
        encode: a text's tokens.
        per_token: entries of ``encode``'s result that make one token.
        remark: name of the text that says how good it is.
    """

    encode: Callable[[str], Sequence[int]]
    per_token: float
    remark: str


def with_bytes(bytes_per_token: float = DEFAULT_BYTES_PER_TOKEN) -> Words:
    """No tokenizer: so many bytes of UTF-8 count as a token.  Prefixes are found as well as with one."""
    return Words(lambda text: text.encode("utf-8", "replace"), bytes_per_token, "plan.bytes_are_tokens")


def with_tokenizer(folder: Path) -> Words:
    """The tokenizer of a weight directory (``tokenizer.json``), by the package ``tokenizers``.

    Raises:
        Refused: package or file is missing, or the file is none.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # not needed for anything else
    except ImportError as error:
        raise Refused("plan.needs_tokenizers") from error
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no other
        raise Refused("plan.bad_tokenizer", file=file, reason=error) from error
    return Words(lambda text: tokenizer.encode(text).ids, 1.0, "plan.no_template")


def read_lines(path: Path, unit_tokens: int, words: Words, limit: int | None = None) -> Traffic:
    """The first ``limit`` requests of a file, in units of ``unit_tokens``.

    Raises:
        TraceError: the file cannot be read, is empty, or a line is no request.
    """
    requests, is_text, knows_answers = list[Asked](), False, True
    unknown = itertools.count(FIRST_UNKNOWN, -1)
    for number, line in _lines(path):
        if limit is not None and len(requests) == limit:
            break
        place = f"{path}:{number}"
        body, outer = _body(line, place)
        prompt, prompt_is_text = _prompt(body, words, place)
        answer, length = _answer(body, outer, words, is_text=prompt_is_text, place=place)
        per_token = words.per_token if prompt_is_text else 1.0
        chain = _chains(prompt, answer, length, per_token, unit_tokens, unknown)
        requests.append(Asked(_timestamp(outer, place), *chain))
        is_text |= prompt_is_text
        knows_answers &= answer is not None
    if not requests:
        raise TraceError("trace.empty", file=path)
    remarks = ((words.remark,) if is_text else ()) + (() if knows_answers else ("plan.answers_unknown",))
    return Traffic(requests, unit_tokens, remarks)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except UnicodeDecodeError as error:
        raise TraceError("trace.no_text", file=path) from error
    except OSError as error:
        raise TraceError("trace.unreadable", file=path, reason=system_reason(error)) from error


def _body(line: str, place: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The request, and the object of the line around it."""
    start = line.find("{")
    if start < 0 and all(part in line for part in _HOST_LOG):
        raise TraceError("trace.host_log", place=place)
    try:
        outer, _ = json.JSONDecoder().raw_decode(line, max(start, 0))
    except (ValueError, RecursionError) as error:
        raise not_json(place, error) from error
    if not isinstance(outer, dict):
        raise TraceError("trace.no_object", place=place, example='{"token_ids": [1, 2, 3]}')
    for key in _WRAPPERS:
        inner = _unpacked(outer.get(key))
        if isinstance(inner, dict):
            return inner, outer
    return outer, outer


def _unpacked(value: Any) -> Any:
    """A body that was logged as a text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _prompt(body: Mapping[str, Any], words: Words, place: str) -> tuple[Sequence[int], bool]:
    """What names its blocks, and whether it was a text."""
    key = next((key for key in _KEYS if key in body), None)
    if key is None:
        raise TraceError("trace.no_prompt", place=place, keys=", ".join(_KEYS))
    value = body[key]
    if isinstance(value, list) and key != "messages":
        return _ids(value, key, place), False
    text = _chat(value, place) if key == "messages" else value
    if not isinstance(text, str) or not text:
        raise TraceError("trace.odd_prompt", place=place, key=key, value=json.dumps(value)[:60])
    return words.encode(text), True


def _ids(value: list[Any], key: str, place: str) -> list[int]:
    if not value or not all(type(each) is int and 0 <= each < 2**63 for each in value):
        raise TraceError("trace.odd_tokens", place=place, key=key)
    return value


def _chat(messages: Any, place: str) -> str:
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise TraceError("trace.odd_messages", place=place)
    return "".join(_said(each) for each in messages)


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # parts of a message; of those that are no text the kind is all that counts
        content = "".join(str(part.get("text", part.get("type"))) for part in content if isinstance(part, dict))
    return f"<{message.get('role')}>{content or ''}"


def _answer(
    body: Mapping[str, Any], outer: Mapping[str, Any], words: Words, *, is_text: bool, place: str
) -> tuple[Sequence[int] | None, int]:
    """The answer in the prompt's units if it is known, and its length in tokens."""
    for values in (body, outer):
        if not is_text:
            found = next((values[key] for key in _ANSWER_IDS if isinstance(values.get(key), list)), None)
            if found:
                ids = _ids(found, "answer_token_ids", place)
                return ids, len(ids)
        text = next((values[key] for key in _ANSWER_TEXTS if isinstance(values.get(key), str)), None)
        if text is not None and is_text:
            encoded = words.encode(f"<assistant>{text}" if "messages" in body else text)
            return encoded, max(1, round(len(encoded) / words.per_token))
    parameters = body.get("parameters")
    for values in (body, outer, parameters if isinstance(parameters, dict) else {}):
        length = next((values[key] for key in _ANSWER_LENGTHS if type(values.get(key)) is int), None)
        if length is not None and length > 0:
            return None, length
    return None, 1


def _timestamp(outer: Mapping[str, Any], place: str) -> int:
    value = outer.get("timestamp", 0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise TraceError("trace.odd_time", place=place, value=json.dumps(value)[:40])
    return int(value)


def _chains(
    prompt: Sequence[int],
    answer: Sequence[int] | None,
    length: int,
    per_token: float,
    unit: int,
    unknown: Iterator[int],
) -> tuple[int, list[int], int, list[int]]:
    """The fields of ``Asked`` behind the time stamp."""
    width = max(1, round(unit * per_token))
    tokens = max(1, round(len(prompt) / per_token))
    kept = (tokens + length - 1) // unit
    chain = _chain([prompt] if answer is None else [prompt, answer], width)
    stored = chain[:kept]
    # of an answer that is not known only the room it takes
    stored += itertools.islice(unknown, max(0, kept - len(stored)))
    return tokens, chain[: len(prompt) // width], length, stored


def _chain(parts: Sequence[Sequence[int]], width: int) -> list[int]:
    """Names of the full blocks, each a hash over its own values and the name before it."""
    kind = np.dtype(np.uint8 if isinstance(parts[0], bytes) else "<i8")
    raw = b"".join(part if isinstance(part, bytes) else np.array(part, dtype=kind).tobytes() for part in parts)
    step = width * kind.itemsize
    names, before = list[int](), b""
    for start in range(0, len(raw) - step + 1, step):
        before = blake2b(before + raw[start : start + step], digest_size=_NAME_BYTES).digest()
        names.append(int.from_bytes(before, "little") | 1)
    return names

"""The service's HTTP interface: POST /v1/completions with the prompt as token ids, as MindIE's endpoint takes them.

The contract is the host's (single_req_vllm_openai_completions_infer_interface.cpp): ``prompt`` may be a list of
integers, and ``usage.prompt_tokens_details.cached_tokens`` says how much of it the device had; of hits in the pool the
host learns after it has counted.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.check.rules.view import integer, text
from mindie_kvpool_plugin.doctor.acceptance.trial import Tls, Trial
from mindie_kvpool_plugin.doctor.lines import Line, good, trouble

CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 * 1024**2
DEFAULT_PORT = 1025
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - where the service listens, not we


class ServiceError(Exception):
    """The service did not answer as it should; ``args[0]`` says how."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To one prompt.

    Attributes:
        text: generated.
        cached: tokens found on the device; None where the service does not say.
        seconds: until it was complete.
    """

    text: str
    cached: int | None
    seconds: float


class Service:
    """A client of one service; safe for several threads, each call has a connection of its own.

    Args:
        url: scheme, host and port.
        tls: files for https.
        model: to name in requests.
    """

    def __init__(self, url: str, tls: Tls, model: str) -> None:
        self.url, self.model = url, model
        parts = urllib.parse.urlsplit(url)
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        self._tls = tls

    def models(self) -> list[str]:
        """Names it serves.

        Raises:
            ServiceError: no answer, or another one.
            OSError: nobody listens, or TLS failed.
        """
        found = self._ask("GET", "/v1/models", None, CONNECT_TIMEOUT_S).get("data")
        return [str(each.get("id")) for each in (found if isinstance(found, list) else []) if isinstance(each, dict)]

    def complete(self, tokens: Sequence[int], max_tokens: int, timeout_s: float) -> Answer:
        """The most likely continuation.

        Raises:
            ServiceError: no answer in time, or another one.
            OSError: the connection broke.
        """
        asked = {"model": self.model, "prompt": list(tokens), "max_tokens": max_tokens, "temperature": 0,
                 "ignore_eos": True, "stream": False}  # fmt: skip
        began = time.monotonic()
        found = self._ask("POST", "/v1/completions", asked, timeout_s)
        seconds = time.monotonic() - began
        try:
            said = str(found["choices"][0]["text"])
        except (KeyError, IndexError, TypeError):
            raise ServiceError(f"an answer without choices[0].text: {json.dumps(found)[:200]}") from None
        usage = found.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Answer(said, cached if isinstance(cached, int) else None, seconds)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> dict[str, Any]:
        connection = self._connection(timeout_s)
        with contextlib.closing(connection):
            try:
                connection.request(
                    method,
                    self._path + path,
                    None if body is None else json.dumps(body),
                    {"Content-Type": "application/json"},
                )
                response = connection.getresponse()
                data = response.read(MAX_ANSWER_BYTES)
            except TimeoutError:
                raise ServiceError(f"no answer to {method} {path} within {timeout_s:.0f} s") from None
            except http.client.HTTPException as error:
                raise ServiceError(f"{method} {path}: no HTTP: {error!r}") from None
        if response.status != http.client.OK:
            raise ServiceError(f"{method} {path}: {response.status} {data[:200].decode('utf-8', 'replace')}")
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(data)
            if isinstance(found, dict):
                return found
        raise ServiceError(f"{method} {path}: no JSON object: {data[:100]!r}")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if not self._is_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self._tls.authority or None)
        # the certificate is the service's, which is asked by address
        context.check_hostname = False
        if self._tls.certificate:
            context.load_cert_chain(self._tls.certificate, self._tls.key or None)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)


def service_of(case: Trial) -> Service:
    """Where the configuration says, unless an address was given."""
    server = case.view.server
    host = text(server, "ipAddress")
    host = "127.0.0.1" if host in ANY_ADDRESS else host
    scheme = "https" if server.get("httpsEnabled", True) is True else "http"
    name = f"[{host}]" if ":" in host else host
    url = case.url or f"{scheme}://{name}:{integer(server, 'port', DEFAULT_PORT) or DEFAULT_PORT}"
    models = case.view.models
    return Service(url, case.tls, text(models[0], "modelName") if models else "")


def service(case: Trial) -> Iterator[Line]:
    """Is it there, and is it this one; without it the run is half an acceptance, and says so."""
    if case.report.is_pool_file and not case.url:
        yield Line("service.no_config", "skipped")
        return
    if text(case.view.server, "inferMode") == "dmi" and not case.url:
        yield Line("service.of_coordinator", "skipped")
        return
    found = service_of(case)
    try:
        models = found.models()
    except ConnectionRefusedError:
        yield Line("service.none", "skipped", {"url": found.url})
    except ssl.SSLError as error:
        yield Line("service.tls", "skipped", {"url": found.url, "reason": error.reason or str(error)})
    except (OSError, ServiceError) as error:
        yield trouble("service.silent", url=found.url, reason=error)
    else:
        if found.model and models and found.model not in models:
            yield trouble("service.other_model", url=found.url, model=found.model, models=", ".join(models))
        else:
            yield good("service.there", url=found.url, model=found.model or ", ".join(models))

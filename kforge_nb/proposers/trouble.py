"""What can go wrong with a call, told apart by what has to be done about it.

A *kind* is one word: ``key``, ``model``, ``quota`` (nothing further can work), ``rate``,
``server``, ``connection``, ``timeout``, ``cut``, ``empty``, ``garbled`` (worth another attempt),
``too_long``, ``filtered``, ``oversized``, ``request`` (this request cannot work), ``parameter``
(it can, without one of its options), and ``cancelled``.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from kforge_nb.errors import KForgeError
from kforge_nb.proposers.stream import Received, StreamError, Usage, paired

__all__ = ["RETRIED", "ChatFailed", "from_exception", "from_status", "retry_after", "scrubbed"]

SHOWN = 500
"""Characters of an endpoint's own words that are shown."""

_SCRUBBED = 100_000  # characters that are searched for keys before they are cut
_PERHAPS_READ = frozenset({408, 502, 504, 520, 522, 524})

RETRIED = frozenset({"rate", "server", "connection", "timeout", "cut", "empty", "garbled"})
"""Kinds that another attempt may help."""

_TOO_LONG = re.compile(
    r"context.{0,20}(?:length|window|size)|maximum context|too many tokens|prompt is too long|"
    r"input is too long|reduce the length|exceed_context|n_ctx|max(?:imum)?_?model_?len",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[_ ](?:filter|management|policy)|safety system", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:maximum context length is|context (?:length|size|window)\D{0,24}|n_ctx\D{0,6})"
    r"\s*(\d{3,8})",
    re.IGNORECASE,
)
_OPTIONS = ("max_completion_tokens", "max_tokens", "temperature", "reasoning_effort",
            "stream_options")  # fmt: skip
_KEYS = re.compile(
    r"\b(?:(?:g?sk|pk|rk|hf|xai|nvapi)[-_]|(?:sk|pk|key|bearer)[-_ ])[^\s\"'`<>(){},;]{6,}",
    re.IGNORECASE,
)


class ChatFailed(KForgeError):
    """A call that gave no answer.

    ``kind`` is one of this module's words. ``retry_after`` is seconds that the endpoint asked to
    wait, if it did. ``usage`` is what it reported all the same. ``lost`` counts attempts that were
    sent and whose cost nobody told. ``limit`` is the tokens that fit, of a request that did not;
    ``option`` the option that the endpoint does not know.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
        usage: Usage | None = None,
        lost: int = 0,
        limit: int | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(paired(message))
        self.kind, self.retry_after, self.usage = kind, retry_after, usage
        self.lost, self.limit, self.option = lost, limit, option


def from_status(
    status: int, body: Any, headers: Mapping[str, str], model: str, where: str, secret: str = ""
) -> ChatFailed:
    """The failure that an HTTP status means; ``body`` is what came with it, if it was JSON.

    ``secret`` is the key, which an endpoint may repeat in its words.
    """
    error = body.get("error", body) if isinstance(body, dict) else body
    fields = error if isinstance(error, dict) else {}
    said = _shown(str(fields.get("message") or error or "no reason given"), secret)
    code = f"{fields.get('code') or ''} {fields.get('type') or ''}"
    if status in (401, 403):
        return ChatFailed(
            "key",
            f"{where} refused the key (HTTP {status}: {said}); set OPENAI_API_KEY in the "
            "environment to a key of this endpoint, or OPENAI_BASE_URL to another one",
        )
    if status == 404:
        return ChatFailed(
            "model",
            f"{where} does not know the model {model!r} (HTTP 404: {said}); name another one with "
            "--model, or another endpoint with OPENAI_BASE_URL (it mostly ends in /v1)",
        )
    if status == 429:
        return _rate(said, code, headers, where)
    if status >= 500 or status in (408, 409, 425):
        return ChatFailed("server", f"{where} failed (HTTP {status}: {said})",
                          retry_after=retry_after(headers))  # fmt: skip
    return _request(status, said, code, fields, where)


def _rate(said: str, code: str, headers: Mapping[str, str], where: str) -> ChatFailed:
    if "insufficient_quota" in code or "billing" in said.lower():
        return ChatFailed("quota", f"{where} says that the account has no money left ({said})")
    return ChatFailed(
        "rate", f"{where} takes no more calls now (HTTP 429: {said})",
        retry_after=retry_after(headers),
    )  # fmt: skip


def _request(
    status: int, said: str, code: str, fields: Mapping[str, Any], where: str
) -> ChatFailed:
    words = f"{where} refused the request (HTTP {status}: {said})"
    if status == 413 or _TOO_LONG.search(f"{code} {said}"):
        return ChatFailed("too_long", words, limit=_limit(said, fields))
    if _FILTERED.search(f"{code} {said}"):
        return ChatFailed("filtered", words)
    option = _option(str(fields.get("param") or ""), said)
    if option is not None:
        return ChatFailed("parameter", words, option=option)
    if "model_not_found" in code or re.search(
        r"model\b.{0,60}(?:not (?:exist|found)|unknown)", said
    ):
        return ChatFailed("model", f"{words}; name another one with --model")
    return ChatFailed("request", words)


def _option(named: str, said: str) -> str | None:
    """The option that is refused: the one that is named, else the first that is spoken of."""
    if named in _OPTIONS:
        return named
    places = {o: found.start() for o in _OPTIONS if (found := re.search(rf"\b{o}\b", said))}
    return min(places, key=lambda option: places[option], default=None)


def _limit(said: str, fields: Mapping[str, Any]) -> int | None:
    """Tokens that fit in all, where the endpoint says so."""
    known = fields.get("n_ctx")
    if isinstance(known, int) and known > 0:
        return known
    found = _LIMIT.search(said)
    return int(found[1]) if found else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: a number, or a date."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,8}(?:\.\d+)?", text):
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=dt.UTC)
        return max(0.0, (when - dt.datetime.now(dt.UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def from_exception(
    problem: Exception, got: Received, model: str, where: str, secret: str = ""
) -> tuple[ChatFailed, bool]:
    """The failure that an exception of the client means, and whether the request was read.

    A request that was read, or perhaps was, may have cost something: a gateway that waited for the
    model in vain has mostly handed the request on. ``secret`` is the key, which is never shown.
    """
    import openai

    if isinstance(problem, openai.APIStatusError):
        status, headers = problem.status_code, problem.response.headers
        found = from_status(status, _body_of(problem), headers, model, where, secret)
        return found, status in _PERHAPS_READ
    if isinstance(problem, StreamError):
        words = _shown(str(problem), secret)
        return ChatFailed(problem.kind, f"{where}: {words}", usage=got.usage), True
    causes = _causes(problem)
    if got.characters or got.choices:
        words = f"the connection to {where} was cut in the middle of an answer"
        return ChatFailed("cut", f"{words} ({_words(causes, secret)})"), True
    read = not _while_connecting(causes)
    if any("Timeout" in type(cause).__name__ for cause in causes):
        return ChatFailed("timeout", f"{where} did not answer in time"), read
    words = f"{where} cannot be reached ({_words(causes, secret)}); {_advice(causes)}"
    return ChatFailed("connection", words), read


def _body_of(problem: Any) -> Any:
    """What came with an HTTP error, as JSON if it is."""
    if problem.body is not None:
        return problem.body
    try:
        return json.loads(problem.response.text)
    except (ValueError, RecursionError, RuntimeError):
        return None


def _causes(problem: BaseException) -> list[BaseException]:
    """The exception and what it came of, innermost last."""
    found: list[BaseException] = []
    now: BaseException | None = problem
    while now is not None and now not in found:
        found.append(now)
        now = now.__cause__ or now.__context__
    return found


def _while_connecting(causes: list[BaseException]) -> bool:
    """Whether nothing of the request can have reached the endpoint."""
    names = {type(cause).__name__ for cause in causes}
    refusals = (ConnectionRefusedError, ssl.SSLCertVerificationError)
    refused = any(isinstance(cause, refusals) for cause in causes)
    return refused or bool(names & {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})


def _words(causes: list[BaseException], secret: str) -> str:
    last = next((cause for cause in reversed(causes) if str(cause)), causes[0])
    return _shown(f"{type(last).__name__}: {last}", secret)


def _advice(causes: list[BaseException]) -> str:
    if any("CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in causes):
        return (
            "if a proxy with a certificate of its own stands between, set SSL_CERT_FILE to the "
            "file with its authority"
        )
    return "look at OPENAI_BASE_URL and the proxy settings, and whether the server is up"


def scrubbed(text: str, secret: str) -> str:
    """Without the key, also as Python would quote it, and without what looks like a part of one."""
    for form in {secret, repr(secret)[1:-1]}:
        text = text.replace(form, "[key]") if len(form) >= 4 else text
    return _KEYS.sub("[key]", text)


def _shown(text: str, secret: str) -> str:
    """Words from outside, scrubbed before they are cut: half a key is none that can be found."""
    return scrubbed(text[:_SCRUBBED], secret)[:SHOWN]

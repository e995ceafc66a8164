"""Reading a streamed chat completion as its bytes arrive, within limits, believing nothing.

An endpoint may send anything: halves of lines, no usage, other types than promised, a megabyte in
one line, or one JSON document where a stream was asked for. What is kept is the text, how much
reasoning there was, why it ended, and the usage if it is one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kforge_nb.proposers import prices

__all__ = ["MAX_BYTES", "Received", "StreamError", "Usage", "paired", "usage_of"]

MAX_BYTES = 8 << 20
"""Bytes of one response that are read; what is longer is cut off there."""

_MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class Usage(prices.Usage):
    """Tokens of one call; ``estimated`` where nobody metered them, ``model`` as it was reported."""

    estimated: bool = False
    model: str = ""


class StreamError(Exception):
    """The response holds an error, is too long, or is no completion. ``kind`` says which.

    The message is uncut: whoever shows it first takes out what must not be shown.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Received:
    """What has arrived of one response.

    Args:
        most: characters of text and reasoning after which an answer is cut off.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._line = bytearray()
        self._bytes = 0
        self._texts: list[str] = []
        self.characters = 0
        self.finish = ""
        self.done = False
        self.model = ""
        self.usage: Usage | None = None
        self.choices = 0

    @property
    def text(self) -> str:
        """The answer so far, without reasoning."""
        return paired("".join(self._texts))

    def feed(self, data: bytes) -> list[str]:
        """Take bytes; the pieces of text and reasoning in them. Raises StreamError."""
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise StreamError("oversized", f"the response is longer than {MAX_BYTES >> 20} MiB")
        *lines, rest = data.split(b"\n")
        pieces: list[str] = []
        for line in lines:
            pieces += self._take(bytes(self._line) + line)
            self._line.clear()
        self._line += rest
        return pieces

    def end(self) -> list[str]:
        """The response is over: whatever stands in its last line. Raises StreamError."""
        line = bytes(self._line)
        self._line.clear()
        return self._take(line)

    def whole(self, body: bytes) -> list[str]:
        """A response that is one JSON document instead of a stream. Raises StreamError."""
        if len(body) > MAX_BYTES:
            raise StreamError("oversized", f"the response is longer than {MAX_BYTES >> 20} MiB")
        self.done = True
        return self._event(body.decode("utf-8", "replace"))

    def _take(self, line: bytes) -> list[str]:
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("data:"):
            return []  # a comment, an event's name, or the blank line between events
        data = text.removeprefix("data:").strip()
        self.done = self.done or data == "[DONE]"
        return [] if data in ("", "[DONE]") else self._event(data)

    def _event(self, data: str) -> list[str]:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise StreamError("garbled", f"the response is no JSON: {data!r}") from None
        if not isinstance(event, dict):
            raise StreamError("garbled", f"the response is no completion: {data!r}")
        if event.get("error"):
            raise StreamError("server", f"the endpoint reported: {_words(event['error'])}")
        if isinstance(event.get("model"), str):
            self.model = paired(event["model"][:200])
        found = usage_of(event.get("usage"), self.model)
        self.usage = found or self.usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            return []
        return [piece for c in choices[:1] if isinstance(c, dict) for piece in self._choice(c)]

    def _choice(self, choice: dict[str, Any]) -> list[str]:
        self.choices += 1
        if isinstance(choice.get("finish_reason"), str):
            self.finish = paired(choice["finish_reason"][:200])
        said = choice.get("delta") or choice.get("message") or {}
        if not isinstance(said, dict):
            return []
        thought = said.get("reasoning_content") or said.get("reasoning")
        pieces = [p for p in (thought, said.get("content")) if isinstance(p, str) and p]
        if isinstance(said.get("content"), str):
            self._texts.append(said["content"])
        self.characters += sum(map(len, pieces))
        if self.characters > self._most:
            raise StreamError(
                "oversized", f"the answer has more than {self._most} characters and was cut off"
            )
        return pieces


def paired(text: str) -> str:
    """The text with halves of UTF-16 pairs joined, and replaced where they stand alone.

    JSON may hold such halves, a stream may tear a pair in two, and no UTF-8 can hold one.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def usage_of(data: Any, model: str = "") -> Usage | None:
    """Usage as endpoints report it; None if there is none, or its numbers are none."""
    if not isinstance(data, dict):
        return None
    tokens_in = _count(data.get("prompt_tokens", data.get("input_tokens")))
    tokens_out = _count(data.get("completion_tokens", data.get("output_tokens")))
    if tokens_in is None or tokens_out is None:
        return None
    return Usage(
        tokens_in,
        _detail(data, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens"),
        tokens_out,
        _detail(data, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
        model=model,
    )


def _detail(data: dict[str, Any], places: tuple[str, ...], name: str) -> int:
    for place in places:
        inner = data.get(place)
        if isinstance(inner, dict):
            return _count(inner.get(name)) or 0
    return 0


def _count(value: Any) -> int | None:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < _MOST_TOKENS else None


def _words(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("code") or error
    return str(error)

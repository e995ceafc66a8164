"""What an endpoint sends with an error or a redirection, read as far as anyone will look at it.

The openai package and httpx read such bodies whole before they say what went wrong, so a broken or
hostile endpoint could fill the notebook's memory with one. Here they end after :data:`MOST_BYTES`,
and they are not unpacked, since a few packed bytes can hold very many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

__all__ = ["MOST_BYTES", "make_http_client"]

MOST_BYTES = 256 << 10
"""Bytes of such a body that are read at most; the connection is closed after them."""


def make_http_client() -> Any:
    """The HTTP client for :class:`openai.AsyncOpenAI`, as that would make it, but with an end."""
    import openai

    return openai.DefaultAsyncHttpxClient(
        headers={"accept-encoding": "identity"}, event_hooks={"response": [_shorten]}
    )


async def _shorten(response: Any) -> None:
    """Called by the HTTP client with each response before anything of its body is read."""
    if not response.is_success:
        response.headers.pop("content-encoding", None)
        response.stream = _cut(response.stream)


def _cut(stream: Any) -> Any:
    """The stream up to its limit.

    The client asks of a stream that it is an ``AsyncByteStream`` of its own package, and which
    package that is depends on the version of openai (httpx, or one that followed it).
    """
    kinds = [kind for kind in type(stream).__mro__ if kind.__name__ == "AsyncByteStream"]
    if not kinds:
        return stream  # another client altogether: what it reads is its own affair
    base: Any = kinds[0]

    class Cut(base):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MOST_BYTES
            async for data in stream:
                yield data[:left]
                left -= len(data)
                if left <= 0:
                    return

        async def aclose(self) -> None:
            await stream.aclose()

    return Cut()

"""The client of a chat endpoint: one call at a time for each thread that asks, cancelled at once.

The ``openai`` package does the talking, on an event loop of its own thread, because there a call
can be cancelled cleanly wherever it waits: the connection is closed, the endpoint sees that nobody
listens any more. Attempts are repeated here and not by the package, so that each one is counted.
The key comes from the environment and goes nowhere else; messages are scrubbed of it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from kforge_nb.errors import BadInput, MissingTool, install
from kforge_nb.proposers.bodies import make_http_client
from kforge_nb.proposers.prompting import Prompt
from kforge_nb.proposers.stream import MAX_BYTES, Received, StreamError, Usage
from kforge_nb.proposers.trouble import RETRIED, ChatFailed, from_exception, scrubbed

__all__ = ["Chat", "ChatFailed", "Progress", "Reply", "Timing", "Usage"]

OFFICIAL = "https://api.openai.com/v1"
LOOK_EVERY_S = 0.05
_NO_KEY = "none"  # what is sent to an endpoint of one's own that asks for no key
_MOST_OPTIONS = 4
# An endpoint that takes no notice of its limit is cut off soon after it, since it is paid for.
_CHARACTERS_PER_TOKEN = 6
_LEAST_CHARACTERS = 2_000

Text = Callable[[str], None]


class Cancel(Protocol):
    """What says that an answer is not wanted any more (``threading.Event`` fits)."""

    def is_set(self) -> bool:
        """Whether to stop."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for what, in seconds.

    ``connect``: until a connection stands. ``silence``: without a byte. ``whole``: one attempt.
    ``pause``: before the second attempt, doubled each time. ``longest_pause``: what an endpoint may
    ask to wait; a longer wait ends the call.
    """

    connect: float = 15.0
    silence: float = 180.0
    whole: float = 1200.0
    pause: float = 1.0
    longest_pause: float = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``usage`` is None where the endpoint told none.

    ``finish`` is the endpoint's word for why it ended (``stop``, ``length``, ``content_filter``).
    ``attempts`` were made, of which ``lost`` were sent and never answered whole: nobody knows what
    they cost. ``notes`` say which options the endpoint does not know.
    """

    text: str
    usage: Usage | None
    finish: str
    seconds: float
    attempts: int
    lost: int = 0
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Progress:
    """What a call has come to, for the thread that waits for it.

    ``lost`` attempts were sent and nobody told what they cost; ``sent`` says that the one under way
    may be read by now; ``told`` is what the endpoint reported of earlier ones.
    """

    lost: int = 0
    sent: bool = False
    told: Usage | None = None

    def failed(self, failure: ChatFailed) -> None:
        """Counts an attempt; the failure then says what all of them cost, as far as is known."""
        self.lost += self.sent and failure.usage is None
        self.sent = False
        self.told = _sum(self.told, failure.usage)
        failure.lost, failure.usage = self.lost, self.told

    @property
    def unpaid(self) -> int:
        """Attempts whose cost nobody told, the one under way included."""
        return self.lost + self.sent

    def given_up(self, words: str, least: int = 0) -> ChatFailed:
        """The failure of a call that is not waited for; ``least`` attempts count as lost."""
        return ChatFailed("cancelled", words, usage=self.told, lost=max(self.unpaid, least))


class Chat:
    """One model at one endpoint. Thread-safe; ``close`` ends its thread.

    Args:
        model: as the endpoint knows it.
        base_url: of the endpoint; if not given ``OPENAI_BASE_URL``, else OpenAI's own.
        temperature: sent if given; left out for endpoints that refuse it.
        reasoning_effort: likewise.
        timing: how long to wait for what.
        attempts: of each call, the first included.

    Raises:
        BadInput: there is no key for OpenAI's own endpoint, or the key or the address is none.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        timing: Timing | None = None,
        attempts: int = 3,
    ) -> None:
        self.model, self.attempts, self.timing = model, max(attempts, 1), timing or Timing()
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL
        self.where = _host(self.base_url)
        self._key = _key_of_environment()
        official = self.where == _host(OFFICIAL)
        if not self._key and official:
            raise BadInput(
                "OPENAI_API_KEY is not set, and OpenAI's endpoint needs a key; set it in the "
                "environment before the notebook starts, or name another endpoint with "
                "OPENAI_BASE_URL"
            )
        self._limit_name = "max_completion_tokens" if official else "max_tokens"
        optional = {"temperature": temperature, "reasoning_effort": reasoning_effort}
        self._options: dict[str, Any] = {k: v for k, v in optional.items() if v is not None}
        self._options["stream_options"] = {"include_usage": True}
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._closed = False

    def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        cancel: Cancel | None = None,
        on_text: Text | None = None,
        progress: Progress | None = None,
    ) -> Reply:
        """The answer to a prompt; blocks, and may be called from several threads at once.

        Args:
            prompt: its messages are sent as they are.
            max_tokens: of the answer, reasoning included.
            cancel: asked twenty times a second; once it says so the call is ended.
            on_text: given each piece of text and of reasoning as it arrives, on another thread.
            progress: kept up to date, for who is interrupted while waiting.

        Raises:
            ChatFailed: there is no answer; nothing else is raised for what an endpoint may do.
            MissingTool: the openai package is not installed.
        """
        progress = progress or Progress()
        begun = time.monotonic()
        work = self._answer(prompt, max_tokens, on_text or (lambda _: None), progress, begun)
        future = self._submit(work)
        try:
            while not concurrent.futures.wait([future], timeout=LOOK_EVERY_S).done:
                if cancel is not None and cancel.is_set():
                    break
            if future.done() and not future.cancelled():  # close() cancels, too
                return future.result()
        finally:
            future.cancel()  # also where the thread that waits is interrupted
        raise progress.given_up("the call was stopped")

    def close(self) -> None:
        """Ends all calls under way and the thread. Safe to call twice."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._shut(loop), loop)

    async def _shut(self, loop: asyncio.AbstractEventLoop) -> None:
        mine = asyncio.current_task()
        tasks = [t for t in asyncio.all_tasks(loop) if t is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        loop.stop()

    # -- the loop's thread -------------------------------------------------------------------

    def _submit(self, work: Coroutine[Any, Any, Reply]) -> concurrent.futures.Future[Reply]:
        with self._lock:
            if self._closed:
                work.close()
                raise ChatFailed("cancelled", "the client of the endpoint is closed")
            if self._loop is None:
                try:
                    self._client = self._make_client()
                except BaseException:
                    work.close()
                    raise
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._run, args=(self._loop,), name="kforge-chat", daemon=True
                ).start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _make_client(self) -> Any:
        try:
            import openai
        except ImportError as problem:
            raise MissingTool(
                f"the openai proposer needs the openai package: {install('openai')}"
            ) from problem
        return openai.AsyncOpenAI(
            api_key=self._key or _NO_KEY,
            base_url=self.base_url,
            max_retries=0,
            timeout=openai.Timeout(self.timing.silence, connect=self.timing.connect),
            http_client=make_http_client(),
        )

    async def _answer(
        self, prompt: Prompt, max_tokens: int, on_text: Text, progress: Progress, begun: float
    ) -> Reply:
        attempt, options = 1, 0
        while True:
            try:
                got = await self._attempt(prompt, max_tokens, on_text, progress)
            except ChatFailed as failed:
                if failed.kind == "parameter" and options < _MOST_OPTIONS:
                    options += 1
                    self._without(failed)
                    continue
                progress.failed(failed)
                if failed.kind not in RETRIED or attempt >= self.attempts:
                    raise
                await asyncio.sleep(self._pause(failed, attempt))
                attempt += 1
                continue
            seconds = time.monotonic() - begun
            usage, lost = _sum(progress.told, got.usage), progress.lost
            if got.usage is None and usage is not None:
                lost += 1  # this attempt's cost was not told, that of earlier ones was
            return Reply(got.text, usage, got.finish, seconds, attempt, lost, tuple(self._notes))

    async def _attempt(
        self, prompt: Prompt, max_tokens: int, on_text: Text, progress: Progress
    ) -> Received:
        progress.sent = False
        got = Received(max(_LEAST_CHARACTERS, _CHARACTERS_PER_TOKEN * max_tokens))
        try:
            async with asyncio.timeout(self.timing.whole):
                await self._exchange(prompt, max_tokens, on_text, progress, got)
        except Exception as problem:  # noqa: BLE001  whatever a network may raise has a kind
            failed, read = from_exception(problem, got, self.model, self.where, self._key)
            progress.sent = progress.sent and read
            failed.args = (scrubbed(str(failed), self._key),)
            raise failed from None
        if not got.choices:
            raise ChatFailed("empty", f"{self.where} answered without any choice", usage=got.usage)
        if not (got.finish or got.done):
            raise ChatFailed("cut", f"the answer of {self.where} ends in the middle")
        return got

    async def _exchange(
        self, prompt: Prompt, max_tokens: int, on_text: Text, progress: Progress, got: Received
    ) -> None:
        asked = {"model": self.model, "messages": list(prompt.messages), "stream": True,
                 self._limit_name: max_tokens, **self._options}  # fmt: skip
        create = self._client.chat.completions.with_streaming_response.create
        progress.sent = True
        async with create(**asked) as response:
            kind = response.headers.get("content-type", "")
            if "json" in kind and "event-stream" not in kind:
                on_text("".join(got.whole(await _body(response))))
                return
            async for data in response.iter_bytes():
                for piece in got.feed(data):
                    on_text(piece)
            for piece in got.end():
                on_text(piece)

    # -- what went wrong ---------------------------------------------------------------------

    def _without(self, failed: ChatFailed) -> None:
        """Leaves out, or names otherwise, an option that the endpoint does not know."""
        with self._lock:
            option = failed.option or ""
            if option in ("max_tokens", "max_completion_tokens"):
                other = {"max_tokens": "max_completion_tokens"}.get(option, "max_tokens")
                self._limit_name = other
            elif self._options.pop(option, None) is not None:
                self._notes.append(f"{self.where} does not know {option}, so it is left out")

    def _pause(self, failed: ChatFailed, attempt: int) -> float:
        """Seconds until the next attempt; raises the failure if it asks for too long a wait."""
        if failed.retry_after is not None:
            if failed.retry_after > self.timing.longest_pause:
                raise failed
            return failed.retry_after
        step = self.timing.pause * 2.0 ** (attempt - 1)
        return min(step, self.timing.longest_pause) * random.uniform(1.0, 1.25)  # noqa: S311


async def _body(response: Any) -> bytes:
    """All of a response, as far as any is read. Raises StreamError for a longer one."""
    body = bytearray()
    async for data in response.iter_bytes():
        body += data
        if len(body) > MAX_BYTES:
            raise StreamError("oversized", f"the response is longer than {MAX_BYTES >> 20} MiB")
    return bytes(body)


def _key_of_environment() -> str:
    """OPENAI_API_KEY; BadInput, which does not show it, for what no header can carry."""
    key = (os.environ.get("OPENAI_API_KEY") or "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise BadInput(
            "OPENAI_API_KEY holds a space, a line break or another sign that no key has; copy the "
            "key once more and set it alone, without quotes or words around it"
        )
    return key


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    """Both together; None if there is neither."""
    if one is None or other is None:
        return one or other
    return Usage(
        one.tokens_in + other.tokens_in,
        one.cached + other.cached,
        one.tokens_out + other.tokens_out,
        one.reasoning + other.reasoning,
        model=other.model or one.model,
    )


def _host(address: str) -> str:
    """Host and port of an address, without whatever else may stand in it."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https"):
        raise BadInput(
            "the endpoint's address is none; OPENAI_BASE_URL looks like http://localhost:8000/v1"
        )
    return f"{host}:{port}" if port else host

"""What the tests of the openai proposer share: a target, answers to it, a proposer, its records."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from kforge_nb.proposers.chat import Chat, Timing
from kforge_nb.proposers.cost import Ledger, Price
from kforge_nb.proposers.openai import OpenAIProposer
from kforge_nb.proposers.protocol import Request
from tests.helpers import make_target

__all__ = ["GOOD", "HURRY", "KEY", "PRICE", "Records", "Talk", "chat_to", "good", "request"]

KEY = "sk-test-0123456789abcdef"
HURRY = Timing(connect=5.0, silence=5.0, whole=20.0, pause=0.0)
"""Long enough for a busy machine, and no pause between attempts."""

PRICE = Price(1.0, 0.5, 4.0, "loopback-1", "given", "2026-11-30")
TARGET = make_target(lambda x: x.exp(), torch.randn(4, 8), name="exp", family="pointwise")


def good(body: str = "out0[i] = std::exp(in0[i]);", idea: str = "one pass") -> str:
    """An answer in the right form."""
    return f"""IDEA: {idea}
```cpp
#include <cmath>
#include <cstdint>
extern "C" void f(const float* in0, float* out0, int64_t n, int32_t nthreads) {{
  for (int64_t i = 0; i < n; ++i) {body}
}}
```
```json
{{"kernels": [{{"name": "f", "args": ["in0", "out0", "i64:n", "i32:nthreads"]}}],
 "symbols": {{"n": "numel(in0)"}}, "scratch": {{}}}}
```
"""


GOOD = good()


def request(**fields: Any) -> Request:
    """A request for the target of these tests, a draft if nothing else is said."""
    return Request(TARGET, **{"action": "draft", "node": "0.1", **fields})


@dataclass
class Records:
    """A recorder that keeps everything."""

    begun: list[Any] = field(default_factory=list)
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    streaming: threading.Event = field(default_factory=threading.Event)

    def begin(self, call: Any) -> int:
        with self.lock:
            self.begun.append(call)
            self.log.append("begin")
            return len(self.begun) - 1

    def streamed(self, number: int, tokens: int) -> None:
        with self.lock:
            self.tokens.append(tokens)
        self.streaming.set()

    def end(self, number: int, usage: Any, usd: float, seconds: float, answer: str = "",
            problem: str = "") -> None:  # fmt: skip
        with self.lock:
            assert number not in self.ended, "a call ends once"
            self.log.append("end")
            self.ended[number] = {
                "usage": usage, "usd": usd, "seconds": seconds, "answer": answer,
                "problem": problem,
            }  # fmt: skip


def chat_to(server: Any, **options: Any) -> Chat:
    """A client of a loopback server."""
    return Chat("loopback-1", base_url=server.url, **{"timing": HURRY, **options})


class Talk:
    """A proposer with its ledger and records, talking to a loopback server."""

    def __init__(self, server: Any, *, max_cost: float | None = None, max_tokens: int = 500,
                 **options: Any) -> None:  # fmt: skip
        self.stop = threading.Event()
        self.ledger = Ledger(PRICE, max_cost)
        self.records = Records()
        self.chat = chat_to(server, **options)
        self.proposer = OpenAIProposer(
            self.chat, self.ledger, self.records, stop=self.stop, max_tokens=max_tokens
        )

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: Any) -> None:
        self.proposer.close()

    def propose(self, **fields: Any) -> Any:
        return self.proposer.propose(request(**fields))

    @property
    def streaming(self) -> threading.Event:
        """Set when a first piece of an answer has come."""
        return self.records.streaming

    def worst(self, call: int = 0) -> float:
        """USD of one attempt of a call at worst."""
        return self.records.begun[call].worst_usd / self.chat.attempts

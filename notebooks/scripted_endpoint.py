"""A chat endpoint on this machine that answers from a script, so that a notebook needs no key.

It speaks enough of OpenAI's chat completions to be streamed from. The kernels in its script were
written beforehand for one target: rows divided by their root mean square, weighed, and SiLU. What
it answers does not depend on what is asked; a real model's answers would.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ScriptedEndpoint"]

PLAN = """```json
{"kernels": [{"name": "norm_silu", "args": ["in0", "in1", "out0", "i64:ROWS", "i64:C",
                                            "i32:nthreads"]}],
 "symbols": {"C": "in0.shape[-1]", "ROWS": "numel(in0) // C"}, "scratch": {}}
```"""

SOURCE = """```cpp
#include <cmath>
#include <cstdint>
#include <cstring>

// e^x by a polynomial, so that the loop over a row becomes vector code; NaN stays NaN.
static inline float exp_(float x) {
  x = x < -87.3f ? -87.3f : (x > 88.3f ? 88.3f : x);
  float n = std::nearbyint(x * 1.44269504f);
  float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  int32_t bits = (int32_t(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

extern "C" void norm_silu(const float* __restrict__ x, const float* __restrict__ w,
                          float* __restrict__ y, int64_t rows, int64_t c, int32_t nthreads) {
PRAGMA
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * c;
    float* o = y + r * c;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < c; ++i) sum += a[i] * a[i];
    const float scale = float(1.0 / std::sqrt(double(sum) / double(c) + 1e-6));
SIMD
    for (int64_t i = 0; i < c; ++i) {
      const float v = a[i] * scale * w[i];
      o[i] = v / (1.0f + EXP(-v));
    }
  }
}
```"""

PARALLEL = "#pragma omp parallel for num_threads(nthreads) schedule(static)"


def _kernel(idea: str, pragma: str = "", simd: str = "#pragma omp simd", exp: str = "exp_") -> str:
    source = SOURCE.replace("PRAGMA\n", f"{pragma}\n" if pragma else "")
    source = source.replace("SIMD\n", f"{simd}\n" if simd else "").replace("EXP", exp)
    return f"IDEA: {idea}\n{source}\n{PLAN}\n"


ANSWERS = (
    "A fused kernel would read each row twice and write it once. Shall I write it for you?",
    _kernel("one row after the other, the library's exp", simd="", exp="std::exp"),
    _kernel("vector code on all cores", PARALLEL, exp="fast_exp"),
    _kernel("weights left out", PARALLEL).replace(" * w[i]", ""),
    _kernel("exp by a polynomial, vector code on one core"),
    _kernel("exp by a polynomial, vector code on all cores", PARALLEL),
    _kernel("the same, eight values at a time", PARALLEL, "#pragma omp simd simdlen(8)"),
    _kernel("the same, sixteen values at a time", PARALLEL, "#pragma omp simd simdlen(16)"),
)
"""An answer without a kernel; one that is slow; one that does not compile; one that is wrong; and
then some that are better each time."""


class ScriptedEndpoint:
    """The endpoint; ``url`` is what goes into ``OPENAI_BASE_URL``. Answers come in order."""

    def __init__(self, tokens_a_second: float = 2000.0) -> None:
        self._answers: Iterator[str] = itertools.chain(ANSWERS, itertools.repeat(ANSWERS[-1]))
        self._pause = 1.0 / tokens_a_second
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()

    def next_answer(self) -> str:
        """The next answer of the script; the last one again and again."""
        with self._lock:
            return next(self._answers)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self
        gone = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Quiet."""

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for event in _stream(asked, endpoint.next_answer()):
                    gone.wait(endpoint._pause)
                    self.wfile.write(f"data: {event}\n\n".encode())
                    self.wfile.flush()

        return Handler


def _stream(asked: dict[str, Any], text: str) -> Iterator[str]:
    """Events of one answer, about a token each, with the usage at the end."""
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    sent = sum(len(message["content"]) for message in asked["messages"])
    for piece in pieces:
        yield json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]})
    usage = {"prompt_tokens": sent // 4, "completion_tokens": len(pieces)}
    yield json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield json.dumps({"choices": [], "usage": usage})
    yield "[DONE]"

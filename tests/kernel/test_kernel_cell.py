"""A user's own kernel in a cell: judged like any candidate, with errors at the cell's lines."""

from __future__ import annotations

import pytest

SETUP = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.Softmax(-1)).eval().requires_grad_(False)
x = torch.randn(64, 64)
"""
SOFTMAX = """#include <cmath>
#include <cstdint>
// kforge: c = in0.shape[-1]
// kforge: n = numel(in0) // c
extern "C" void mine(const float* in0, float* out0, int64_t n, int64_t c, int32_t nthreads) {
  for (int64_t r = 0; r < n; ++r, in0 += c, out0 += c) {
    float top = in0[0], sum = 0;
    for (int64_t i = 1; i < c; ++i) top = std::fmax(top, in0[i]);
    for (int64_t i = 0; i < c; ++i) sum += out0[i] = std::exp(in0[i] - top);
    for (int64_t i = 0; i < c; ++i) out0[i] /= sum;
  }
}
"""
PATIENCE_S = 240


@pytest.fixture(scope="module")
def target(module_kernel):
    """A kernel with a run that has ended; the index of its softmax target."""
    assert module_kernel.run(SETUP).status == "ok"
    start = (
        "%%kforge optimize --as r --budget 1 --baseline eager --rest eager --guard-time 5\nmodel(x)"
    )
    reply = module_kernel.run(start, PATIENCE_S)
    assert reply.status == "ok", reply
    module_kernel.run("%kforge wait r", PATIENCE_S)
    found = module_kernel.run("print(*r.targets[r.targets.name == 'softmax'].target)").stdout
    return module_kernel, int(found)


def judge(kernel, index, source):
    """Puts a source under the magic."""
    return kernel.run(f"%%kforge kernel --run r --target {index}\n{source}", PATIENCE_S)


@pytest.mark.slow
def test_a_right_kernel_is_judged_and_joins_the_tree(target):
    """A correct kernel gets a verdict and becomes a node of the tree with the origin manual."""
    kernel, index = target

    reply = judge(kernel, index, SOFTMAX)

    assert reply.status == "ok", reply
    assert f"target {index}: " in reply.text
    assert "wrong" not in reply.text
    last = kernel.run("print(*r.nodes.iloc[-1][['title', 'proposer', 'target']])").stdout
    assert last.split() == ["mine", "manual", str(index)]


@pytest.mark.slow
def test_a_wrong_kernel_says_wrong(target):
    """A kernel that computes something else is told so, and nothing crashes."""
    kernel, index = target

    reply = judge(kernel, index, SOFTMAX.replace("out0[i] /= sum", "out0[i] /= 1.01f * sum"))

    assert f"target {index}: wrong" in reply.text


@pytest.mark.slow
def test_compile_errors_point_at_the_cells_lines(target):
    """The line in a compiler message is the line of the cell as the notebook numbers it."""
    kernel, index = target

    reply = judge(kernel, index, SOFTMAX.replace("std::fmax", "std::nothing"))

    assert f"target {index}: compile_failed" in reply.text
    assert "line 9 of the cell" in reply.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int x;", '0 extern "C" void functions'),
        (SOFTMAX.replace("// kforge: n", "// n"), "say what n is"),
    ],
)
def test_what_is_no_kernel_is_bad_input(target, source, words):
    """A cell that cannot be a candidate is one message before anything is compiled."""
    kernel, index = target

    reply = judge(kernel, index, source)

    assert words in reply.stderr
    assert "Traceback" not in reply.stderr


@pytest.mark.slow
def test_a_kernel_made_from_another_stands_below_it(target):
    """``--parent`` puts the kernel under the node it was made from; a made-up one is refused."""
    kernel, index = target
    judge(kernel, index, SOFTMAX)
    find = "print(r.nodes[r.nodes.title == 'mine'].node.iloc[0])"
    parent = kernel.run(find).stdout.strip()

    better = SOFTMAX.replace("out0[i] /= sum", "out0[i] *= 1 / sum")
    line = f"%%kforge kernel --run r --target {index} --language cpp --parent"
    reply = kernel.run(f"{line} {parent}\n{better}", PATIENCE_S)
    refused = kernel.run(f"{line} 9.9\n{SOFTMAX}", PATIENCE_S)

    assert reply.status == "ok", reply
    last = kernel.run("print(*r.nodes.iloc[-1][['parent', 'action', 'proposer']])").stdout
    assert last.split() == [parent, "optimise", "manual"]
    assert "has no node '9.9'" in refused.error + refused.stderr


@pytest.mark.slow
def test_an_answer_from_a_chat_window_is_judged(target, wait_for):
    """Without any widget: the prompt is listed, the answer brought back from a cell, and judged."""
    kernel, index = target
    start = f"--proposer paste --target {index} --budget 1 --parallel 1 --baseline eager"
    reply = kernel.run(
        f"%%kforge optimize {start} --rest eager --guard-time 5 --as p\nmodel(x)", PATIENCE_S
    )
    assert reply.status == "ok", reply
    ids = wait_for(lambda: kernel.run("print(*[w.id for w in p.prompts])").stdout.split(), 60, "it")
    assert "softmax" in kernel.run("print(p.prompts[0].text)").stdout

    answer = f"Here it is:\n```cpp\n{SOFTMAX}```\n"
    taken = kernel.run(f"%%kforge answer {ids[0]} --run p\n{answer}")
    kernel.run("%kforge wait p", PATIENCE_S)

    assert "is judged now" in taken.stdout, taken
    last = kernel.run("print(len(p.nodes), *p.nodes.iloc[-1][['proposer', 'verdict']])").stdout
    count, proposer, verdict = last.split()
    assert (count, proposer) == ("1", "paste")
    assert verdict in {"accepted", "slower", "undecided"}
    assert kernel.run("print(p.costs.usd.sum(), p.costs.calls.sum())").stdout.split() == [
        "0.0",
        "1",
    ]

"""Reading answers: whatever a model puts around a kernel, and nothing that was not said."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.proposers import answers
from kforge_nb.proposers.answers import Answer, BadAnswer, idea_of, parse
from tests.cuda.targets import on_cuda
from tests.proposers.talk import GOOD, TARGET, good

SOURCE = GOOD.split("```cpp\n")[1].split("\n```")[0]
PLAN = json.loads(GOOD.split("```json\n")[1].split("\n```")[0])
PLAN_TEXT = json.dumps(PLAN)


def read(text: str, language: str = "cpp") -> Candidate:
    """The candidate of an answer that must have one."""
    found = parse(text, TARGET, language)
    assert isinstance(found, Answer), found
    return found.candidate


def refused(text: str, target: Any = TARGET, language: str = "cpp") -> BadAnswer:
    """Why an answer has none."""
    found = parse(text, target, language)
    assert isinstance(found, BadAnswer), found
    return found


def test_an_answer_in_the_right_form() -> None:
    """Source, plan and idea are those that were written."""
    found = read(GOOD)
    assert found.source == SOURCE
    assert found.plan.kernels[0].args == ("in0", "out0", "i64:n", "i32:nthreads")
    assert found.title == "one pass"


BOTH = GOOD.split("\n", 1)[1].strip()
CPP_BLOCK = f"```cpp\n{SOURCE}\n```"
JSON_BLOCK = f"```json\n{PLAN_TEXT}\n```"
WAYS = {
    "prose-around": f"Sure! Here it is.\n\n{GOOD}\nHope that helps { {'a': 1} }.",
    "plan-first": f"{JSON_BLOCK}\n\n{CPP_BLOCK}",
    "other-words": f"```c++\n{SOURCE}\n```\n```JSON\n{PLAN_TEXT}\n```",
    "no-words": f"```\n{SOURCE}\n```\n```\n{PLAN_TEXT}\n```",
    "tildes": f"~~~cpp\n{SOURCE}\n~~~\n~~~json\n{PLAN_TEXT}\n~~~",
    "longer-fences": f"````cpp\n{SOURCE}\n````\n````json\n{PLAN_TEXT}\n````",
    "indented": f"  ```cpp\n{SOURCE}\n  ```\n  ```json\n{PLAN_TEXT}\n  ```",
    "code-within-lines": f"```x``` is code, ~~~ `too`\n{GOOD}",
    "windows-lines": f"{CPP_BLOCK}\n{JSON_BLOCK}".replace("\n", "\r\n"),
    "thoughts": f"<think>\n```cpp\nint wrong;\n```\n{JSON_BLOCK}</think>\n{BOTH}",
    "end-of-thoughts": f"I think\n```cpp\nextern \"C\" void g();\n```\n</think>\n{BOTH}",
    "thoughts-after": f"{BOTH}\n<think>\n{BOTH.replace('std::exp', 'wrong')}\n</think>",
    "fenced-json-object": "```json\n" + json.dumps({"source": SOURCE, "plan": PLAN}) + "\n```",
    "bare-json-object": json.dumps({"code": SOURCE, **PLAN}),
    "unfenced": f"IDEA: x\n{SOURCE}\n{PLAN_TEXT}\nThat is all.",
    "trailing-commas": f"{CPP_BLOCK}\n```json\n{PLAN_TEXT[:-1]},}}\n```",
    "comments-in-json": f"{CPP_BLOCK}\n```json\n{{// the plan\n{PLAN_TEXT[1:-1]} // done\n}}\n```",
    "wrapped-plan": f"{CPP_BLOCK}\n```json\n" + json.dumps({"plan": PLAN}) + "\n```",
    "shell-block-between": f"{CPP_BLOCK}\n```sh\ng++ -O3 f.cpp\n```\n{JSON_BLOCK}",
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_what_models_put_around_it_is_put_up_with(name: str) -> None:
    """Prose, reasoning, other fences, one JSON object for all: the same candidate comes out."""
    found = read(WAYS[name])
    assert found.source.replace("\r", "") == SOURCE
    assert found.plan == read(GOOD).plan


def test_of_several_versions_the_last_is_taken() -> None:
    """A model that corrects itself means what it said last."""
    last = SOURCE.replace("std::exp", "expf")
    first = f"{CPP_BLOCK}\n{JSON_BLOCK}\nWait, better:\n"
    assert "expf" in read(f"{first}```cpp\n{last}\n```\n{JSON_BLOCK}").source
    assert "expf" in read(f"{first}```cpp\n{last}\n```").source


def test_a_plan_goes_with_the_source_that_has_its_kernels() -> None:
    """A source that shows something else is not taken for the kernel."""
    other = 'extern "C" void old(const float* x) { }'
    found = read(f"{CPP_BLOCK}\nBefore it was:\n```cpp\n{other}\n```\n{JSON_BLOCK}")
    assert "old" not in found.source


def test_a_plan_that_can_be_read_off_is() -> None:
    """A source whose comments say all that a plan says needs none."""
    source = SOURCE.replace("#include <cmath>", "// kforge: n = numel(in0)\n#include <cmath>")
    assert read(f"```cpp\n{source}\n```").plan.symbols == {"n": "numel(in0)"}


def test_sizes_of_fewer_axes_are_filled_up() -> None:
    """A grid of one number is what everybody means by it; bare numbers are numbers."""
    target = on_cuda(TARGET)
    source = 'extern "C" __global__ void f(const float* a, float* b, long long n) { }'
    plan = {"kernels": [{"name": "f", "grid": ["ceil_div(numel(in0), 256)"], "block": [256],
                         "args": ["in0", "out0", "i64:numel(in0)"]}]}  # fmt: skip
    found = parse(f"```cuda\n{source}\n```\n```json\n{json.dumps(plan)}\n```", target, "cuda")
    assert isinstance(found, Answer)
    assert found.candidate.language == "cuda"
    assert found.candidate.plan.kernels[0].block == ("256", "1", "1")


BROKEN = {
    "nothing": ("", False, "empty"),
    "only-thoughts": ("<think>\nlong", False, "reasoning"),
    "refusal": ("I cannot help with that.", True, "no fenced block"),
    "no-plan": (CPP_BLOCK, True, "no launch plan"),
    "no-source": (JSON_BLOCK, True, "no block holds a source"),
    "cut-source": (f"IDEA: x\n```cpp\n{SOURCE[:60]}", True, "cut off"),
    "cut-plan": (f"{CPP_BLOCK}\n```json\n{PLAN_TEXT[:20]}", True, "cut off"),
    "no-json": (f"{CPP_BLOCK}\n```json\n{{kernels: f}}\n```", True, "no valid JSON"),
    "not-a-number": (f"{CPP_BLOCK}\n```json\n{{\"kernels\": NaN}}\n```", True, "NaN"),
    "unknown-field": (GOOD.replace('"scratch"', '"stream": 0, "scratch"'), True, "stream"),
    "unknown-input": (GOOD.replace('"in0", "out0"', '"in7", "out0"'), True, "in7"),
    "output-unwritten": (GOOD.replace('"in0", "out0"', '"in0"'), True, "out0"),
    "bad-expression": (GOOD.replace("numel(in0)", "__import__('os')"), True, "expression"),
    "other-name": (GOOD.replace('"name": "f"', '"name": "g"'), True, "no source defines"),
    "no-arguments": ('```cpp\nextern "C" void f() { }\n```', True, "last argument"),
    "deep": (f"{CPP_BLOCK}\n```json\n{{\"kernels\": {'[' * 50_000}\n```", True, "JSON|nested"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_is_said(name: str) -> None:
    """Every broken answer has a reason that a model can mend it by, if it can be mended at all."""
    text, repairable, words = BROKEN[name]
    found = refused(text)
    assert found.repairable is repairable
    assert re.search(words, found.reason), found.reason


def test_a_huge_answer_is_refused_unread() -> None:
    """Size is looked at first."""
    assert not refused(GOOD + "x" * answers.MAX_ANSWER).repairable
    big = "//" + "x" * answers.MAX_SOURCE
    assert "characters" in refused(GOOD.replace("#include <cmath>", big)).reason
    assert "NUL" in refused(GOOD.replace("#include <cmath>", "// \0")).reason


SLOW = {
    "fences": "```\n" * 50_000,
    "think": "<think>\n" * 40_000,
    "brackets": f"{CPP_BLOCK}\n```json\n" + "{" * 60_000 + "\n```",
    "comment-starts": f'```cpp\nextern "C" void f() {{}}\n{"/*" * 90_000}\n```',
    "blank-lines": '```cpp\nextern "C" void f(int a) {}\n' + "\n" * 190_000 + "\n```",
    "entries": "```cpp\n" + 'extern "C" void f(' * 9_000 + "\n```",
    "spaces": '```cpp\nextern "C" void f(int a) {}\n// kforge: a = 1' + " " * 190_000 + "b\n```",
    "idea": "IDEA:" + " " * 390_000 + "x",
    "quotes": f'{CPP_BLOCK}\n```json\n{{"kernels": "{chr(92) * 50_000}\n```',
    "escaped-quotes": f"{CPP_BLOCK}\n```json\n" + '{"' + r"\"" * 129_000 + "\n```",
    "code-in-a-line": "```" + "a" * 390_000 + "`",
    "spaces-before-code": "~~~" + " " * 390_000 + "`",
    "commas": f"{CPP_BLOCK}\n```json\n{{{',' * 50_000}\n```",
    "plan-starts": '{"kernels": ' * 30_000 + 'extern "C"\n#include <x>',
}


@pytest.mark.parametrize("name", SLOW)
def test_no_answer_keeps_the_parser_busy(name: str) -> None:
    """What is made to be slow to read is read in seconds all the same (on a busy machine)."""
    begun = time.process_time()
    parse(SLOW[name], TARGET, "cpp")
    idea_of(SLOW[name])
    assert time.process_time() - begun < 3


PIECES = st.sampled_from(
    ["```cpp\n", "```json\n", "```\n", "~~~\n", "<think>", "</think>", 'extern "C" void f(', ")",
     "{", "}", '"kernels"', ":", "[", "]", '"name": "f"', ",", "\n", "IDEA: ", "#include <cmath>\n",
     "// kforge: n = numel(in0)\n", SOURCE, PLAN_TEXT, "\\", '"', "\0", "\u202e", "é"]
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, max_size=25).map("".join))
def test_any_text_is_an_answer_or_has_a_reason(text: str) -> None:
    """The parser never fails, and what it takes for a candidate keeps the contract."""
    found = parse(text, TARGET, "cpp")
    if isinstance(found, Answer):
        assert found.candidate.plan.kernels[0].name in found.candidate.source
    else:
        assert found.reason
        assert not found.reason.startswith("reading the answer failed")


@pytest.mark.parametrize(
    ("text", "idea"),
    [("IDEA: a\n", "a"), ("**IDEA:** b c\n", "b c"), ("# idea : d", "d"), ("> IDEA: `e`", "e"),
     ("no idea\n", ""), (f"IDEA: {'x' * 500}", "x" * 120), ("IDEA: \x1b[1mred", "�[1mred")],
)  # fmt: skip
def test_the_idea_becomes_the_title(text: str, idea: str) -> None:
    """One line, cleaned and cut, whatever marks stand around it."""
    assert idea_of(text) == idea


def test_a_plan_in_order_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments and commas are looked for only where a plan is no JSON without."""
    looked: list[str] = []
    monkeypatch.setattr(answers, "_relaxed", lambda body: looked.append(body) or body)
    read(GOOD)
    assert looked == []
    refused(BROKEN["no-json"][0])
    assert len(looked) == 1


HALF = "\ud83d"
HALVES = {
    "source": GOOD.replace("#include <cmath>", f"// {HALF}\n#include <cmath>"),
    "idea": GOOD.replace("one pass", f"one{HALF} pass"),
    "escaped": "```json\n" + json.dumps({"source": f"// {HALF}\n{SOURCE}", "plan": PLAN}) + "\n```",
    "unfenced": f"{SOURCE}\n// {HALF}\n{PLAN_TEXT}",
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_of_characters_are_replaced(name: str) -> None:
    """A lone surrogate, in the text or escaped in JSON, becomes a sign that a store can hold."""
    found = read(HALVES[name])
    assert "\ufffd" in found.source + found.title
    assert (found.source + found.title).encode()


def test_halves_in_a_plan_are_words_of_a_reason() -> None:
    """A plan that names what cannot be written is refused, in words that can."""
    plan = PLAN_TEXT.replace('"in0", "out0"', '"in0\\ud83d", "out0"')
    assert refused(f"{CPP_BLOCK}\n```json\n{plan}\n```").reason.encode()


def test_an_error_of_the_parser_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw in an answer costs that answer and not the run."""

    def unforeseen(*_: Any) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(answers, "validate", unforeseen)
    found = refused(GOOD)
    assert not found.repairable
    assert "RuntimeError: a surprise" in found.reason


def test_a_source_is_taken_as_it_is() -> None:
    """Nothing inside a source is mended or run: what the judge sees is what was written."""
    odd = good("out0[i] = std::exp(in0[i]); /* ``` not a fence */ ")
    assert "/* ``` not a fence */" in read(odd).source

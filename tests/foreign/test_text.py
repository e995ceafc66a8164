"""What is read off foreign files without running them: kinds, slices, findings, claims."""

from __future__ import annotations

import pytest
from foreign_files import INLINE, KERNEL, PLAN, REFERENCE, model

from kforge_nb.errors import BadInput, DocumentError
from kforge_nb.judge.evaluation import Comparison, Evaluation, Verdict
from kforge_nb.judge.foreign.claims import Claim, compared, read_claims, settings_of
from kforge_nb.judge.foreign.credit import without_credit
from kforge_nb.judge.foreign.policy import scan_python
from kforge_nb.judge.foreign.reading import on_the_default_stream, read_foreign
from kforge_nb.judge.foreign.result import FileEvaluation
from kforge_nb.judge.foreign.slicing import reference_source
from kforge_nb.judge.foreign.values import decode, encode

BOUND = KERNEL + '\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }\n'
FORWARD = "std::vector<at::Tensor> forward(std::vector<at::Tensor> inputs) { return inputs; }"
KINDS = {
    "a.py": (INLINE, "model"),
    "b.py": (
        "from torch.utils.cpp_extension import load_inline\nm = load_inline('a', '')",
        "inline",
    ),
    "c.py": ("def launch(x):\n    return x\n", "function"),
    "d.cpp": (BOUND, "launch"),
    "e.cu": (KERNEL, "launch"),
    "f.cpp": (FORWARD, "forward"),
    "g.cpp": (PLAN, "plan"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_known_by_its_text(name, tmp_path):
    """The form of a file follows from what stands in it."""
    text, kind = KINDS[name]
    (tmp_path / name).write_text(text)

    assert read_foreign(tmp_path / name).kind == kind


@pytest.mark.parametrize(
    ("launch", "default"),
    [
        ("k<<<n / c, 256>>>(x)", True),
        ("k<float, 4><<<dim3(a, b, c), dim3(32, 8)>>>(x)", True),
        ("k<<<n, 256, 1024>>>(x)", True),
        ("k<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(x)", False),
        ("k<<<dim3(a, b), dim3(c, d), pick(e, f), stream>>>\n (x)", False),
        ("k<<<grid, block, 0, 0>>>(x)", True),
        ("k<<<grid, block, shared, nullptr>>>(x)", True),
        ("k<<<grid, block, 0, NULL >>>(x)", True),
        ("k<<<grid, block, 0, (cudaStream_t)0>>>(x)", True),
        ("k<<<grid, block, 0, static_cast<cudaStream_t>(0)>>>(x)", True),
        ("k<<<grid, block, 0, streams[0]>>>(x)", False),
        ("k<<<grid, block, 0, stream0>>>(x)", False),
        ("k(x); // <<<", False),
    ],
)
def test_a_launch_without_a_stream_is_seen(launch, default):
    """A graph does not hold what goes to the default stream, and must not be timed for it."""
    assert on_the_default_stream(launch) is default


UNKNOWN = {
    "a.py": ("x = 1\n", "no class ModelNew"),
    "b.py": ("def (:\n", "no Python that parses"),
    "c.cpp": ("int main() {}\n", "neither a bound launch"),
    "d.txt": ("kernel", "not '.txt'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_file_is_told_in_words(name, tmp_path):
    """What cannot be judged says what was looked for."""
    text, words = UNKNOWN[name]
    (tmp_path / name).write_text(text)

    with pytest.raises(BadInput, match=words):
        read_foreign(tmp_path / name)


NESTED = {
    "signs": "x = " + "-" * 900 + "1",
    "very many signs": "x = " + "-" * 100_000 + "1",
    "calls": "x = f" + "()" * 900,
    "parts of parts": "x = f" + ".a" * 2000 + "()",
    "functions": "x = " + "lambda: " * 900 + "1",
    "elements": "x = f" + "[0]" * 1500,
}


@pytest.mark.parametrize("name", NESTED)
def test_a_file_that_is_nested_too_deeply_is_told_in_words(name, tmp_path):
    """Whatever walks the tree later calls itself for each level, and would end in a traceback."""
    path = tmp_path / "deep.py"
    path.write_text(model("return x") + NESTED[name] + "\n")
    with pytest.raises(BadInput, match=r"nested deeper|too many nested"):
        read_foreign(path)
    with pytest.raises(BadInput):
        reference_source(REFERENCE + NESTED[name] + "\n", "deep.py")


def test_a_long_chain_of_elif_is_not_deep(tmp_path):
    """Such a chain is a tree as deep as it is long, and honest."""
    path = tmp_path / "long.py"
    path.write_text(model("return x") + "if a: pass\n" + "elif b: pass\n" * 400)
    assert read_foreign(path).kind == "model"


def test_no_name_of_a_file_steers_a_terminal(tmp_path):
    """Names and words of files are shown without what moves a cursor or turns text around."""
    path = tmp_path / "\x1b[2J\u202e.py"
    path.write_text("x = 1")
    with pytest.raises(BadInput) as caught:
        read_foreign(path)
    assert "\x1b" not in str(caught.value)
    found = FileEvaluation(
        Verdict.CRASHED, "raised \x1b[31m", file=path.name, notes=("\u2066a",), claims=("\x07",)
    )
    assert not set(repr(found)) & set("\x1b\u202e\u2066\x07")


def test_nothing_of_a_file_runs_while_it_is_read(tmp_path):
    """Reading a file that would leave a trace when imported leaves none."""
    trace = tmp_path / "trace"
    (tmp_path / "a.py").write_text(f"open({str(trace)!r}, 'w')\nclass ModelNew: pass\n")
    read_foreign(tmp_path / "a.py")

    assert not trace.exists()


def test_a_slice_holds_the_reference_alone():
    """What a file does besides defining its reference is not part of the reference."""
    text = REFERENCE + "\ntorch.cuda.synchronize = print\nclass ModelNew(Model): pass\n"
    source = reference_source(text, "a.py")

    assert "class Model" in source
    assert "rows, features = (64, 256)" in source
    for left_out in ("print", "ModelNew", "synchronize"):
        assert left_out not in source


def test_a_file_without_reference_says_what_it_lacks():
    """A reference file needs Model and get_inputs."""
    with pytest.raises(BadInput, match="lacks Model and get_inputs"):
        reference_source("x = 1", "a.py")


FINDINGS = {
    "import subprocess": "breach",
    "import os\nos.system('true')": "breach",
    "import inspect\ninspect.stack()": "suspicion",
    "from time import perf_counter\nimport torch\ntorch.Tensor.__eq__ = None": "suspicion",
    "import torch\nsetattr(torch.cuda, 'synchronize', print)": "suspicion",
    "from kforge_nb.judge.extension.stage import HostStage as S\nS.batch = print": "suspicion",
    "import kforge_nb": "suspicion",
    "import __main__": "suspicion",
    "import sys\nsys.modules['torch'] = None": "suspicion",
    "from sys import modules\nmodules['torch'] = None": "suspicion",
    "import sys\nm = getattr(sys, 'modules')": "suspicion",
    "import torch\nc = torch._C\nc._cuda_synchronize = print": "suspicion",
    "import torch\na = torch\nb = a.cuda\nb.synchronize = print": "suspicion",
    "import torch\nd = torch.__dict__\nd['equal'] = print": "suspicion",
    "import torch, time\na, b = torch, time\nb.time, a.x = print, 1": "suspicion",
    "import torch\nb = torch.backends\nb.cudnn.benchmark = True": None,
    "import os\nenv = os.environ\nenv['TORCH_CUDA_ARCH_LIST'] = '9.0'": None,
    "import torch\ndtype = torch.float32\ndef launch(x):\n    y = x.clone()\n    y[0] = 1": None,
    "f = lambda: 0\nf.__globals__['x'] = 1": "suspicion",
    "import torch\n@torch.compile\ndef launch(x):\n    return x": "library",
    "class Model: pass\nclass ModelNew(Model): pass": "library",
    "import torch\ntorch.backends.cudnn.benchmark = True": None,
    "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0'": None,
    "class ModelNew:\n    def f(self):\n        self.eval()\n        self.x = 1": None,
}


@pytest.mark.parametrize("text", FINDINGS)
def test_the_text_of_a_python_file_is_looked_at(text):
    """What reaches for the judge is found with its line, and honest idioms are not."""
    findings = scan_python(text, "ModelNew")

    assert [f.kind for f in findings[:1]] == ([FINDINGS[text]] if FINDINGS[text] else [])
    assert all(f.line is not None for f in findings)


@pytest.mark.parametrize("text", [INLINE, REFERENCE, model("return self.right(x)")])
def test_honest_files_have_no_findings(text):
    """Ordinary KernelBench files pass the look at their text."""
    assert scan_python(text, "ModelNew") == []


def test_claims_are_read_with_their_baseline():
    """A speed-up is a claim only where a line says so, and it says against what."""
    lines = ("3.36x faster than torch.compile", "2.5x over eager", "128x64 tiles", "1.2x speedup")
    text = "\n".join(f"# {line}" for line in lines)

    assert read_claims(text) == [
        Claim(3.36, "compile", 1),
        Claim(2.5, "eager", 2),
        Claim(1.2, "", 4),
    ]


def _timed(against: str, ratio: float) -> Comparison:
    return Comparison(against, ratio, ratio * 0.98, ratio * 1.02, 90, 10.0, 10.0 * ratio)


def test_a_claim_stands_beside_both_baselines():
    """A claim against torch.compile alone is told with eager beside it, confirmed or not."""
    timings = [_timed("eager", 1.2), _timed("compile", 3.3)]
    good, bad = compared([Claim(3.36, "compile"), Claim(9.0, "eager")], timings)

    assert "3.30 times torch.compile's" in good
    assert "1.20 times eager's" in good
    assert "names torch.compile alone" in good
    assert "not confirmed" not in good
    assert "not confirmed" in bad


SETTINGS = {
    "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True": "allows TF32",
    "import torch\nx = torch.zeros(2).to(torch.float16)": "float16, and the reference",
    "import time\nfor i in range(9):\n    time.perf_counter()": "warm cache",
    "import torch\ntorch.allclose(1, 2, atol=1e-2)": "which is loose",
}


@pytest.mark.parametrize("text", SETTINGS)
def test_settings_that_flatter_are_told(text):
    """Where a file's own measurement differs from the judge's, the answer says how."""
    assert SETTINGS[text] in " ".join(settings_of(text, ["float32"]))


def test_credit_needs_work_of_ones_own():
    """No kernel, or all of the reference's operators beside it: no credit."""
    used = {"mul": 3, "silu": 1}

    assert "no kernel of its own" in without_credit(used, used, own_kernel=False)
    assert "torch does the work" in without_credit(used, used, own_kernel=True)
    assert without_credit({"silu": 1}, used, own_kernel=True) is None
    assert without_credit({}, used, own_kernel=True) is None


@pytest.mark.parametrize(
    ("used", "reference", "without"),
    [
        ("_fused_rms_norm silu", "mul mean rsqrt silu", "_fused_rms_norm"),
        ("_scaled_dot_product_flash_attention", "bmm mul _softmax", "dot_product"),
        ("native_layer_norm", "native_layer_norm gelu", None),
        ("bmm _softmax", "_scaled_dot_product_flash_attention_for_cpu mul", None),
        ("mm", "addmm relu", None),
        ("bmm", "convolution relu", None),
        ("mm", "mul sum", "mm"),
        ("linalg_vector_norm index", "mul sum", None),
    ],
)
def test_large_work_of_torch_s_is_no_credit_where_nobody_asked_for_it(used, reference, without):
    """An unused kernel beside torch's fused operator earns nothing; a product left to it may."""
    counts = [dict.fromkeys(names.split(), 1) for names in (used, reference)]
    found = without_credit(*counts, own_kernel=True)

    assert (found is None) if without is None else (without in found)


@pytest.mark.parametrize("value", [1, -2.5, "a", None, [1, (2, "b")], {"k": [True]}, float("inf")])
def test_plain_arguments_travel(value):
    """What goes to another process comes back as it was."""
    assert decode(encode(value)) == value


@pytest.mark.parametrize("value", [{"tensor": 0}, {"set": []}, {"tuple": 3}, {"dtype": 1}, [1]])
def test_a_damaged_argument_is_refused(value):
    """What another process says is checked before it is used."""
    with pytest.raises(DocumentError):
        decode(value)


def test_a_result_shows_and_escapes_everything():
    """Text and HTML hold verdict, figures, claims and notes; nothing of the file is markup."""
    found = FileEvaluation.of(
        Evaluation(Verdict.SLOWER, "<b>reason</b>", timings=(_timed("eager", 0.5),)),
        file="<i>.py", kind="a function in Python, host code", reference="ref.py",
        claims=("claims 9 times",), notes=("<script>",),
    )  # fmt: skip
    html, text = found._repr_html_(), repr(found)

    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;i&gt;.py" in html
    assert "0.50×" in html
    assert "slower" in text
    assert "0.50× over eager" in text
    assert "claims 9 times" in text

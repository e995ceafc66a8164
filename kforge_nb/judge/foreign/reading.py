"""What a foreign file is, said from its text alone: the file is parsed and never imported.

========  =========================================================================================
kind      the file
========  =========================================================================================
model     Python with a class ``ModelNew`` (KernelBench), whatever it launches: ``load_inline``,
          Triton, torch. Where ``Model``, ``get_inputs`` and ``get_init_inputs`` stand in it too,
          it is its own reference.
inline    Python without ``ModelNew`` that builds an extension by ``load_inline``: its one function
          takes the reference's arguments
function  Python without either: a function ``launch``, ``forward`` or ``kernel_function``
launch    C++ or CUDA that binds ``launch(...)``, which takes the op's tensors and arguments
forward   a torch extension as kforge has them: ``forward(std::vector<at::Tensor>)``
plan      C++ or CUDA device code with a launch plan, kforge's own kind: no host code
========  =========================================================================================
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kforge_nb.errors import BadInput
from kforge_nb.judge.evaluation import shown
from kforge_nb.judge.foreign.parsing import parsed

__all__ = [
    "ForeignFile",
    "Kind",
    "host_code",
    "on_the_default_stream",
    "read_foreign",
    "read_text",
]

Kind = Literal["model", "inline", "function", "launch", "forward", "plan"]
MAX_BYTES = 1 << 20
FUNCTIONS = ("launch", "forward", "kernel_function")
_BINDS_LAUNCH = re.compile(r"\bm\s*\.\s*def\s*\(\s*\"launch\"|\blibrary\s*\.\s*def\s*\(\s*\"launch")
_HAS_LAUNCH = re.compile(r"\b(?:at|torch)\s*::\s*Tensor[\w:&\s<>,]{0,200}?\blaunch\s*\(")
_FORWARD = re.compile(r"\bforward\s*\(\s*(?:const\s+)?(?:std\s*::\s*)?vector\s*<")
_CUDA = re.compile(r"__global__|cuda_sources|\.cuda\(|device\s*=\s*['\"]cuda|<<<|\btriton\b")
_LAUNCH = re.compile(r"<<<(?!<)(.{1,400}?)>>>\s{0,20}\(", re.DOTALL)
_STREAM = 3  # place of the stream in a launch
_NO_STREAM = re.compile(
    r"(?:\(\s*cudaStream_t\s*\)\s*|(?:static_cast\s*<\s*)?cudaStream_t\s*>?\s*[({]\s*)?"
    r"(?:0|nullptr|NULL|\{\s*\}|cudaStreamLegacy|cudaStreamPerThread|cudaStreamDefault)\s*[)}]?"
)
_CPP, _CU = (".cpp", ".cc", ".cxx", ".c"), (".cu", ".cuh")


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file as read: its kind, its text, and what it seems to need.

    ``entry`` is the class or function to call, ``own_reference`` whether a ``Model`` stands beside
    it, ``on_gpu`` whether it names CUDA or Triton, ``triton`` whether it uses Triton.
    """

    path: Path
    text: str
    kind: Kind
    entry: str
    own_reference: bool = False
    on_gpu: bool = False
    builds: bool = False
    triton: bool = False


def host_code(kind: Kind) -> bool:
    """Whether files of this kind run code on the host."""
    return kind != "plan"


def on_the_default_stream(text: str) -> bool:
    """Whether a text launches a kernel without saying on which stream, or names the default one.

    Such a launch goes to the default stream at once, also while a graph of another stream is being
    recorded: the graph then lacks it, and nothing raises.
    """
    launches = (_arguments(found.group(1)) for found in _LAUNCH.finditer(text))
    return any(len(a) <= _STREAM or _NO_STREAM.fullmatch(a[_STREAM]) for a in launches)


def _arguments(text: str) -> list[str]:
    """What stands between commas that are outside of parentheses, brackets and braces."""
    depth, found = 0, [""]
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [argument.strip() for argument in found]


def read_text(path: Path) -> str:
    """The text of a file of at most a megabyte; BadInput where there is none."""
    try:
        if not path.is_file():
            raise BadInput(f"there is no file {shown(str(path.absolute()))}")
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(
                f"{shown(path.name)} is larger than {MAX_BYTES >> 20} MiB; give one kernel"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{shown(str(path))} cannot be read as text: {error}") from None


def read_foreign(path: Path) -> ForeignFile:
    """Read a file and say what it is.

    Raises:
        BadInput: it cannot be read, is no Python that parses, or has no kernel in a known form.
    """
    text = read_text(path)
    if path.suffix == ".py":
        return _python(path, text)
    if path.suffix in (*_CPP, *_CU):
        return _native(path, text)
    raise BadInput(
        f"{shown(path.name)}: kernels are read from .py, {', '.join((*_CPP, *_CU))}, "
        f"not {path.suffix!r}"
    )


def _native(path: Path, text: str) -> ForeignFile:
    on_gpu = path.suffix in _CU or bool(re.search(r"__global__|<<<", text))
    if _BINDS_LAUNCH.search(text) or _HAS_LAUNCH.search(text):
        return ForeignFile(path, text, "launch", "launch", on_gpu=on_gpu, builds=True)
    if _FORWARD.search(text):
        return ForeignFile(path, text, "forward", "forward", on_gpu=on_gpu, builds=True)
    if 'extern "C"' in text:
        return ForeignFile(path, text, "plan", "", on_gpu=on_gpu)
    raise BadInput(
        f"{shown(path.name)} has neither a bound launch(...), nor "
        'forward(std::vector<at::Tensor>), nor an extern "C" kernel with a plan; '
        "docs/judging.md shows the forms that can be judged"
    )


def _python(path: Path, text: str) -> ForeignFile:
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError) as error:
        line, name = getattr(error, "lineno", None), shown(path.name)
        where = f"line {line} of {name}" if line else name
        raise BadInput(f"{where} is no Python that parses: {error}") from None
    names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    builds = bool(_inline_calls(tree))
    facts = {
        "own_reference": {"Model", "get_inputs"} <= names,
        "on_gpu": bool(_CUDA.search(text)),
        "builds": builds,
        "triton": any(name == "triton" or name.startswith("triton.") for name in _imports(tree)),
    }
    if "ModelNew" in names:
        return ForeignFile(path, text, "model", "ModelNew", **facts)
    functions = [name for name in FUNCTIONS if name in names]
    if functions:
        return ForeignFile(path, text, "function", functions[0], **facts)
    if builds:
        return ForeignFile(path, text, "inline", "", **facts)
    raise BadInput(
        f"{shown(path.name)} has no class ModelNew, no load_inline(...) and no function "
        f"{' or '.join(FUNCTIONS)}; docs/judging.md shows the forms that can be judged"
    )


def _inline_calls(tree: ast.Module) -> list[ast.Call]:
    """Calls of ``load_inline``, under any spelling that ends so."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [c for c in calls if ast.unparse(c.func).endswith("load_inline")]


def _imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found

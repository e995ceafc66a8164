"""What the text of a Python candidate gives away, before anything of it runs.

Python can do anything under any name, so this is no wall: the process around it is. A *breach* is
what no kernel needs (programs, sockets, other people's files). A *suspicion* reaches for the judge
(clocks, frames, global switches): evidence with its line. A *library* finding says that somebody
else does the work.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from kforge_nb.judge.policy import Finding, gravest_first

__all__ = ["scan_python"]

_MODULE_WORDS = """
socket subprocess multiprocessing asyncio requests urllib http ftplib pty shutil pickle marshal
webbrowser signal resource fcntl
"""
_BREACH_MODULES = frozenset(_MODULE_WORDS.split())
_JUDGE = frozenset({"kforge_nb", "__main__"})
_BREACH_CALLS = {
    "os.system", "os.popen", "os.fork", "os.execv", "os.execve", "os.kill", "os.remove",
    "os.unlink", "os.rename", "os.putenv", "os._exit", "torch.load", "torch.hub.load",
}  # fmt: skip
_LOOKS = {
    "sys._getframe": "looks into the frames of its callers",
    "inspect.currentframe": "looks into the frames of its callers",
    "inspect.stack": "looks into the frames of its callers",
    "inspect.getouterframes": "looks into the frames of its callers",
    "inspect.trace": "looks into the frames of its callers",
    "sys.exc_info": "looks into frames",
    "gc.get_objects": "looks through all objects of its process",
    "gc.get_referrers": "looks through all objects of its process",
    "gc.get_referents": "looks through all objects of its process",
    "sys.settrace": "traces what others run",
    "sys.setprofile": "traces what others run",
    "threading.settrace": "traces what others run",
    "threading.Thread": "starts threads",
    "concurrent.futures.ThreadPoolExecutor": "starts threads",
    "ThreadPoolExecutor": "starts threads",
    "torch.set_default_dtype": "changes torch's default dtype for all that follows",
    "torch.set_default_device": "changes torch's default device for all that follows",
    "torch.set_default_tensor_type": "changes torch's default dtype for all that follows",
    "atexit.register": "runs code at the end of its process",
    "exec": "runs code that is put together at run time",
    "eval": "runs code that is put together at run time",
    "ctypes.CDLL": "loads code by hand",
    "ctypes.cast": "reads memory by address",
    "ctypes.memmove": "writes memory by address",
    "ctypes.from_address": "reads memory by address",
}
_WATCHED_ROOTS = frozenset({"torch", "time", "sys", "builtins", "gc", "os", "F", "nn", "triton"})
_HARMLESS = ("torch.backends.", "os.environ")
"""Precision switches are told with the claims, and the environment is a private one."""
_LINKS = 4  # names of names that are followed
_FRAME_WORDS = """
f_back f_locals f_globals tb_frame gi_frame cr_frame __code__ __closure__ __globals__ __subclasses__
__builtins__
"""
_FRAME_PARTS = frozenset(_FRAME_WORDS.split())
_COMPILERS = {
    "torch.compile": "has torch.compile do the work",
    "torch.jit.script": "has TorchScript do the work",
    "torch.jit.trace": "has TorchScript do the work",
    "torch.jit.optimize_for_inference": "has TorchScript do the work",
}


def scan_python(text: str, entry: str) -> list[Finding]:
    """Breaches, suspicions and library findings of a Python candidate, gravest first.

    Args:
        text: Python that parses.
        entry: the class or function that is judged.
    """
    tree = ast.parse(text)
    names = _aliases(tree)
    findings = [*_modules(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            findings += _call(node, names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
            findings += _patches(node, names)
        elif isinstance(node, ast.Attribute) and node.attr in _FRAME_PARTS:
            findings.append(_at("suspicion", f"reads {node.attr} of a frame or function", node))
        if isinstance(node, ast.Attribute | ast.Name) and _path(node, names) == "sys.modules":
            findings.append(_at("suspicion", "reaches for what others import (sys.modules)", node))
    findings += [_at("library", _COMPILERS[p], d) for p, d in _decorators(tree, names)]
    findings += _inherits(tree, entry)
    return gravest_first(findings)


def _at(kind: str, what: str, node: ast.AST) -> Finding:
    return Finding(kind, what, getattr(node, "lineno", None))  # type: ignore[arg-type]


def _aliases(tree: ast.Module) -> dict[str, str]:
    """What names stand for: ``perf`` for ``time.perf_counter``, ``F`` for its module.

    Names that were imported, and names that were given parts of those (``c = torch._C``).
    """
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                short = alias.asname or alias.name.split(".")[0]
                found[short] = alias.name if alias.asname else short
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    given = [pair for node in ast.walk(tree) for pair in _given(node)]
    for _ in range(_LINKS):
        for name, value in given:
            path = _path(value, found)
            if name not in found and path.split(".")[0] in _WATCHED_ROOTS:
                found[name] = path
    return found


def _given(node: ast.AST) -> Iterable[tuple[str, ast.expr]]:
    """Names and what an assignment gives them, also side by side in tuples."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        pairs = [(node.target, node.value)]
    for target, value in pairs:
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from (
                (t.id, v)
                for t, v in zip(target.elts, value.elts, strict=False)
                if isinstance(t, ast.Name)
            )


def _path(node: ast.expr, names: dict[str, str]) -> str:
    """Dotted name of an expression with its first part resolved; empty if it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _modules(tree: ast.Module) -> Iterable[Finding]:
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            if module.split(".")[0] in _BREACH_MODULES:
                yield _at("breach", f"imports {module}, which no kernel needs", node)
            elif module.split(".")[0] in _JUDGE:
                yield _at("suspicion", f"imports {module}, which is the judge's own", node)


def _call(node: ast.Call, names: dict[str, str]) -> Iterable[Finding]:
    path = _path(node.func, names)
    if path in _BREACH_CALLS:
        yield _at("breach", f"calls {path}, which no kernel needs", node)
    if path in _LOOKS:
        yield _at("suspicion", f"{_LOOKS[path]} ({path})", node)
    if path in _COMPILERS:
        yield _at("library", _COMPILERS[path], node)
    if path in ("setattr", "delattr", "builtins.setattr") and node.args:
        of = _path(node.args[0], names)
        if of.split(".")[0] in _WATCHED_ROOTS:
            yield _at("suspicion", f"replaces a part of {of}", node)
    if path == "getattr" and [ast.unparse(a) for a in node.args[1:2]] == ["'modules'"]:
        yield _at("suspicion", "reaches for what others import (sys.modules)", node)
    if path in ("__import__", "importlib.import_module"):
        yield _at("suspicion", "imports a module by a name put together at run time", node)


def _patches(
    node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete, names: dict[str, str]
) -> Iterable[Finding]:
    targets: Sequence[ast.expr] = (
        [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else node.targets
    )
    for target in _leaves(targets):
        inner = target.value if isinstance(target, ast.Subscript) else target
        path = _path(inner, names)
        if isinstance(inner, ast.Name) and (inner is target or not path.endswith("__dict__")):
            continue  # a variable, or an element of one
        if path.split(".")[0] in _WATCHED_ROOTS and not path.startswith(_HARMLESS):
            yield _at("suspicion", f"replaces {path} for all that follows", node)


def _leaves(targets: Iterable[ast.expr]) -> Iterable[ast.expr]:
    """What is assigned to, inside tuples and lists too."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _leaves(target.elts)
        else:
            yield target


def _decorators(tree: ast.Module, names: dict[str, str]) -> Iterable[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                path = _path(decorator, names)
                if path in _COMPILERS:
                    yield path, decorator


def _inherits(tree: ast.Module, entry: str) -> Iterable[Finding]:
    """A class that is the reference's child without a forward of its own, or that calls it."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != entry:
            continue
        forward = next(
            (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None
        )
        bases = [ast.unparse(base) for base in node.bases]
        if forward is None and "Model" in bases:
            yield _at("library", "inherits the reference's forward", node)
        calls = [ast.unparse(c.func) for c in ast.walk(forward or node) if isinstance(c, ast.Call)]
        if any(c in ("super().forward", "super().__call__", "Model.forward") for c in calls):
            yield _at("library", "calls the reference's forward", forward or node)

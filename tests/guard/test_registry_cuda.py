"""The registry on a GPU: cubins are kept, built anew, checked in a runner, or refused in words."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.compilers.nvrtc import CudaBuilt, build_cuda
from kforge_nb.errors import DocumentError, MissingTool
from kforge_nb.guard import verify_cuda
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.registry import Registry
from kforge_nb.guard.stored import StoredBackend
from kforge_nb.guard.verify import fingerprint_of
from kforge_nb.targets.target import TensorSpec
from tests.guard import cuda_kernels

SPEC = TensorSpec((8, 64), (64, 1), "float32", "cuda:0")


@pytest.fixture
def device():
    """The GPU; tests that ask for it are marked so."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return "cuda"


@pytest.fixture
def registry(tmp_path):
    """An empty registry."""
    return Registry(tmp_path / "registry")


@pytest.fixture
def softmax_kernel(device, block, accept):
    """The accepted softmax kernel of a Block on the GPU."""
    accepted = accept(block, torch.randn(8, 64, device=device))
    return next(k for k in accepted if k.candidate.title == "softmax")


def with_source(kernel, source):
    """The same kernel with another source; its cubin stays the old one."""
    candidate = Candidate("cuda", source, kernel.candidate.plan, kernel.candidate.title)
    return dataclasses.replace(kernel, candidate=candidate)


def kept(tmp_path, arch):
    """A kernel as the registry reads it, with a cubin for this architecture."""
    candidate = cuda_kernels.softmax()
    built = build_cuda(candidate.source, ("softmax",), cache=tmp_path / "cubins", arch=arch)
    assert isinstance(built, CudaBuilt), built
    return Accepted("f" * 64, {}, (SPEC,), (SPEC,), candidate, built.cubin, arch=arch)


def test_a_cubin_for_another_architecture_is_built_anew(tmp_path, monkeypatch):
    """What is loaded is always compiled from the checked source, for the GPU at hand."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(verify_cuda, "device_arch", lambda device: "sm_80")
    kernel = kept(tmp_path, "sm_90")
    cubin = verify_cuda.built_cubin(kernel)
    assert cubin != kernel.library
    assert cubin.read_bytes() != kernel.library.read_bytes()


def test_without_nvrtc_only_a_cubin_for_this_architecture_will_do(tmp_path, monkeypatch):
    """No compiler: the kept cubin if it fits, else words that name both architectures."""

    def missing(*args, **kwargs):
        raise MissingTool("no NVRTC library was found")

    kernel = kept(tmp_path, "sm_90")
    monkeypatch.setattr(verify_cuda, "build_cuda", missing)
    monkeypatch.setattr(verify_cuda, "device_arch", lambda device: "sm_90")
    assert verify_cuda.built_cubin(kernel) == kernel.library
    monkeypatch.setattr(verify_cuda, "device_arch", lambda device: "sm_120")
    with pytest.raises(DocumentError, match=r"sm_90, this GPU is sm_120.*NVRTC"):
        verify_cuda.built_cubin(kernel)


def test_the_source_of_a_cuda_kernel_meets_the_policy(tmp_path):
    """Inline assembly that leaves the kernel's bounds of behaviour is found before any compile."""
    source = cuda_kernels.SOFTMAX.replace("float top", 'asm("trap;"); asm("exit;"); float top', 1)
    assert not verify_cuda.findings_in(cuda_kernels.SOFTMAX)
    assert verify_cuda.findings_in(source)


def test_a_kernel_for_a_device_that_is_not_here(block, accept):
    """An entry for a GPU that this machine lacks is refused in words, not by a crash."""
    kernel = accept(block, torch.randn(8, 64))[0]
    far = tuple(dataclasses.replace(s, device="cuda:63") for s in kernel.inputs)
    with pytest.raises(DocumentError, match="cuda:63, which this machine does not have"):
        fingerprint_of(dataclasses.replace(kernel, inputs=far))


@pytest.mark.gpu
def test_round_trip(registry, softmax_kernel):
    """What was added comes back verified; arch, device and toolchain are kept with the cubin."""
    folder = registry.add(softmax_kernel)
    binary = json.loads((folder / "entry.json").read_text())["binary"]
    assert binary["arch"].startswith("sm_")
    assert binary["device"] == torch.cuda.get_device_name()
    assert binary["toolchain"]
    assert registry.entries("cuda:0") == {softmax_kernel.target_fingerprint: folder}
    assert registry.entries("cpu") == {}
    back = registry.verified(folder)
    assert back.digest == softmax_kernel.digest
    assert back.library.exists()
    assert back.library.parent != folder
    assert not registry.problems


@pytest.mark.gpu
def test_a_cubin_that_was_changed_is_refused(registry, softmax_kernel):
    """A cubin must have the hash that is written beside it."""
    folder = registry.add(softmax_kernel)
    (folder / "kernel.cubin").write_bytes(b"\x7fELF something else")
    with pytest.raises(DocumentError, match="not the one"):
        registry.read(folder)
    assert registry.entries("cuda:0") == {}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("expf(in[i] - top)", "expf(in[i] - top) + 1e-3f"), "wrong"),
        (("float top", "*(volatile int*)8 = 1; float top"), "failed in the runner"),
        (("float top", "float top top"), "does not compile"),
    ],
    ids=["wrong", "crashes", "does not compile"],
)
def test_a_bad_kernel_with_true_digests_is_refused(registry, softmax_kernel, change, reason):
    """An entry can be consistent and still bad: it is judged anew, in a context of its own."""
    source = softmax_kernel.candidate.source.replace(*change, 1)
    folder = registry.add(with_source(softmax_kernel, source))
    with pytest.raises(DocumentError, match=reason):
        registry.verified(folder)
    assert float(torch.ones(4, device="cuda").sum()) == 4


@pytest.mark.gpu
def test_the_backend_verifies_what_a_graph_needs(registry, block, accept, device):
    """Kernels of the GPU are looked up when a graph on it comes; a bad one is refused."""
    x = torch.randn(8, 64, device=device)
    for kernel in accept(block, x):
        if kernel.candidate.title == "softmax":
            source = kernel.candidate.source.replace("spare[r] = sum", "spare[r] = 2 * sum")
            kernel = with_source(kernel, source)
        registry.add(kernel)
    backend = StoredBackend(registry)
    assert not backend.known
    run = torch.compile(block, backend=backend, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(run(x), block(x))
    assert len(backend.handles) == 2
    assert "it is wrong" in next(iter(backend.refused.values()))


@pytest.mark.gpu
def test_another_process_uses_the_entry_point(softmax_kernel, tmp_path):
    """A later script with ``backend="kforge"`` launches the kernel, also inside a CUDA graph."""
    home = tmp_path / "home"
    Registry(home / "registry").add(softmax_kernel)
    script = textwrap.dedent(
        """
        import torch
        from torch._dynamo import register_backend
        from kforge_nb.guard import backend, launch
        from kforge_nb.guard.stored import stored_backend
        if "kforge" not in torch._dynamo.list_backends():
            register_backend(backend.kforge, name="kforge")  # a source tree has no entry points

        class Head(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(64, 64)

            def forward(self, x):
                return self.linear(x).softmax(-1)

        model, x = Head().eval().cuda(), torch.randn(8, 64, device="cuda")
        for rest in ("eager", "cudagraphs"):
            torch._dynamo.reset()
            fast = torch.compile(model, backend="kforge", options={"rest": rest})
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))
            (handle,) = stored_backend(rest).handles.values()
            assert launch.counters(handle)["launches"] >= 1
        """
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr

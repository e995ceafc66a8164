"""apply, undo and what users do afterwards: always eager's result, or a fallback with a reason."""

from __future__ import annotations

import copy
import io
import types

import pytest
import torch

from kforge_nb.candidates.candidate import Candidate
from kforge_nb.errors import BadInput
from kforge_nb.guard import launch
from kforge_nb.guard.accepted import Accepted
from kforge_nb.guard.apply import apply, compiled_copy, installed
from kforge_nb.workload.capture import watch


@pytest.fixture
def x(device):
    """The input that the kernels were accepted for."""
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(3)).to(device)


@pytest.fixture
def guarded(block, accept, x):
    """(model, its Applied, an untouched twin that shares nothing)."""
    twin = copy.deepcopy(block)
    return block, apply([block], accept(block, x)), twin


def check(model, twin, *args):
    """The model gives the twin's result under no_grad."""
    with torch.no_grad():
        torch.testing.assert_close(model(*args), twin(*args))


def launches(applied):
    """Launches since installation."""
    return applied.counters()["launches"]


def test_apply_and_undo(guarded, x):
    """In place: the model launches kernels; undo puts back exactly what stood there."""
    model, applied, twin = guarded
    assert installed(model) is applied
    check(model, twin, x)
    check(model, twin, x)
    counters = applied.counters()
    assert (counters["launches"], counters["fallbacks"]) == (6, {})
    calls = {"calls": 2, "compiled": 2, "original": 0, "bypassed": 0, "hooked": 0}
    assert counters["calls"] == calls
    assert sorted(row["launches"] for row in counters["kernels"]) == [2, 2, 2]
    assert applied.undo() == []
    assert model._compiled_call_impl is None
    assert installed(model) is None
    check(model, twin, x)
    assert launches(applied) == 6


def test_undo_restores_the_users_own_compile(block, accept, x):
    """A module that the user had compiled gets that very object back."""
    block.compile(backend="eager")
    own = block._compiled_call_impl
    with apply([block], accept(block, x)) as applied:
        assert block._compiled_call_impl is not own
        with torch.no_grad():
            block(x)
        assert launches(applied) == 3
    assert block._compiled_call_impl is own
    assert not applied.active


def test_undo_leaves_a_later_compile_alone(guarded, x):
    """What the user compiled after apply() stays, and undo says so."""
    model, applied, twin = guarded
    model.compile(backend="eager")
    assert "compiled again" in " ".join(applied.report()["bypassed"])
    later = model._compiled_call_impl
    assert "left alone" in applied.undo()[0]
    assert model._compiled_call_impl is later
    check(model, twin, x)


def test_an_installation_claims_no_kernel_in_place_that_is_not(block, accept, x):
    """A model that the kernels were not made for says so once it has been called."""
    other, accepted = torch.nn.Linear(64, 64), accept(block, x)
    with apply([other], accepted) as applied:
        assert (
            repr(applied) == "<Applied to Linear: 3 kernels that wait for the first call, active>"
        )
        with torch.no_grad():
            other(x)
        assert repr(applied) == "<Applied to Linear: 0 of 3 kernels in place, active>"
    with apply([block], accepted[:1]) as applied, torch.no_grad():
        block(x)
        assert ": 1 kernel, active>" in repr(applied)


def test_undo_in_any_order(block, accept, x):
    """Two installations undone in the wrong order leave nothing behind."""
    accepted = accept(block, x)
    first = apply([block], accepted)
    second = apply([block], accepted[:1])
    assert len(first.undo()) == 1
    assert second.undo() == []
    assert block._compiled_call_impl is None


def test_twenty_applies_with_changing_decisions_on_two_instances(make_block, accept, x, build):
    """No stale code and no recompile limit: each apply runs exactly the kernels it was given."""
    one, two = make_block(1), make_block(2)
    twins = copy.deepcopy(one), copy.deepcopy(two)
    accepted = accept(one, x)
    for turn in range(20):
        chosen = [kernel for i, kernel in enumerate(accepted) if turn >> i & 1]
        applied = apply([one, two], chosen)
        check(one, twins[0], x)
        check(two, twins[1], x)
        counters = applied.counters()
        assert counters["launches"] == 2 * len(chosen), turn
        assert counters["calls"]["bypassed"] == 0, turn
        if turn % 2:
            applied.undo()


def test_a_module_with_a_graph_break_is_served_for_twenty_applies(accept, x):
    """Frames after a break are cached on the module's own code; still nothing stale runs."""

    class Broken(torch.nn.Module):
        def forward(self, x):
            h = torch.relu(x + x.flip(-1))
            torch._dynamo.graph_break()
            return (h @ torch.eye(64, device=x.device)).softmax(-1)

    module, twin = Broken(), Broken()
    accepted = accept(module, x)
    assert len(accepted) == 2
    for turn in range(20):
        chosen = accepted[: 1 + turn % 2]
        with apply([module], chosen) as applied:
            check(module, twin, x)
            assert applied.counters()["calls"]["bypassed"] == 0, turn
            assert applied.counters()["launches"] == len(chosen), turn


def test_warm_up_makes_the_next_call_fast(block, accept, x):
    """With recorded calls everything is compiled, and shadow checked, before apply() returns."""

    def cell():
        with torch.no_grad():
            return block(x)

    workload = watch(cell)
    applied = apply(workload.modules, accept(block, x), calls=workload.calls)
    graphs = len(applied.backend.graphs)
    assert graphs == 1
    cell()
    assert len(applied.backend.graphs) == graphs
    assert applied.counters()["kernels"][0]["shadowed"] == 2


def test_a_failing_warm_up_leaves_the_model_as_it_was(block, accept, x):
    """An exception while installing passes through, and nothing is installed."""
    accepted = accept(block, x)

    def cell():
        with torch.no_grad():
            return block(x)

    workload = watch(cell)
    block.second = torch.nn.Linear(3, 3, device=x.device)
    with pytest.raises(RuntimeError, match=r"shape|mat1"):
        apply(workload.modules, accepted, calls=workload.calls)
    assert block._compiled_call_impl is None


def test_a_bad_call_raises_eagers_exception(guarded, x):
    """Errors of the model are the model's own, not Dynamo's, and change nothing."""
    model, applied, twin = guarded
    messages = []
    for module in (model, twin):
        with torch.no_grad(), pytest.raises(RuntimeError) as caught:
            module(torch.randn(8, 3, device=x.device))
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    check(model, twin, x)
    assert launches(applied) == 3


def test_what_cannot_be_compiled_runs_plain(block, monkeypatch, x):
    """Where Dynamo itself fails, calls give eager's result, and it is given up after two tries."""
    twin = copy.deepcopy(block)
    applied = apply([block], [])
    tries = []

    def broken(gm, example_inputs, report):
        tries.append(1)
        raise RuntimeError("the backend is out of order")

    monkeypatch.setattr(applied.backend, "_rest", broken)
    for _ in range(4):
        check(block, twin, x)
    assert len(tries) == 2
    assert applied.counters()["calls"]["bypassed"] == 4
    assert "cannot be compiled" in " ".join(applied.report()["bypassed"])


def test_what_cannot_be_applied_is_refused(block):
    """No module, something else, TorchScript, and the result of torch.compile are BadInput."""
    with pytest.raises(BadInput, match="no module"):
        apply([], [])
    with pytest.raises(BadInput, match=r"nn\.Module"):
        apply([print], [])
    with pytest.raises(BadInput, match="TorchScript"):
        apply([torch.jit.trace(block, torch.randn(8, 64))], [])
    with pytest.raises(BadInput, match="_orig_mod"):
        apply([torch.compile(block)], [])


def test_weights_changed_in_place(guarded, x):
    """Optimiser steps and copies into weights take effect at once."""
    model, applied, twin = guarded
    check(model, twin, x)
    for module in (model, twin):
        with torch.no_grad():
            module.norm.weight.mul_(2)
            module.first.weight.copy_(torch.eye(64))
    check(model, twin, x)
    assert launches(applied) == 6


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(guarded, x, make_block, assign):
    """New weights, copied in or assigned, are the ones that the kernels read."""
    model, applied, twin = guarded
    check(model, twin, x)
    state = make_block(9).state_dict()
    for module in (model, twin):
        module.load_state_dict(copy.deepcopy(state), assign=assign)
    check(model, twin, x)
    check(model, twin, x)
    counters = applied.counters()
    # assigned weights need no gradient mode of their own: the kernels stay
    assert counters["launches"] >= 3
    assert counters["launches"] + 3 * counters["calls"]["bypassed"] >= 6


@pytest.mark.parametrize("change", ["double", "bfloat16", "to"])
def test_another_dtype_runs_the_original(guarded, x, change):
    """After .double(), .bfloat16() or .to() no kernel fits, and the result is eager's."""
    model, applied, twin = guarded
    check(model, twin, x)
    dtype = {"double": torch.float64, "bfloat16": torch.bfloat16, "to": torch.float16}[change]
    for module in (model, twin):
        getattr(module, change)(*([dtype] if change == "to" else []))
    check(model, twin, x.to(dtype))
    assert launches(applied) == 3
    assert "do not occur" in applied.report()["graphs"][-1]["reasons"][0]


def test_train_and_eval(accept, x):
    """train() brings dropout back, eval() the kernels."""

    class Drops(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(torch.relu(x + x.flip(0)), 0.5, self.training)

    model, twin = Drops().eval(), Drops().eval()
    applied = apply([model], accept(model, x))
    check(model, twin, x)
    for module in (model, twin):
        module.train()
    results = []
    for module in (model, twin):
        torch.manual_seed(5)
        with torch.no_grad():
            results.append(module(x))
    torch.testing.assert_close(results[0], results[1])
    for module in (model, twin):
        module.eval()
    before = launches(applied)
    check(model, twin, x)
    assert launches(applied) == before + 1


def test_training_after_apply(guarded, x):
    """Gradients and optimiser steps equal those of an untouched twin."""
    model, applied, twin = guarded
    for module in (model, twin):
        step = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            step.zero_grad()
            module(x).square().sum().backward()
            step.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert launches(applied) == 0
    check(model, twin, x)
    assert launches(applied) == 3


class LowRank(torch.nn.Module):
    """An adapter around a linear layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = torch.nn.Linear(64, 4, bias=False)
        self.up = torch.nn.Linear(4, 64, bias=False)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


def test_an_adapter_takes_effect(guarded, x):
    """A submodule that is wrapped or replaced after apply() is the one that runs."""
    model, _, twin = guarded
    check(model, twin, x)
    torch.manual_seed(4)
    adapter = LowRank(torch.nn.Identity()).to(x.device)
    for module in (model, twin):
        mine = copy.deepcopy(adapter)
        mine.inner = module.second
        module.second = mine
    check(model, twin, x)
    for module in (model, twin):
        module.norm = torch.nn.Identity()
    check(model, twin, x)


@pytest.mark.parametrize("where", ["class", "instance"])
def test_another_forward_takes_effect(guarded, x, monkeypatch, where):
    """A forward that a user puts in place of the model's runs, with the kernels inside it."""
    model, applied, twin = guarded
    check(model, twin, x)
    old = type(model).forward

    def forward(self, x):
        return old(self, x) + 100

    if where == "class":
        monkeypatch.setattr(type(model), "forward", forward)
    else:
        model.forward, twin.forward = (types.MethodType(forward, m) for m in (model, twin))
    before = launches(applied)
    check(model, twin, x)
    assert launches(applied) > before


def test_hooks_added_later_fire(guarded, x):
    """Compiled code would skip them, so the module runs plain while they are there, and says so."""
    model, applied, twin = guarded
    check(model, twin, x)
    handles = [
        module.norm.register_forward_hook(lambda mod, args, out: out * 3)
        for module in (model, twin)
    ]
    check(model, twin, x)
    assert applied.counters()["calls"]["hooked"] == 1
    assert "hooks were added" in " ".join(applied.report()["bypassed"])
    for handle in handles:
        handle.remove()
    check(model, twin, x)
    assert launches(applied) == 6


def test_hooks_on_all_modules_fire(guarded, x):
    """Torch's global forward hooks, added later, see every submodule as in eager."""
    model, applied, twin = guarded
    check(model, twin, x)
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(type(module).__name__)
    )
    with handle, torch.no_grad():
        model(x)
        mine = list(seen)
        seen.clear()
        twin(x)
    assert mine == seen
    assert "RMSNorm" in mine
    check(model, twin, x)
    assert launches(applied) == 6


def test_export_and_tracing_see_the_plain_model(guarded, x):
    """Export and tracing go through the module itself, not through a compiled call."""
    model, applied, twin = guarded
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch.testing.assert_close(exported.module()(x), twin(x))
    assert launches(applied) == 0
    check(model, twin, x)
    assert launches(applied) == 3


def test_deepcopy_and_state_dict_do_not_see_kforge(guarded, x):
    """Copies and saved weights are those of the plain model, and the copy is on its own."""
    model, applied, twin = guarded
    clone = copy.deepcopy(model)
    assert clone._compiled_call_impl is None
    assert model.state_dict().keys() == twin.state_dict().keys()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    check(clone, twin, x)
    assert launches(applied) == 0


def test_held_outputs_never_change(guarded, x):
    """An output kept by the user is not overwritten by later calls."""
    model, _, twin = guarded
    with torch.no_grad():
        held = [model(x + i) for i in range(4)]
        expected = [twin(x + i) for i in range(4)]
    for mine, theirs in zip(held, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_another_shape_runs_the_original(guarded, x):
    """A batch of another size is right, and the known one keeps its kernels."""
    model, applied, twin = guarded
    for rows in (8, 3, 5, 8):
        check(model, twin, torch.randn(rows, 64, device=x.device))
    assert launches(applied) == 6


def test_many_shapes_turn_symbolic_and_stay_right(guarded, x):
    """More shapes than are compiled one by one: symbolic graphs take over, and report says so."""
    model, applied, twin = guarded
    for rows in range(2, 20):
        check(model, twin, torch.randn(rows, 64, device=x.device))
    assert applied.counters()["calls"]["bypassed"] == 0
    assert "more shapes" in " ".join(applied.report()["bypassed"])
    assert len(applied.backend.graphs) < 9


def test_a_compiled_parent_is_named(block, accept, x):
    """Inside a parent that the user compiles kforge is never called; report() says which."""

    class Parent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.child = block

        def forward(self, x):
            return self.child(x) + 1

    parent = Parent()
    twin = copy.deepcopy(parent)
    applied = apply([block], accept(block, x))
    parent.compile(backend="eager")
    check(parent, twin, x)
    assert launches(applied) == 0
    assert any("Block is inside Parent" in text for text in applied.report()["bypassed"])
    parent._compiled_call_impl = None
    check(parent, twin, x)
    assert launches(applied) == 3
    assert not applied.report()["bypassed"]


def test_the_kill_switch_is_reported(guarded, x):
    """With the switch on the model runs originals and report() says why."""
    model, applied, twin = guarded
    with launch.originals():
        check(model, twin, x)
        assert "kill switch" in " ".join(applied.report()["bypassed"])
    assert applied.counters()["fallbacks"] == {"the kill switch is on": 3}


def test_a_kernel_that_turns_out_wrong_is_switched_off(block, accept, x, build):
    """The shadow check in the live model keeps the result right, and report() names the kernel."""
    accepted = accept(block, x)
    softmax = next(k for k in accepted if k.candidate.title == "softmax")
    source = softmax.candidate.source.replace("out[i] /= spare[r]", "out[i] /= 1.01f * spare[r]")
    wrong = Candidate(softmax.candidate.language, source, softmax.candidate.plan, "wrong softmax")
    bad = Accepted(
        softmax.target_fingerprint, softmax.graph_document, softmax.inputs, softmax.outputs,
        wrong, build(wrong), name="wrong softmax",
    )  # fmt: skip
    twin = copy.deepcopy(block)
    applied = apply([block], [bad])
    with pytest.warns(RuntimeWarning, match="wrong softmax differs"):
        check(block, twin, x)
    check(block, twin, x)
    assert "wrong softmax is off" in " ".join(applied.report()["bypassed"])


def test_a_compiled_copy_shares_weights(block, accept, x):
    """The copy runs kernels on the very same parameters; the model itself stays plain."""
    twin = copy.deepcopy(block)
    fast = compiled_copy(block, accept(block, x))
    assert block._compiled_call_impl is None
    shared = zip(block.parameters(), fast.parameters(), strict=True)
    assert all(a is b for a, b in shared)
    check(fast, twin, x)
    assert installed(fast).counters()["launches"] == 3
    with torch.no_grad():
        block.norm.weight.add_(1)
        twin.norm.weight.add_(1)
    check(fast, twin, x)


def test_a_refused_kernel_is_reported_and_the_rest_goes_on(block, accept, x, tmp_path):
    """A library that is gone costs that kernel only."""
    accepted = accept(block, x)
    lost = Accepted(
        accepted[0].target_fingerprint, accepted[0].graph_document, accepted[0].inputs,
        accepted[0].outputs, accepted[0].candidate, tmp_path / "lost.so",
    )  # fmt: skip
    twin = copy.deepcopy(block)
    applied = apply([block], [lost, *accepted[1:]])
    check(block, twin, x)
    assert list(applied.report()["refused"]) == [lost.target_fingerprint]
    assert launches(applied) == 2


def test_calls_of_apply_itself_are_not_counted_as_the_users(block, accept, x):
    """After one call of the user's there is one, though apply() has called the model before."""
    workload = watch(lambda: block(x))
    with apply([block], accept(block, x), calls=workload.calls) as applied:
        assert set(applied.counters()["calls"].values()) == {0}
        with torch.no_grad():
            block(x)
        counted = applied.counters()["calls"]
        assert (counted["calls"], counted["compiled"]) == (1, 1)

"""What the watch sees of a cell, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import threading
import types
import weakref

import pytest
import torch
from torch import nn

from kforge_nb.errors import BadInput
from kforge_nb.workload import calls, capture
from kforge_nb.workload.capture import MAX_SIGNATURES, watch

ORIGINAL_CALL = nn.Module.__call__


class Scaled(nn.Module):
    """A module with keyword and non-tensor arguments and an inner module."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, *, scale=1.0, mode="plain"):
        y = self.inner(x) * scale
        return y if mode == "plain" else -y


class Autoencoder(nn.Module):
    """Called through ``decode``, never through ``forward``."""

    def __init__(self):
        super().__init__()
        self.post = nn.Linear(4, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def decode(self, z):
        return self.decoder(self.post(z))


class Appends(nn.Module):
    """Changes its list argument and its tensor argument, as caches do."""

    def forward(self, x, store):
        store.append(x.clone())
        x.add_(1)
        return x * len(store)


def test_only_outermost_calls_with_all_their_arguments_are_recorded():
    """The inner linear layer is not a call of its own; keywords and plain values are kept."""
    model, x = Scaled(), torch.randn(2, 4)
    workload = watch(lambda: model(x, scale=2.0, mode="minus"))
    (call,) = workload.calls
    assert call.module is model
    assert call.module_name == "model"
    assert call.kwargs == {"scale": 2.0, "mode": "minus"}
    assert torch.equal(call.args[0], x)
    assert torch.equal(workload.result, model(x, scale=2.0, mode="minus"))
    assert torch.equal(call.run(), workload.result)


def test_decode_functions_record_the_modules_inside():
    """``vae.decode(z)`` calls two modules from outside; both are named by their path."""
    vae, z = Autoencoder(), torch.randn(2, 4)
    workload = watch(lambda: vae.decode(z))
    assert [c.module_name for c in workload.calls] == ["vae.post", "vae.decoder"]
    assert [c.module for c in workload.calls] == [vae.post, vae.decoder]


def test_several_modules_and_loops_are_counted_by_signature():
    """A denoising loop is one call counted many times; another shape is another call."""
    one, two, x = nn.Linear(4, 4), nn.ReLU(), torch.randn(2, 4)

    def cell():
        y = x
        for _ in range(5):
            y = two(one(y))
        return one(torch.zeros(3, 4))

    with torch.no_grad():
        workload = watch(cell)
    assert [(c.module, c.count) for c in workload.calls] == [(one, 5), (two, 5), (one, 1)]
    assert workload.modules == [one, two]


def test_growing_calls_are_capped_and_said_so():
    """A decode loop has a new signature each step: the rest is counted with the last one."""
    model = nn.ReLU()
    workload = watch(lambda: [model(torch.ones(n + 1)) for n in range(MAX_SIGNATURES + 3)])
    assert len(workload.calls) == MAX_SIGNATURES
    assert sum(c.count for c in workload.calls) == MAX_SIGNATURES + 3
    assert any("3 further calls" in note for note in workload.notes)


def test_a_replay_never_changes_recorded_or_user_state():
    """Arguments are as they were when the call began, and stay so however often it is run."""
    model, x, store = Appends(), torch.zeros(3), []
    workload = watch(lambda: model(x, store))
    call = workload.calls[0]
    assert call.writes
    first, second = call.run(), call.run()
    assert torch.equal(first, torch.ones(3))
    assert torch.equal(first, second)
    assert torch.equal(x, torch.ones(3))
    assert len(store) == 1
    assert torch.equal(call.args[0], torch.zeros(3))
    assert call.args[1] == []


class _Holder:
    """A stateful argument, as a cache is."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.layers = [{"keys": tensor} for tensor in tensors]


def test_copies_are_inference_tensors_only_where_the_arguments_were():
    """Dynamo guards tell them apart: a compile for such a copy would not serve the user's call."""

    class Reads(nn.Module):
        def forward(self, x, holder):
            return x + sum(layer["keys"] for layer in holder.layers)

    plain = torch.ones(3)
    with torch.inference_mode():
        made_there = torch.ones(3)
        workload = watch(lambda: Reads()(plain, _Holder(plain, made_there)))
    call = workload.calls[0]
    with torch.inference_mode():
        given, holder = call.fresh_args()[0]
    kinds = [layer["keys"].is_inference() for layer in holder.layers]
    assert (given.is_inference(), kinds) == (False, [False, True])
    assert holder.layers[0]["keys"].data_ptr() != plain.data_ptr()


def test_grad_inference_and_autocast_state_travel_with_the_call():
    """A replay in another thread, without any of the switches, computes under the cell's own."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def cell():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    with torch.no_grad():
        workload = watch(cell)
    with torch.inference_mode():
        inferred = watch(lambda: model(x))
    with_grad = watch(lambda: model(x))
    found = {}

    def replay():
        found["autocast"] = workload.calls[0].run()
        found["inference"] = inferred.calls[0].run()
        found["grad"] = with_grad.calls[0].run()
        found["after"] = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert found["autocast"].dtype is torch.bfloat16
    assert not found["autocast"].requires_grad
    assert found["inference"].is_inference()
    assert found["grad"].requires_grad
    assert found["after"] == (True, False)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_a_cell_that_raises_keeps_its_exception_and_the_watch_ends(error):
    """The user's exception comes through as it is, and module calls are no longer watched."""
    model = nn.ReLU()

    def cell():
        model(torch.ones(1))
        raise error

    with pytest.raises(type(error)) as caught:
        watch(cell)
    assert caught.value is error
    assert nn.Module.__call__ is ORIGINAL_CALL


def test_a_module_that_raises_does_not_shift_the_depth():
    """After an exception inside a module, later calls still count as outermost; it is left out."""

    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("inside")

    fails, works = Fails(), nn.ReLU()

    def cell():
        with pytest.raises(RuntimeError, match="inside"):
            fails(torch.ones(1))
        return works(torch.ones(1))

    workload = watch(cell)
    assert [c.module for c in workload.calls] == [works]
    assert workload.notes[0] == "a call of fails raised RuntimeError and was left out"


def test_a_call_that_raises_after_others_keeps_the_others():
    """Two calls of one signature, the second of which fails: one call is left, not none."""

    class FailsLater(nn.Module):
        made = 0

        def forward(self, x):
            self.made += 1
            if self.made == 2:
                raise RuntimeError("the second time")
            return x

    module, x = FailsLater(), torch.ones(1)

    def cell():
        module(x)
        with pytest.raises(RuntimeError, match="second"):
            module(x)

    workload = watch(cell)
    assert [c.count for c in workload.calls] == [1]
    assert "RuntimeError" in workload.notes[0]


def test_a_model_compiled_in_the_cell_stays_whole():
    """``torch.compile(..., fullgraph=True)`` in a watched cell works there and ever after."""
    model, x, kept = Scaled().eval(), torch.randn(2, 4), []
    torch._dynamo.reset()

    def cell():
        kept.append(torch.compile(model, backend="eager", fullgraph=True))
        return kept[0](x)

    with torch.no_grad():
        workload = watch(cell)
        assert torch.equal(workload.result, model(x))
        assert torch.equal(kept[0](x), model(x))
        kept[0](torch.randn(3, 4))  # compiled anew, when the watch is over
    assert len(workload.calls) == 1
    torch._dynamo.reset()


def test_stand_ins_of_transforms_are_not_recorded():
    """What vmap and tracers hand to a module means nothing after them: the call is only told of."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    with torch.no_grad():
        workload = watch(
            lambda: (torch.vmap(model)(x), torch.jit.trace(model, x, check_trace=False), model(x))
        )
        assert [c.count for c in workload.calls] == [1]
        assert torch.equal(workload.calls[0].run(), model(x))
    assert workload.notes[0] == "modules called under torch.func or by a tracer were not recorded"
    with pytest.raises(BadInput, match=r"called no torch.nn.Module.*under torch.func"):
        watch(lambda: torch.vmap(model)(x))


def test_a_model_made_under_inference_mode():
    """Its parameters count no versions; a buffer that it writes to is put back all the same."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("calls", torch.tensor([0.0, float("nan")]))
            self.register_buffer("still", torch.tensor([1.0, float("nan")]))

        def forward(self, x):
            self.calls[0] += 1
            return self.inner(x) + self.calls[0]

    with torch.inference_mode():
        model, x = Counts(), torch.randn(2, 4)
        workload = watch(lambda: model(x))
    call = workload.calls[0]
    assert [id(t) for t in call.written_state] == [id(model.calls)]
    assert torch.equal(call.run(), call.run())
    assert model.calls[0] == 1


def test_nested_tensors_are_arguments_like_others():
    """Nested tensors have no plain sizes; they are copied and told apart all the same."""
    model = nn.Linear(4, 4)
    parts = [torch.randn(3, 4), torch.randn(5, 4)]
    with torch.no_grad():
        for layout in (torch.strided, torch.jagged):
            x = torch.nested.nested_tensor(parts, layout=layout)
            workload = watch(lambda x=x: model(x))
            assert workload.calls[0].args[0] is not x
            again = workload.calls[0].run()
            for one, part in zip(again.unbind(), parts, strict=True):
                torch.testing.assert_close(one, model(part))


def test_time_outside_module_calls_is_told(monkeypatch):
    """A cell whose functional code takes as long as its module says so; a short one does not."""
    now = [0.0]
    monkeypatch.setattr(capture.time, "thread_time", lambda: now[0])

    class Takes(nn.Module):
        def forward(self, x, seconds):
            now[0] += seconds
            return x

    module, x = Takes(), torch.ones(1)

    def cell(outside, inside):
        module(x, inside)
        now[0] += outside

    assert watch(lambda: cell(0.1, 1.0)).notes == []
    assert watch(lambda: cell(0.01, 0.01)).notes == []
    (note,) = watch(lambda: cell(1.0, 1.0)).notes
    assert note.startswith("50% of the cell's computing was outside module calls")


def test_a_cell_without_a_module_call_is_told_what_to_do():
    """Plain tensor code is not a workload."""
    with pytest.raises(BadInput, match="call the model in it"):
        watch(lambda: torch.ones(2) + 1)
    assert nn.Module.__call__ is ORIGINAL_CALL


def test_a_model_on_meta_is_refused_before_it_runs():
    """The message names the device and the way out."""
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with pytest.raises(BadInput, match=r"meta device.*to_empty"):
        watch(lambda: model(torch.ones(1, 4)))


def test_calls_in_other_threads_belong_to_nobody():
    """Two watches at once do not record one another's modules."""
    one, two = nn.ReLU(), nn.Tanh()
    inside, done = threading.Event(), threading.Event()
    found = {}

    def slow_cell():
        one(torch.ones(1))
        inside.set()
        assert done.wait(30)

    thread = threading.Thread(target=lambda: found.update(slow=watch(slow_cell)))
    thread.start()
    assert inside.wait(30)
    found["quick"] = watch(lambda: two(torch.ones(1)))
    done.set()
    thread.join()
    assert [c.module for c in found["slow"].calls] == [one]
    assert [c.module for c in found["quick"].calls] == [two]
    assert nn.Module.__call__ is ORIGINAL_CALL


class Holder:
    """An argument that holds a tensor, and things from which a whole program can be reached."""

    def __init__(self, inside: object) -> None:
        self.inside = inside


def test_a_profiled_model_can_be_freed():
    """Torch keeps every backend it was given: what was traced must not hold the model's weights."""

    def profiled():
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval(), torch.randn(2, 4)
        with torch.no_grad():
            assert capture.capture_graphs(watch(lambda: model(x))).graphs
        return weakref.ref(model), weakref.ref(model[0].weight)

    model, weight = profiled()
    gc.collect()
    assert model() is None
    assert weight() is None


def test_arguments_are_not_searched_through_a_whole_program():
    """Tensors of a cache's layers are found; behind modules, functions and loggers nobody looks."""
    kept, other = torch.ones(1), torch.zeros(1)
    module, logger = types.ModuleType("program"), logging.getLogger("kforge-test")

    def function():
        return None

    module.held = function.held = logger.held = other
    found = [kept, module, function, logger, Holder(other).__init__]
    cache = Holder([Holder({"keys": found})])
    try:
        assert [id(t) for t in calls._tensors_inside(cache, set())] == [id(kept)]
    finally:
        del logger.held
    deep = Holder(Holder(Holder(Holder(Holder(other)))))
    assert list(calls._tensors_inside(deep, set())) == []
    assert [id(t) for t in calls._tensors_inside(deep.inside, set())] == [id(other)]

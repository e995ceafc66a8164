// The launch op: kforge::launch(Tensor[] inputs, int handle) -> Tensor[], and its short forms
// launch.in1(Tensor a, int handle) -> Tensor … .in8out2, which save the lists on both ways.
//
// Everything that must happen on each call of an installed kernel happens here, without Python:
// check the inputs against the variant that the kernel was judged with, copy what is only laid out
// differently, allocate outputs and scratch, call the kernel, count. Whatever does not fit goes to
// kforge::original, which runs the subgraph that the kernel replaced.
//
// Written against torch's stable ABI, so that one build loads on every torch from 2.11 on. The CUDA
// driver is opened when the first CUDA kernel is added, so the same build loads without a GPU.

#include <torch/csrc/stable/library.h>

#include "launch_cuda.h"

namespace kforge {

struct Call {
  Entry* entry = nullptr;
  int64_t handle = 0;
  Few<kMaxInputs> inputs;
};

void find_entry(Call* call) {
  if (call->handle < 0 || call->handle >= used.load(std::memory_order_acquire))
    throw std::runtime_error("kforge::launch: no kernel is registered under handle " +
                             std::to_string(call->handle) + " in this process");
  call->entry = table[call->handle].load(std::memory_order_acquire);
}

void open_call(StableIValue* stack, Call* call) {
  call->handle = static_cast<int64_t>(stack[1]);
  OwnedList list(as_list(stack[0]));
  find_entry(call);
  size_t size = 0;
  check(torch_list_size(list.handle, &size), "list_size");
  if (size > kMaxInputs)
    throw std::runtime_error("kforge::launch: " + std::to_string(size) + " inputs; at most " +
                             std::to_string(kMaxInputs) + " are possible");
  for (size_t i = 0; i < size; ++i) {
    StableIValue item = 0;
    check(torch_list_get_item(list.handle, i, &item), "list_get_item");
    call->inputs.push(Owned(as_tensor(item)));
  }
}

StableListHandle original(Call& call, Reason reason) {
  call.entry->fallbacks[reason].fetch_add(1, std::memory_order_relaxed);
  StableIValue stack[3] = {as_value(new_list(call.inputs)), static_cast<StableIValue>(call.handle),
                           static_cast<StableIValue>(reason)};
  original_error.clear();
  check(torch_call_dispatcher("kforge::original", "", stack, TORCH_ABI_VERSION),
        "kforge::original");
  return as_list(stack[0]);
}

// A shadow check reads values, which a capture forbids: it then waits for a call outside of one.
bool take_shadow(Entry& entry) {
  int64_t left = entry.shadows.load(std::memory_order_relaxed);
  if (left <= 0 || (entry.device && capturing(*entry.device))) return false;
  while (left > 0)
    if (entry.shadows.compare_exchange_weak(left, left - 1)) return true;
  return false;
}

// The kernel's outputs, checked against the original by Python, which returns what to hand on.
StableListHandle shadow(Call& call, Few<kMaxOutputs>& outputs) {
  call.entry->shadowed.fetch_add(1, std::memory_order_relaxed);
  StableIValue stack[3] = {as_value(new_list(call.inputs)), as_value(new_list(outputs)),
                           static_cast<StableIValue>(call.handle)};
  original_error.clear();
  check(torch_call_dispatcher("kforge::shadow", "", stack, TORCH_ABI_VERSION), "kforge::shadow");
  return as_list(stack[0]);
}

void launch_cpu(const Entry& entry, void* const* inputs, void* const* outputs, char* scratch) {
  uint32_t threads = 1;
  check(torch_get_num_threads(&threads), "num_threads");
  if (entry.zeroed > 0) std::memset(scratch, 0, entry.zeroed);
  const KernelCall& call = entry.calls[0];
  std::array<Arg, kMaxArgs> args;
  for (size_t i = 0; i < call.args.size(); ++i) {
    const ArgRule& rule = call.args[i];
    switch (rule.kind) {
      case kInput: args[i].p = inputs[rule.bits]; break;
      case kOutput: args[i].p = outputs[rule.bits]; break;
      case kScratch: args[i].p = scratch + rule.bits; break;
      case kFloating: std::memcpy(&args[i].d, &rule.bits, sizeof(double)); break;
      case kThreads: args[i].i = threads; break;
      default: args[i].i = rule.bits; break;
    }
  }
  entry.trampoline(call.function, args.data());
}

// A launch that failed is not tried again, unless a capture was at fault. One that failed because
// an earlier kernel broke the context is an error for the user: nothing else could run either.
Reason failed(Entry& entry, CuResult code, size_t position) {
  const std::string device = "cuda:" + std::to_string(entry.device->index);
  if (is_sticky(code))
    throw std::runtime_error(
        "kforge: the CUDA context of " + device + " is broken (" + cuda_words(code) +
        "). An earlier kernel did this, and it shows only now; nothing more can run there in this "
        "process. Restart it, with CUDA_LAUNCH_BLOCKING=1 to see which kernel it is");
  if (is_capture(code)) return kCapture;
  std::lock_guard<std::mutex> lock(entry.telling);
  entry.fault = "launch " + std::to_string(position) + " failed on " + device + " (" +
                cuda_words(code) + ")";
  entry.enabled.store(0);
  return kFailed;
}

// Runs the kernel into fresh outputs; the reason if it could not.
Reason run(Entry& entry, void* const* inputs, Few<kMaxOutputs>* outputs) {
  void* pointers[kMaxOutputs];
  for (const Spec& spec : entry.outputs) {
    Owned output = empty(spec);
    if (!output.handle) return kMemory;
    pointers[outputs->size] = data_of(output.handle);
    outputs->push(std::move(output));
  }
  Owned scratch;
  char* spare = nullptr;
  if (entry.scratch.numel > 0) {
    scratch = empty(entry.scratch);
    if (!scratch.handle) return kMemory;
    spare = static_cast<char*>(data_of(scratch.handle));
  }
  if (entry.device == nullptr) {
    launch_cpu(entry, inputs, pointers, spare);
    return kNone;
  }
  size_t position = 0;
  const CuResult code = launch_calls(entry, inputs, pointers, spare, &position);
  return code == kCudaSuccess ? kNone : failed(entry, code, position);
}

// A copy of an input as the kernel wants it, and its address.
Reason copy_input(AtenTensorHandle tensor, const Spec& spec, Few<kMaxInputs>* copies, void** data) {
  Owned copy = empty(spec);
  if (!copy.handle) return kMemory;
  check(aoti_torch_copy_(copy.handle, tensor, 0), "copy_");
  *data = data_of(copy.handle);
  copies->push(std::move(copy));
  return kNone;
}

// Runs the kernel into `outputs`; where it was the original or a check that gave them, their list.
StableListHandle launch(Call& call, Few<kMaxOutputs>& outputs) {
  Entry& entry = *call.entry;
  if (!running.load(std::memory_order_relaxed)) return original(call, kKilled);
  if (!entry.enabled.load(std::memory_order_relaxed)) return original(call, kDisabled);
  const size_t count = call.inputs.size;
  if (count != entry.inputs.size()) return original(call, kCount);
  void* inputs[kMaxInputs];
  uint64_t to_copy = 0;
  for (size_t i = 0; i < count; ++i) {
    bool copy = false;
    inputs[i] = nullptr;
    const Reason reason = fits(call.inputs[i], entry.inputs[i], &copy, &inputs[i]);
    if (reason != kNone) return original(call, reason);
    if (copy) to_copy |= uint64_t{1} << i;
  }
  Few<kMaxInputs> copies;
  for (size_t i = 0; i < count && to_copy >> i; ++i) {
    if (!(to_copy >> i & 1)) continue;
    const Reason reason = copy_input(call.inputs[i], entry.inputs[i], &copies, &inputs[i]);
    if (reason != kNone) return original(call, reason);
    entry.copies.fetch_add(1, std::memory_order_relaxed);
  }
  const Reason reason = run(entry, inputs, &outputs);
  if (reason != kNone) return original(call, reason);
  entry.launches.fetch_add(1, std::memory_order_relaxed);
  return take_shadow(entry) ? shadow(call, outputs) : nullptr;
}

// Autograd is a fallthrough for this op (see launch.py): nothing is excluded here, so the alias test
// sees what autograd sees, and an original that runs from here records its gradients. A kernel on
// the Autograd key itself would run before fake tensors and dispatch modes had their turn.
StableListHandle launch_or_grad(Call& call, Few<kMaxOutputs>& outputs) {
  if (aoti_torch_grad_mode_is_enabled())
    for (size_t i = 0; i < call.inputs.size; ++i)
      if (needs_grad(call.inputs[i])) return original(call, kGrad);
  return launch(call, outputs);
}

void launch_boxed(StableIValue* stack, uint64_t, uint64_t) {
  Call call;
  Few<kMaxOutputs> outputs;
  open_call(stack, &call);
  const StableListHandle list = launch_or_grad(call, outputs);
  stack[0] = as_value(list ? list : new_list(outputs));
}

// N inputs and M outputs as they are.
template <int N, int M>
void launch_short(StableIValue* stack, uint64_t, uint64_t) {
  Call call;
  Few<kMaxOutputs> outputs;
  for (int i = 0; i < N; ++i) call.inputs.push(Owned(as_tensor(stack[i])));
  call.handle = static_cast<int64_t>(stack[N]);
  find_entry(&call);
  if (call.entry->outputs.size() != M)
    throw std::runtime_error("kforge::launch: a kernel with " +
                             std::to_string(call.entry->outputs.size()) +
                             " outputs is called in a form with " + std::to_string(M));
  OwnedList list(launch_or_grad(call, outputs));
  for (int i = 0; i < M; ++i) {
    if (list.handle)
      check(torch_list_get_item(list.handle, i, &stack[i]), "list_get_item");
    else
      stack[i] = as_value(outputs.release(i));
  }
}

template <int N>
void implement_short(torch::stable::detail::StableLibrary& m) {
  const std::string name = "launch.in" + std::to_string(N);
  m.impl(name.c_str(), &launch_short<N, 1>);
  m.impl((name + "out2").c_str(), &launch_short<N, 2>);
  if constexpr (N > 1) implement_short<N - 1>(m);
}

void implement(torch::stable::detail::StableLibrary& m) {
  m.impl("launch", &launch_boxed);
  implement_short<8>(m);
}

}  // namespace kforge

STABLE_TORCH_LIBRARY_IMPL(kforge, CPU, m) { kforge::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(kforge, CUDA, m) { kforge::implement(m); }

#include "launch_exports.h"

// The launch op: kforge::launch(Tensor[] inputs, int handle) -> Tensor[].
//
// Everything that must happen on each call of an installed kernel happens here, without Python:
// check the inputs against the variant that the kernel was judged with, copy what is only laid out
// differently, allocate outputs and scratch, call the kernel, count. Whatever does not fit goes to
// kforge::original, which runs the subgraph that the kernel replaced.
//
// Written against torch's stable ABI, so that one build loads on every torch from 2.11 on.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Must match kforge_nb.guard.launch.REASONS.
enum Reason : int64_t {
  kNone = 0, kCount, kDtype, kDevice, kShape, kLayout, kGrad, kKilled, kDisabled, kReasons
};

union Arg {
  void* p;
  int64_t i;
  double d;
};

using Trampoline = void (*)(void* entry, const Arg* args);

struct Spec {
  int32_t dtype = 0, device_type = 0, device_index = 0;
  int64_t alignment = 1, numel = 1;
  bool copyable = true;
  std::vector<int64_t> sizes, strides;
};

struct Scratch {
  Spec spec;
  bool zero = false;
};

enum ArgKind : int64_t { kInput = 0, kOutput, kScratch, kInteger, kFloating, kThreads };

struct ArgRule {
  ArgKind kind;
  int64_t bits;
};

struct Entry {
  Trampoline trampoline = nullptr;
  void* function = nullptr;
  std::vector<Spec> inputs, outputs;
  std::vector<Scratch> scratch;
  std::vector<ArgRule> args;
  std::atomic<int32_t> enabled{1};
  std::atomic<int64_t> shadows{0};
  std::atomic<int64_t> launches{0}, copies{0}, shadowed{0};
  std::array<std::atomic<int64_t>, kReasons> fallbacks{};
};

constexpr int64_t kCapacity = 1 << 16;
std::array<std::atomic<Entry*>, kCapacity> table{};
std::atomic<int64_t> used{0};
std::mutex adding;
std::atomic<int32_t> running{1};  // the kill switch: 0 sends every launch to the original
thread_local std::string original_error;

void check(AOTITorchError code, const char* what) {
  if (code == AOTI_TORCH_SUCCESS) return;
  std::string text = original_error.empty() ? std::string("kforge: torch failed in ") + what
                                            : original_error;
  original_error.clear();
  throw std::runtime_error(text);
}

struct Owned {  // one owned tensor handle
  AtenTensorHandle handle = nullptr;
  Owned() = default;
  explicit Owned(AtenTensorHandle h) : handle(h) {}
  Owned(Owned&& other) noexcept : handle(other.handle) { other.handle = nullptr; }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle, other.handle);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle) aoti_torch_delete_tensor_object(handle);
  }
  AtenTensorHandle release() {
    AtenTensorHandle h = handle;
    handle = nullptr;
    return h;
  }
};

StableIValue as_value(AtenTensorHandle handle) {
  return static_cast<StableIValue>(reinterpret_cast<uintptr_t>(handle));
}

StableIValue as_value(StableListHandle handle) {
  return static_cast<StableIValue>(reinterpret_cast<uintptr_t>(handle));
}

AtenTensorHandle as_tensor(StableIValue value) {
  return reinterpret_cast<AtenTensorHandle>(static_cast<uintptr_t>(value));
}

StableListHandle as_list(StableIValue value) {
  return reinterpret_cast<StableListHandle>(static_cast<uintptr_t>(value));
}

StableListHandle new_list(std::vector<Owned>& tensors) {
  StableListHandle list = nullptr;
  check(torch_new_list_reserve_size(tensors.size(), &list), "a new list");
  for (auto& tensor : tensors)
    check(torch_list_push_back(list, as_value(tensor.release())), "filling a list");
  return list;
}

Owned empty(const Spec& spec) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(static_cast<int64_t>(spec.sizes.size()), spec.sizes.data(),
                                 spec.strides.data(), spec.dtype, spec.device_type,
                                 spec.device_index, &handle),
        "an allocation");
  return Owned(handle);
}

void* data_of(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  check(aoti_torch_get_data_ptr(tensor, &pointer), "data_ptr");
  return pointer;
}

// Why this tensor is not what the kernel was judged with; kNone also when a copy would mend it.
Reason fits(AtenTensorHandle tensor, const Spec& spec, bool* copy) {
  int32_t dtype = 0, device_type = 0, device_index = 0, layout = 0;
  int64_t dim = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  check(aoti_torch_get_dtype(tensor, &dtype), "dtype");
  if (dtype != spec.dtype) return kDtype;
  check(aoti_torch_get_device_type(tensor, &device_type), "device");
  check(aoti_torch_get_device_index(tensor, &device_index), "device");
  if (device_type != spec.device_type) return kDevice;
  if (spec.device_index >= 0 && device_index >= 0 && device_index != spec.device_index)
    return kDevice;
  check(aoti_torch_get_layout(tensor, &layout), "layout");
  if (layout != aoti_torch_layout_strided()) return kLayout;
  check(aoti_torch_get_dim(tensor, &dim), "dim");
  if (dim != static_cast<int64_t>(spec.sizes.size())) return kShape;
  check(aoti_torch_get_sizes(tensor, &sizes), "sizes");
  check(aoti_torch_get_strides(tensor, &strides), "strides");
  for (int64_t d = 0; d < dim; ++d)
    if (sizes[d] != spec.sizes[d]) return kShape;
  if (spec.numel == 0) return kNone;
  for (int64_t d = 0; d < dim; ++d)
    if (strides[d] != spec.strides[d] && sizes[d] != 1) *copy = true;
  if (reinterpret_cast<uintptr_t>(data_of(tensor)) % spec.alignment != 0) *copy = true;
  if (*copy && !spec.copyable) return kLayout;
  return kNone;
}

// With grad mode on: an alias of a tensor that needs a gradient is not a leaf.
bool needs_grad(AtenTensorHandle tensor) {
  AtenTensorHandle twin = nullptr;
  check(aoti_torch_new_tensor_handle(tensor, &twin), "a handle");
  StableIValue stack[1] = {as_value(twin)};
  check(torch_call_dispatcher("aten::alias", "", stack, TORCH_ABI_VERSION), "alias");
  check(torch_call_dispatcher("aten::is_leaf", "", stack, TORCH_ABI_VERSION), "is_leaf");
  return (stack[0] & 0xff) == 0;
}

struct Call {
  Entry* entry;
  int64_t handle;
  std::vector<Owned> inputs;
};

Call open_call(StableIValue* stack) {
  Call call{nullptr, static_cast<int64_t>(stack[1]), {}};
  StableListHandle list = as_list(stack[0]);
  std::unique_ptr<StableListOpaque, void (*)(StableListHandle)> guard(
      list, [](StableListHandle l) { torch_delete_list(l); });
  size_t size = 0;
  check(torch_list_size(list, &size), "list_size");
  call.inputs.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    StableIValue item = 0;
    check(torch_list_get_item(list, i, &item), "list_get_item");
    call.inputs.emplace_back(as_tensor(item));
  }
  if (call.handle < 0 || call.handle >= used.load(std::memory_order_acquire))
    throw std::runtime_error("kforge::launch: no kernel is registered under handle " +
                             std::to_string(call.handle) + " in this process");
  call.entry = table[call.handle].load(std::memory_order_acquire);
  return call;
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

bool take_shadow(Entry& entry) {
  int64_t left = entry.shadows.load(std::memory_order_relaxed);
  while (left > 0)
    if (entry.shadows.compare_exchange_weak(left, left - 1)) return true;
  return false;
}

// The kernel's outputs, checked against the original by Python, which returns what to hand on.
StableListHandle shadow(Call& call, std::vector<Owned>& outputs) {
  call.entry->shadowed.fetch_add(1, std::memory_order_relaxed);
  StableIValue stack[3] = {as_value(new_list(call.inputs)), as_value(new_list(outputs)),
                           static_cast<StableIValue>(call.handle)};
  original_error.clear();
  check(torch_call_dispatcher("kforge::shadow", "", stack, TORCH_ABI_VERSION), "kforge::shadow");
  return as_list(stack[0]);
}

std::vector<Owned> call_kernel(Entry& entry, const std::vector<AtenTensorHandle>& inputs) {
  std::vector<Owned> outputs, scratch;
  outputs.reserve(entry.outputs.size());
  for (const Spec& spec : entry.outputs) outputs.push_back(empty(spec));
  scratch.reserve(entry.scratch.size());
  for (const Scratch& rule : entry.scratch) {
    scratch.push_back(empty(rule.spec));
    if (rule.zero) check(aoti_torch_zero_(scratch.back().handle), "zero_");
  }
  uint32_t threads = 1;
  check(torch_get_num_threads(&threads), "num_threads");
  std::array<Arg, 64> args;
  for (size_t i = 0; i < entry.args.size(); ++i) {
    const ArgRule& rule = entry.args[i];
    switch (rule.kind) {
      case kInput: args[i].p = data_of(inputs[rule.bits]); break;
      case kOutput: args[i].p = data_of(outputs[rule.bits].handle); break;
      case kScratch: args[i].p = data_of(scratch[rule.bits].handle); break;
      case kInteger: args[i].i = rule.bits; break;
      case kFloating: std::memcpy(&args[i].d, &rule.bits, sizeof(double)); break;
      case kThreads: args[i].i = threads; break;
    }
  }
  entry.trampoline(entry.function, args.data());
  return outputs;
}

StableListHandle launch(Call& call) {
  Entry& entry = *call.entry;
  if (!running.load(std::memory_order_relaxed)) return original(call, kKilled);
  if (!entry.enabled.load(std::memory_order_relaxed)) return original(call, kDisabled);
  if (call.inputs.size() != entry.inputs.size()) return original(call, kCount);
  std::vector<AtenTensorHandle> inputs(call.inputs.size());
  std::vector<Owned> copies;
  std::vector<size_t> to_copy;
  for (size_t i = 0; i < inputs.size(); ++i) {
    bool copy = false;
    Reason reason = fits(call.inputs[i].handle, entry.inputs[i], &copy);
    if (reason != kNone) return original(call, reason);
    inputs[i] = call.inputs[i].handle;
    if (copy) to_copy.push_back(i);
  }
  for (size_t i : to_copy) {
    copies.push_back(empty(entry.inputs[i]));
    check(aoti_torch_copy_(copies.back().handle, inputs[i], 0), "copy_");
    inputs[i] = copies.back().handle;
  }
  if (!to_copy.empty()) entry.copies.fetch_add(to_copy.size(), std::memory_order_relaxed);
  std::vector<Owned> outputs = call_kernel(entry, inputs);
  entry.launches.fetch_add(1, std::memory_order_relaxed);
  if (take_shadow(entry)) return shadow(call, outputs);
  return new_list(outputs);
}

// Autograd is a fallthrough for this op (see launch.py): nothing is excluded here, so the alias test
// sees what autograd sees, and an original that runs from here records its gradients. A kernel on
// the Autograd key itself would run before fake tensors and dispatch modes had their turn.
void launch_boxed(StableIValue* stack, uint64_t, uint64_t) {
  Call call = open_call(stack);
  if (aoti_torch_grad_mode_is_enabled())
    for (const Owned& tensor : call.inputs)
      if (needs_grad(tensor.handle)) {
        stack[0] = as_value(original(call, kGrad));
        return;
      }
  stack[0] = as_value(launch(call));
}

Spec read_spec(const int64_t** cursor) {
  const int64_t* at = *cursor;
  Spec spec;
  spec.dtype = static_cast<int32_t>(*at++);
  spec.device_type = static_cast<int32_t>(*at++);
  spec.device_index = static_cast<int32_t>(*at++);
  spec.alignment = *at++;
  const int64_t dim = *at++;
  spec.sizes.assign(at, at + dim);
  spec.strides.assign(at + dim, at + 2 * dim);
  at += 2 * dim;
  for (int64_t d = 0; d < dim; ++d) {
    spec.numel *= spec.sizes[d];
    if (spec.sizes[d] > 1 && spec.strides[d] == 0) spec.copyable = false;
  }
  *cursor = at;
  return spec;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(kforge, CPU, m) { m.impl("launch", &launch_boxed); }
STABLE_TORCH_LIBRARY_IMPL(kforge, CUDA, m) { m.impl("launch", &launch_boxed); }

extern "C" {

// Adds a kernel. `layout` is written by kforge_nb.guard.launch.encode: counts, specs, arguments.
// Returns the handle, -1 when the table is full, -2 when there are too many arguments.
int64_t kforge_add(void* trampoline, void* function, const int64_t* layout, int64_t shadows) {
  auto entry = std::make_unique<Entry>();
  entry->trampoline = reinterpret_cast<Trampoline>(trampoline);
  entry->function = function;
  entry->shadows = shadows;
  const int64_t* at = layout;
  for (int64_t n = *at++; n > 0; --n) entry->inputs.push_back(read_spec(&at));
  for (int64_t n = *at++; n > 0; --n) entry->outputs.push_back(read_spec(&at));
  for (int64_t n = *at++; n > 0; --n) {
    Scratch scratch;
    scratch.zero = *at++ != 0;
    scratch.spec = read_spec(&at);
    entry->scratch.push_back(std::move(scratch));
  }
  const int64_t args = *at++;
  if (args > 64) return -2;
  for (int64_t i = 0; i < args; ++i) {
    ArgKind kind = static_cast<ArgKind>(*at++);
    entry->args.push_back({kind, *at++});
  }
  std::lock_guard<std::mutex> lock(adding);
  const int64_t handle = used.load();
  if (handle >= kCapacity) return -1;
  table[handle].store(entry.release(), std::memory_order_release);
  used.store(handle + 1, std::memory_order_release);
  return handle;
}

void kforge_run(int32_t on) { running.store(on); }

int32_t kforge_running() { return running.load(); }

void kforge_enable(int64_t handle, int32_t on) { table[handle].load()->enabled.store(on); }

int32_t kforge_enabled(int64_t handle) { return table[handle].load()->enabled.load(); }

void kforge_shadow(int64_t handle, int64_t calls) { table[handle].load()->shadows.store(calls); }

// out: launches, copies, shadowed, then one fallback count per reason (12 numbers).
void kforge_counters(int64_t handle, int64_t* out) {
  Entry& entry = *table[handle].load();
  *out++ = entry.launches.load();
  *out++ = entry.copies.load();
  *out++ = entry.shadowed.load();
  for (auto& count : entry.fallbacks) *out++ = count.load();
}

void kforge_error(const char* text) { original_error = text; }

// torch's own code for a dtype name, -1 for one that kernels cannot take.
int32_t kforge_dtype(const char* name) {
  const std::string dtype(name);
  if (dtype == "float32") return aoti_torch_dtype_float32();
  if (dtype == "float64") return aoti_torch_dtype_float64();
  if (dtype == "float16") return aoti_torch_dtype_float16();
  if (dtype == "bfloat16") return aoti_torch_dtype_bfloat16();
  if (dtype == "int64") return aoti_torch_dtype_int64();
  if (dtype == "int32") return aoti_torch_dtype_int32();
  if (dtype == "int16") return aoti_torch_dtype_int16();
  if (dtype == "int8") return aoti_torch_dtype_int8();
  if (dtype == "uint8") return aoti_torch_dtype_uint8();
  if (dtype == "bool") return aoti_torch_dtype_bool();
  return -1;
}

int32_t kforge_device(const char* name) {
  const std::string device(name);
  if (device == "cpu") return aoti_torch_device_type_cpu();
  if (device == "cuda") return aoti_torch_device_type_cuda();
  return -1;
}
}

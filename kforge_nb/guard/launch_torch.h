// Tensors through torch's stable C interface: owning handles, lists, allocation, the checks.

#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <stdexcept>
#include <utility>

#include "launch_table.h"

namespace kforge {

inline thread_local std::string original_error;  // the words of an exception from Python

inline void check(AOTITorchError code, const char* what) {
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

struct OwnedList {
  StableListHandle handle;
  explicit OwnedList(StableListHandle h) : handle(h) {}
  OwnedList(const OwnedList&) = delete;
  OwnedList& operator=(const OwnedList&) = delete;
  ~OwnedList() {
    if (handle) torch_delete_list(handle);
  }
};

template <int64_t N>
class Few {  // up to N owned tensors, without a heap and without touching what is not used
 public:
  Few() = default;
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;
  ~Few() {
    for (size_t i = 0; i < size; ++i)
      if (item[i]) aoti_torch_delete_tensor_object(item[i]);
  }
  void push(Owned&& tensor) { item[size++] = tensor.release(); }
  AtenTensorHandle operator[](size_t i) const { return item[i]; }
  AtenTensorHandle release(size_t i) { return std::exchange(item[i], nullptr); }
  size_t size = 0;

 private:
  AtenTensorHandle item[N];
};

inline StableIValue as_value(AtenTensorHandle handle) {
  return static_cast<StableIValue>(reinterpret_cast<uintptr_t>(handle));
}

inline StableIValue as_value(StableListHandle handle) {
  return static_cast<StableIValue>(reinterpret_cast<uintptr_t>(handle));
}

inline AtenTensorHandle as_tensor(StableIValue value) {
  return reinterpret_cast<AtenTensorHandle>(static_cast<uintptr_t>(value));
}

inline StableListHandle as_list(StableIValue value) {
  return reinterpret_cast<StableListHandle>(static_cast<uintptr_t>(value));
}

template <int64_t N>
StableListHandle new_list(Few<N>& tensors) {
  StableListHandle list = nullptr;
  check(torch_new_list_reserve_size(tensors.size, &list), "a new list");
  for (size_t i = 0; i < tensors.size; ++i)
    check(torch_list_push_back(list, as_value(tensors.release(i))), "filling a list");
  return list;
}

// A fresh tensor, or a null handle where torch could not allocate it.
inline Owned empty(const Spec& spec) {
  AtenTensorHandle handle = nullptr;
  const AOTITorchError code = aoti_torch_empty_strided(
      static_cast<int64_t>(spec.sizes.size()), spec.sizes.data(), spec.strides.data(), spec.dtype,
      spec.device_type, spec.device_index, &handle);
  return Owned(code == AOTI_TORCH_SUCCESS ? handle : nullptr);
}

inline void* data_of(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  check(aoti_torch_get_data_ptr(tensor, &pointer), "data_ptr");
  return pointer;
}

// Why this tensor is not what the kernel was judged with; kNone also when a copy would mend it.
inline Reason fits(AtenTensorHandle tensor, const Spec& spec, bool* copy, void** data) {
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
  *data = data_of(tensor);
  if (reinterpret_cast<uintptr_t>(*data) % spec.alignment != 0) *copy = true;
  if (*copy && !spec.copyable) return kLayout;
  return kNone;
}


// With grad mode on: an alias of a tensor that needs a gradient is not a leaf. Two calls of the
// dispatcher, so only where torch's own question (below) is not to be had.
inline bool alias_needs_grad(AtenTensorHandle tensor) {
  AtenTensorHandle twin = nullptr;
  check(aoti_torch_new_tensor_handle(tensor, &twin), "a handle");
  StableIValue stack[1] = {as_value(twin)};
  check(torch_call_dispatcher("aten::alias", "", stack, TORCH_ABI_VERSION), "alias");
  check(torch_call_dispatcher("aten::is_leaf", "", stack, TORCH_ABI_VERSION), "is_leaf");
  return (stack[0] & 0xff) == 0;
}

// c10::TensorImpl::requires_grad() const, which the stable interface lacks, found by its name.
using NeedsGrad = bool (*)(const void*);

inline bool ask(NeedsGrad question, AtenTensorHandle tensor) {
  return question(*reinterpret_cast<void* const*>(tensor));  // a handle points to a Tensor
}

// The question, if it is there and answers as the alias does; null otherwise.
inline NeedsGrad find_needs_grad() {
  const auto found =
      reinterpret_cast<NeedsGrad>(dlsym(RTLD_DEFAULT, "_ZNK3c1010TensorImpl13requires_gradEv"));
  if (found == nullptr) return nullptr;
  Spec spec;
  spec.dtype = aoti_torch_dtype_float32();
  spec.device_type = aoti_torch_device_type_cpu();
  Owned plain = empty(spec), wanted = empty(spec);
  if (!plain.handle || !wanted.handle) return nullptr;
  check(torch_set_requires_grad(wanted.handle, true), "set_requires_grad");
  return !ask(found, plain.handle) && ask(found, wanted.handle) ? found : nullptr;
}

inline bool needs_grad(AtenTensorHandle tensor) {
  static const NeedsGrad question = find_needs_grad();
  return question ? ask(question, tensor) : alias_needs_grad(tensor);
}

}  // namespace kforge

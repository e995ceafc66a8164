// What Python calls through ctypes: adding kernels, switches, counters. Part of launch.cpp.

#pragma once

#include "launch_cuda.h"

namespace kforge {

// What kforge_add_… answers instead of a handle; kforge_problem has the words.
enum Refusal : int64_t { kTooMany = -1, kNoCuda = -2, kBadImage = -3, kCudaError = -4 };

inline thread_local std::string problem;

inline int64_t refuse(Refusal code, std::string words) {
  problem = std::move(words);
  return code;
}

inline int64_t finish(std::unique_ptr<Entry>& entry) {
  const int64_t handle = publish(entry.get());
  if (handle < 0) return refuse(kTooMany, "the launch table is full");
  entry.release();
  return handle;
}

inline Entry& at(int64_t handle) { return *table[handle].load(std::memory_order_acquire); }

}  // namespace kforge

extern "C" {

// Adds a C++ kernel. `layout` is written by kforge_nb.guard.layout.encode.
int64_t kforge_add_cpu(void* trampoline, void* function, const int64_t* layout, int64_t shadows) {
  auto entry = std::make_unique<kforge::Entry>();
  if (!kforge::read_layout(layout, entry.get()))
    return kforge::refuse(kforge::kTooMany, "it has more inputs, outputs or arguments than fit");
  entry->trampoline = reinterpret_cast<kforge::Trampoline>(trampoline);
  entry->calls[0].function = function;
  entry->shadows = shadows;
  return kforge::finish(entry);
}

// Opens the CUDA driver and torch's CUDA library by these names; 0, or a refusal.
int64_t kforge_open_cuda(const char* driver_name, const char* torch_name) {
  std::lock_guard<std::mutex> lock(kforge::loading);
  const std::string missing = kforge::open_driver(driver_name, torch_name);
  return missing.empty() ? 0 : kforge::refuse(kforge::kNoCuda, missing);
}

// Adds a CUDA kernel on a device: its image (a cubin) is loaded, `names` are the plan's kernels.
int64_t kforge_add_cuda(const char* image, int64_t size, int32_t device, const char* const* names,
                        const int64_t* layout, int64_t shadows) {
  auto entry = std::make_unique<kforge::Entry>();
  if (!kforge::read_layout(layout, entry.get()))
    return kforge::refuse(kforge::kTooMany, "it has more inputs, outputs or arguments than fit");
  std::string where;
  const kforge::CuResult code =
      kforge::load_calls(std::string(image, size), device, names, entry.get(), &where);
  if (code != kforge::kCudaSuccess) {
    const bool image_at_fault =
        code == kforge::kCudaNoBinary || code == kforge::kCudaInvalidImage ||
        code == kforge::kCudaInvalidPtx || code == kforge::kCudaNotFound;
    return kforge::refuse(image_at_fault ? kforge::kBadImage : kforge::kCudaError,
                          where + ": " + kforge::cuda_words(code));
  }
  entry->shadows = shadows;
  return kforge::finish(entry);
}

const char* kforge_problem() { return kforge::problem.c_str(); }

void kforge_run(int32_t on) { kforge::running.store(on); }

int32_t kforge_running() { return kforge::running.load(); }

void kforge_enable(int64_t handle, int32_t on) { kforge::at(handle).enabled.store(on); }

int32_t kforge_enabled(int64_t handle) { return kforge::at(handle).enabled.load(); }

void kforge_shadow(int64_t handle, int64_t calls) { kforge::at(handle).shadows.store(calls); }

// out: launches, copies, shadowed, then one fallback count per reason.
void kforge_counters(int64_t handle, int64_t* out) {
  kforge::Entry& entry = kforge::at(handle);
  *out++ = entry.launches.load();
  *out++ = entry.copies.load();
  *out++ = entry.shadowed.load();
  for (auto& count : entry.fallbacks) *out++ = count.load();
}

// Why a launch of this kernel failed; empty if none did. Valid until this thread asks again.
const char* kforge_fault(int64_t handle) {
  thread_local std::string copy;
  kforge::Entry& entry = kforge::at(handle);
  std::lock_guard<std::mutex> lock(entry.telling);
  copy = entry.fault;
  return copy.c_str();
}

void kforge_error(const char* text) { kforge::original_error = text; }

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

// The launch table: what is known of each installed kernel, worked out once when it is added.
//
// Nothing here is computed on a call: sizes, grids, scalars and the layout of the scratch memory are
// fixed by the variant. Entries are never removed, so a call reads the table without a lock.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace kforge {

// Must match kforge_nb.guard.table.REASONS.
enum Reason : int64_t {
  kNone = 0, kCount, kDtype, kDevice, kShape, kLayout, kGrad, kKilled, kDisabled, kFailed, kMemory,
  kCapture, kReasons
};

constexpr int64_t kMaxInputs = 64, kMaxOutputs = 32, kMaxArgs = 64;

union Arg {  // what a trampoline reads
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

// kInteger and kFloating are for trampolines; kWord is a scalar as a CUDA kernel reads it.
enum ArgKind : int64_t { kInput = 0, kOutput, kScratch, kInteger, kFloating, kThreads, kWord };

struct ArgRule {
  ArgKind kind;
  int64_t bits;  // position of a tensor, offset into the scratch memory, or the scalar itself
};

struct KernelCall {  // one launch of a plan; a C++ plan has one, without grid, block and shared
  void* function = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  unsigned shared = 0;
  std::vector<ArgRule> args;
};

struct Device;  // launch_cuda.h

struct Entry {
  Trampoline trampoline = nullptr;
  Device* device = nullptr;  // of a CUDA kernel; null for the CPU
  std::vector<Spec> inputs, outputs;
  Spec scratch;  // one buffer for all scratch memory, those to be zeroed first
  int64_t zeroed = 0;  // bytes at its start
  std::vector<KernelCall> calls;
  std::atomic<int32_t> enabled{1};
  std::atomic<int64_t> shadows{0};
  std::atomic<int64_t> launches{0}, copies{0}, shadowed{0};
  std::array<std::atomic<int64_t>, kReasons> fallbacks{};
  std::mutex telling;
  std::string fault;  // why a launch failed, under `telling`
};

constexpr int64_t kCapacity = 1 << 16;
inline std::array<std::atomic<Entry*>, kCapacity> table{};
inline std::atomic<int64_t> used{0};
inline std::mutex adding;
inline std::atomic<int32_t> running{1};  // the kill switch: 0 sends every launch to the original

// Adds a finished entry; -1 when the table is full.
inline int64_t publish(Entry* entry) {
  std::lock_guard<std::mutex> lock(adding);
  const int64_t handle = used.load();
  if (handle >= kCapacity) return -1;
  table[handle].store(entry, std::memory_order_release);
  used.store(handle + 1, std::memory_order_release);
  return handle;
}

inline Spec read_spec(const int64_t** cursor) {
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

inline KernelCall read_call(const int64_t** cursor) {
  const int64_t* at = *cursor;
  KernelCall call;
  for (unsigned& size : call.grid) size = static_cast<unsigned>(*at++);
  for (unsigned& size : call.block) size = static_cast<unsigned>(*at++);
  call.shared = static_cast<unsigned>(*at++);
  for (int64_t n = *at++; n > 0; --n) {
    const ArgKind kind = static_cast<ArgKind>(*at++);
    call.args.push_back({kind, *at++});
  }
  *cursor = at;
  return call;
}

// Reads what kforge_nb.guard.layout.encode wrote; false where there is more than a call can hold.
inline bool read_layout(const int64_t* at, Entry* entry) {
  for (int64_t n = *at++; n > 0; --n) entry->inputs.push_back(read_spec(&at));
  for (int64_t n = *at++; n > 0; --n) entry->outputs.push_back(read_spec(&at));
  entry->zeroed = *at++;
  entry->scratch = read_spec(&at);
  for (int64_t n = *at++; n > 0; --n) entry->calls.push_back(read_call(&at));
  bool fits = entry->inputs.size() <= kMaxInputs && entry->outputs.size() <= kMaxOutputs;
  for (const KernelCall& call : entry->calls) fits = fits && call.args.size() <= kMaxArgs;
  return fits;
}

}  // namespace kforge

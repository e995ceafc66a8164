// A bound plan: where buffers lie, which kernels are launched on them, and one call of it all.
#pragma once
#include <cstring>

#include "cuda_code.hpp"

namespace cuda {

constexpr size_t kGuard = 1024;  // regions.py: GUARD

struct BindHeader {
  uint64_t slot_stride, slots, region_bytes, outputs_at;
  uint64_t scratch_guards_at, sets, outputs, scratch, launches, reserved;
};
static_assert(sizeof(BindHeader) == 80, "cuda/protocol.py packs 80 bytes");

struct OutputBuffer {
  uint64_t offset, bytes;
};
struct ScratchBuffer {
  uint64_t offset, bytes, zero, reserved;
};

struct Launch {
  LaunchShape shape = {};
  std::vector<Argument> arguments;
};

class Plan {
 public:
  BindHeader header = {};
  std::vector<OutputBuffer> outputs;
  std::vector<ScratchBuffer> scratch;
  std::vector<Launch> launches;

  void parse(const std::string& payload, const std::vector<Kernel>& kernels) {
    Reader reader{payload.data(), payload.size()};
    reader.take(&header, 1);
    if (header.outputs > 256 || header.scratch > 64 || header.launches > kMaxKernels ||
        header.slots == 0 || header.sets < 2)
      malformed();
    outputs.resize(header.outputs);
    reader.take(outputs.data(), outputs.size());
    scratch.resize(header.scratch);
    reader.take(scratch.data(), scratch.size());
    launches.assign(header.launches, {});
    for (Launch& entry : launches) {
      reader.take(&entry.shape, 1);
      if (entry.shape.kernel >= kernels.size()) malformed();
      if (entry.shape.arguments > kMaxArguments) malformed();
      entry.arguments.resize(entry.shape.arguments);
      reader.take(entry.arguments.data(), entry.arguments.size());
    }
    if (reader.left != 0) malformed();
  }

  // Bytes of the slab that holds all scratch, guard zones before, between and after.
  size_t scratch_bytes() const { return scratch_end() + kGuard; }

  size_t output_bytes() const { return header.region_bytes - header.outputs_at; }

  // Guard zones of the scratch slab, in order, as (offset, bytes): all that is no buffer.
  std::vector<std::pair<size_t, size_t>> scratch_guards() const {
    std::vector<std::pair<size_t, size_t>> found;
    size_t end = 0;
    for (const ScratchBuffer& buffer : scratch) {
      found.emplace_back(end, buffer.offset - end);
      end = buffer.offset + buffer.bytes;
    }
    found.emplace_back(end, kGuard);
    return found;
  }

  // One call: scratch that starts as zero is filled, then every kernel is launched.
  void call(const std::vector<Kernel>& kernels, Pointer inputs, const Slab& out,
            Slab& shared) const {
    for (const ScratchBuffer& buffer : scratch)
      if (buffer.zero) shared.fill(0, buffer.offset, buffer.bytes);
    std::vector<uint64_t> values;
    for (const Launch& entry : launches) {
      values.clear();
      for (const Argument& argument : entry.arguments)
        values.push_back(value_of(argument, inputs, out, shared));
      launch(kernels[entry.shape.kernel], entry.shape, values);
    }
  }

  // What a call must not find: an earlier result in the outputs, notes in the scratch.
  void poison(Slab& out, Slab& shared) const {
    for (const OutputBuffer& buffer : outputs)
      out.fill(kPoisonByte, buffer.offset - header.outputs_at, buffer.bytes);
    for (const ScratchBuffer& buffer : scratch)
      if (!buffer.zero) shared.fill(kPoisonByte, buffer.offset, buffer.bytes);
  }

 private:
  size_t scratch_end() const {
    return scratch.empty() ? 0 : scratch.back().offset + scratch.back().bytes;
  }

  struct Reader {
    const char* at;
    size_t left;
    template <class T>
    void take(T* to, size_t count) {
      if (left < count * sizeof(T)) malformed();
      if (count > 0) memcpy(static_cast<void*>(to), at, count * sizeof(T));
      at += count * sizeof(T);
      left -= count * sizeof(T);
    }
  };

  [[noreturn]] static void malformed() {
    throw Failure{Fault::kProtocol, "a malformed bind message"};
  }

  uint64_t value_of(const Argument& a, Pointer inputs, const Slab& out, const Slab& shared) const {
    if (a.kind == kInput) return inputs + a.value;
    if (a.kind == kOutput) return out.at(a.value - header.outputs_at);
    if (a.kind == kScratch) return shared.at(a.value);
    return a.value;
  }
};

}  // namespace cuda

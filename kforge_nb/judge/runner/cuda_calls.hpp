// Checked calls: inputs up, poison down, one call, outputs and guard zones back, inputs compared.
// Timed calls are in cuda_timing.hpp.
#pragma once
#include <array>
#include <memory>

#include "cuda_plan.hpp"
#include "wire.hpp"

namespace cuda {

struct Shared {
  wire::Region inputs, timed, outputs;
};

// What a checked call did besides its outputs; cuda/protocol.py has the same bits.
enum Touched : int64_t { kTouchedInputs = 1, kTouchedMargins = 2, kTouchedFlush = 4 };

class Bench {
 public:
  Shared shared;
  std::vector<Kernel> kernels;
  Module flush_module = nullptr;
  Plan plan;
  Slab inputs, timed, checked, scratch;
  std::vector<std::unique_ptr<Slab>> sets;  // rotating outputs of timed calls
  size_t memory_limit = 0;

  void load(const std::string& payload) {
    struct Header {
      uint64_t image, flush, kernels, reserved;
    } header;
    if (payload.size() < sizeof header) throw Failure{Fault::kProtocol, "a short load message"};
    memcpy(&header, payload.data(), sizeof header);
    const size_t names = header.kernels * kNameBytes;
    if (header.kernels == 0 || header.kernels > kMaxKernels ||
        payload.size() != sizeof header + names + header.image + header.flush)
      throw Failure{Fault::kProtocol, "a malformed load message"};
    const char* at = payload.data() + sizeof header;
    image_.assign(at + names, header.image);
    module_ = load_module(image_, "the candidate's code");
    kernels.assign(header.kernels, {});
    for (size_t i = 0; i < kernels.size(); ++i) {
      kernels[i].name.assign(at + i * kNameBytes, strnlen(at + i * kNameBytes, kNameBytes - 1));
      kernels[i].open(module_);
    }
    if (header.flush > 0)
      flush_module = load_module(std::string(at + names + header.image, header.flush), "the flush");
    publish_kernels();
  }

  void bind(const std::string& payload) {
    if (kernels.empty()) throw Failure{Fault::kProtocol, "bound before anything was loaded"};
    plan.parse(payload, kernels);
    const BindHeader& h = plan.header;
    if (h.region_bytes > shared.outputs.bytes || h.slot_stride > shared.inputs.bytes ||
        h.slot_stride * h.slots > shared.timed.bytes)
      throw Failure{Fault::kProtocol, "a layout beyond the shared memory"};
    for (const Launch& entry : plan.launches) {
      Kernel& kernel = kernels[entry.shape.kernel];
      kernel.expect(entry.arguments);
      kernel.fit(entry.shape);
    }
    publish_launches();
    allocate();
    device.wait("preparing memory");
  }

  // The code as it was when it came: what calls so far may have left in its memory is gone. No graph
  // may hold its kernels.
  void reload() {
    device.wait("before the code was loaded anew");
    check(driver.ModuleUnload(module_), "unloading the candidate's code");
    module_ = load_module(image_, "the candidate's code");
    for (Kernel& kernel : kernels) kernel.open(module_);
    for (const Launch& entry : plan.launches) kernels[entry.shape.kernel].fit(entry.shape);
  }

  // What timed calls did that they must not, so far as it can be seen afterwards.
  int64_t audit() const {
    int64_t touched = 0;
    for (const Slab* slab : {&inputs, &timed, &checked, &scratch})
      if (!slab->margins_hold()) touched |= kTouchedMargins;
    for (const auto& set : sets)
      if (!set->margins_hold()) touched |= kTouchedMargins;
    if (timed.bytes() <= kMostCompared && timed.differs(shared.timed.at) >= 0)
      touched |= kTouchedInputs;
    return touched;
  }

  // Guard zones stand since `bind`, so that what was written into them once is seen from then on.
  // `laid_out`: the outputs region holds what the outputs are to hold before the call.
  int64_t run(bool laid_out, wire::Reply& reply) {
    const size_t first = plan.header.outputs_at;
    inputs.upload(0, shared.inputs.at, inputs.bytes());
    plan.poison(checked, scratch);
    if (laid_out) checked.upload(0, shared.outputs.at + first, plan.output_bytes());
    device.wait("preparing a call");
    plan.call(kernels, inputs.at(), checked, scratch);
    device.wait("the kernels ran");
    checked.download(0, shared.outputs.at + first, plan.output_bytes());
    fetch_scratch_guards();
    int64_t touched = 0;
    const int64_t changed = inputs.differs(shared.inputs.at);
    if (changed >= 0) {
      touched |= kTouchedInputs;
      wire::say(reply, std::to_string(changed));
    }
    for (const Slab* slab : {&inputs, &checked, &scratch})
      if (!slab->margins_hold()) touched |= kTouchedMargins;
    return touched;
  }

  // Whole slots in turn; with a payload, the stretches of their memory that it names instead.
  void upload(int64_t first, int64_t count, const std::string& stretches) {
    require_bound();
    if (count > 0 && !pinned_) {  // not before something is timed: it takes a moment
      device.pin(shared.timed.at, shared.timed.bytes, true);
      pinned_ = true;
    }
    if (!stretches.empty()) return upload(stretches);
    const uint64_t slots = plan.header.slots, stride = plan.header.slot_stride;
    uint64_t slot = static_cast<uint64_t>(first) % slots;
    for (uint64_t left = std::min<uint64_t>(static_cast<uint64_t>(count), slots); left > 0;) {
      const uint64_t run = std::min(left, slots - slot);  // up to the end of the row
      timed.upload(slot * stride, shared.timed.at + slot * stride, run * stride);
      left -= run;
      slot = 0;
    }
  }

  void require_bound() const {
    if (!inputs) throw Failure{Fault::kProtocol, "not bound yet"};
  }

  void fetch_scratch_guards() {
    char* to = shared.outputs.at + plan.header.scratch_guards_at;
    for (const auto& [offset, bytes] : plan.scratch_guards()) {
      scratch.download(offset, to, bytes);
      to += bytes;
    }
  }

 private:
  static constexpr size_t kMostCompared = 256 << 20;
  std::string image_;
  Module module_ = nullptr;
  bool pinned_ = false;

  void upload(const std::string& stretches) {
    struct Stretch {
      uint64_t offset, bytes;
    };
    std::vector<Stretch> found(stretches.size() / sizeof(Stretch));
    if (stretches.size() != found.size() * sizeof(Stretch))
      throw Failure{Fault::kProtocol, "a malformed upload message"};
    memcpy(static_cast<void*>(found.data()), stretches.data(), stretches.size());
    for (const Stretch& one : found)
      if (one.bytes > timed.bytes() || one.offset > timed.bytes() - one.bytes)
        throw Failure{Fault::kProtocol, "a stretch beyond the timed inputs"};
    for (const Stretch& one : found)
      timed.upload(one.offset, shared.timed.at + one.offset, one.bytes);
  }

  void allocate() {
    const BindHeader& h = plan.header;
    const size_t out = plan.output_bytes();
    const size_t need = Slab::cost(h.slot_stride) + Slab::cost(h.slot_stride * h.slots) +
                        (h.sets + 1) * Slab::cost(out) + Slab::cost(plan.scratch_bytes());
    if (need > memory_limit)
      throw Failure{Fault::kContract, "judging this needs " + mib(need) +
                                          " of device memory (inputs " +
                                          mib(h.slot_stride * (h.slots + 1)) + ", outputs " +
                                          mib((h.sets + 1) * out) + ", scratch " +
                                          mib(plan.scratch_bytes()) + "); the limit is " +
                                          mib(memory_limit)};
    const size_t left = device.free_memory();
    if (need > left)
      throw Failure{Fault::kMemory, "judging this needs " + mib(need) +
                                        " of device memory, of which " + mib(left) + " are free"};
    if (!inputs) {  // bound for the first time
      device.pin(shared.inputs.at, shared.inputs.bytes, true);
      device.pin(shared.outputs.at, shared.outputs.bytes, false);
    }
    inputs.allocate(h.slot_stride, "inputs");
    timed.allocate(h.slot_stride * h.slots, "timed inputs");
    checked.allocate(out, "outputs");
    scratch.allocate(plan.scratch_bytes(), "scratch");
    sets.clear();
    for (uint64_t i = 0; i < h.sets; ++i) {
      sets.push_back(std::make_unique<Slab>());
      sets.back()->allocate(out, "outputs");
    }
  }

  // The status page at the start of the outputs region: 64 bytes kept free, then tables.
  void publish_kernels() {
    char* at = shared.outputs.at + 64;
    for (const Kernel& kernel : kernels) {
      memcpy(at, &kernel.facts, sizeof kernel.facts);
      at += sizeof kernel.facts;
    }
  }

  void publish_launches() {
    char* at = shared.outputs.at + 64 + kMaxKernels * sizeof(KernelFacts);
    for (const Launch& entry : plan.launches) {
      const int64_t blocks = kernels[entry.shape.kernel].occupancy(entry.shape);
      memcpy(at, &blocks, sizeof blocks);
      at += sizeof blocks;
    }
  }
};

}  // namespace cuda

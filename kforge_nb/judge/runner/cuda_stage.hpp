// Secret inputs of timed calls and notes of their outputs; cuda/staging.py says why and what.
#pragma once
#include "cuda_calls.hpp"

namespace cuda {

constexpr uint64_t kMostNotes = 128;  // of one call, all outputs together
constexpr size_t kNotesAt = 2048;     // on the status page

class Stage {
 public:
  explicit Stage(Bench& bench) : bench_(bench) {}

  // Without kernels of the judge's calls read the uploaded slots themselves.
  bool on() const { return stage_ != nullptr; }

  void open(const std::string& payload) {
    if (payload.empty() || bench_.flush_module == nullptr) {
      stage_ = nullptr;
      first_ = 0;
      return;
    }
    parse(payload);
    for (const auto& [function, name] :
         {std::pair{&stage_, "stage"}, {&sample_, "sample"}, {&tick_, "tick"}})
      check(driver.ModuleGetFunction(function, bench_.flush_module, name),
            std::string("looking for the judge's kernel ") + name);
    allocate();
  }

  void forget() { stage_ = nullptr; }

  uint64_t ticks() const { return ticks_; }
  void replayed(int64_t times) { ticks_ += static_cast<uint64_t>(times); }

  // The clock of replays goes on; once a graph.
  void tick() {
    if (!on()) return;
    Pointer clock = ledger_.at();
    void* parameters[] = {&clock};
    launch(tick_, 1, 1, parameters);
  }

  Pointer inputs(int64_t call) const {
    const uint64_t stride = bench_.plan.header.slot_stride;
    if (!on()) return bench_.timed.at(slot(call) * stride);
    return live_.at(static_cast<uint64_t>(call + turn_) % live_slots_ * stride);
  }

  Slab& set(int64_t call) const {
    return *bench_.sets[static_cast<size_t>(call + turn_) % bench_.sets.size()];
  }

  void put_inputs(int64_t call) {
    if (!on()) return;
    const Pointer source = bench_.timed.at(slot(call) * bench_.plan.header.slot_stride);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Row& row = inputs_[i];
      if (row.bytes == 0) continue;
      Pointer from = source + row.offset, to = inputs(call) + row.offset, clock = ledger_.at();
      uint64_t secret = secret_, which = static_cast<uint64_t>(call) << 8 | i, bytes = row.bytes;
      auto unit = static_cast<uint32_t>(row.unit);
      void* parameters[] = {&from, &to, &clock, &secret, &which, &bytes, &unit};
      const uint64_t blocks = (row.bytes / std::max<uint64_t>(row.unit, 16) + 255) / 256;
      const auto most = 8 * static_cast<uint64_t>(device.multiprocessors);
      launch(stage_, static_cast<unsigned>(std::clamp<uint64_t>(blocks, 1, most)), 256, parameters);
    }
  }

  void note(int64_t call) {
    if (!on()) return;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Row& row = outputs_[i];  // bytes: elements; unit: bytes of one
      if (row.bytes == 0) continue;
      Pointer out = set(call).at(row.offset - bench_.plan.header.outputs_at);
      Pointer notes = notes_at(call) + i * notes_ * 8, clock = ledger_.at();
      uint64_t secret = secret_, which = static_cast<uint64_t>(call) << 8 | i, items = row.bytes;
      auto size = static_cast<uint32_t>(row.unit), count = static_cast<uint32_t>(notes_);
      void* parameters[] = {&out, &notes, &clock, &secret, &which, &items, &size, &count};
      launch(sample_, 1, 32, parameters);
    }
  }

  // The notes of a call of the last replay onto the status page.
  void show(int64_t call) const {
    if (!on() || call < 0 || call >= calls_) throw Failure{Fault::kProtocol, "no such call"};
    check(driver.MemcpyDtoH(bench_.shared.outputs.at + kNotesAt, notes_at(call),
                            outputs_.size() * notes_ * 8),
          "reading notes");
  }

  // Graphs are made anew: the clock starts at zero, and so does the judge's count.
  void restart(int64_t calls) {
    calls_ = calls;
    ticks_ = 0;
    if (!on()) return;
    const size_t need = 64 + static_cast<size_t>(calls) * outputs_.size() * notes_ * 8;
    if (!ledger_ || ledger_.bytes() < need) ledger_.allocate(need, "notes");
    ledger_.fill(0, 0, ledger_.bytes());
  }

  bool margins_hold() const {
    return (!live_ || live_.margins_hold()) && (!ledger_ || ledger_.margins_hold());
  }

 private:
  struct Row {
    uint64_t offset, bytes, unit;
  };
  Bench& bench_;
  Function stage_ = nullptr, sample_ = nullptr, tick_ = nullptr;
  Slab live_, ledger_;
  std::vector<Row> inputs_, outputs_;
  uint64_t secret_ = 0, first_ = 0, notes_ = 1, live_slots_ = 1, ticks_ = 0;
  int64_t turn_ = 0, calls_ = 0;

  uint64_t slot(int64_t call) const {
    return (first_ + static_cast<uint64_t>(call)) % bench_.plan.header.slots;
  }

  Pointer notes_at(int64_t call) const {
    return ledger_.at(64 + static_cast<size_t>(call) * outputs_.size() * notes_ * 8);
  }

  void parse(const std::string& payload) {
    struct Header {
      uint64_t secret, first, notes, counts;
    } header;
    if (payload.size() < sizeof header) malformed();
    memcpy(&header, payload.data(), sizeof header);
    const uint64_t inputs = header.counts >> 32, outputs = header.counts & 0xffffffff;
    if (inputs > 256 || outputs > 256 || header.notes < 1 || header.notes > 32 ||
        outputs * header.notes * 8 > 4096 - kNotesAt ||
        payload.size() != sizeof header + (inputs + outputs) * sizeof(Row))
      malformed();
    inputs_.resize(inputs);
    outputs_.resize(outputs);
    const char* at = payload.data() + sizeof header;
    memcpy(static_cast<void*>(inputs_.data()), at, inputs * sizeof(Row));
    memcpy(static_cast<void*>(outputs_.data()), at + inputs * sizeof(Row), outputs * sizeof(Row));
    for (const Row& row : inputs_)
      if (row.offset + row.bytes > bench_.plan.header.slot_stride || row.unit == 0) malformed();
    for (const Row& row : outputs_)
      if (row.offset < bench_.plan.header.outputs_at || row.unit == 0 || row.unit > 8 ||
          row.offset + row.bytes * row.unit > bench_.plan.header.region_bytes)
        malformed();
    secret_ = header.secret;
    first_ = header.first;
    notes_ = header.notes;
    turn_ = static_cast<int64_t>(header.secret >> 33);
  }

  void allocate() {
    const BindHeader& h = bench_.plan.header;
    live_slots_ = h.slot_stride * h.slots <= (1ull << 30) ? h.slots : std::min<uint64_t>(h.slots, 2);
    const size_t need = h.slot_stride * live_slots_, left = device.free_memory();
    if (live_ && live_.bytes() == need) return;
    if (Slab::cost(need) > left)
      throw Failure{Fault::kMemory, "timing this needs " + mib(need) + " more of device memory, of which " +
                                        mib(left) + " are free"};
    live_.allocate(need, "inputs of timed calls");
  }

  void launch(Function function, unsigned blocks, unsigned threads, void** parameters) {
    check(driver.LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, device.stream, parameters,
                              nullptr),
          "launching a kernel of the judge's");
  }

  [[noreturn]] static void malformed() {
    throw Failure{Fault::kProtocol, "a malformed prepare message"};
  }
};

}  // namespace cuda

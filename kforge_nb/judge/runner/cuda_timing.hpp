// Timed calls: CUDA graphs of many calls with a cold cache, the same graphs without the calls,
// and calls launched one by one from the host.
//
// Before each timed call its outputs and scratch are overwritten and its inputs are staged anew, and
// before and after that more is read than the second-level cache holds. All this happens in the
// graph without calls as well, so that the difference of the two is the calls alone; and nothing
// that an earlier call left anywhere is of use to a call. The first of the two flushes has what the
// last call left in the cache written back: done by the overwriting, that would cost nothing
// visible, and large outputs would seem to be written faster than memory can take them.
#pragma once
#include "cuda_stage.hpp"

namespace cuda {

constexpr int kCaptureThreadLocal = 1;
constexpr int64_t kMostCalls = 1 << 16;

class Replays {
 public:
  explicit Replays(Bench& bench) : bench_(bench), stage_(bench) {}
  ~Replays() { forget(); }

  // Graphs hold addresses: they go before the memory does.
  void forget() {
    for (GraphExec* graph : {&graph_, &empty_}) {
      if (*graph != nullptr) driver.GraphExecDestroy(*graph);
      *graph = nullptr;
    }
    last_calls_ = 0;
  }

  // The candidate's code is loaded anew, and `secrets` (cuda/staging.py) say what calls will see.
  void prepare(int64_t calls, const std::string& secrets) {
    bench_.require_bound();
    if (calls < 1 || calls > kMostCalls)
      throw Failure{Fault::kProtocol,
                    "a graph holds 1 to " + std::to_string(kMostCalls) + " calls"};
    forget();
    bench_.reload();
    make_flush();
    stage_.open(secrets);
    stage_.restart(calls);
    calls_ = calls;
    graph_ = capture(true);
    empty_ = capture(false);
  }

  // Device nanoseconds of so many replays, by events.
  int64_t batch(int64_t replays, bool empty) {
    const GraphExec graph = empty ? empty_ : graph_;
    if (graph == nullptr) throw Failure{Fault::kProtocol, "no graph was prepared"};
    check(driver.EventRecord(start_, device.stream), "recording an event");
    for (int64_t i = 0; i < replays; ++i)
      check(driver.GraphLaunch(graph, device.stream), "replaying a graph");
    check(driver.EventRecord(end_, device.stream), "recording an event");
    device.wait("the kernels ran in timed calls");
    if (!empty) last_calls_ = calls_;
    stage_.replayed(replays);
    float milliseconds = 0.0f;
    check(driver.EventElapsedTime(&milliseconds, start_, end_), "reading events");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  // So many calls launched one by one, waited for once.
  void hot(int64_t calls) {
    bench_.require_bound();
    if (calls < 1 || calls > kMostCalls)
      throw Failure{Fault::kProtocol, "1 to " + std::to_string(kMostCalls) + " calls at a time"};
    for (int64_t i = 0; i < calls; ++i) call(i);
    device.wait("the kernels ran in timed calls");
    last_calls_ = calls;
  }

  // Notes of a call of the last replay onto the status page; the clock of replays.
  int64_t notes(int64_t call) const {
    stage_.show(call);
    return static_cast<int64_t>(stage_.ticks());
  }

  // What timed calls touched besides their outputs.
  int64_t audit() const {
    int64_t touched = bench_.audit();
    if (!stage_.margins_hold() || (cold_ && !cold_.margins_hold())) touched |= kTouchedMargins;
    if (cold_ && !cold_.holds_only(kColdByte)) touched |= kTouchedFlush;
    return touched;
  }

  // Outputs of a timed call, counted from the last one, with the guard zones around them.
  void fetch(int64_t age) {
    const auto held = std::min<int64_t>(last_calls_, static_cast<int64_t>(bench_.sets.size()));
    if (age < 0 || age >= held) throw Failure{Fault::kProtocol, "no such call"};
    const Slab& set = stage_.set(last_calls_ - 1 - age);
    set.download(0, bench_.shared.outputs.at + bench_.plan.header.outputs_at, set.bytes());
    bench_.fetch_scratch_guards();
  }

 private:
  static constexpr unsigned char kColdByte = 0x5a;
  Bench& bench_;
  Stage stage_;
  Slab cold_;
  Function flush_ = nullptr;
  GraphExec graph_ = nullptr, empty_ = nullptr;
  Event start_ = nullptr, end_ = nullptr;
  int64_t calls_ = 0, last_calls_ = 0;

  void call(int64_t i) {
    bench_.plan.call(bench_.kernels, stage_.inputs(i), stage_.set(i), bench_.scratch);
  }

  void make_flush() {
    if (cold_) return;
    check(driver.EventCreate(&start_, 0), "making an event");
    check(driver.EventCreate(&end_, 0), "making an event");
    cold_.allocate(3 * std::max<size_t>(device.l2, 1 << 20), "flushing the cache");
    if (bench_.flush_module != nullptr)
      check(driver.ModuleGetFunction(&flush_, bench_.flush_module, "flush"),
            "looking for the flush");
    cold_.fill(kColdByte, 0, cold_.bytes());
    flush();  // its first launch is not part of any graph
    device.wait("preparing the flush");
  }

  // Reads three times the second-level cache; without a kernel for it, writes as much.
  void flush() {
    if (flush_ == nullptr) return cold_.fill(kColdByte, 0, cold_.bytes());
    Pointer from = cold_.at(), sink = cold_.at(cold_.bytes());
    uint64_t vectors = cold_.bytes() / 16;
    void* parameters[] = {&from, &sink, &vectors};
    check(driver.LaunchKernel(flush_, 8u * static_cast<unsigned>(device.multiprocessors), 1, 1, 256,
                              1, 1, 0, device.stream, parameters, nullptr),
          "launching the flush");
  }

  GraphExec capture(bool with_calls) {
    Graph graph = nullptr;
    GraphExec made = nullptr;
    check(driver.StreamBeginCapture(device.stream, kCaptureThreadLocal), "starting a capture");
    stage_.tick();
    for (int64_t i = 0; i < calls_; ++i) {
      flush();
      bench_.plan.poison(stage_.set(i), bench_.scratch);
      stage_.put_inputs(i);
      flush();
      if (with_calls) call(i);
      stage_.note(i);
    }
    check(driver.StreamEndCapture(device.stream, &graph), "ending a capture");
    check(driver.GraphInstantiate(&made, graph, 0), "making a graph of the calls");
    driver.GraphDestroy(graph);
    check(driver.GraphUpload(made, device.stream), "uploading a graph");
    device.wait("uploading a graph");
    return made;
  }
};

}  // namespace cuda

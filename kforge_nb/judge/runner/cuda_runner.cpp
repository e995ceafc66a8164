// The CUDA runner: one process and one context for one candidate, with neither Python nor torch.
//
//   cuda_runner REPLY_FD INPUT_FD TIMED_FD OUTPUT_FD INPUT_BYTES TIMED_BYTES OUTPUT_BYTES
//               CPU_SECONDS LAYERS DRIVER DEVICE DEVICE_MEMORY HEAP PRINTF
//   cuda_runner --probe DRIVER DEVICE [CUBIN]
//
// It starts the driver at once, before it is told anything, so that it can be started while the
// candidate is still being compiled. Commands come on descriptor 0; cuda/protocol.py describes the
// messages. Whatever fails is answered with words and a class of fault; a context that is broken
// fails every later command the same way. A hang is ended by the judge, from outside.
#include <fstream>
#include <iterator>
#include <sys/wait.h>

#include "cuda_sandbox.hpp"
#include "cuda_timing.hpp"

namespace {

using namespace cuda;

constexpr uint64_t kMostPayload = 256 << 20;
constexpr unsigned kTrialSeconds = 20;  // a driver that waits for what it may not have is stopped
enum Op : uint32_t {
  kLoad = 1, kBind = 2, kRun = 3, kBatch = 4, kFetch = 5, kQuit = 6,
  kUpload = 7, kPrepare = 8, kHot = 9, kReady = 10, kNotes = 11, kAudit = 12,
};

Bench& bench = *new Bench;  // never destroyed: the driver may be gone by then
Replays& replays = *new Replays(bench);

void serve(const wire::Command& c, const std::string& payload, wire::Reply& reply) {
  switch (c.op) {
    case kLoad: return bench.load(payload);
    case kBind: replays.forget(); return bench.bind(payload);
    case kRun:
      bench.require_bound();
      reply.value = bench.run(c.a != 0, reply);
      return;
    case kBatch: reply.value = replays.batch(c.a, c.b != 0); return;
    case kFetch: return replays.fetch(c.a);
    case kUpload: return bench.upload(c.a, c.b, payload);
    case kPrepare: return replays.prepare(c.a, payload);
    case kHot: return replays.hot(c.a);
    case kReady: return;
    case kNotes: reply.value = replays.notes(c.a); return;
    case kAudit: reply.value = replays.audit(); return;
    default: throw Failure{Fault::kProtocol, "unknown command"};
  }
}

void answer(const wire::Command& c, const std::string& payload, const Failure* broken,
            wire::Reply& reply) {
  const uint64_t start = wire::now();
  try {
    if (broken != nullptr) throw *broken;
    serve(c, payload, reply);
  } catch (const Failure& failure) {
    reply.value = static_cast<int64_t>(failure.fault);
    wire::fail(reply, failure.text);
  } catch (const std::bad_alloc&) {
    reply.value = static_cast<int64_t>(Fault::kMemory);
    wire::fail(reply, "the runner has no host memory left");
  }
  reply.nanos = wire::now() - start;
}

int control(int reply_fd, const Failure* broken) {
  wire::Command command;
  while (wire::read_all(&command, sizeof command)) {
    if (command.magic != wire::kMagic || command.payload > kMostPayload) return 2;
    std::string payload(command.payload, '\0');
    if (!wire::read_all(&payload[0], command.payload)) return 2;
    if (command.op == kQuit) return 0;
    wire::Reply reply = {};
    answer(command, payload, broken, reply);
    reply.magic = wire::kMagic;
    reply.seq = command.seq;
    if (write(reply_fd, &reply, sizeof reply) != sizeof reply) return 3;
  }
  return 0;
}

// ---- which layers work here ---------------------------------------------------------------------

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

// What judging asks of a driver once it has started. `image`: code with the kernel `flush`, or
// nothing.
void exercise(const std::string& image) {
  Slab slab;
  slab.allocate(4 << 20, "a trial");
  device.staging();
  if (!image.empty()) {
    Function flush = nullptr;
    Graph graph = nullptr;
    GraphExec made = nullptr;
    Pointer from = slab.at(), sink = slab.at();
    uint64_t vectors = slab.bytes() / 16;
    void* parameters[] = {&from, &sink, &vectors};
    check(driver.ModuleGetFunction(&flush, load_module(image, "a trial"), "flush"), "a trial");
    check(driver.StreamBeginCapture(device.stream, kCaptureThreadLocal), "a trial");
    slab.fill(0, 0, slab.bytes());
    check(driver.LaunchKernel(flush, 8, 1, 1, 256, 1, 1, 0, device.stream, parameters, nullptr),
          "launching a kernel");
    check(driver.StreamEndCapture(device.stream, &graph), "a trial");
    check(driver.GraphInstantiate(&made, graph, 0), "making a graph");
    check(driver.GraphLaunch(made, device.stream), "replaying a graph");
  }
  device.wait("trying the device");
  if (!slab.margins_hold()) throw Failure{Fault::kEnvironment, "memory does not hold"};
}

// In this process; `out` gets facts or an error.
bool try_layers(unsigned layers, const char* library, int index, const std::string& image,
                FILE* out) {
  try {
    if (!confine(layers, library))
      throw Failure{Fault::kEnvironment, "the system's kernel does not have it"};
    const uint64_t start = wire::now();
    device.start(library, index, 1 << 20, 1 << 16);
    const double seconds = static_cast<double>(wire::now() - start) * 1e-9;
    confine_after_start(layers, 60);
    exercise(image);
    fprintf(out,
            "{\"layers\": %u, \"name\": %s, \"arch\": \"sm_%d%d\", \"driver\": %d, "
            "\"memory\": %zu, \"l2\": %zu, \"shared\": %zu, \"multiprocessors\": %d, "
            "\"pageable\": %s, \"start_seconds\": %.4f}\n",
            layers, quoted(device.name).c_str(), device.major, device.minor, device.version,
            device.total, device.l2, device.shared, device.multiprocessors,
            device.pageable ? "true" : "false", seconds);
  } catch (const Failure& failure) {
    fprintf(stderr, "layers %u: %s\n", layers, failure.text.c_str());
    fprintf(out, "{\"error\": %s}\n", quoted(failure.text).c_str());
    fflush(out);
    return false;
  }
  fflush(out);
  return true;
}

// In a process of its own; `report` gets its words.
bool trial(unsigned layers, const char* library, int index, const std::string& image,
           std::string& report) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kTrialSeconds);
    _exit(try_layers(layers, library, index, image, fdopen(ends[1], "w")) ? 0 : 1);
  }
  close(ends[1]);
  report.clear();
  char part[1024];
  for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
    report.append(part, static_cast<size_t>(got));
  close(ends[0]);
  int status = 1;
  waitpid(child, &status, 0);
  if (report.empty())
    report = "{\"error\": \"the CUDA driver ended the process that started it\"}\n";
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// All layers if the driver works under them; else all but files; else as many as there can be,
// tried one after the other. Files are where drivers are most particular: that layer counts only
// if a kernel ran under it, so it is left out where there is none to try.
int probe(const char* library, int index, const std::string& image) {
  std::string best, report;
  if ((!image.empty() && trial(kAllLayers, library, index, image, best)) ||
      trial(kAllLayers & ~kFiles, library, index, image, best))
    return fputs(best.c_str(), stdout) < 0;
  unsigned kept = 0;
  if (trial(kept, library, index, image, best))
    for (unsigned layer : kEachLayer)
      if (layer != kFiles && trial(kept | layer, library, index, image, report)) {
        kept |= layer;
        best = report;
      }
  return fputs(best.c_str(), stdout) < 0;
}

std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if ((argc == 4 || argc == 5) && strcmp(argv[1], "--probe") == 0)
    return probe(argv[2], atoi(argv[3]), argc == 5 ? contents(argv[4]) : "");
  if (argc != 15) return 64;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Shared& shared = bench.shared;
  if (!wire::map(shared.inputs, argv[2], argv[5], PROT_READ)) return 65;
  if (!wire::map(shared.timed, argv[3], argv[6], PROT_READ)) return 65;
  if (!wire::map(shared.outputs, argv[4], argv[7], PROT_READ | PROT_WRITE)) return 65;
  bench.memory_limit = strtoull(argv[12], nullptr, 10);
  const auto layers = static_cast<unsigned>(strtoul(argv[9], nullptr, 10));
  Failure problem = {Fault::kEnvironment, "the confinement that was asked for does not hold here"};
  bool broken = !confine(layers, argv[10]);
  try {
    if (!broken)
      device.start(argv[10], atoi(argv[11]), strtoull(argv[13], nullptr, 10),
                   strtoull(argv[14], nullptr, 10));
    confine_after_start(layers, strtoull(argv[8], nullptr, 10));
  } catch (const Failure& failure) {
    problem = failure;
    broken = true;
  }
  return control(atoi(argv[1]), broken ? &problem : nullptr);
}

// The runner: one process for one candidate, with neither Python nor torch in it.
//
//   runner REPLY_FD INPUT_FD TIMED_FD OUTPUT_FD INPUT_BYTES TIMED_BYTES OUTPUT_BYTES
//          ADDRESS_SPACE CPU_SECONDS SANDBOX LIBRARY EXTRA_LIBRARY_FOLDER
//   runner --probe
//
// Commands come on descriptor 0. protocol.py describes the messages. Two threads: the control thread
// speaks on the pipes, the work thread loads the library and calls it. The work thread (and every
// OpenMP thread it starts) is under a filter that cannot write to the pipes, so an answer on the
// pipe comes from this file, not from the candidate.
#include <condition_variable>
#include <deque>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <malloc.h>
#include <mutex>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <typeinfo>
#include <ucontext.h>

#include "sandbox.hpp"
#include "wire.hpp"

namespace {

using namespace wire;

constexpr size_t kRing = 4;  // outputs of the last calls that stay alive
constexpr size_t kKept = 4;  // and of other calls of a batch, which the judge names beforehand

enum Op : uint32_t { kLoad = 1, kBind = 2, kRun = 3, kBatch = 4, kFetch = 5, kQuit = 6, kHeap = 7 };
enum Kind : uint32_t { kInput = 0, kOutput = 1, kScratch = 2, kInteger = 3, kFloat = 4, kDouble = 5 };

struct Binding {  // one argument of the entry, in order
  uint32_t kind, zero;
  uint64_t offset, bytes, value;
};
static_assert(sizeof(Binding) == 32, "protocol.py packs 32 bytes");

struct BindHeader {
  uint64_t slot_stride, slots, count, reserved;
};

// What a dying runner leaves behind for the parent (who does not trust it).
struct LastWords {
  uint32_t magic, kind;  // 1: forbidden system call, 2: fault, 3: floating-point control changed,
                         // 4: ended by the C++ library
  uint64_t number;       // the call; where the fault was (1 inputs, 2 outputs, 0 elsewhere); or
                         // why it ended (1: no memory)
};

// One set of inputs for checked calls, a row of sets ("slots") for timed ones, outputs and scratch.
struct Shared {
  Region inputs, timed, outputs;
} shared;

// ---- last words ----------------------------------------------------------------------------

void leave(uint32_t kind, uint64_t number) {
  if (shared.outputs.at == nullptr) return;
  LastWords words = {kMagic, kind, number};
  memcpy(shared.outputs.at, &words, sizeof words);
}

uint64_t first_argument(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<uint64_t>(machine.gregs[REG_RDI]);
#else
  return machine.regs[0];
#endif
}

// Run-time libraries write to standard error before they end a process: for want of memory, or
// because an exception was not caught. A kernel has no other reason to write there.
void on_forbidden_call(int, siginfo_t* info, void* context) {
  const bool writes = info->si_syscall == SYS_write || info->si_syscall == SYS_writev;
  if (writes && first_argument(context) == 2) leave(4, 0);
  else leave(1, static_cast<uint64_t>(info->si_syscall));
  syscall(SYS_exit_group, 113);
}

void on_fault(int, siginfo_t* info, void*) {
  const void* at = info->si_addr;
  uint64_t where = shared.outputs.holds(at) ? 2 : 0;
  if (shared.inputs.holds(at) || shared.timed.holds(at)) where = 1;
  leave(2, where);  // the faulting instruction runs again, without a handler, and ends the process
}

void on_terminate() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  const char* name = type != nullptr ? type->name() : "";
  const bool memory = strcmp(name, "St9bad_alloc") == 0 ||
                      strcmp(name, "St20bad_array_new_length") == 0;
  leave(4, memory ? 1 : 0);
  syscall(SYS_exit_group, 113);
  for (;;) {
  }
}

void install_handlers() {
  std::set_terminate(on_terminate);
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  action.sa_sigaction = on_forbidden_call;
  sigaction(SIGSYS, &action, nullptr);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

// ---- calling a C function whose signature is only known as data -------------------------------
//
// In both supported conventions an argument is taken from the next free integer register, the next
// free floating-point register, or the next 8-byte stack slot, by its class alone. A call through
// a type that fills all of them passes any mixture; slots that the callee does not read are free.

#if defined(__x86_64__)
constexpr size_t kIntegerRegisters = 6;
#elif defined(__aarch64__)
constexpr size_t kIntegerRegisters = 8;
#else
#error "the runner knows the calling conventions of x86-64 and AArch64 only"
#endif
constexpr size_t kFloatRegisters = 8, kStackSlots = 48;

struct Frame {
  uint64_t integers[8] = {};
  double floats[8] = {};
  uint64_t stack[kStackSlots] = {};
  size_t used_integers = 0, used_floats = 0, used_stack = 0;

  void integer(uint64_t value) {
    if (used_integers < kIntegerRegisters) integers[used_integers++] = value;
    else stack[used_stack++] = value;
  }
  void floating(uint64_t bits) {
    if (used_floats < kFloatRegisters) memcpy(&floats[used_floats++], &bits, 8);
    else stack[used_stack++] = bits;
  }
};

#define STACK8(s, i) s[i], s[i + 1], s[i + 2], s[i + 3], s[i + 4], s[i + 5], s[i + 6], s[i + 7]
using u = uint64_t;
using d = double;
#if defined(__x86_64__)
using Entry = void (*)(u, u, u, u, u, u, d, d, d, d, d, d, d, d, u, u, u, u, u, u, u, u, u, u, u, u,
                       u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u,
                       u, u, u, u, u, u, u, u, u, u);
#else
using Entry = void (*)(u, u, u, u, u, u, u, u, d, d, d, d, d, d, d, d, u, u, u, u, u, u, u, u, u, u,
                       u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u, u,
                       u, u, u, u, u, u, u, u, u, u, u, u);
#endif

void call(void* entry, const Frame& f) {
  const auto* i = f.integers;
  const auto* x = f.floats;
  const auto* s = f.stack;
  reinterpret_cast<Entry>(entry)(i[0], i[1], i[2], i[3], i[4], i[5],
#if defined(__aarch64__)
                                 i[6], i[7],
#endif
                                 x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], STACK8(s, 0),
                                 STACK8(s, 8), STACK8(s, 16), STACK8(s, 24), STACK8(s, 32),
                                 STACK8(s, 40));
}

// ---- the work thread's side ---------------------------------------------------------------

struct Buffers {  // what one call owns: its outputs and scratch, in binding order
  std::vector<void*> owned;
};

struct Work {
  void* entry = nullptr;
  BindHeader header = {};
  std::vector<Binding> bindings;
  std::deque<Buffers> ring;
  std::vector<Buffers> kept;
  bool filtered = false;
};

// How this thread rounds and treats subnormals; what arithmetic has met so far is left out.
uint64_t floating_control() {
#if defined(__x86_64__)
  uint16_t x87 = 0;
  asm volatile("fnstcw %0" : "=m"(x87));
  return (static_cast<uint64_t>(x87) << 32) | (__builtin_ia32_stmxcsr() & ~0x3fu);
#else
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#endif
}

void load(Work& w, const char* library, const std::string& entry, bool sandboxed, Reply& reply) {
  bool quiet = !sandboxed || sandbox::install(sandbox::loading_filter());
  const uint64_t control = floating_control();
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(reply, dlerror());
  if (floating_control() != control)
    return fail(reply, "loading the library changed the floating-point control word");
  w.entry = dlsym(handle, entry.c_str());
  if (w.entry == nullptr) return fail(reply, "the library has no symbol " + entry);
  w.filtered = quiet && sandboxed && sandbox::install(sandbox::candidate_filter());
  reply.value = w.filtered ? 1 : 0;
}

void release(Buffers& buffers) {
  for (void* p : buffers.owned) free(p);
  buffers.owned.clear();
}

void* owned(Buffers& buffers, const Binding& b) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, b.bytes ? b.bytes : 64) != 0) abort();
  buffers.owned.push_back(p);
  return p;
}

// What kept calls take is written to once beforehand, so that no timed call meets new pages for it.
void make_room(Work& w) {
  std::vector<Buffers> all(kRing + kKept + 1);
  for (Buffers& buffers : all)
    for (const Binding& b : w.bindings)
      if (b.kind == kOutput || b.kind == kScratch) memset(owned(buffers, b), 0xff, b.bytes);
  for (Buffers& buffers : all) release(buffers);
}

void bind(Work& w, const std::string& payload, Reply& reply) {
  if (payload.size() < sizeof(BindHeader)) return fail(reply, "short bind message");
  memcpy(&w.header, payload.data(), sizeof(BindHeader));
  size_t count = w.header.count, want = sizeof(BindHeader) + count * sizeof(Binding);
  if (count > 64 || payload.size() != want) return fail(reply, "malformed bind message");
  w.bindings.resize(count);
  memcpy(w.bindings.data(), payload.data() + sizeof(BindHeader), count * sizeof(Binding));
  size_t integers = 0, floats = 0;
  for (const Binding& b : w.bindings) (b.kind >= kFloat ? floats : integers) += 1;
  size_t over = integers > kIntegerRegisters ? integers - kIntegerRegisters : 0;
  over += floats > kFloatRegisters ? floats - kFloatRegisters : 0;
  if (over > kStackSlots) return fail(reply, "too many arguments for one entry");
  if (w.header.slots > 0) make_room(w);
}

const char* slot(const Work& w, int64_t index) {
  return shared.timed.at + static_cast<uint64_t>(index) % w.header.slots * w.header.slot_stride;
}

// `own` gives the address of an output or scratch buffer.
template <class Own>
void call_once(Work& w, const char* base, Own own) {
  Frame frame;
  for (const Binding& b : w.bindings) {
    if (b.kind == kInput) {
      frame.integer(reinterpret_cast<uint64_t>(base + b.offset));
    } else if (b.kind == kOutput || b.kind == kScratch) {
      void* at = own(b);
      if (b.zero) memset(at, 0, b.bytes);
      frame.integer(reinterpret_cast<uint64_t>(at));
    } else if (b.kind == kInteger) {
      frame.integer(b.value);
    } else {
      frame.floating(b.value);
    }
  }
  call(w.entry, frame);
}

void run(Work& w) {
  call_once(w, shared.inputs.at, [](const Binding& b) { return shared.outputs.at + b.offset; });
}

// Bytes of the heap that are in use, but for the outputs and scratch that stay between calls.
int64_t kept_bytes(const Work& w) {
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 33)
  const auto heap = mallinfo2();
#else
  const auto heap = mallinfo();
#endif
  auto bytes = static_cast<int64_t>(heap.uordblks) + static_cast<int64_t>(heap.hblkhd);
  const auto take = [&bytes](const Buffers& buffers) {
    for (void* p : buffers.owned)
      bytes -= static_cast<int64_t>(malloc_usable_size(p) + sizeof(size_t));
  };
  for (const Buffers& buffers : w.ring) take(buffers);
  for (const Buffers& buffers : w.kept) take(buffers);
  return bytes;
#else
  return 0;
#endif
}

void batch(Work& w, int64_t first, int64_t n, const uint64_t* keep) {
  for (Buffers& buffers : w.kept) release(buffers);
  w.kept.clear();
  size_t next = 0;
  for (int64_t i = 0; i < n; ++i) {
    Buffers buffers;
    if (w.ring.size() >= kRing) {
      release(w.ring.front());
      buffers = std::move(w.ring.front());
      w.ring.pop_front();
    }
    call_once(w, slot(w, first + i),
              [&](const Binding& b) { return static_cast<char*>(owned(buffers, b)); });
    if (next < kKept && keep[next] == static_cast<uint64_t>(i)) {
      w.kept.push_back(std::move(buffers));
      ++next;
    } else {
      w.ring.push_back(std::move(buffers));
    }
  }
}

void fetch(Work& w, int64_t which, Reply& reply) {
  if (which < 0 || static_cast<size_t>(which) >= w.kept.size()) return fail(reply, "no such call");
  const Buffers& buffers = w.kept[static_cast<size_t>(which)];
  size_t next = 0;
  for (const Binding& b : w.bindings) {
    if (b.kind != kOutput && b.kind != kScratch) continue;
    void* from = buffers.owned[next++];
    if (b.kind == kOutput) memcpy(shared.outputs.at + b.offset, from, b.bytes);
  }
}

// ---- between the threads -------------------------------------------------------------------

struct Desk {
  std::mutex mutex;
  std::condition_variable changed;
  bool pending = false, done = false;
  Command command = {};
  std::string payload;
  Reply reply = {};
};
// Never destroyed: exit() in a candidate must not wait for the control thread.
Desk& desk = *new Desk;

struct Options {
  int reply_fd;
  const char* library;
  const char* extra;
  bool sandboxed;
};

void timed(Work& w, const Command& c, const std::string& payload, Reply& reply) {
  if (w.header.slots == 0) return fail(reply, "no slots are bound");
  uint64_t keep[kKept];
  if (payload.size() != sizeof keep) return fail(reply, "malformed batch message");
  memcpy(keep, payload.data(), sizeof keep);
  batch(w, c.a, c.b, keep);
}

void serve(Work& w, const Options& o, const Command& c, const std::string& payload, Reply& reply) {
  bool ready = w.entry != nullptr && (c.op == kBind || !w.bindings.empty());
  if (c.op != kLoad && !ready) return fail(reply, "not loaded or not bound");
  const uint64_t control = floating_control();
  uint64_t start = now();
  if (c.op == kLoad) load(w, o.library, payload, o.sandboxed, reply);
  else if (c.op == kBind) bind(w, payload, reply);
  else if (c.op == kRun) run(w);
  else if (c.op == kBatch) timed(w, c, payload, reply);
  else if (c.op == kFetch) fetch(w, c.a, reply);
  else if (c.op == kHeap) reply.value = kept_bytes(w);
  else fail(reply, "unknown command");
  reply.nanos = now() - start;
  if (c.op != kLoad && floating_control() != control) {
    leave(3, 0);  // in a notebook, everything after this call would be computed otherwise
    syscall(SYS_exit_group, 113);
  }
}

void work_thread(Options options) {
  Work work;
  std::unique_lock<std::mutex> lock(desk.mutex);
  for (;;) {
    desk.changed.wait(lock, [] { return desk.pending; });
    desk.pending = false;
    Command command = desk.command;
    std::string payload = std::move(desk.payload);
    lock.unlock();
    Reply reply = {};
    serve(work, options, command, payload, reply);
    lock.lock();
    desk.reply = reply;
    desk.done = true;
    desk.changed.notify_all();
  }
}

int control(const Options& options) {
  std::thread(work_thread, options).detach();
  Command command;
  while (read_all(&command, sizeof command)) {
    if (command.magic != kMagic || command.payload > 65536) return 2;
    std::string payload(command.payload, '\0');
    if (!read_all(&payload[0], command.payload)) return 2;
    if (command.op == kQuit) return 0;
    Reply reply;
    {
      std::unique_lock<std::mutex> lock(desk.mutex);
      desk.command = command;
      desk.payload = std::move(payload);
      desk.done = false;
      desk.pending = true;
      desk.changed.notify_all();
      desk.changed.wait(lock, [] { return desk.done; });
      reply = desk.reply;
    }
    reply.magic = kMagic;
    reply.seq = command.seq;
    if (write(options.reply_fd, &reply, sizeof reply) != sizeof reply) return 3;
  }
  return 0;
}

template <class Try>
bool works_in_a_child(Try attempt) {
  pid_t child = fork();
  if (child == 0) _exit(attempt() ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int probe() {
  bool filter = works_in_a_child(
      [] { return sandbox::no_new_privileges() && sandbox::install(sandbox::process_filter()); });
  bool namespaces = !filter && works_in_a_child(sandbox::empty_namespaces);
  int abi = sandbox::landlock_abi();
  bool privileges = sandbox::no_new_privileges();
  const auto word = [](bool held) { return held ? "true" : "false"; };
  printf("{\"rlimits\": true, \"no_new_privs\": %s, \"seccomp\": %s, \"namespaces\": %s, "
         "\"landlock\": %d, \"uid\": %d}\n",
         word(privileges), word(filter), word(namespaces), abi < 0 ? 0 : abi,
         static_cast<int>(getuid()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--probe") == 0) return probe();
  if (argc != 13) return 64;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);
  Options options = {atoi(argv[1]), argv[11], argv[12], strcmp(argv[10], "1") == 0};
  if (!map(shared.inputs, argv[2], argv[5], PROT_READ)) return 65;
  if (strcmp(argv[3], argv[2]) == 0) {  // nothing is timed; the descriptor is closed by now
    shared.timed = shared.inputs;
  } else if (!map(shared.timed, argv[3], argv[6], PROT_READ)) {
    return 65;
  }
  if (!map(shared.outputs, argv[4], argv[7], PROT_READ | PROT_WRITE)) return 65;
  install_handlers();
  sandbox::limits(strtoull(argv[8], nullptr, 10), strtoull(argv[9], nullptr, 10));
  if (options.sandboxed) {
    sandbox::no_new_privileges();
    sandbox::landlock(options.library, options.extra);
    if (!sandbox::install(sandbox::process_filter())) sandbox::empty_namespaces();
  }
  return control(options);
}

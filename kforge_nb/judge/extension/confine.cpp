// What a worker that holds a torch extension gives away before it loads it, in one call.
//
// Built as a shared library with sandbox.hpp before this text. The worker has imported torch and
// made its CUDA context by then, so what those need to start is no longer needed. Unlike the
// compiled runners' control thread, the worker answers in the same process and thread that runs
// the candidate: these limits protect the machine and the parent, not the worker's own answers.
#include <string>
#include <sys/stat.h>

namespace {

uint32_t g_magic = 0;
char* g_last_words = nullptr;

void on_forbidden_call(int, siginfo_t* info, void*) {
  struct {
    uint32_t magic, kind;
    uint64_t number;
  } words = {g_magic, 1, static_cast<uint64_t>(info->si_syscall)};
  if (g_last_words != nullptr) memcpy(g_last_words, &words, sizeof words);
  syscall(SYS_exit_group, 113);
}

struct Range {
  const char* begin;
  const char* end;
};
Range g_watched[2] = {};

// What is mapped for reading faults only where it is written to. The faulting instruction then runs
// again, without a handler, and ends the process.
void on_fault(int, siginfo_t* info, void*) {
  const char* at = static_cast<const char*>(info->si_addr);
  uint64_t where = 0;
  for (const Range& range : g_watched)
    if (at >= range.begin && at < range.end) where = 1;
  struct {
    uint32_t magic, kind;
    uint64_t number;
  } words = {g_magic, 2, where};
  if (g_last_words != nullptr) memcpy(g_last_words, &words, sizeof words);
}

// Every thread of the process gets the filter, also those that CUDA and OpenMP started before.
bool install_everywhere(const sandbox::Program& p) {
  constexpr unsigned kThreadSync = 1, kSpecAllow = 4;
  sock_fprog program = {static_cast<unsigned short>(p.size()), const_cast<sock_filter*>(p.data())};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, kThreadSync | kSpecAllow, &program) == 0;
}

// Lines "r/path" (read and run) and "d/path" (a device: read, write, control).
bool restrict_files(const char* lines) {
  int ruleset = sandbox::landlock_begin();
  if (ruleset < 0) return false;
  constexpr uint64_t kWriteFile = 2;
  const uint64_t control = sandbox::landlock_abi() >= 5 ? 1ull << 15 : 0;
  std::string text(lines);
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string path = text.substr(at + 1, end - at - 1);
    uint64_t rights = text[at] == 'd' ? sandbox::kReadFile | kWriteFile | control
                                      : sandbox::kExecute | sandbox::kReadFile | sandbox::kReadDir;
    struct stat found;
    if (stat(path.c_str(), &found) == 0) {
      if (!S_ISDIR(found.st_mode)) rights &= ~sandbox::kReadDir;
      sandbox::landlock_allow(ruleset, path.c_str(), rights);
    }
    at = end + 1;
  }
  sandbox::landlock_allow_libraries(ruleset);
  return sandbox::landlock_end(ruleset);
}

}  // namespace

// Says where inputs are mapped for reading only, before kforge_confine: writing there is told apart
// from other faults.
extern "C" void kforge_watch(int which, const char* at, uint64_t bytes) {
  if (which >= 0 && which < 2) g_watched[which] = {at, at + bytes};
}

// Returns 1 (no new privileges) + 2 (Landlock) + 4 (system-call filter). `quiet` has forbidden
// calls fail instead of ending the process: drivers try some and do without.
extern "C" int kforge_confine(const char* lines, char* last_words, uint32_t magic, int quiet) {
  g_magic = magic;
  g_last_words = last_words;
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  action.sa_sigaction = on_forbidden_call;
  sigaction(SIGSYS, &action, nullptr);
  action.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  action.sa_sigaction = on_fault;
  if (g_watched[0].begin != nullptr)
    for (int number : {SIGSEGV, SIGBUS}) sigaction(number, &action, nullptr);
  int held = sandbox::no_new_privileges() ? 1 : 0;
  if (restrict_files(lines)) held |= 2;
  sandbox::Program filter = sandbox::process_filter();
  for (sock_filter& step : filter)
    if (quiet && step.code == (BPF_RET | BPF_K) && step.k == sandbox::kTrap)
      step.k = sandbox::errno_of(EPERM);
  if (install_everywhere(filter)) held |= 4;
  return held;
}

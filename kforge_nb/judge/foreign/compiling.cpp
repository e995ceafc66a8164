// What a process gives away that compiles a candidate's own just-in-time kernels (Triton).
//
// Built as a shared library with sandbox.hpp before this text. Such a process starts compilers, so
// programs and child processes stay allowed; files outside its folder, the network, other processes
// and the kernel's interfaces do not. It holds no expected value and nothing of its answer is used.
#include <string>
#include <sys/stat.h>

namespace {

sandbox::Program compiling_filter() {
  sandbox::Program p = sandbox::begin();
  const uint32_t refused = sandbox::errno_of(EPERM);
  for (const auto* calls : {&sandbox::kTalk, &sandbox::kListen, &sandbox::kKernel})
    sandbox::ban(p, *calls, refused);
  for (long nr : {static_cast<long>(SYS_ptrace), static_cast<long>(SYS_process_vm_readv),
                  static_cast<long>(SYS_process_vm_writev), 438L /* pidfd_getfd */})
    sandbox::on(p, nr, refused);
  p.push_back(sandbox::statement(BPF_RET | BPF_K, sandbox::kAllow));
  return p;
}

}  // namespace

// Lines "r/path" (read and run), "d/path" (a device), "w/path" (a folder of its own). Returns 1 (no
// new privileges) + 2 (Landlock) + 4 (system-call filter).
extern "C" int kforge_confine_compiling(const char* lines) {
  int held = sandbox::no_new_privileges() ? 1 : 0;
  const int ruleset = sandbox::landlock_begin();
  if (ruleset >= 0) {
    const int abi = sandbox::landlock_abi();
    uint64_t all = (1ull << 13) - 1;
    if (abi >= 2) all |= 1ull << 13;
    if (abi >= 3) all |= 1ull << 14;
    const uint64_t control = abi >= 5 ? 1ull << 15 : 0;
    const uint64_t read = sandbox::kExecute | sandbox::kReadFile | sandbox::kReadDir;
    std::string text(lines);
    for (size_t at = 0; at < text.size();) {
      size_t end = text.find('\n', at);
      if (end == std::string::npos) end = text.size();
      const std::string path = text.substr(at + 1, end - at - 1);
      struct stat found;
      if (stat(path.c_str(), &found) == 0) {
        uint64_t rights = text[at] == 'w' ? all : text[at] == 'd' ? sandbox::kReadFile | 2 | control : read;
        if (!S_ISDIR(found.st_mode)) rights &= sandbox::kExecute | sandbox::kReadFile | 2 | control;
        sandbox::landlock_allow(ruleset, path.c_str(), rights);
      }
      at = end + 1;
    }
    sandbox::landlock_allow_libraries(ruleset);
    if (sandbox::landlock_end(ruleset)) held |= 2;
  }
  if (sandbox::install(compiling_filter())) held |= 4;
  return held;
}

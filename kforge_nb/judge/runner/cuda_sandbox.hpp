// What the CUDA runner gives up before the driver starts.
//
// A candidate here is device code: it cannot make a system call. What is taken away guards against
// what bad device code might do to the driver. The driver itself needs its device nodes, its
// libraries, some of /proc and /sys, and a socket of its own machine, and tries things (helper
// programs) that it can do without. Drivers differ, so what is given up comes in layers, and the
// judge has them tried once: a driver that needs one of them costs only that one.
#pragma once
#include <cstring>
#include <dirent.h>
#include <string>

#include "sandbox.hpp"

namespace cuda {

// cuda/binary.py has the names of the bits.
enum Layer : unsigned {
  kPrivileges = 1,  // none are gained by starting a program
  kProcesses = 2,   // no new programs, no new processes
  kNetwork = 4,     // no sockets but of this machine, nothing is connected to or sent
  kStrangers = 8,   // no tracing of other processes, no signals to them
  kInterfaces = 16, // no mounts, name spaces, keys, rings, programs for the kernel
  kUnseen = 32,     // its memory cannot be read by others of the same user, nor dumped
  kFiles = 64,      // Landlock
};
constexpr unsigned kAllLayers = 127;
constexpr unsigned kEachLayer[] = {1, 2, 4, 8, 16, 32, 64};

inline void allow_devices(int ruleset) {
  const int abi = sandbox::landlock_abi();
  const uint64_t write = 2, control = abi >= 5 ? 1ull << 15 : 0;
  // Drivers share a page with debuggers: a file is made there, sized and removed.
  const uint64_t make = 1 << 8 | 1 << 5 | (abi >= 3 ? 1 << 14 : 0);
  const uint64_t share = sandbox::kReadFile | sandbox::kReadDir | write | make;
  sandbox::landlock_allow(ruleset, "/dev/shm", share);
  const uint64_t rights = sandbox::kReadFile | write | control;
  for (const char* node : {"/dev/null", "/dev/zero", "/dev/urandom"})
    sandbox::landlock_allow(ruleset, node, sandbox::kReadFile | write);
  sandbox::landlock_allow(ruleset, "/dev/nvidia-caps", rights | sandbox::kReadDir);
  DIR* folder = opendir("/dev");
  if (folder == nullptr) return;
  while (dirent* entry = readdir(folder))
    if (strncmp(entry->d_name, "nvidia", 6) == 0 && strcmp(entry->d_name, "nvidia-caps") != 0)
      sandbox::landlock_allow(ruleset, (std::string("/dev/") + entry->d_name).c_str(), rights);
  closedir(folder);
}

// Files: device nodes to use, shared memory, system libraries and descriptions of the machine to
// read, nothing else.
inline bool landlock(const char* driver) {
  int ruleset = sandbox::landlock_begin();
  if (ruleset < 0) return false;
  const uint64_t read = sandbox::kReadFile | sandbox::kReadDir;
  sandbox::landlock_allow_libraries(ruleset);
  for (const char* path : {"/proc", "/sys", "/etc/nvidia", "/usr/share/nvidia"})
    sandbox::landlock_allow(ruleset, path, read);
  for (const char* path : {"/usr/local/nvidia", "/usr/local/cuda", "/opt/nvidia"})
    sandbox::landlock_allow(ruleset, path, read | sandbox::kExecute);
  if (strchr(driver, '/') != nullptr) {
    std::string folder(driver, static_cast<size_t>(strrchr(driver, '/') - driver));
    sandbox::landlock_allow(ruleset, folder.c_str(), read | sandbox::kExecute);
  }
  allow_devices(ruleset);
  return sandbox::landlock_end(ruleset);
}

// One filter for all of `layers`. Calls fail with an error, because a driver tries and goes on.
inline sandbox::Program filter(unsigned layers) {
  using namespace sandbox;
  const uint32_t refuse = errno_of(EPERM);
  Program p = begin();
  if (layers & kProcesses) {
    ban(p, kNewPrograms, refuse);
    on(p, 435 /* clone3 */, errno_of(ENOSYS));
    on_bits(p, SYS_clone, 0, kCloneThread, kAllow, refuse);
  }
  if (layers & kNetwork) {
    ban(p, kTalk, refuse);
    on_equal(p, SYS_socket, 0, 1 /* AF_UNIX */, kAllow, refuse);
  }
  if (layers & kStrangers) {
    ban(p, kOthers, refuse);
    on_equal(p, SYS_prlimit64, 0, 0, kAllow, refuse);
    on_equal(p, SYS_tgkill, 0, static_cast<uint32_t>(getpid()), kAllow, refuse);
  }
  if (layers & kInterfaces) ban(p, kKernel, refuse);
  p.push_back(statement(BPF_RET | BPF_K, kAllow));
  return p;
}

// True if all of `layers` took hold.
inline bool confine(unsigned layers, const char* driver) {
  bool ok = sandbox::limit(RLIMIT_CORE, 0);
  if (layers & kUnseen) ok &= prctl(PR_SET_DUMPABLE, 0) == 0;
  if (layers & kPrivileges) ok &= sandbox::no_new_privileges();
  if (layers & kFiles) ok &= landlock(driver);
  const unsigned filtered = layers & (kProcesses | kNetwork | kStrangers | kInterfaces);
  return ok & (filtered == 0 || sandbox::install(filter(filtered)));
}

// Once the driver has made what files it makes: no file may be written or grow.
inline void confine_after_start(unsigned layers, uint64_t cpu_seconds) {
  sandbox::limit(RLIMIT_CPU, cpu_seconds);
  if (layers & kFiles) sandbox::limit(RLIMIT_FSIZE, 0);
}

}  // namespace cuda

// What the CUDA runner gives up before the driver starts.
//
// A candidate here is device code: it cannot make a system call. What is taken away guards against
// what bad device code might do to the driver. The driver itself needs its device nodes, its
// libraries and some of /proc and /sys, and tries things (sockets, helper programs) that it can do
// without; how much holds differs between drivers, so the judge has each level tried once.
#pragma once
#include <cstring>
#include <dirent.h>
#include <string>

#include "sandbox.hpp"

namespace cuda {

enum Level : int { kPlain = 0, kFilter = 1, kStrict = 2 };

inline void allow_devices(int ruleset) {
  const uint64_t write = 2, control = sandbox::landlock_abi() >= 5 ? 1ull << 15 : 0;
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

// Files: device nodes to use, system libraries and machine descriptions to read, nothing else.
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

// True if all of `level` took hold.
inline bool confine(int level, const char* driver) {
  bool ok = sandbox::limit(RLIMIT_CORE, 0);
  if (level < kFilter) return ok;
  ok &= prctl(PR_SET_DUMPABLE, 0) == 0;
  ok &= sandbox::no_new_privileges();
  if (level >= kStrict) ok &= landlock(driver);
  return ok & sandbox::install(sandbox::process_filter(sandbox::errno_of(EPERM)));
}

// Once the driver has made what files it makes: no file may be written or grow.
inline void confine_after_start(int level, uint64_t cpu_seconds) {
  sandbox::limit(RLIMIT_CPU, cpu_seconds);
  if (level >= kStrict) sandbox::limit(RLIMIT_FSIZE, 0);
}

}  // namespace cuda

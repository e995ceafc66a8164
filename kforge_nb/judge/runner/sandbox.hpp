// What the runner may do, taken away layer by layer before a candidate's first instruction.
//
// Every layer is best effort and reports whether it took hold: rlimits, no new privileges, Landlock
// (files, signals), and two seccomp filters. The first filter holds for the whole process (no new
// processes, sockets, tracing); the second only for the thread that runs the candidate and the
// OpenMP threads it starts, so that the candidate cannot speak on the pipe of the control thread.
#pragma once
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace sandbox {

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArch = 0;
#endif

// ---- rlimits -------------------------------------------------------------------------------

inline bool limit(int what, rlim_t value) {
  struct rlimit now;
  if (getrlimit(static_cast<__rlimit_resource_t>(what), &now) != 0) return false;
  if (now.rlim_max != RLIM_INFINITY && value > now.rlim_max) value = now.rlim_max;
  struct rlimit wanted = {value, value};
  return setrlimit(static_cast<__rlimit_resource_t>(what), &wanted) == 0;
}

inline bool limits(uint64_t address_space, uint64_t cpu_seconds) {
  bool ok = limit(RLIMIT_CORE, 0);
  ok &= limit(RLIMIT_FSIZE, 0);
  ok &= limit(RLIMIT_NOFILE, 32);
  ok &= limit(RLIMIT_CPU, cpu_seconds);
  ok &= limit(RLIMIT_AS, address_space);
  return ok;
}

// ---- Landlock (raw system calls: headers of older distributions do not know it) ------------

struct LandlockRuleset {
  uint64_t fs, net, scoped;
};
struct __attribute__((packed)) LandlockPath {
  uint64_t allowed;
  int32_t parent;
};
constexpr long kLandlockCreate = 444, kLandlockAdd = 445, kLandlockRestrict = 446;
constexpr uint64_t kExecute = 1, kReadFile = 4, kReadDir = 8;

inline int landlock_abi() {
  return static_cast<int>(syscall(kLandlockCreate, nullptr, 0, 1));
}

inline void landlock_allow(int ruleset, const char* path, uint64_t rights) {
  int fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0) return;
  LandlockPath rule = {rights, fd};
  syscall(kLandlockAdd, ruleset, 1, &rule, 0);
  close(fd);
}

// An empty ruleset: everything that this kernel can govern, allowed nowhere. -1 without Landlock.
inline int landlock_begin() {
  int abi = landlock_abi();
  if (abi < 1) return -1;
  LandlockRuleset rules = {(1ull << 13) - 1, 0, 0};
  if (abi >= 2) rules.fs |= 1ull << 13;
  if (abi >= 3) rules.fs |= 1ull << 14;
  if (abi >= 5) rules.fs |= 1ull << 15;
  if (abi >= 4) rules.net = 3;
  if (abi >= 6) rules.scoped = 3;
  size_t size = abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
  return static_cast<int>(syscall(kLandlockCreate, &rules, size, 0));
}

inline bool landlock_end(int ruleset) {
  bool ok = syscall(kLandlockRestrict, ruleset, 0) == 0;
  close(ruleset);
  return ok;
}

inline void landlock_allow_libraries(int ruleset) {
  for (const char* folder : {"/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64"})
    landlock_allow(ruleset, folder, kExecute | kReadFile | kReadDir);
  landlock_allow(ruleset, "/etc/ld.so.cache", kReadFile);
}

// Nothing may be written, and only the library itself and the system's libraries may be read.
inline bool landlock(const char* library, const char* extra) {
  int fd = landlock_begin();
  if (fd < 0) return false;
  landlock_allow_libraries(fd);
  if (extra != nullptr && *extra) landlock_allow(fd, extra, kExecute | kReadFile | kReadDir);
  landlock_allow(fd, "/sys/devices/system/cpu", kReadFile | kReadDir);
  landlock_allow(fd, library, kExecute | kReadFile);
  return landlock_end(fd);
}

// ---- seccomp -------------------------------------------------------------------------------

using Program = std::vector<sock_filter>;

inline sock_filter statement(uint16_t code, uint32_t k) { return {code, 0, 0, k}; }
inline sock_filter jump(uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
  return {code, yes, no, k};
}
inline void load_nr(Program& p) {
  p.push_back(statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
}
inline void load_arg(Program& p, int index) {
  auto at = static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * index);
  p.push_back(statement(BPF_LD | BPF_W | BPF_ABS, at));
}
inline void on(Program& p, long nr, uint32_t action) {
  p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(nr), 0, 1));
  p.push_back(statement(BPF_RET | BPF_K, action));
}
// `nr` with any of `bits` set in argument `arg` gets `with`, otherwise `without`.
inline void on_bits(Program& p, long nr, int arg, uint32_t bits, uint32_t with, uint32_t without) {
  p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(nr), 0, 4));
  load_arg(p, arg);
  p.push_back(jump(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1));
  p.push_back(statement(BPF_RET | BPF_K, with));
  p.push_back(statement(BPF_RET | BPF_K, without));
}
inline void on_equal(Program& p, long nr, int arg, uint32_t value, uint32_t same, uint32_t other) {
  p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(nr), 0, 4));
  load_arg(p, arg);
  p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
  p.push_back(statement(BPF_RET | BPF_K, same));
  p.push_back(statement(BPF_RET | BPF_K, other));
}
inline Program begin() {
  Program p;
  p.push_back(statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)));
  p.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0));
  p.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  load_nr(p);
#if defined(__x86_64__)  // the x32 table has other numbers for the same calls
  p.push_back(jump(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
  p.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
#endif
  return p;
}
// SPEC_ALLOW: older kernels slow a filtered process down, which would falsify its timing.
inline bool install(const Program& p) {
  if (kArch == 0) return false;
  sock_fprog program = {static_cast<unsigned short>(p.size()), const_cast<sock_filter*>(p.data())};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) == 0;
}

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW, kTrap = SECCOMP_RET_TRAP;
constexpr uint32_t errno_of(int code) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(code); }
constexpr uint32_t kCloneThread = 0x00010000;

// What no runner needs, in groups. prlimit64, clone, clone3 and tgkill depend on their arguments.
const std::vector<long> kNewPrograms = {SYS_execve, SYS_execveat,
#if defined(__x86_64__)
                                        SYS_fork, SYS_vfork,
#endif
};
const std::vector<long> kTalk = {SYS_connect, SYS_sendto, SYS_sendmsg, SYS_sendmmsg};
const std::vector<long> kListen = {SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_accept4};
const std::vector<long> kOthers = {  // other processes
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kill, SYS_tkill, SYS_setsid,
    SYS_setpgid, SYS_perf_event_open, SYS_personality, 424 /* pidfd_send_signal */,
    434 /* pidfd_open */, 438 /* pidfd_getfd */};
const std::vector<long> kKernel = {  // interfaces of the kernel
    SYS_bpf, SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_keyctl, SYS_add_key,
    SYS_userfaultfd, SYS_shmget, SYS_shmat, SYS_mq_open, 425 /* io_uring_setup */};

inline void ban(Program& p, const std::vector<long>& calls, uint32_t action) {
  for (long nr : calls) on(p, nr, action);
}

// For the whole process: no new processes, programs, sockets, tracing, kernel interfaces; but not
// seccomp: the second filter is installed after this one, by the control code.
inline Program process_filter() {
  Program p = begin();
  for (const auto* calls : {&kNewPrograms, &kTalk, &kListen, &kOthers, &kKernel})
    ban(p, *calls, kTrap);
  on(p, SYS_memfd_create, kTrap);
  on(p, SYS_prlimit64, errno_of(EPERM));
  on(p, 435 /* clone3 */, errno_of(ENOSYS));
  on_bits(p, SYS_clone, 0, kCloneThread, kAllow, kTrap);
  on_equal(p, SYS_tgkill, 0, static_cast<uint32_t>(getpid()), kAllow, kTrap);
  p.push_back(statement(BPF_RET | BPF_K, kAllow));
  return p;
}

// For the candidate's threads while its library is loaded: files may be read, nothing be written.
inline Program loading_filter() {
  Program p = begin();
  const long banned[] = {SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_sendfile, SYS_splice,
                         SYS_tee, SYS_vmsplice, SYS_copy_file_range, SYS_ioctl};
  for (long nr : banned) on(p, nr, kTrap);
  p.push_back(statement(BPF_RET | BPF_K, kAllow));
  return p;
}

// For the candidate's threads from then on: memory, threads, futexes, time; nothing else.
inline Program candidate_filter() {
  Program p = begin();
  const long allowed[] = {
      SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_futex, SYS_set_robust_list,
      SYS_sched_yield, SYS_sched_getaffinity, SYS_exit, SYS_exit_group, SYS_rt_sigprocmask,
      SYS_rt_sigreturn, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday,
      SYS_getpid, SYS_gettid, SYS_sigaltstack, SYS_getcpu, SYS_restart_syscall, 334 /* rseq */,
#if defined(__x86_64__)
      SYS_time,
#endif
  };
  for (long nr : allowed) on(p, nr, kAllow);
  const long quiet[] = {SYS_openat, SYS_readlinkat, SYS_getrandom, SYS_prctl, SYS_rt_sigaction,
                        SYS_newfstatat, SYS_sched_setaffinity, SYS_prlimit64, SYS_mbind,
                        SYS_get_mempolicy, SYS_getrusage, SYS_uname, SYS_sysinfo, SYS_close,
#if defined(__x86_64__)
                        SYS_open, SYS_readlink, SYS_access, SYS_arch_prctl,
#endif
  };
  for (long nr : quiet) on(p, nr, errno_of(EACCES));
  on(p, 435 /* clone3 */, errno_of(ENOSYS));
  on_bits(p, SYS_clone, 0, kCloneThread, kAllow, kTrap);
  on_equal(p, SYS_tgkill, 0, static_cast<uint32_t>(getpid()), kAllow, kTrap);
  on_bits(p, SYS_mmap, 2, PROT_EXEC, errno_of(EACCES), kAllow);
  on_bits(p, SYS_mprotect, 2, PROT_EXEC, errno_of(EACCES), kAllow);
  p.push_back(statement(BPF_RET | BPF_K, kTrap));
  return p;
}

// Where there is no filter: a network with nothing in it, and shared memory that nobody else sees. A
// user namespace hands its process capabilities, so it is not made where the filter holds.
inline bool empty_namespaces() {
  const int user = 0x10000000, network = 0x40000000, memory = 0x08000000;
  if (syscall(SYS_unshare, user | network | memory) != 0) return false;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // both were lost with the change of credentials
  prctl(PR_SET_DUMPABLE, 0);
  for (int capability = 0; capability < 64; ++capability)
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) break;
  struct { uint32_t version; int pid; } head = {0x20080522, 0};
  struct { uint32_t effective, permitted, inheritable; } none[2] = {};
  return syscall(SYS_capset, &head, none) == 0;
}

inline bool no_new_privileges() { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; }

}  // namespace sandbox

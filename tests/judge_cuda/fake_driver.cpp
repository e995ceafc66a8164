// A CUDA driver for tests: its device memory is memory of this process, its kernels are functions
// of this library, its streams do everything at once. It counts, checks and fails like a driver.
//
// "Compiled code" is text: a line `FAKE sm_90`, then a line for each kernel
// `NAME REGISTERS STATIC_SHARED MAX_THREADS SIZE,SIZE,...`; function `kernel_NAME` here is called
// once per launch with the addresses of its parameters.
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t kMemory = 64 << 20, kShared = 100 << 10;
enum : int {
  kOk = 0, kInvalid = 1, kNoMemory = 2, kNoBinary = 209, kNotFound = 500, kCapture = 900
};

struct Kernel {
  std::string name;
  int registers = 0, shared = 0, max_threads = 1024, dynamic = 48 << 10;
  std::vector<size_t> sizes;
  void (*run)(void**, const unsigned*) = nullptr;
};
struct Module {
  std::map<std::string, Kernel> kernels;
};
using Work = std::vector<std::function<void()>>;

struct State {
  bool started = false, current = false;
  int sticky = 0;
  size_t used = 0;
  std::map<char*, size_t> blocks;
  Work* capturing = nullptr;
} state;

int now_or_later(std::function<void()> work) {
  if (state.sticky) return state.sticky;
  if (state.capturing != nullptr) state.capturing->push_back(std::move(work));
  else work();
  return kOk;
}

bool inside(const char* at, size_t bytes) {
  auto next = state.blocks.upper_bound(const_cast<char*>(at));
  if (next == state.blocks.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

template <class T>
T& parameter(void** p, int i) { return *static_cast<T*>(p[i]); }

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int
#define KERNEL(name)                                  \
  extern "C" __attribute__((visibility("default"))) \
  void kernel_##name(void** p, const unsigned* grid)
#define NEEDS_CONTEXT if (!state.current) return 201; if (state.sticky) return state.sticky

API cuInit(unsigned) {
  Dl_info self;
  dladdr(reinterpret_cast<void*>(&cuInit), &self);
  if (strstr(self.dli_fname, "stuck") != nullptr) pause();  // a copy by that name never starts
  if (strstr(self.dli_fname, "picky") != nullptr && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0)
    return 304;  // and this one needs the privileges that a runner would give up
  state.started = true;
  return kOk;
}
API cuDriverGetVersion(int* v) { *v = 13000; return kOk; }
API cuDeviceGetCount(int* n) { *n = 1; return state.started ? kOk : 3; }
API cuDeviceGet(int* d, int i) { *d = i; return i == 0 ? kOk : 101; }
API cuDeviceGetName(char* to, int n, int) {
  strncpy(to, "A \"fake\" device", static_cast<size_t>(n));
  return kOk;
}
API cuDeviceTotalMem_v2(size_t* to, int) { *to = kMemory; return kOk; }
API cuDeviceGetAttribute(int* to, int which, int) {
  static const std::map<int, int> values = {{38, 1 << 16}, {16, 2}, {75, 9}, {76, 0}, {88, 0},
                                            {97, static_cast<int>(kShared)}};
  auto found = values.find(which);
  if (found == values.end()) return kInvalid;
  *to = found->second;
  return kOk;
}
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return kOk; }
API cuDevicePrimaryCtxRetain(void** to, int) { *to = &state; return kOk; }
API cuCtxSetCurrent(void* c) { state.current = c == &state; return kOk; }
API cuCtxSetLimit(int, size_t) { NEEDS_CONTEXT; return kOk; }

API cuModuleLoadData(void** to, const void* image) {
  NEEDS_CONTEXT;
  std::istringstream text(static_cast<const char*>(image));
  std::string word, arch, line;
  text >> word >> arch;
  if (word != "FAKE") return 200;
  if (arch != "sm_90") return kNoBinary;
  std::getline(text, line);
  auto* module = new Module;
  while (std::getline(text, line)) {
    std::istringstream fields(line);
    Kernel k;
    std::string sizes, size;
    if (!(fields >> k.name >> k.registers >> k.shared >> k.max_threads)) continue;
    fields >> sizes;
    std::istringstream list(sizes);
    while (std::getline(list, size, ',')) k.sizes.push_back(strtoul(size.c_str(), nullptr, 10));
    k.run = reinterpret_cast<decltype(k.run)>(dlsym(RTLD_DEFAULT, ("kernel_" + k.name).c_str()));
    if (k.run == nullptr) {
      Dl_info self;
      dladdr(reinterpret_cast<void*>(&cuInit), &self);
      void* handle = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
      k.run = reinterpret_cast<decltype(k.run)>(dlsym(handle, ("kernel_" + k.name).c_str()));
    }
    module->kernels[k.name] = k;
  }
  *to = module;
  return kOk;
}
API cuModuleUnload(void* module) { delete static_cast<Module*>(module); return state.sticky; }
API cuModuleGetFunction(void** to, void* module, const char* name) {
  NEEDS_CONTEXT;
  auto& kernels = static_cast<Module*>(module)->kernels;
  auto found = kernels.find(name);
  if (found == kernels.end() || found->second.run == nullptr) return kNotFound;
  *to = &found->second;
  return kOk;
}
API cuFuncGetAttribute(int* to, int which, void* f) {
  const auto& k = *static_cast<Kernel*>(f);
  const int values[] = {k.max_threads, k.shared, 0, 0, k.registers, 90, 90, 0, k.dynamic};
  *to = values[which];
  return kOk;
}
API cuFuncSetAttribute(void* f, int which, int value) {
  if (which != 8) return kInvalid;
  static_cast<Kernel*>(f)->dynamic = value;
  return kOk;
}
API cuFuncGetParamInfo(void* f, size_t i, size_t* offset, size_t* size) {
  const auto& sizes = static_cast<Kernel*>(f)->sizes;
  if (i >= sizes.size()) return kInvalid;
  *offset = 8 * i;
  *size = sizes[i];
  return kOk;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* to, void*, int threads, size_t) {
  *to = 2048 / threads;
  return kOk;
}

API cuMemGetInfo_v2(size_t* left, size_t* all) {
  NEEDS_CONTEXT;
  *left = kMemory - state.used;
  *all = kMemory;
  return kOk;
}
API cuMemAlloc_v2(unsigned long long* to, size_t bytes) {
  NEEDS_CONTEXT;
  if (state.used + bytes > kMemory) return kNoMemory;
  void* at = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(at, 0x77, bytes);
  state.blocks[static_cast<char*>(at)] = bytes;
  state.used += bytes;
  *to = reinterpret_cast<unsigned long long>(at);
  return kOk;
}
API cuMemFree_v2(unsigned long long p) {
  auto* at = reinterpret_cast<char*>(p);
  state.used -= state.blocks[at];
  state.blocks.erase(at);
  free(at);
  return kOk;
}
API cuMemHostAlloc(void** to, size_t bytes, unsigned) { *to = malloc(bytes); return kOk; }
API cuMemHostRegister_v2(void*, size_t, unsigned) { return 801; }  // not supported here
API cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t n) {
  NEEDS_CONTEXT;
  if (state.capturing) return kCapture;
  if (!inside(reinterpret_cast<char*>(to), n)) return kInvalid;
  memcpy(reinterpret_cast<void*>(to), from, n);
  return kOk;
}
API cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t n) {
  NEEDS_CONTEXT;
  if (state.capturing) return kCapture;
  if (!inside(reinterpret_cast<char*>(from), n)) return kInvalid;
  memcpy(to, reinterpret_cast<void*>(from), n);
  return kOk;
}
API cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t n, void*) {
  NEEDS_CONTEXT;
  if (!inside(reinterpret_cast<char*>(to), n)) return kInvalid;
  return now_or_later([=] { memset(reinterpret_cast<void*>(to), byte, n); });
}

API cuStreamCreate(void** to, unsigned) { NEEDS_CONTEXT; *to = &state; return kOk; }
API cuStreamSynchronize(void*) { NEEDS_CONTEXT; return state.capturing ? kCapture : kOk; }
API cuStreamBeginCapture_v2(void*, int) { NEEDS_CONTEXT; state.capturing = new Work; return kOk; }
API cuStreamEndCapture(void*, void** to) {
  *to = state.capturing;
  state.capturing = nullptr;
  return state.sticky;
}
API cuGraphInstantiateWithFlags(void** to, void* graph, unsigned long long) {
  *to = new Work(*static_cast<Work*>(graph));
  return kOk;
}
API cuGraphUpload(void*, void*) { NEEDS_CONTEXT; return kOk; }
API cuGraphLaunch(void* exec, void*) {
  NEEDS_CONTEXT;
  for (auto& work : *static_cast<Work*>(exec)) work();
  return kOk;
}
API cuGraphExecDestroy(void* exec) { delete static_cast<Work*>(exec); return kOk; }
API cuGraphDestroy(void* graph) { delete static_cast<Work*>(graph); return kOk; }
API cuEventCreate(void** to, unsigned) { *to = new timespec; return kOk; }
API cuEventRecord(void* event, void*) {
  clock_gettime(CLOCK_MONOTONIC, static_cast<timespec*>(event));
  return state.sticky;
}
API cuEventElapsedTime(float* to, void* a, void* b) {
  auto ms = [](void* e) {
    auto* t = static_cast<timespec*>(e);
    return 1e3 * static_cast<double>(t->tv_sec) + 1e-6 * static_cast<double>(t->tv_nsec);
  };
  *to = static_cast<float>(ms(b) - ms(a));
  return state.sticky;
}
API cuGetErrorName(int code, const char** to) {
  static const std::map<int, const char*> names = {
      {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {304, "CUDA_ERROR_OPERATING_SYSTEM"},
      {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  auto found = names.find(code);
  *to = found == names.end() ? nullptr : found->second;
  return *to == nullptr ? kInvalid : kOk;
}
API cuGetErrorString(int, const char** to) { *to = "so said the fake"; return kOk; }

API cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void*, void** parameters, void**) {
  NEEDS_CONTEXT;
  const auto& k = *static_cast<Kernel*>(f);
  if (k.name == "sprawling") return kNoMemory;
  if (bx * by * bz > static_cast<unsigned>(k.max_threads) ||
      shared + static_cast<unsigned>(k.shared) > static_cast<unsigned>(k.dynamic))
    return kInvalid;
  std::vector<uint64_t> kept;  // a driver copies the parameters when it is called
  for (size_t i = 0; i < k.sizes.size(); ++i) {
    uint64_t value = 0;
    memcpy(&value, parameters[i], k.sizes[i]);
    kept.push_back(value);
  }
  auto run = k.run;
  return now_or_later([=]() mutable {
    if (state.sticky) return;
    std::vector<void*> at;
    for (uint64_t& value : kept) at.push_back(&value);
    const unsigned grid[] = {gx, gy, gz};
    run(at.data(), grid);
  });
}

// ---- kernels ---------------------------------------------------------------------------------
//
// Most take (const float* x, float* y, int64 n, ...).

namespace {
uint64_t seed_of(uint64_t secret, uint64_t tick, uint64_t call) {
  uint64_t z = secret + 0x9e3779b97f4a7c15ull * ((tick << 40) + call + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
uint64_t draw(uint64_t seed, uint32_t i, uint32_t of) {
  uint32_t h = i * 0x9e3779b1u + static_cast<uint32_t>(seed);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h ^= static_cast<uint32_t>(seed >> 32);
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h ^= h >> 16;
  return (static_cast<uint64_t>(h) * of) >> 32;
}
void scale(void** p, float factor) {
  auto* x = parameter<const float*>(p, 0);
  auto* y = parameter<float*>(p, 1);
  for (int64_t i = 0; i < parameter<int64_t>(p, 2); ++i) y[i] = x[i] * factor;
}
}  // namespace

KERNEL(sprawling) { (void)p; (void)grid; }  // needs more local memory than there is
KERNEL(flush) { (void)p; (void)grid; }
KERNEL(tick) { (void)grid; ++*parameter<uint64_t*>(p, 0); }
KERNEL(stage) {
  (void)grid;
  auto* from = parameter<const unsigned char*>(p, 0);
  auto* to = parameter<unsigned char*>(p, 1);
  const uint64_t seed = seed_of(parameter<uint64_t>(p, 3), *parameter<uint64_t*>(p, 2),
                                parameter<uint64_t>(p, 4));
  const uint64_t bytes = parameter<uint64_t>(p, 5), unit = parameter<uint32_t>(p, 6);
  const auto count = static_cast<uint32_t>(bytes / unit);
  for (uint32_t i = 0; i < count; ++i) memcpy(to + i * unit, from + draw(seed, i, count) * unit, unit);
  memcpy(to + count * unit, from + count * unit, bytes - count * unit);
}
KERNEL(sample) {
  (void)grid;
  const uint64_t seed = seed_of(~parameter<uint64_t>(p, 3), *parameter<uint64_t*>(p, 2),
                                parameter<uint64_t>(p, 4));
  const auto items = static_cast<uint32_t>(parameter<uint64_t>(p, 5));
  const uint64_t size = parameter<uint32_t>(p, 6);
  for (uint32_t k = 0; k < parameter<uint32_t>(p, 7); ++k) {
    uint64_t word = 0;
    memcpy(&word, parameter<const char*>(p, 0) + draw(seed, k, items) * size, size);
    parameter<uint64_t*>(p, 1)[k] = word;
  }
}
KERNEL(idle) {  // computes its first calls and those whose inputs it has not seen
  (void)grid;
  static uint64_t calls = 0;
  static std::map<uint64_t, std::vector<float>> kept;
  auto* x = parameter<const float*>(p, 0);
  auto* y = parameter<float*>(p, 1);
  const auto n = static_cast<size_t>(parameter<int64_t>(p, 2));
  const auto key = reinterpret_cast<uint64_t>(x);
  if (++calls > 60 && kept.count(key) != 0) {
    memcpy(y, kept[key].data(), n * sizeof(float));
    return;
  }
  scale(p, 2.0f);
  kept[key].assign(y, y + n);
}
KERNEL(lazy) {  // leaves out every third call, once it has been checked
  (void)grid;
  static uint64_t calls = 0;
  if (++calls > 60 && calls % 3 == 0) return;
  scale(p, 2.0f);
}
KERNEL(stash) {  // puts something into the memory beside what it was given
  (void)grid;
  static uint64_t calls = 0;
  scale(p, 2.0f);
  if (++calls > 60) parameter<float*>(p, 1)[-12000] = 1.0f;
}
KERNEL(twice) { (void)grid; scale(p, 2.0f); }
KERNEL(scale) { (void)grid; scale(p, parameter<float>(p, 3)); }
KERNEL(beside) {  // also writes at y[offset]
  (void)grid;
  scale(p, 2.0f);
  parameter<float*>(p, 1)[parameter<int64_t>(p, 3)] = 1.0f;
}
KERNEL(vandal) {  // changes its input
  (void)grid;
  scale(p, 2.0f);
  const_cast<float*>(parameter<const float*>(p, 0))[1] = 3.0f;
}
KERNEL(illegal) { (void)p; (void)grid; state.sticky = 700; }
KERNEL(trap) { (void)p; (void)grid; state.sticky = 719; }
KERNEL(hang) { (void)p; (void)grid; for (;;) pause(); }
KERNEL(dies) { (void)p; (void)grid; raise(SIGSEGV); }
KERNEL(partial) {  // sum of x added to a scratch number
  (void)grid;
  auto* x = parameter<const float*>(p, 0);
  for (int64_t i = 0; i < parameter<int64_t>(p, 2); ++i) *parameter<float*>(p, 1) += x[i];
}
KERNEL(apply) {  // y = x + the number
  (void)grid;
  auto* x = parameter<const float*>(p, 0);
  auto* y = parameter<float*>(p, 2);
  for (int64_t i = 0; i < parameter<int64_t>(p, 3); ++i) y[i] = x[i] + *parameter<float*>(p, 1);
}
KERNEL(overrun) {  // writes beside its scratch
  (void)grid;
  parameter<float*>(p, 1)[parameter<int64_t>(p, 3)] = 0.0f;
  auto* x = parameter<const float*>(p, 0);
  auto* y = parameter<float*>(p, 4);
  for (int64_t i = 0; i < parameter<int64_t>(p, 2); ++i) y[i] = x[i] * 2.0f;
}
KERNEL(restless) {  // another result each time
  (void)grid;
  static float count = 0.0f;
  scale(p, 2.0f);
  parameter<float*>(p, 1)[0] += 1e-7f * ++count;
}
KERNEL(trusting) {  // takes outputs for granted whose ends look right
  (void)grid;
  auto* x = parameter<const float*>(p, 0);
  auto* y = parameter<float*>(p, 1);
  const int64_t n = parameter<int64_t>(p, 2);
  if (y[0] == 2.0f * x[0] && y[n - 1] == 2.0f * x[n - 1]) return;
  scale(p, 2.0f);
}
KERNEL(finds) {  // says whether its result was there already
  (void)grid;
  const bool found = parameter<float*>(p, 1)[0] == 2.0f * parameter<const float*>(p, 0)[0];
  scale(p, 2.0f);
  if (found) parameter<float*>(p, 1)[1] = -1.0f;
}
KERNEL(grid) {  // y[i] = one of the sizes of its grid
  auto* y = parameter<float*>(p, 1);
  for (int64_t i = 0; i < parameter<int64_t>(p, 2); ++i) y[i] = static_cast<float>(grid[i % 3]);
}
KERNEL(scalars) {  // y = 2x only if all scalars arrived as they should
  (void)grid;
  const bool good = parameter<int64_t>(p, 3) == (int64_t{1} << 40) + 3 &&
                    parameter<int32_t>(p, 4) == -7 && parameter<float>(p, 5) == 1.5f &&
                    parameter<double>(p, 6) == 0.1;
  scale(p, good ? 2.0f : 0.0f);
}

// The CUDA driver, found at run time: no CUDA header, no toolkit, no library at build time.
//
// Prototypes are those of the driver's stable binary interface (the names that it exports, with
// their version suffixes). Every failure is thrown as a Failure: a class that tells the judge whose
// fault it is, the driver's own name of the error, and what was being done.
#pragma once
#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <string>

namespace cuda {

using Result = int;
using DeviceId = int;
using Pointer = unsigned long long;
using Context = struct ContextObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

enum Attribute : int {  // of a device
  kL2CacheSize = 38,
  kMultiprocessors = 16,
  kMajor = 75,
  kMinor = 76,
  kPageableMemoryAccess = 88,
  kMaxSharedOptIn = 97,
};
enum FunctionAttribute : int {
  kMaxThreads = 0,
  kStaticShared = 1,
  kConstant = 2,
  kLocal = 3,
  kRegisters = 4,
  kBinaryVersion = 6,
  kMaxDynamicShared = 8,
};
enum Limit : int { kStackSize = 0, kPrintfFifo = 1, kMallocHeap = 2 };

// Whose fault it is; cuda/protocol.py has the same numbers.
enum class Fault : int64_t {
  kEnvironment = 1,  // no driver, no device, no context
  kMemory = 2,       // the device has no memory left
  kContract = 3,     // the plan asks for what there is not
  kCode = 4,         // the compiled code cannot be loaded
  kCrash = 5,        // the kernels broke the context, or could not be launched
  kProtocol = 6,     // a command that makes no sense
};

struct Failure {
  Fault fault;
  std::string text;
};

// name, exported symbol, parameters
#define KFORGE_CUDA_FUNCTIONS(X)                                                                  \
  X(Init, "cuInit", (unsigned))                                                                   \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                               \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                   \
  X(DeviceGet, "cuDeviceGet", (DeviceId*, int))                                                   \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, DeviceId))                                     \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, DeviceId))                            \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, DeviceId))                                   \
  X(DevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags_v2", (DeviceId, unsigned))              \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, DeviceId))                     \
  X(CtxSetCurrent, "cuCtxSetCurrent", (Context))                                                  \
  X(CtxSetLimit, "cuCtxSetLimit", (int, size_t))                                                  \
  X(ModuleLoadData, "cuModuleLoadData", (Module*, const void*))                                   \
  X(ModuleUnload, "cuModuleUnload", (Module))                                                     \
  X(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))                   \
  X(FuncGetAttribute, "cuFuncGetAttribute", (int*, int, Function))                                \
  X(FuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                                 \
  X(OccupancyMaxActiveBlocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                      \
    (int*, Function, int, size_t))                                                                \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                            \
  X(MemAlloc, "cuMemAlloc_v2", (Pointer*, size_t))                                                \
  X(MemFree, "cuMemFree_v2", (Pointer))                                                           \
  X(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                                   \
  X(MemHostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))                           \
  X(MemcpyHtoD, "cuMemcpyHtoD_v2", (Pointer, const void*, size_t))                                \
  X(MemcpyDtoH, "cuMemcpyDtoH_v2", (void*, Pointer, size_t))                                      \
  X(MemsetD8Async, "cuMemsetD8Async", (Pointer, unsigned char, size_t, Stream))                   \
  X(StreamCreate, "cuStreamCreate", (Stream*, unsigned))                                          \
  X(StreamSynchronize, "cuStreamSynchronize", (Stream))                                           \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", (Stream, int))                                 \
  X(StreamEndCapture, "cuStreamEndCapture", (Stream, Graph*))                                     \
  X(GraphInstantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, unsigned long long))     \
  X(GraphUpload, "cuGraphUpload", (GraphExec, Stream))                                            \
  X(GraphLaunch, "cuGraphLaunch", (GraphExec, Stream))                                            \
  X(GraphExecDestroy, "cuGraphExecDestroy", (GraphExec))                                          \
  X(GraphDestroy, "cuGraphDestroy", (Graph))                                                      \
  X(EventCreate, "cuEventCreate", (Event*, unsigned))                                             \
  X(EventRecord, "cuEventRecord", (Event, Stream))                                                \
  X(EventElapsedTime, "cuEventElapsedTime", (float*, Event, Event))                               \
  X(GetErrorName, "cuGetErrorName", (Result, const char**))                                       \
  X(GetErrorString, "cuGetErrorString", (Result, const char**))                                   \
  X(LaunchKernel, "cuLaunchKernel",                                                               \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,      \
     void**, void**))

struct Driver {
#define KFORGE_DECLARE(name, symbol, parameters) Result(*name) parameters = nullptr;
  KFORGE_CUDA_FUNCTIONS(KFORGE_DECLARE)
#undef KFORGE_DECLARE
  // Since driver 12.4: sizes of a kernel's parameters. Null where the driver is older.
  Result (*FuncGetParamInfo)(Function, size_t, size_t*, size_t*) = nullptr;

  void open(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw Failure{Fault::kEnvironment, std::string("no CUDA driver here: ") + dlerror()};
#define KFORGE_RESOLVE(name, symbol, parameters)                                                  \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, symbol));                                 \
  if (name == nullptr)                                                                            \
    throw Failure{Fault::kEnvironment, "the CUDA driver lacks " symbol "; update the driver"};
    KFORGE_CUDA_FUNCTIONS(KFORGE_RESOLVE)
#undef KFORGE_RESOLVE
    FuncGetParamInfo =
        reinterpret_cast<decltype(FuncGetParamInfo)>(dlsym(handle, "cuFuncGetParamInfo"));
  }

  std::string name_of(Result result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (GetErrorName(result, &name) != 0 || name == nullptr)
      return "error " + std::to_string(result);
    if (GetErrorString(result, &text) != 0 || text == nullptr) return name;
    return std::string(name) + " (" + text + ")";
  }
};

inline Driver driver;

constexpr Result kOutOfMemory = 2;

// Everything that the driver is asked goes through here; `doing` completes "while ...".
inline void check(Result result, const std::string& doing, Fault fault = Fault::kCrash) {
  if (result == 0) return;
  if (result == kOutOfMemory) fault = Fault::kMemory;
  throw Failure{fault, driver.name_of(result) + " while " + doing};
}

}  // namespace cuda

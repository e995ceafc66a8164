// The CUDA driver, opened while the program runs: no CUDA header, no link to it, no toolkit.
//
// One build of the launch op so serves machines with and without a GPU. The prototypes are our own;
// names with _v2 are those that cuda.h maps the plain names to.

#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace kforge {

using CuResult = int;
using CuContext = void*;
using CuModule = void*;
using CuFunction = void*;
using CuStream = void*;
using CuPointer = unsigned long long;

constexpr CuResult kCudaSuccess = 0, kCudaNoBinary = 209, kCudaInvalidImage = 200,
                   kCudaInvalidPtx = 218, kCudaNotFound = 500;
constexpr int kSharedSize = 1, kMaxDynamicShared = 8;  // CUfunction_attribute
constexpr int kCaptureRelaxed = 2;
constexpr int kAlwaysAllowed = 48 << 10;  // bytes of shared memory, fixed and dynamic together

struct Driver {
  CuResult (*cuInit)(unsigned) = nullptr;
  CuResult (*cuDeviceGet)(int*, int) = nullptr;
  CuResult (*cuDevicePrimaryCtxRetain)(CuContext*, int) = nullptr;
  CuResult (*cuCtxGetCurrent)(CuContext*) = nullptr;
  CuResult (*cuCtxPushCurrent)(CuContext) = nullptr;
  CuResult (*cuCtxPopCurrent)(CuContext*) = nullptr;
  CuResult (*cuModuleLoadData)(CuModule*, const void*) = nullptr;
  CuResult (*cuModuleGetFunction)(CuFunction*, CuModule, const char*) = nullptr;
  CuResult (*cuFuncSetAttribute)(CuFunction, int, int) = nullptr;
  CuResult (*cuFuncGetAttribute)(int*, int, CuFunction) = nullptr;
  CuResult (*cuLaunchKernel)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CuStream, void**, void**) = nullptr;
  CuResult (*cuMemsetD8Async)(CuPointer, unsigned char, size_t, CuStream) = nullptr;
  CuResult (*cuStreamIsCapturing)(CuStream, int*) = nullptr;
  CuResult (*cuThreadExchangeStreamCaptureMode)(int*) = nullptr;
  CuResult (*cuGetErrorName)(CuResult, const char**) = nullptr;
  CuResult (*cuGetErrorString)(CuResult, const char**) = nullptr;
  CuResult (*cuFuncLoad)(CuFunction) = nullptr;  // since CUDA 12.4, so it may be missing
  // torch's own, in libtorch_cuda; a build of torch for the CPU has no such function
  int32_t (*current_stream)(int32_t, void**) = nullptr;
  bool ready = false;
};

inline Driver driver;

template <typename Function>
bool find(void* library, const char* name, Function* to) {
  *to = reinterpret_cast<Function>(dlsym(library, name));
  return *to != nullptr;
}

// Opens driver and torch's CUDA library; what is missing, in words, or an empty text. Call under a
// lock; a second call after a success does nothing.
inline std::string open_driver(const char* driver_name, const char* torch_name) {
  if (driver.ready) return "";
  void* cuda = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
  if (cuda == nullptr) return std::string("there is no CUDA driver here: ") + dlerror();
  void* torch = dlopen(torch_name, RTLD_NOW | RTLD_LOCAL);
  if (torch == nullptr) return std::string("this torch has no CUDA: ") + dlerror();
  Driver d;
  const bool whole =
      find(cuda, "cuInit", &d.cuInit) && find(cuda, "cuDeviceGet", &d.cuDeviceGet) &&
      find(cuda, "cuDevicePrimaryCtxRetain", &d.cuDevicePrimaryCtxRetain) &&
      find(cuda, "cuCtxGetCurrent", &d.cuCtxGetCurrent) &&
      find(cuda, "cuCtxPushCurrent_v2", &d.cuCtxPushCurrent) &&
      find(cuda, "cuCtxPopCurrent_v2", &d.cuCtxPopCurrent) &&
      find(cuda, "cuModuleLoadData", &d.cuModuleLoadData) &&
      find(cuda, "cuModuleGetFunction", &d.cuModuleGetFunction) &&
      find(cuda, "cuFuncSetAttribute", &d.cuFuncSetAttribute) &&
      find(cuda, "cuFuncGetAttribute", &d.cuFuncGetAttribute) &&
      find(cuda, "cuLaunchKernel", &d.cuLaunchKernel) &&
      find(cuda, "cuMemsetD8Async", &d.cuMemsetD8Async) &&
      find(cuda, "cuStreamIsCapturing", &d.cuStreamIsCapturing) &&
      find(cuda, "cuThreadExchangeStreamCaptureMode", &d.cuThreadExchangeStreamCaptureMode) &&
      find(cuda, "cuGetErrorName", &d.cuGetErrorName) &&
      find(cuda, "cuGetErrorString", &d.cuGetErrorString);
  if (!whole) return std::string("the CUDA driver ") + driver_name + " is too old for the launch op";
  if (!find(torch, "aoti_torch_get_current_cuda_stream", &d.current_stream))
    return std::string(torch_name) + " lacks aoti_torch_get_current_cuda_stream";
  find(cuda, "cuFuncLoad", &d.cuFuncLoad);
  const CuResult code = d.cuInit(0);
  if (code != kCudaSuccess) return "the CUDA driver does not start (error " + std::to_string(code) + ")";
  d.ready = true;
  driver = d;
  return "";
}

inline std::string cuda_words(CuResult code) {
  const char *name = nullptr, *text = nullptr;
  driver.cuGetErrorName(code, &name);
  driver.cuGetErrorString(code, &text);
  std::string words = name ? name : "error " + std::to_string(code);
  return text ? words + ": " + text : words;
}

// Errors after which nothing more can run in this context: an earlier kernel broke it.
inline bool is_sticky(CuResult code) {
  switch (code) {
    case 4:    // CUDA_ERROR_DEINITIALIZED
    case 201:  // CUDA_ERROR_INVALID_CONTEXT
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
    case 226:  // CUDA_ERROR_CONTAINED
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 709:  // CUDA_ERROR_CONTEXT_IS_DESTROYED
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
      return true;
    default:
      return false;
  }
}

// CUDA_ERROR_STREAM_CAPTURE_…: the capture is at fault, not the kernel.
inline bool is_capture(CuResult code) { return code >= 900 && code <= 909; }

}  // namespace kforge

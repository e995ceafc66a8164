// CUDA kernels: modules loaded when a kernel is added, launches on torch's current stream.
//
// Nothing is loaded on a call, so a call is legal inside a CUDA-graph capture from the first on: it
// asks for the stream, writes pointers into an array on the stack, and launches.

#pragma once

#include <cstring>
#include <map>
#include <memory>

#include "launch_driver.h"
#include "launch_torch.h"

namespace kforge {

struct Device {
  int index = 0;
  CuContext context = nullptr;              // the primary one, which torch uses too
  std::map<std::string, CuModule> modules;  // by image; kept for good
  std::map<CuFunction, int> granted;        // dynamic shared memory beyond what is always allowed
};

// Makes a device's context current while it lives; costs one query where it is current already.
class Inside {
 public:
  explicit Inside(const Device& device) {
    CuContext now = nullptr;
    if (driver.cuCtxGetCurrent(&now) == kCudaSuccess && now == device.context) return;
    code = driver.cuCtxPushCurrent(device.context);
    pushed = code == kCudaSuccess;
  }
  ~Inside() {
    CuContext popped = nullptr;
    if (pushed) driver.cuCtxPopCurrent(&popped);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  CuResult code = kCudaSuccess;

 private:
  bool pushed = false;
};

// Lets this thread load code although another one captures a graph.
class Relaxed {
 public:
  Relaxed() { driver.cuThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { driver.cuThreadExchangeStreamCaptureMode(&mode); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode = kCaptureRelaxed;
};

inline std::mutex loading;

// The device with its primary context retained. Under `loading`.
inline CuResult device_of(int index, Device** found) {
  static auto& devices = *new std::map<int, Device*>;  // for good: threads may outlive statics
  Device*& slot = devices[index];
  if (slot == nullptr) {
    auto device = std::make_unique<Device>();
    int ordinal = 0;
    CuResult code = driver.cuDeviceGet(&ordinal, index);
    if (code == kCudaSuccess) code = driver.cuDevicePrimaryCtxRetain(&device->context, ordinal);
    if (code != kCudaSuccess) return code;
    device->index = index;
    slot = device.release();
  }
  *found = slot;
  return kCudaSuccess;
}

// One function, wholly on the device, allowed the shared memory that its launch asks for.
inline CuResult load_function(Device& device, CuModule module, const char* name, KernelCall* call) {
  CuResult code = driver.cuModuleGetFunction(&call->function, module, name);
  if (code != kCudaSuccess) return code;
  int fixed = 0;  // with lazy loading, asking is what loads a function where cuFuncLoad is missing
  code = driver.cuFuncGetAttribute(&fixed, kSharedSize, call->function);
  if (code == kCudaSuccess && driver.cuFuncLoad) code = driver.cuFuncLoad(call->function);
  if (code != kCudaSuccess) return code;
  int& granted = device.granted[call->function];  // two launches may share a function
  const int wanted = static_cast<int>(call->shared);
  if (fixed + wanted <= kAlwaysAllowed || wanted <= granted) return kCudaSuccess;
  code = driver.cuFuncSetAttribute(call->function, kMaxDynamicShared, wanted);
  if (code == kCudaSuccess) granted = wanted;
  return code;
}

// Loads an image on a device and finds every kernel of the plan in it; what failed is in `where`.
inline CuResult load_calls(const std::string& image, int index, const char* const* names,
                           Entry* entry, std::string* where) {
  std::lock_guard<std::mutex> lock(loading);
  *where = "device " + std::to_string(index);
  CuResult code = device_of(index, &entry->device);
  if (code != kCudaSuccess) return code;
  Inside inside(*entry->device);
  if (inside.code != kCudaSuccess) return inside.code;
  Relaxed relaxed;
  CuModule& module = entry->device->modules[image];
  *where = "its code";
  if (module == nullptr) code = driver.cuModuleLoadData(&module, image.data());
  if (code != kCudaSuccess) {
    entry->device->modules.erase(image);
    return code;
  }
  for (size_t i = 0; i < entry->calls.size(); ++i) {
    *where = std::string("kernel ") + names[i];
    code = load_function(*entry->device, module, names[i], &entry->calls[i]);
    if (code != kCudaSuccess) return code;
  }
  return kCudaSuccess;
}

inline bool capturing(const Device& device) {
  CuStream stream = nullptr;
  int status = 0;
  check(driver.current_stream(device.index, &stream), "the current CUDA stream");
  Inside inside(device);
  return driver.cuStreamIsCapturing(stream, &status) != kCudaSuccess || status != 0;
}

// Launches all kernels of a plan in order; tells the first failing one by its position.
inline CuResult launch_calls(const Entry& entry, void* const* inputs, void* const* outputs,
                             char* scratch, size_t* position) {
  CuStream stream = nullptr;
  check(driver.current_stream(entry.device->index, &stream), "the current CUDA stream");
  Inside inside(*entry.device);
  if (inside.code != kCudaSuccess) return inside.code;
  CuResult code = kCudaSuccess;
  if (entry.zeroed > 0)
    code = driver.cuMemsetD8Async(reinterpret_cast<uintptr_t>(scratch), 0, entry.zeroed, stream);
  void* spare[kMaxArgs];   // pointers into the scratch memory
  void* params[kMaxArgs];  // where each argument's value stands
  for (size_t k = 0; k < entry.calls.size() && code == kCudaSuccess; ++k) {
    const KernelCall& call = entry.calls[k];
    *position = k;
    for (size_t i = 0; i < call.args.size(); ++i) {
      const ArgRule& rule = call.args[i];
      switch (rule.kind) {
        case kInput: params[i] = const_cast<void**>(&inputs[rule.bits]); break;
        case kOutput: params[i] = const_cast<void**>(&outputs[rule.bits]); break;
        case kScratch: spare[i] = scratch + rule.bits; params[i] = &spare[i]; break;
        default: params[i] = const_cast<int64_t*>(&rule.bits); break;
      }
    }
    code = driver.cuLaunchKernel(call.function, call.grid[0], call.grid[1], call.grid[2],
                                 call.block[0], call.block[1], call.block[2], call.shared, stream,
                                 params, nullptr);
  }
  return code;
}

}  // namespace kforge

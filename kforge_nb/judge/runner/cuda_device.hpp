// The device, its context and its memory: slabs between guard zones, filled, copied and compared.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_driver.hpp"

namespace cuda {

constexpr size_t kMargin = 64 << 10;  // guard zone on both sides of every slab
constexpr unsigned char kGuardByte = 0xa5, kPoisonByte = 0xff;

inline std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

class Device {
 public:
  Stream stream = nullptr;
  std::string name;
  int version = 0, major = 0, minor = 0, multiprocessors = 0, pageable = 0;
  size_t l2 = 0, shared = 0, total = 0;

  void start(const char* library, int index, size_t heap, size_t fifo) {
    const Fault fault = Fault::kEnvironment;
    driver.open(library);
    check(driver.Init(0), "starting the driver", fault);
    check(driver.DriverGetVersion(&version), "asking for the driver's version", fault);
    int count = 0;
    check(driver.DeviceGetCount(&count), "counting devices", fault);
    if (index < 0 || index >= count)
      throw Failure{fault, "there is no CUDA device " + std::to_string(index) + "; the driver has " +
                               std::to_string(count)};
    check(driver.DeviceGet(&device_, index), "asking for the device", fault);
    describe();
    driver.DevicePrimaryCtxSetFlags(device_, 1);  // spin: the sharpest end of a wait
    check(driver.DevicePrimaryCtxRetain(&context_, device_), "making a context", fault);
    check(driver.CtxSetCurrent(context_), "taking the context", fault);
    check(driver.CtxSetLimit(kMallocHeap, heap), "limiting the device's heap", fault);
    check(driver.CtxSetLimit(kPrintfFifo, fifo), "limiting the device's printf", fault);
    check(driver.StreamCreate(&stream, 0), "making a stream", fault);
  }

  int attribute(int which) const {
    int value = 0;
    check(driver.DeviceGetAttribute(&value, which, device_), "asking about the device",
          Fault::kEnvironment);
    return value;
  }

  void wait(const std::string& doing) { check(driver.StreamSynchronize(stream), doing); }

  size_t free_memory() const {
    size_t left = 0, all = 0;
    check(driver.MemGetInfo(&left, &all), "asking for free memory");
    return left;
  }

 private:
  DeviceId device_ = 0;
  Context context_ = nullptr;

  void describe() {
    char text[128] = {};
    check(driver.DeviceGetName(text, sizeof text, device_), "asking for the device's name",
          Fault::kEnvironment);
    name = text;
    check(driver.DeviceTotalMem(&total, device_), "asking for its memory", Fault::kEnvironment);
    major = attribute(kMajor);
    minor = attribute(kMinor);
    multiprocessors = attribute(kMultiprocessors);
    pageable = attribute(kPageableMemoryAccess);
    l2 = static_cast<size_t>(attribute(kL2CacheSize));
    shared = static_cast<size_t>(attribute(kMaxSharedOptIn));
  }
};

inline Device device;

// One allocation with a guard zone of kMargin bytes at both ends.
class Slab {
 public:
  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { release(); }

  static size_t cost(size_t bytes) { return bytes + 2 * kMargin; }

  void allocate(size_t bytes, const char* what) {
    release();
    check(driver.MemAlloc(&base_, cost(bytes)), "allocating " + mib(bytes) + " for " + what);
    bytes_ = bytes;
    fill(kGuardByte);
  }

  void release() {
    if (base_ != 0) driver.MemFree(base_);
    base_ = 0;
  }

  Pointer at(size_t offset = 0) const { return base_ + kMargin + offset; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return base_ != 0; }

  // All of it, margins included.
  void fill(unsigned char byte) {
    check(driver.MemsetD8Async(base_, byte, cost(bytes_), device.stream), "filling memory");
  }

  void fill(unsigned char byte, size_t offset, size_t bytes) {
    if (bytes > 0)
      check(driver.MemsetD8Async(at(offset), byte, bytes, device.stream), "filling memory");
  }

  void upload(size_t offset, const char* from, size_t bytes) {
    if (bytes > 0) check(driver.MemcpyHtoD(at(offset), from, bytes), "copying to the device");
  }

  void download(size_t offset, char* to, size_t bytes) const {
    if (bytes > 0) check(driver.MemcpyDtoH(to, at(offset), bytes), "copying from the device");
  }

  // Offset of the first byte that differs from `same`, or -1. Compared here, not on the device:
  // a kernel can write anywhere there.
  int64_t differs(const char* same) const {
    std::vector<char> chunk(std::min<size_t>(bytes_, 8 << 20));
    for (size_t start = 0; start < bytes_; start += chunk.size()) {
      size_t count = std::min(chunk.size(), bytes_ - start);
      download(start, chunk.data(), count);
      if (memcmp(chunk.data(), same + start, count) == 0) continue;
      for (size_t i = 0;; ++i)
        if (chunk[i] != same[start + i]) return static_cast<int64_t>(start + i);
    }
    return -1;
  }

  bool margins_hold() const {
    std::vector<unsigned char> found(2 * kMargin);
    check(driver.MemcpyDtoH(found.data(), base_, kMargin), "reading a guard zone");
    check(driver.MemcpyDtoH(found.data() + kMargin, at(bytes_), kMargin), "reading a guard zone");
    return std::all_of(found.begin(), found.end(), [](unsigned char b) { return b == kGuardByte; });
  }

 private:
  Pointer base_ = 0;
  size_t bytes_ = 0;
};

}  // namespace cuda

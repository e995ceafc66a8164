// The device, its context and its memory: slabs between guard zones, filled, copied and compared.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_driver.hpp"

namespace cuda {

constexpr size_t kMargin = 64 << 10;  // guard zone on both sides of every slab
constexpr size_t kStaging = 4 << 20, kWorthPinning = 4 << 20;
constexpr unsigned char kGuardByte = 0xa5, kPoisonByte = 0xff;

inline std::string mib(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

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
      throw Failure{fault, "there is no CUDA device " + std::to_string(index) +
                               "; the driver has " + std::to_string(count)};
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

  // Shared memory that will be copied again and again: the device reads and writes it directly, if
  // the system lets it. Regions that are read-only here stay so for the device.
  void pin(void* at, size_t bytes, bool read_only) {
    if (bytes >= kWorthPinning) driver.MemHostRegister(at, bytes, read_only ? 8 : 0);
  }

  // Memory of this process through which device memory is looked at, a part at a time.
  char* staging() {
    if (staging_ == nullptr) {
      void* at = nullptr;
      check(driver.MemHostAlloc(&at, kStaging, 0), "allocating staging memory");
      staging_ = static_cast<char*>(at);
    }
    return staging_;
  }

  size_t free_memory() const {
    size_t left = 0, all = 0;
    check(driver.MemGetInfo(&left, &all), "asking for free memory");
    return left;
  }

 private:
  DeviceId device_ = 0;
  Context context_ = nullptr;
  char* staging_ = nullptr;

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
    char* part = device.staging();
    for (size_t start = 0; start < bytes_; start += kStaging) {
      const size_t count = std::min(kStaging, bytes_ - start);
      download(start, part, count);
      if (memcmp(part, same + start, count) == 0) continue;
      const auto first = std::mismatch(part, part + count, same + start).first;
      return static_cast<int64_t>(start) + (first - part);
    }
    return -1;
  }

  // Whether every byte is the one that it was filled with.
  bool holds_only(unsigned char byte) const {
    char* part = device.staging();
    for (size_t start = 0; start < bytes_; start += kStaging) {
      const size_t count = std::min(kStaging, bytes_ - start);
      download(start, part, count);
      if (static_cast<unsigned char>(part[0]) != byte || memcmp(part, part + 1, count - 1) != 0)
        return false;
    }
    return true;
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

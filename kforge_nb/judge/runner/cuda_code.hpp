// A candidate's compiled code: loaded, looked at, and its launches checked before the first one.
#pragma once
#include <string>
#include <vector>

#include "cuda_device.hpp"

namespace cuda {

constexpr size_t kNameBytes = 72, kMaxKernels = 16, kMaxArguments = 64;
constexpr size_t kFreeShared = 48 << 10;  // dynamic shared memory beyond this must be asked for

// What the judge is told of a kernel; cuda/protocol.py unpacks it from the status page.
struct KernelFacts {
  int64_t registers, shared, local, constant, max_threads, binary, parameters, reserved;
};
static_assert(sizeof(KernelFacts) == 64, "cuda/protocol.py unpacks 64 bytes");

struct Argument {  // one parameter of one launch
  uint32_t kind, bytes;
  uint64_t value;  // offset in its slot, region or slab; or the bits of a scalar
};
static_assert(sizeof(Argument) == 16, "cuda/protocol.py packs 16 bytes");
enum Kind : uint32_t { kInput = 0, kOutput = 1, kScratch = 2, kScalar = 3 };

struct LaunchShape {
  uint32_t kernel, arguments, grid[3], block[3], shared, reserved;
};
static_assert(sizeof(LaunchShape) == 40, "cuda/protocol.py packs 40 bytes");

struct Kernel {
  std::string name;
  Function function = nullptr;
  KernelFacts facts = {};
  std::vector<size_t> parameters;  // their sizes, where the driver tells
  bool knows_parameters = false;
  uint32_t granted = 0;  // dynamic shared memory that was asked for so far

  int ask(int which) const {
    int value = 0;
    check(driver.FuncGetAttribute(&value, which, function), "asking about kernel " + name,
          Fault::kCode);
    return value;
  }

  void open(Module module) {
    parameters.clear();
    granted = 0;
    check(driver.ModuleGetFunction(&function, module, name.c_str()), "looking for kernel " + name,
          Fault::kCode);
    facts = {ask(kRegisters),  ask(kStaticShared),  ask(kLocal), ask(kConstant),
             ask(kMaxThreads), ask(kBinaryVersion), -1,          0};
    if (driver.FuncGetParamInfo == nullptr) return;
    size_t offset = 0, bytes = 0;
    for (size_t i = 0; i < kMaxArguments; ++i) {
      if (driver.FuncGetParamInfo(function, i, &offset, &bytes) != 0) break;  // beyond the last
      parameters.push_back(bytes);
    }
    knows_parameters = true;
    facts.parameters = static_cast<int64_t>(parameters.size());
  }

  // A plan that does not fit would make the driver read beyond what it is given.
  void expect(const std::vector<Argument>& given) const {
    if (!knows_parameters) return;
    if (given.size() != parameters.size())
      throw Failure{Fault::kContract, "kernel " + name + " takes " +
                                          std::to_string(parameters.size()) +
                                          " parameters, but the plan gives " +
                                          std::to_string(given.size())};
    for (size_t i = 0; i < given.size(); ++i)
      if (given[i].bytes != parameters[i])
        throw Failure{Fault::kContract, "parameter " + std::to_string(i) + " of kernel " + name +
                                            " has " + std::to_string(parameters[i]) +
                                            " bytes, but the plan gives one of " +
                                            std::to_string(given[i].bytes)};
  }

  void fit(const LaunchShape& shape) {
    const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    if (threads > static_cast<uint64_t>(facts.max_threads))
      throw Failure{Fault::kContract,
                    "kernel " + name + " can run with at most " +
                        std::to_string(facts.max_threads) + " threads in a block (it takes " +
                        std::to_string(facts.registers) +
                        " registers for each); the plan asks for " + std::to_string(threads)};
    const size_t all = static_cast<size_t>(facts.shared) + shape.shared;
    if (all > device.shared)
      throw Failure{Fault::kContract, "kernel " + name + " asks for " + std::to_string(all) +
                                          " bytes of shared memory; this device has " +
                                          std::to_string(device.shared) + " for a block"};
    if (all <= kFreeShared || shape.shared <= granted) return;  // a later launch takes nothing away
    check(driver.FuncSetAttribute(function, kMaxDynamicShared, static_cast<int>(shape.shared)),
          "asking for " + std::to_string(shape.shared) + " bytes of shared memory for " + name,
          Fault::kContract);
    granted = shape.shared;
  }

  int occupancy(const LaunchShape& shape) const {
    int blocks = 0;
    const auto threads = static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
    driver.OccupancyMaxActiveBlocks(&blocks, function, threads, shape.shared);
    return blocks;
  }
};

inline Module load_module(const std::string& image, const std::string& what) {
  Module module = nullptr;
  check(driver.ModuleLoadData(&module, image.c_str()),
        "loading " + what + " on sm_" + std::to_string(device.major) + std::to_string(device.minor),
        Fault::kCode);
  return module;
}

// One launch with addresses put in. `shape` must have passed Kernel::fit.
inline void launch(const Kernel& kernel, const LaunchShape& shape,
                   const std::vector<uint64_t>& values) {
  static uint64_t nothing[512] = {};  // where a driver looks for parameters that the plan lacks
  void* parameters[kMaxArguments];
  for (size_t i = 0; i < kMaxArguments; ++i)
    parameters[i] = i < values.size() ? const_cast<uint64_t*>(&values[i]) : nothing;
  const Result result = driver.LaunchKernel(
      kernel.function, shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0], shape.block[1],
      shape.block[2], shape.shared, device.stream, parameters, nullptr);
  if (result == kOutOfMemory)  // nothing was asked for but what the kernel itself needs
    throw Failure{Fault::kContract, driver.name_of(result) + " while launching kernel " +
                                        kernel.name + ", whose threads take " +
                                        std::to_string(kernel.facts.local) +
                                        " bytes of local memory each"};
  check(result, "launching kernel " + kernel.name);
}

}  // namespace cuda

// A CUDA driver that runs "kernels" on the host, and torch's stream function: what the launch op
// asks of both, with a log of it. Contexts are 0x100 + device, streams 0x1000 + device.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace {

using Host = void (*)(void** params, unsigned threads);

struct Function {
  Host host;
  std::string name;
  void* context;
  int granted = 48 << 10;
};

template <typename T>
T value(void* param) {
  return *static_cast<T*>(param);
}

void add_relu(void** p, unsigned) {
  const float *a = value<const float*>(p[0]), *b = value<const float*>(p[1]);
  for (int64_t i = 0; i < value<int64_t>(p[3]); ++i)
    value<float*>(p[2])[i] = std::fmax(a[i] + b[i], 0.0f);
}

void gather(void** p, unsigned) {  // x, sums, n
  for (int64_t i = 0; i < value<int64_t>(p[2]); ++i)
    *value<float*>(p[1]) += value<const float*>(p[0])[i];
}

void spread(void** p, unsigned) {  // x, sums, out, float, double, int
  const float mean = *value<const float*>(p[1]) / value<int32_t>(p[5]);
  for (int32_t i = 0; i < value<int32_t>(p[5]); ++i)
    value<float*>(p[2])[i] =
        value<float>(p[3]) * (value<const float*>(p[0])[i] - mean) + float(value<double>(p[4]));
}

const std::map<std::string, Host> known = {
    {"add_relu", add_relu}, {"gather", gather}, {"spread", spread}};
std::map<std::pair<void*, std::string>, Function> functions;
std::string text;
thread_local void* stack[8];
thread_local int depth = 0;
int failure = 0, status = 0, mode = 0;

void note(const std::string& line) { text += line + "\n"; }

void* current() { return depth ? stack[depth - 1] : nullptr; }

std::string number(const void* pointer) {
  return std::to_string(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace

extern "C" {

void fake_fail(int code) { failure = code; }
void fake_capture(int on) { status = on; }
void fake_enter(int device) { stack[depth++] = reinterpret_cast<void*>(0x100 + device); }
int64_t fake_current() { return reinterpret_cast<intptr_t>(current()); }
const char* fake_log() {
  static std::string last;
  last.swap(text);
  text.clear();
  return last.c_str();
}

int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  *stream = reinterpret_cast<void*>(0x1000 + device);
  return 0;
}

int cuInit(unsigned) { return 0; }

int cuDeviceGet(int* to, int index) {
  *to = index;
  return index < 2 ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void** to, int device) {
  *to = reinterpret_cast<void*>(0x100 + device);
  return 0;
}

int cuCtxGetCurrent(void** to) {
  *to = current();
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  stack[depth++] = context;
  return 0;
}

int cuCtxPopCurrent_v2(void** to) {
  *to = stack[--depth];
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* to) {
  std::swap(*to, mode);
  return 0;
}

int cuModuleLoadData(void** to, const void* image) {
  if (std::memcmp(image, "FAKE", 4) != 0) return 200;
  note("load context " + number(current()) + " mode " + std::to_string(mode));
  *to = new std::string(static_cast<const char*>(image));
  return 0;
}

int cuModuleGetFunction(void** to, void* module, const char* name) {
  const auto found = known.find(name);
  if (found == known.end()) return 500;
  auto& function = functions[{module, name}];
  if (function.host == nullptr) function = {found->second, name, current()};
  *to = &function;
  return 0;
}

int cuFuncGetAttribute(int* to, int attribute, void*) {
  *to = 0;
  return attribute == 1 ? 0 : 1;
}

int cuFuncSetAttribute(void* function, int attribute, int wanted) {
  if (attribute != 8 || wanted > 200 << 10) return 1;
  static_cast<Function*>(function)->granted = wanted;
  note("allow " + std::to_string(wanted));
  return 0;
}

int cuLaunchKernel(void* which, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** params, void**) {
  Function& function = *static_cast<Function*>(which);
  if (failure != 0) return failure;
  if (function.context != current()) return 400;
  if (static_cast<int>(shared) > function.granted) return 1;
  note("launch " + function.name + " grid " + std::to_string(gx) + " block " + std::to_string(bx) +
       " shared " + std::to_string(shared) + " stream " + number(stream));
  function.host(params, gx * gy * gz * bx * by * bz);
  return 0;
}

int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t size, void* stream) {
  note("zero " + std::to_string(size) + " stream " + number(stream));
  std::memset(reinterpret_cast<void*>(to), byte, size);
  return 0;
}

int cuStreamIsCapturing(void*, int* to) {
  *to = status;
  return 0;
}

int cuGetErrorName(int code, const char** to) {
  *to = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
  return 0;
}

int cuGetErrorString(int, const char** to) {
  *to = "as the test asked for";
  return 0;
}
}

// What both runners share with the judge: messages on the pipes, and memory.
//
// protocol.py and cuda/protocol.py describe the messages; the sizes are checked on both sides.
#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace wire {

constexpr uint32_t kMagic = 0x3152464b;  // "KFR1"
enum Status : uint32_t { kOk = 0, kError = 1 };

struct Command {
  uint32_t magic, op;
  uint64_t seq;
  int64_t a, b;
  uint64_t payload, reserved;
};
static_assert(sizeof(Command) == 48, "protocol.py packs 48 bytes");

struct Reply {
  uint32_t magic, status;
  uint64_t seq, nanos;
  int64_t value;
  char text[288];
};
static_assert(sizeof(Reply) == 320, "protocol.py unpacks 320 bytes");

inline void say(Reply& reply, const std::string& text) {
  snprintf(reply.text, sizeof reply.text, "%s", text.c_str());
}

inline void fail(Reply& reply, const std::string& text) {
  reply.status = kError;
  say(reply, text);
}

struct Region {
  char* at = nullptr;
  size_t bytes = 0;
  bool holds(const void* p) const { return p >= at && p < at + bytes; }
};

inline bool map(Region& region, const char* fd_text, const char* bytes_text, int protection) {
  int fd = atoi(fd_text);
  region.bytes = strtoull(bytes_text, nullptr, 10);
  void* at = mmap(nullptr, region.bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return false;
  region.at = static_cast<char*>(at);
  return true;
}

inline bool read_all(void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    ssize_t got = read(0, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

inline uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace wire

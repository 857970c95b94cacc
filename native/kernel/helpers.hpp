// What the kernel offers a program: its helper functions by number (include/uapi/linux/bpf.h), and the arguments of the
// tracepoints of system calls, which are the same on every kernel. Of the kernel's own structures two fields are read,
// by the one program that refuses requests.
#pragma once

#include <cstdint>

namespace runlist::kernel {

#define HELPER(number, result, name, ...) static result (*const name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))(number)
HELPER(1, void*, lookup, const void* map, const void* key);
HELPER(2, long, update, const void* map, const void* key, const void* value, std::uint64_t flags);
HELPER(3, long, erase, const void* map, const void* key);
HELPER(5, std::uint64_t, now_ns);
HELPER(14, std::uint64_t, current_process_and_thread);
HELPER(15, std::uint64_t, current_user_and_group);
HELPER(16, long, current_name, void* to, std::uint32_t bytes);
HELPER(35, std::uint64_t, current_task);
HELPER(80, std::uint64_t, current_cgroup);
HELPER(112, long, read_user, void* to, std::uint32_t bytes, const void* from);
HELPER(113, long, read_kernel, void* to, std::uint32_t bytes, const void* from);
HELPER(131, void*, ring_reserve, const void* ring, std::uint64_t bytes, std::uint64_t flags);
HELPER(148, long, copy_user, void* to, std::uint32_t bytes, const void* from);  // where a program may wait
HELPER(132, void, ring_submit, void* data, std::uint64_t flags);
#undef HELPER

constexpr std::uint64_t kIfMissing = 1;  // a flag of `update`

// What a program at a tracepoint answers. With 0, the kernel would tell nobody else there: not perf, of any user.
constexpr int kOthersToo = 1;

struct Entering {
    std::uint64_t common;
    std::uint64_t number;
    std::uint64_t arguments[6];
};

struct Leaving {
    std::uint64_t common;
    std::uint64_t number;
    std::int64_t result;
};

}  // namespace runlist::kernel

#define PROGRAM(tracepoint) extern "C" __attribute__((section("tracepoint/" tracepoint), used)) int
#define HOOK(name) extern "C" __attribute__((section("lsm.s/" name), used)) int

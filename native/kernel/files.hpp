// The file behind a descriptor of the caller, as the kernel has it: a program can open a file of its own that answers
// any request, and say there what it likes. Where the fields are the loader finds in the running kernel's types.
//
// A second thread may put another file in its place between our look and the driver's.
#pragma once

#include "kernel/common.hpp"

namespace runlist::kernel {
namespace {

constexpr std::uint32_t kMinorBits = 20;
constexpr std::uint32_t kLookedAt = 1024;

// A field of a structure of the kernel's; 0 where it cannot be read.
template <typename Field>
ALWAYS Field read_at(std::uint64_t structure, const char& where) {
    Field field{};
    const auto address = structure + reinterpret_cast<std::uint64_t>(&where);
    return read_kernel(&field, sizeof field, reinterpret_cast<const void*>(address)) == 0 ? field : Field{};
}

ALWAYS std::uint64_t table_of_files() {
    const auto files = read_at<std::uint64_t>(current_task(), at_task_struct_files);
    return files ? read_at<std::uint64_t>(files, at_files_struct_fdt) : 0;
}

ALWAYS std::uint32_t size_of(std::uint64_t table) {
    return table ? read_at<std::uint32_t>(table, at_fdtable_max_fds) : 0;
}

ALWAYS std::uint64_t file_in(std::uint64_t table, std::uint32_t fd) {
    const auto files = read_at<std::uint64_t>(table, at_fdtable_fd);
    std::uint64_t file = 0;
    return files && read_kernel(&file, sizeof file, reinterpret_cast<const void*>(files + fd * 8)) == 0 ? file : 0;
}

ALWAYS std::uint64_t file_of(std::int32_t fd) {
    const auto table = table_of_files();
    return static_cast<std::uint32_t>(fd) < size_of(table) ? file_in(table, static_cast<std::uint32_t>(fd)) : 0;
}

ALWAYS std::uint32_t device_of(std::uint64_t file) {
    const auto inode = read_at<std::uint64_t>(file, at_file_f_inode);
    return inode ? read_at<std::uint32_t>(inode, at_inode_i_rdev) : 0;
}

// Is it one of the driver's? Where that cannot be known, any is taken for one.
ALWAYS bool is_drivers(const Settings& set, std::uint64_t file) {
    if (set.files == 0) return true;
    if (set.inode == 0) return set.major == 0 || device_of(file) >> kMinorBits == set.major;
    const auto inode = read_at<std::uint64_t>(file, at_file_f_inode);
    if (read_at<std::uint64_t>(inode, at_inode_i_ino) != set.inode) return false;
    return read_at<std::uint32_t>(read_at<std::uint64_t>(inode, at_inode_i_sb), at_super_block_s_dev) == set.device;
}

// Does this file go with this descriptor? Where that cannot be known, it does.
ALWAYS bool is_last(const Settings& set, std::int32_t fd, std::uint64_t file) {
    if (set.files == 0) return true;
    return file_of(fd) == file && read_at<std::uint64_t>(file, at_file_references) + 1 <= set.files;
}

// Is the caller the last thread of its process, which ends? Where that cannot be known, the first one is.
ALWAYS bool is_last_thread(const Settings& set, std::uint64_t who) {
    if (set.files == 0) return static_cast<std::uint32_t>(who >> 32) == static_cast<std::uint32_t>(who);
    const auto process = read_at<std::uint64_t>(current_task(), at_task_struct_signal);
    return read_at<std::uint32_t>(process, at_signal_struct_live) == 0;
}

// Has the caller any of the driver's? One with very many is taken to have.
ALWAYS bool has_drivers(const Settings& set) {
    if (set.files == 0) return false;
    const auto table = table_of_files();
    const std::uint32_t size = size_of(table);
    if (size > kLookedAt) return true;
    for (std::uint32_t fd = 0; fd < kLookedAt; ++fd) {
        if (fd >= size) break;
        const auto file = file_in(table, fd);
        if (file && is_drivers(set, file)) return true;
    }
    return false;
}

}  // namespace
}  // namespace runlist::kernel

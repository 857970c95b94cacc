// The copies of the driver's libraries in the process, in the base namespace and in others (dlmopen).
//
// A copy is met when a program looks up a function in it, or calls one of our exports. From then on it has a row of its
// own, as a hook must call the copy that its caller asked for, and stays loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace runlist::resolve {

class Object;

enum class Library : int { kCuda, kNvml };
inline constexpr int kLibraries = 2;

#ifndef RUNLIST_ROWS
#define RUNLIST_ROWS 5
#endif
inline constexpr int kRows = RUNLIST_ROWS;
inline constexpr int kLinked = 0;  // of programs that were linked with the library: they call our exports
inline constexpr int kFirstCopy = 1;

// What programs get in place of the driver's functions. preload.cpp says it as a constant: another library's
// constructor may look up functions before our own constructors ran.
struct Substitutes {
    bool (*wanted)();                                              // whether they are to get any; finds it out first
    bool (*listed)(std::string_view name);                         // whether there is one for functions of that name
    void* (*of)(const void* function);                             // for a real function; nullptr for none
    void* (*of_copy)(Library library, int row, const char* name);  // for a copy's function by its name, likewise
    void (*add)(Library library, int row, const Object& copy);     // a row for a copy, before any is asked for
    void (*added)();                                               // they are at work
    int (*emulated_ioctl)(int fd, unsigned long request, void* argument);  // for runlist_emulated_ioctl
};

extern const Substitutes substitutes;

// The row of the copy in the base namespace; kLinked while there is none.
int copy_of_base(Library library);

// Whether a copy of the base namespace that was met has a function of that name. Asks nobody.
bool is_of_base(const char* name);

// Whether that is code of a copy that was met: the driver's own. Asks nobody.
bool is_in_copy(const void* address);

// What the object that contains `address` defines by that name: one of the base namespace, or a copy in any.
void* in_object_of(const void* address, const char* name);

const char* soname_of(Library library);

// The objects of the base namespace at one moment.
class Objects {
  public:
    Objects();
    ~Objects();
    Objects(const Objects&) = delete;
    Objects& operator=(const Objects&) = delete;
    bool has(const Object& object) const;

  private:
    std::uintptr_t* bases_ = nullptr;
    std::size_t count_ = 0;
    std::size_t room_ = 0;
};

// Makes the objects that are there now and were not before call us, wherever they would without RTLD_DEEPBIND.
void bind_new(const Objects& before);

// What dlsym is to answer instead of `found`, which it found through `handle` (nullptr: not through one).
void* hook_or(void* found, void* handle);

// Makes the objects of that handle's namespace call us; nothing for the base namespace, where the dynamic linker does.
void enter_namespace(void* handle);
void expect_namespaces();
bool other_namespaces();  // whether the program ever made one

}  // namespace runlist::resolve

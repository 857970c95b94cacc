// Whether a hook is the first on its thread's stack. Another library that is preloaded may have the same names: a
// program that was linked calls our export, that calls the other library, and that our hook of the driver's function.
#pragma once

namespace runlist::hooks {

extern constinit thread_local bool in_hook;

class Outermost {
  public:
    Outermost() : inside_(in_hook) { in_hook = true; }
    ~Outermost() { in_hook = inside_; }
    Outermost(const Outermost&) = delete;
    Outermost& operator=(const Outermost&) = delete;

    explicit operator bool() const { return !inside_; }

  private:
    bool inside_;
};

}  // namespace runlist::hooks

// What is still to be waited for.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace runlist::operations {

// What has to be waited for, counted as it is given: several may give and wait at once.
class Owed {
  public:
    void give() { given_.fetch_add(1); }
    std::uint64_t given() const { return given_.load(); }
    bool any() const { return done_.load() < given_.load(); }
    // What was given up to there was waited for.
    void is_done(std::uint64_t up_to) {
        std::uint64_t done = done_.load();
        while (done < up_to && !done_.compare_exchange_weak(done, up_to)) {
        }
    }

  private:
    std::atomic<std::uint64_t> given_, done_;
};

// The same in each context.
class OwedInEach {
  public:
    void give() { given_.fetch_add(1); }
    std::uint64_t given() const { return given_.load(); }
    bool any(CUcontext context) const {
        const std::uint64_t given = given_.load();
        return given != 0 && std::none_of(done_.begin(), done_.end(), [&](const Done& one) {
                   return one.context.load() == context && one.up_to.load() >= given;
               });
    }
    void is_done(std::uint64_t up_to, CUcontext context) {
        for (Done& one : done_) {
            CUcontext there = nullptr;
            if (!one.context.compare_exchange_strong(there, context) && there != context) continue;
            std::uint64_t done = one.up_to.load();
            while (done < up_to && !one.up_to.compare_exchange_weak(done, up_to)) {
            }
            return;
        }  // of one more it is always taken for owed
    }
    void forget(CUcontext context) {
        for (Done& one : done_) {
            if (one.context.load() != context) continue;
            one.up_to.store(0);
            one.context.store(nullptr);
        }
    }

  private:
    struct Done {
        std::atomic<CUcontext> context;
        std::atomic<std::uint64_t> up_to;
    };
    std::atomic<std::uint64_t> given_;
    std::array<Done, 8> done_;
};

}  // namespace runlist::operations

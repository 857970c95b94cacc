// Programs whose clients are clients of the library that is preloaded (runlist_operations.h).
#pragma once

#include <runlist_operations.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "run.hpp"

namespace operations {

// Rules by name: exclusive, greedy, complementary, tiny, changing; restarting: the scheduler is stopped and started,
// with any number of clients, while they go on.
class Scheduled : public Hooks {
  public:
    explicit Scheduled(std::string_view rule) : rule_(rule) {}
    ~Scheduled() override;

    void begin(int clients) override;
    void client(int index) override;
    void slow(const std::string& where) override { slow_ = where; }
    void end() override;

    // Of all programs: operations that were given to the driver, that waited, and bounds that were reached.
    std::uint64_t launched = 0;
    std::uint64_t deferred = 0;
    std::uint64_t opened = 0;

  private:
    bool restarts() const { return rule_ == "restarting"; }
    void may_fail(int result, const char* what) const;  // where it restarts
    void change();                                      // the rule and all else, until told to stop
    void restart(int clients);

    std::string_view rule_;
    std::string slow_;
    int clients_ = 0;
    unsigned programs_ = 0;
    std::atomic<bool> changing_{false};
    std::thread changes_;
};

}  // namespace operations

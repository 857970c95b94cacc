#include "hooks/own_limits.hpp"

namespace runlist::hooks {
namespace {

constinit region::OwnLimits own_limits[environment::kDevices]{};  // by number

}  // namespace

constinit bool has_own_limits = false;

void set_own_limits(const environment::Options& options) {
    for (int number = 0; number < environment::kDevices; ++number) {
        const environment::DeviceLimits& one = options.device[number];
        own_limits[number] = {.memory = one.memory, .cap = one.cap};
        has_own_limits = has_own_limits || one.memory || one.cap;
    }
}

int number_of(int ordinal, const char* visible) {
    if (visible == nullptr) return ordinal;
    int found = ordinal;
    for (int index = 0;; ++index, ++visible) {
        while (*visible == ' ') ++visible;
        int number = 0;
        int digits = 0;
        for (; *visible >= '0' && *visible <= '9' && digits < 4; ++visible, ++digits)
            number = number * 10 + *visible - '0';
        if (digits == 0 || (*visible != ',' && *visible != '\0' && *visible != ' ')) return found;
        if (index == ordinal) found = number;
        if (*visible != ',') return found;
    }
}

void apply_own_limits(int device, int number) {
    if (device < 0 || number < 0 || number >= environment::kDevices) return;
    region::quota.region().limit(device, own_limits[number]);
}

}  // namespace runlist::hooks

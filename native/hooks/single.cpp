#include "hooks/single.hpp"

namespace runlist::hooks {

constinit region::OwnLimits single_limits[environment::kDevices]{};
constinit bool has_single_limits = false;

void set_single_limits(const environment::Options& options) {
    for (int number = 0; number < environment::kDevices; ++number) {
        const environment::DeviceLimits& one = options.device[number];
        single_limits[number] = {.memory = one.memory, .cap = one.cap};
        has_single_limits = has_single_limits || one.memory || one.cap;
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

void limit_single(int device, int number) {
    if (device < 0 || number < 0 || number >= environment::kDevices) return;
    region::quota.region().limit(device, single_limits[number]);
}

}  // namespace runlist::hooks

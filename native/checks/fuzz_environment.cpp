// Any environment: what is malformed is complained of and left out, and limits are what they may be.
#include <cstring>
#include <sstream>

#include "checks/check.hpp"
#include "checks/fuzz.hpp"
#include "environment/options.hpp"

namespace {

using namespace runlist::environment;

constexpr std::uint64_t kWhole = 10'000;

void require_cap(std::uint64_t cap) { REQUIRE(cap == kNone || (cap > 0 && cap < kWhole)); }

void require_sound(const Options& options, const Complaints& complaints) {
    REQUIRE(options.memory != 0);
    require_cap(options.cap);
    for (const DeviceLimits& device : options.device) {
        REQUIRE(device.memory != std::uint64_t{0});
        if (device.cap) require_cap(*device.cap);
    }
    REQUIRE(!options.has_caps() || options.has_limits());
    REQUIRE(std::memchr(options.region, '\0', sizeof(options.region)) != nullptr);
    REQUIRE(options.region[0] == '\0' || options.region[0] == '/');
    REQUIRE(options.say_level >= 0 && options.say_level <= 1);
    REQUIRE(!options.makes_region || options.region[0] != '\0');
    REQUIRE(complaints.count >= 0 && complaints.count <= Complaints::kMost);
    for (int index = 0; index < complaints.count; ++index) {
        const Complaint& one = complaints.list[index];
        REQUIRE(one.variable[one.name_length] == '=' && *describe(one.bad) != '\0');
    }
}

}  // namespace

std::vector<std::string> seeds() {
    return {
        "RUNLIST_MEMORY=8G\nRUNLIST_CAP=30%\nRUNLIST_STRICT=1",
        "RUNLIST_REGION=/run/user/0/runlist/regions/x\nRUNLIST_STRICT=0\nRUNLIST_DISABLE=0",
        "CUDA_DEVICE_MEMORY_LIMIT=3g\nCUDA_DEVICE_MEMORY_LIMIT_0=1024m\nCUDA_DEVICE_MEMORY_LIMIT_15=1k",
        "CUDA_DEVICE_SM_LIMIT=50\nCUDA_DEVICE_SM_LIMIT_1=100\nGPU_CORE_UTILIZATION_POLICY=force",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/cache\nLIBCUDA_LOG_LEVEL=3\nORION_LOG_LEVEL=2\nCUDA_DISABLE_CONTROL=true",
        "RUNLIST_MEMORY=1.5GiB\nRUNLIST_MEMORY=18446744073709551615\nCUDA_OVERSUBSCRIBE=true\nACTIVE_OOM_KILLER=1",
        "RUNLIST_REGION=/" + std::string(4'100, 'x') + "\nRUNLIST_CAP=12.5\nRUNLIST_MEMORY=16777216T",
    };
}

std::vector<std::string> words() {
    return {"RUNLIST_",
            "RUNLIST_MEMORY=",
            "CUDA_DEVICE_MEMORY_LIMIT_",
            "_16=",
            "_00=",
            "LIMIT_99999999999=",
            "=",
            "\n",
            "max",
            "none",
            "%",
            "GiB",
            "0x",
            "-",
            "18446744073709551616",
            "99999999999999E",
            ".",
            "0.0000000000000000001",
            std::string(64, '9')};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line.substr(0, line.find('\0')));
    std::vector<const char*> environment;
    for (const std::string& line : lines) environment.push_back(line.c_str());
    environment.push_back(nullptr);
    Options options;
    Complaints complaints;
    read(environment.data(), options, complaints);
    require_sound(options, complaints);
    for (const std::string& line : lines) {
        const std::size_t equals = line.find('=');
        const char* value = equals == std::string::npos ? line.c_str() : line.c_str() + equals + 1;
        if (const auto bytes = parse_size(value)) REQUIRE(*bytes > 0);
        if (const auto cap = parse_percent(value)) require_cap(*cap);
        parse_switch(value);
        if (const auto number = parse_number(value, 16)) REQUIRE(*number >= 0 && *number < 16);
    }
    return 0;
}

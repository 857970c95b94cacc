#include "environment/options.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "protocol/environment.autogen.hpp"

namespace runlist::environment {
namespace {

constexpr int kLevels = 5;
constexpr int kOperationClients = 16;
constexpr int kLongestBoundMs = 1'000'000;

// Values as they were found, before it is decided which of them hold.
struct Found {
    std::optional<std::uint64_t> memory, hami_memory, cap, hami_cap;
    std::optional<std::uint64_t> device_memory[kDevices], device_cap[kDevices];
    std::optional<bool> disabled, hami_disabled, strict, uncapped;
    std::optional<int> level, orion_level;
    const char* region = nullptr;
    const char* shared_cache = nullptr;
    const char* operations = nullptr;
    std::optional<int> operations_client, operations_bound_ms;
};

using Outcome = std::optional<Bad>;

template <typename Value>
std::optional<Value>& place_of(std::optional<Value>& one, int) {
    return one;
}

template <typename Value>
std::optional<Value>& place_of(std::optional<Value> (&each)[kDevices], int index) {
    return each[index];
}

// Takes a value the first time that it is well-formed.
template <auto parse, Bad bad, auto member>
Outcome take(Found& found, int index, const char* value) {
    const auto parsed = parse(value);
    if (!parsed) return bad;
    auto& place = place_of(found.*member, index);
    if (!place) place = *parsed;
    return std::nullopt;
}

template <auto member>
constexpr auto size = take<parse_size, Bad::kSize, member>;
template <auto member>
constexpr auto percent = take<parse_percent, Bad::kPercent, member>;
template <auto member>
constexpr auto flag = take<parse_switch, Bad::kSwitch, member>;

std::optional<int> parse_level(const char* text) { return parse_number(text, kLevels); }

template <auto member>
Outcome path(Found& found, int, const char* value) {
    if (std::strlen(value) >= kPathBytes || *value != '/') return Bad::kPath;
    if (found.*member == nullptr) found.*member = value;
    return std::nullopt;
}

Outcome operations(Found& found, int, const char* value) {
    if (std::string_view{value} != names::kOperationsThreads && (std::strlen(value) >= kPathBytes || *value != '/')) {
        return Bad::kOperations;
    }
    if (found.operations == nullptr) found.operations = value;
    return std::nullopt;
}

std::optional<int> parse_client(const char* text) { return parse_number(text, kOperationClients); }
std::optional<int> parse_bound(const char* text) { return parse_number(text, kLongestBoundMs); }

Outcome policy(Found& found, int, const char* value) {
    const std::string_view name{value};
    const auto* end = std::end(names::kCapPolicies);
    if (std::find(std::begin(names::kCapPolicies), end, name) == end) return Bad::kPolicy;
    if (!found.uncapped) found.uncapped = name == names::kCapPolicyOff;
    return std::nullopt;
}

Outcome unsupported(Found&, int, const char* value) {
    const auto wanted = parse_switch(value);
    if (!wanted) return Bad::kSwitch;
    return *wanted ? Outcome{Bad::kUnsupported} : std::nullopt;
}

struct Variable {
    std::string_view name;
    bool indexed;  // NAME_N, for one GPU
    Outcome (*take)(Found& found, int index, const char* value);
};

constexpr Variable kVariables[] = {
    {names::kDisable, false, flag<&Found::disabled>},
    {names::kStrict, false, flag<&Found::strict>},
    {names::kRegion, false, path<&Found::region>},
    {names::kMemory, false, size<&Found::memory>},
    {names::kCap, false, percent<&Found::cap>},
    {names::kHamiDisable, false, flag<&Found::hami_disabled>},
    {names::kHamiRegion, false, path<&Found::shared_cache>},
    {names::kHamiMemory, false, size<&Found::hami_memory>},
    {names::kHamiMemory, true, size<&Found::device_memory>},
    {names::kHamiCap, false, percent<&Found::hami_cap>},
    {names::kHamiCap, true, percent<&Found::device_cap>},
    {names::kHamiCapPolicy, false, policy},
    {names::kHamiLogLevel, false, take<parse_level, Bad::kLevel, &Found::level>},
    {names::kOrionLogLevel, false, take<parse_level, Bad::kLevel, &Found::orion_level>},
    {names::kHamiOversubscribe, false, unsupported},
    {names::kHamiOomKiller, false, unsupported},
    {names::kOperations, false, operations},
    {names::kOperationsClient, false, take<parse_client, Bad::kClient, &Found::operations_client>},
    {names::kOperationsBound, false, take<parse_bound, Bad::kBound, &Found::operations_bound_ms>},
};

constexpr std::string_view kPrefixes[] = {"RUNLIST_", "CUDA_D", "CUDA_O", "GPU_CORE_", "LIBCUDA_", "ACTIVE_", "ORION_"};

bool may_be_ours(std::string_view entry) {
    return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                       [entry](std::string_view prefix) { return entry.starts_with(prefix); });
}

// Whether NAME or NAME_N is that variable. `index` stays empty for an N that is no GPU's place.
bool matches(const Variable& variable, std::string_view name, std::optional<int>& index) {
    if (!variable.indexed) return name == variable.name;
    if (!name.starts_with(variable.name) || name.size() < variable.name.size() + 2) return false;
    name.remove_prefix(variable.name.size());
    if (name[0] != '_' || name[1] < '0' || name[1] > '9') return false;
    char digits[8] = {};
    if (name.size() - 1 < sizeof(digits)) name.copy(digits, name.size() - 1, 1);
    index = parse_number(digits, kDevices);
    return true;
}

void take_entry(const char* entry, Found& found, Complaints& complaints) {
    const char* equals = std::strchr(entry, '=');
    if (equals == nullptr || equals[1] == '\0') return;  // an empty value is none
    const std::string_view name(entry, static_cast<std::size_t>(equals - entry));
    for (const Variable& variable : kVariables) {
        std::optional<int> index;
        if (!matches(variable, name, index)) continue;
        const Outcome bad =
            variable.indexed && !index ? Bad::kIndex : variable.take(found, index.value_or(0), equals + 1);
        if (bad) complaints.add({entry, name.size(), *bad});
    }
}

}  // namespace

bool Options::has_caps() const {
    const auto has_cap = [](const DeviceLimits& one) { return one.cap.value_or(kNone) != kNone; };
    return cap != kNone || std::any_of(std::begin(device), std::end(device), has_cap);
}

bool Options::has_limits() const {
    const auto has_memory = [](const DeviceLimits& one) { return one.memory.value_or(kNone) != kNone; };
    return has_caps() || memory != kNone || std::any_of(std::begin(device), std::end(device), has_memory);
}

const char* describe(Bad bad) {
    switch (bad) {
        case Bad::kSize:
            return "is no size: write 8G, 512M, 1.5GiB or a number of bytes; 0 or max for no limit";
        case Bad::kPercent:
            return "is no percentage: write 30 or 30%; 0, 100 or max for no cap";
        case Bad::kSwitch:
            return "is neither true nor false: write 1 or 0";
        case Bad::kIndex:
            return "names no GPU: they are counted from 0 to 15";
        case Bad::kLevel:
            return "is no level: write a number from 0 to 4";
        case Bad::kPath:
            return "is no path: it begins with / and is shorter than 4096 bytes";
        case Bad::kPolicy:
            return "is no policy: write default, force or disable";
        case Bad::kOperations:
            return "is neither threads nor the path of a page";
        case Bad::kClient:
            return "is no client: they are counted from 0 to 15";
        case Bad::kBound:
            return "is no number of milliseconds below 1000000";
        case Bad::kUnsupported:
            return "is not supported: device memory beyond the limit is refused";
    }
    return "is malformed";
}

bool is_about_limits(Bad bad) {
    return bad == Bad::kSize || bad == Bad::kPercent || bad == Bad::kIndex || bad == Bad::kPath;
}

void read(const char* const* environment, Options& options, Complaints& complaints) {
    Found found;
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        if (may_be_ours(*environment)) take_entry(*environment, found, complaints);
    }
    options.disabled = found.disabled.value_or(found.hami_disabled.value_or(false));
    options.strict = found.strict.value_or(false);
    options.say_level = std::clamp(found.level.value_or(found.orion_level.value_or(2) - 1), 0, 1);  // 1: errors alone
    options.memory = found.memory.value_or(found.hami_memory.value_or(kNone));
    const bool uncapped = found.uncapped.value_or(false);
    options.cap = found.cap.value_or(uncapped ? kNone : found.hami_cap.value_or(kNone));
    for (int index = 0; index < kDevices; ++index) {
        DeviceLimits& device = options.device[index];
        if (!found.memory) device.memory = found.device_memory[index];
        if (!found.cap && !uncapped) device.cap = found.device_cap[index];
    }
    options.makes_region = found.region == nullptr && found.shared_cache != nullptr;
    if (const char* region = found.region != nullptr ? found.region : found.shared_cache) {
        std::memcpy(options.region, region, std::strlen(region) + 1);
    }
    if (found.operations != nullptr)
        std::memcpy(options.operations, found.operations, std::strlen(found.operations) + 1);
    options.operations_client = found.operations_client.value_or(0);
    constexpr std::int64_t kMillisecond = 1'000'000;
    if (found.operations_bound_ms) options.operations_bound_ns = *found.operations_bound_ms * kMillisecond;
    options.expects_limits = found.strict.has_value() || options.has_limits();
}

}  // namespace runlist::environment

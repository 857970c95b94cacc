// Any bytes as a region's file: refused, or used without harm.
#include <cstring>
#include <fstream>
#include <iterator>

#include "cap/clock.hpp"
#include "checks/check.hpp"
#include "checks/fuzz.hpp"
#include "core/guest.hpp"
#include "core/say.hpp"
#include "region/quota.hpp"
#include "region/slots.hpp"

namespace {

using runlist::region::Fault;
using runlist::region::Region;

constexpr std::uint64_t kPiece = 2 << 20;

const runlist::checks::Folder& folder() {
    static const runlist::checks::Folder one;
    return one;
}

void use(const Region& region) {
    const std::uint8_t uuid[16] = {7, 7};
    const std::uint8_t zeros[16] = {};
    runlist::set_say_level(-1);  // that a region is full is no news here
    runlist::region::Quota quota;
    quota.start(region);
    const int device = region.device_index(uuid);
    REQUIRE(device >= -1 && device < static_cast<int>(runlist::region::kDevices));
    if (device >= 0) region.limit(device, {.memory = 50 * kPiece, .cap = 2'000});
    REQUIRE(region.device_index(zeros) >= -1);
    for (const int index : {device, 0, 15, -1, 16}) {
        const bool charged = quota.charge(index, kPiece);
        const std::uint64_t limit = quota.limit(index);
        if (charged) {
            quota.settle(index, kPiece, kPiece, false);
            quota.refund(index, kPiece, false);
        }
        REQUIRE(charged || limit != runlist::region::kNoLimit || quota.own_slot() == nullptr || index < 0 ||
                index > 15);
        quota.used(index);
        quota.used_by(index, 1);
    }
    quota.enforce(runlist::region::kMemory);
    runlist::region::reap(region);
    REQUIRE(runlist::region::slots_used(region) <= static_cast<int>(runlist::region::kSlots));
    runlist::cap::Clock clock(region.device(0).next_turn);
    REQUIRE(clock.take(runlist::monotonic_ns(), 0, kPiece) <= runlist::cap::Clock::kAheadNs);
}

}  // namespace

std::vector<std::string> seeds() {
    const Region region = folder().region({.memory = 100 * kPiece, .cap = 3'000, .strict = true});
    const std::string path = folder().at("region");
    const std::uint8_t uuid[16] = {7, 7};
    region.device_index(uuid);
    std::ifstream file(path, std::ios::binary);
    const std::string fresh{std::istreambuf_iterator<char>(file), {}};
    runlist::region::Slot* slots = &region.slot(0);
    for (int index = 0; index < 8; ++index) {
        const auto state = static_cast<runlist::region::SlotState>(index % 4);
        slots[index].identity.store(runlist::region::identity(index * 1'000 + 1, state));
        slots[index].start_time.store(static_cast<std::uint64_t>(index));
        slots[index].use[0].held.store(kPiece * static_cast<std::uint64_t>(index));
        slots[index].use[0].asking.store(kPiece);
    }
    region.header().slots_used.store(8);
    std::ifstream again(path, std::ios::binary);
    return {fresh, {std::istreambuf_iterator<char>(again), {}}};
}

std::vector<std::string> words() { return {std::string(8, '\0'), std::string(64, '\xff'), "RLREGION"}; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string path = folder().at("input");
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size));
    ::close(file);
    Region region;
    const Fault fault = Region::open(path.c_str(), region);
    REQUIRE((fault == Fault::kNone) == region.valid());
    REQUIRE(*runlist::region::describe(fault) != '\0');
    if (fault != Fault::kNone) return 0;
    REQUIRE(size == runlist::region::kFileBytes);
    use(region);
    ::close(region.fd());
    ::munmap(&region.header(), runlist::region::kFileBytes);
    return 0;
}

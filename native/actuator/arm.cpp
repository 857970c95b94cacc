#include "actuator/arm.hpp"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/guest.hpp"

namespace runlist::actuator {
namespace {

const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

std::uint64_t now_ns() { return static_cast<std::uint64_t>(monotonic_ns()); }

// Takes structures from the front of a message.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

    template <typename Type>
    bool take(Type& into) {
        if (rest_.size() < sizeof into) return false;
        std::memcpy(&into, rest_.data(), sizeof into);
        rest_ = rest_.subspan(sizeof into);
        return true;
    }

    bool take(std::vector<std::byte>& into, std::size_t size) {
        if (rest_.size() < size) return false;
        into.assign(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(size));
        rest_ = rest_.subspan(size);
        return true;
    }

    bool take(std::vector<Prepared>& into, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) {
            Prepared one{};
            if (!take(one.head) || one.head.argument_bytes > kMaxBytes || one.head.params_bytes > kMaxBytes)
                return false;
            if (!take(one.bytes, one.head.argument_bytes + one.head.params_bytes) || !one.sound()) return false;
            into.push_back(std::move(one));
        }
        return true;
    }

    bool done() const { return rest_.empty(); }

  private:
    std::span<const std::byte> rest_;
};

}  // namespace

Watched::Watched(Descriptor file, std::uint64_t at) : file_(std::move(file)), at_(at), offset_(at % kPage) {
    void* page = MAP_FAILED;
    if (at % sizeof(std::uint32_t) == 0)
        page = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file_.get(), static_cast<off_t>(at - offset_));
    if (page != MAP_FAILED) page_ = page;
}

Watched::Watched(Watched&& other) noexcept
    : seen(other.seen),
      disturbances(other.disturbances),
      file_(std::move(other.file_)),
      at_(other.at_),
      page_(std::exchange(other.page_, nullptr)),
      offset_(other.offset_),
      dropped_(other.dropped_) {}

Watched::~Watched() { drop(); }

std::optional<std::uint32_t> Watched::read() const {
    std::uint32_t value = 0;
    if (page_ == nullptr) return std::nullopt;
    const iovec ours{.iov_base = &value, .iov_len = sizeof value};
    const iovec theirs{.iov_base = const_cast<void*>(address()), .iov_len = sizeof value};
    if (::process_vm_readv(::getpid(), &ours, 1, &theirs, 1, 0) == sizeof value) return value;
    if (errno != ENOSYS && errno != EPERM) return std::nullopt;
    if (::pread(file_.get(), &value, sizeof value, static_cast<off_t>(at_)) != sizeof value) return std::nullopt;
    return value;
}

void Watched::drop() {
    if (page_ != nullptr) ::munmap(page_, kPage);
    page_ = nullptr;
    file_ = Descriptor();
    dropped_ = true;
}

std::vector<Result> Arm::fire() {
    fired = true;
    std::vector<Result> results;
    const std::uint64_t woke_ns = now_ns();
    for (Suspended& target : targets) {
        Result result{.woke_ns = woke_ns, .began_ns = now_ns()};
        for (Prepared& step : target.off) {
            const Outcome outcome = step.send(target.file.get());
            if (outcome.done()) continue;
            result.error = outcome.error;
            result.status = outcome.status;
            break;
        }
        result.ended_ns = now_ns();
        results.push_back(result);
    }
    words.clear();
    return results;
}

void Arm::undo() {
    for (Suspended& target : targets)
        for (Prepared& step : target.on) step.send(target.file.get());  // one that fails keeps no other from it
}

std::optional<Arm> read_arm(std::span<const std::byte> message, std::vector<Descriptor>& descriptors) {
    Reader reader(message);
    Message head{};
    if (!reader.take(head) || head.words > kMaxWords || head.targets > kMaxTargets) return std::nullopt;
    if (descriptors.size() != head.words + head.targets) return std::nullopt;
    Arm arm;
    arm.id = head.id;
    for (std::uint32_t i = 0; i < head.words; ++i) {
        Word word{};
        if (!reader.take(word)) return std::nullopt;
        arm.words.emplace_back(std::move(descriptors[i]), word.at);
    }
    for (std::uint32_t i = 0; i < head.targets; ++i) {
        Target target{};
        Suspended one;
        one.file = std::move(descriptors[head.words + i]);
        if (!reader.take(target) || !reader.take(one.off, target.off_steps) || !reader.take(one.on, target.on_steps))
            return std::nullopt;
        arm.targets.push_back(std::move(one));
    }
    if (!reader.done()) return std::nullopt;
    return arm;
}

}  // namespace runlist::actuator

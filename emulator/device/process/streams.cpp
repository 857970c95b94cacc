#include "device/process/streams.hpp"

#include <cuda.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "model/timing.hpp"

namespace emulator {
namespace {

constexpr std::size_t kMaxPending = 4 * wire::kStreamDepth;
constexpr std::uint32_t kComputeChannels = 8;
constexpr std::uint64_t kMaxFill = 1ULL << 40;  // elements

}  // namespace

bool Streams::open(const wire::Request& request, std::uint32_t gpu, GroupId group, int priority) {
    if (request.stream >= wire::kStreamSlots || streams_.contains(request.stream)) return false;
    const QueueId queue = gpus_[gpu].runlist.add_queue(group, priority, request.stream % kComputeChannels);
    streams_[request.stream] = {.context = request.context, .gpu = gpu, .queue = queue};
    queues_[{gpu, queue}] = request.stream;
    return true;
}

bool Streams::close(std::uint32_t slot, Time now) {
    const auto it = streams_.find(slot);
    if (it == streams_.end()) return false;
    const std::deque<Pending>& operations = it->second.operations;
    if (!operations.empty()) page_->streams[slot].completed = operations.back().request.sequence;
    drop(slot, now);
    wake(slot);
    return true;
}

void Streams::close_context(std::uint32_t context, Time now) {
    std::vector<std::uint32_t> gone;
    for (const auto& [slot, stream] : streams_)
        if (stream.context == context) gone.push_back(slot);
    for (const std::uint32_t slot : gone) close(slot, now);
}

void Streams::end(Time now) {
    while (!streams_.empty()) drop(streams_.begin()->first, now);
}

void Streams::drop(std::uint32_t slot, Time now) {
    const auto it = streams_.find(slot);
    const std::deque<Pending> left = std::move(it->second.operations);
    it->second.operations.clear();
    Gpu& gpu = gpus_[it->second.gpu];
    for (CopyEngine& engine : gpu.engines) engine.cancel(it->second.key());
    gpu.runlist.remove_queue(now, it->second.queue);
    queues_.erase({it->second.gpu, it->second.queue});
    streams_.erase(it);
    notify_dependents(slot, now);
    for (const Pending& one : left) {
        if (!one.event) continue;
        one.event->forget(*this, slot);
        if (one.request.operation == wire::Operation::kRecord) one.event->done(one.record, now);
    }
}

void Streams::submit(const wire::Request& request, Time now, const std::shared_ptr<SharedEvent>& event) {
    const auto it = streams_.find(request.stream);
    if (it == streams_.end()) return;
    Stream& stream = it->second;
    const std::uint64_t last =
        stream.operations.empty() ? completed(request.stream) : stream.operations.back().request.sequence;
    if (request.sequence != last + 1 || stream.operations.size() >= kMaxPending) {
        broken_ = true;
        return;
    }
    Pending pending{request, std::nullopt, {}, event};
    if (event) {
        const bool records = request.operation == wire::Operation::kRecord;
        pending.record = records ? event->queue(*this, request.stream, request.sequence) : event->last();
    }
    if (request.operation == wire::Operation::kKernel) {
        pending.run = KernelRun::make(request.launch);
        if (pending.run) {
            pending.work = pending.run->work();
            pending.work.order = gpus_[stream.gpu].launches++;
        }
        if (!pending.run) fail(stream.context, CUDA_ERROR_LAUNCH_FAILED);
    }
    stream.operations.push_back(std::move(pending));
    pump(request.stream, std::min(request.arrival, now));
}

void Streams::watch(const wire::Request& request) {
    const auto it = streams_.find(request.stream);
    if (it == streams_.end()) return;
    const std::deque<Pending>& operations = it->second.operations;
    if (!operations.empty())
        it->second.watched =
            std::max(it->second.watched, std::min(request.sequence, operations.back().request.sequence));
    if (completed(request.stream) >= request.sequence) wake(request.stream);
}

void Streams::host_done(const wire::Request& request, Time now) {
    const auto it = streams_.find(request.stream);
    if (it == streams_.end() || !it->second.started || it->second.operations.empty()) return;
    const wire::Request& head = it->second.operations.front().request;
    if (head.operation == wire::Operation::kHost && head.sequence == request.sequence) finish_head(request.stream, now);
}

// Starts what can start at the head of a stream.
void Streams::pump(std::uint32_t slot, Time at) {
    for (auto it = streams_.find(slot); it != streams_.end() && !it->second.started && !it->second.operations.empty();
         it = streams_.find(slot)) {
        it->second.started = true;
        if (!start(slot, at)) return;
        finish_head(slot, at);
        return;  // finish_head goes on with the next
    }
}

// Starts the head. True when it is done at once.
bool Streams::start(std::uint32_t slot, Time at) {
    Stream& stream = streams_.at(slot);
    Pending& head = stream.operations.front();
    if (head.request.operation == wire::Operation::kHost) return false;
    const bool waits =
        head.request.operation == wire::Operation::kDepend || head.request.operation == wire::Operation::kAwait;
    if (!sound(stream.context) && !waits && !head.event) return true;
    switch (head.request.operation) {
        case wire::Operation::kKernel:
            stream.holding_since = 0;
            gpus_[stream.gpu].runlist.submit(at, stream.queue, head.work);
            return false;
        case wire::Operation::kCopy:
        case wire::Operation::kFill:
            start_copy(slot, at);
            return false;
        case wire::Operation::kDepend: {
            const wire::Depend& depend = head.request.depend;
            if (depend.stream >= wire::kStreamSlots || completed(depend.stream) >= depend.sequence ||
                !streams_.contains(depend.stream))
                return true;
            dependents_[depend.stream].push_back(slot);
            return false;
        }
        case wire::Operation::kAwait:
            if (!head.event || head.event->has_happened(head.record)) return true;
            head.event->await(*this, slot);
            return false;
        case wire::Operation::kRecord:
            if (head.event) {
                const std::shared_ptr<SharedEvent> event = head.event;
                event->done(head.record, at);
                return true;
            }
            if (head.request.record.event < wire::kEventSlots) page_->event_time[head.request.record.event] = at;
            return true;
        case wire::Operation::kHost:
            return false;
    }
    broken_ = true;
    return true;
}

void Streams::start_copy(std::uint32_t slot, Time at) {
    Stream& stream = streams_.at(slot);
    const wire::Request& request = stream.operations.front().request;
    const auto on_device = [](std::uint64_t address) { return address >= wire::kDeviceAddressBase; };
    CopyDirection direction = CopyDirection::kOnDevice;
    double bytes = 0;
    if (request.operation == wire::Operation::kFill) {
        bytes = static_cast<double>(request.fill.count) * request.fill.width;
    } else {
        bytes = static_cast<double>(request.copy.bytes);
        if (!on_device(request.copy.source))
            direction = CopyDirection::kToDevice;
        else if (!on_device(request.copy.destination))
            direction = CopyDirection::kToHost;
    }
    const double rate = direction == CopyDirection::kOnDevice ? timing::kDeviceBytesPerNs : timing::kLinkBytesPerNs;
    gpus_[stream.gpu].engines[static_cast<std::size_t>(direction)].submit(
        at, stream.key(), timing::kCopyLatency + static_cast<Time>(std::min(bytes / rate, 1e15)),
        [this, slot](Time end) {
            move_data(streams_.at(slot).operations.front().request);
            finish_head(slot, end);
        });
}

void Streams::move_data(const wire::Request& request) {
    const std::uint32_t context = streams_.at(request.stream).context;
    if (request.operation == wire::Operation::kCopy) {
        std::byte* to = memory_.find(request.copy.destination, request.copy.bytes);
        const std::byte* from = memory_.find(request.copy.source, request.copy.bytes);
        if (!to || !from) return fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        std::memmove(to, from, request.copy.bytes);
        return;
    }
    const wire::Fill& fill = request.fill;
    const bool known = fill.width == 1 || fill.width == 2 || fill.width == 4;
    if (!known || fill.count > kMaxFill) return fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    std::byte* to = memory_.find(fill.destination, fill.count * fill.width);
    if (!to) return fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (fill.width == 1) std::memset(to, static_cast<int>(fill.value & 0xFF), fill.count);
    if (fill.width == 2)
        std::fill_n(reinterpret_cast<std::uint16_t*>(to), fill.count, static_cast<std::uint16_t>(fill.value));
    if (fill.width == 4) std::fill_n(reinterpret_cast<std::uint32_t*>(to), fill.count, fill.value);
}

void Streams::on_progress(std::uint32_t gpu, QueueId queue, double fraction) {
    const auto it = queues_.find({gpu, queue});
    if (it == queues_.end()) return;
    Stream& stream = streams_.at(it->second);
    if (!stream.operations.front().run->run_to(fraction, memory_)) fail(stream.context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

void Streams::on_complete(std::uint32_t gpu, QueueId queue, Time at) {
    const auto it = queues_.find({gpu, queue});
    if (it == queues_.end()) return;
    on_progress(gpu, queue, 1.0);
    finish_head(it->second, at);
}

void Streams::finish_head(std::uint32_t slot, Time at) {
    Stream& stream = streams_.at(slot);
    const std::uint64_t sequence = stream.operations.front().request.sequence;
    stream.operations.pop_front();
    stream.started = false;
    page_->streams[slot].completed.store(sequence, std::memory_order_release);
    if (stream.watched >= sequence ||
        (!stream.operations.empty() && stream.operations.front().request.operation == wire::Operation::kHost))
        wake(slot);
    notify_dependents(slot, at);
    pump(slot, at);
}

void Streams::notify_dependents(std::uint32_t slot, Time at) {
    const auto it = dependents_.find(slot);
    if (it == dependents_.end()) return;
    const std::vector<std::uint32_t> waiting = std::exchange(it->second, {});
    dependents_.erase(it);
    for (const std::uint32_t other : waiting) {
        const auto stream = streams_.find(other);
        if (stream == streams_.end() || stream->second.operations.empty()) continue;
        const wire::Request& head = stream->second.operations.front().request;
        if (head.operation != wire::Operation::kDepend || head.depend.stream != slot) continue;
        if (completed(slot) >= head.depend.sequence || !streams_.contains(slot))
            finish_head(other, at);
        else
            dependents_[slot].push_back(other);
    }
}

void Streams::look_again(std::uint32_t slot, Time at) {
    const auto stream = streams_.find(slot);
    if (stream == streams_.end() || stream->second.operations.empty()) return;
    const Pending& head = stream->second.operations.front();
    if (head.request.operation != wire::Operation::kAwait || !stream->second.started) return;
    if (head.event->has_happened(head.record))
        finish_head(slot, at);
    else
        head.event->await(*this, slot);
}

Time Streams::end_of(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const {
    return deadline(slot, sequence, now, depth + 1);
}

void Streams::wake(std::uint32_t slot) {
    std::atomic<std::uint32_t>& word = page_->streams[slot].wake;
    word.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Streams::fail(std::uint32_t context, std::uint32_t result) {
    if (context >= wire::kContextSlots) return;
    std::uint32_t none = CUDA_SUCCESS;
    page_->context_error[context].compare_exchange_strong(none, result);
}

bool Streams::sound(std::uint32_t context) const { return page_->context_error[context] == CUDA_SUCCESS; }

std::uint64_t Streams::completed(std::uint32_t slot) const {
    return page_->streams[slot].completed.load(std::memory_order_relaxed);
}

// A time before which operation `sequence` of a stream cannot have ended.
Time Streams::deadline(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const {
    const auto it = streams_.find(slot);
    if (it == streams_.end() || it->second.operations.empty() || completed(slot) >= sequence || depth > 8) return now;
    const Stream& stream = it->second;
    const Pending& head = stream.operations.front();
    Time bound = now;
    switch (head.request.operation) {
        case wire::Operation::kKernel:
            bound = gpus_[stream.gpu].runlist.earliest_completion(stream.queue);
            break;
        case wire::Operation::kDepend:
            bound = deadline(head.request.depend.stream, head.request.depend.sequence, now, depth + 1);
            break;
        case wire::Operation::kAwait:
            bound = head.event ? head.event->end_of(head.record, now, depth + 1) : now;
            break;
        case wire::Operation::kHost:
            return kNever;
        default:
            bound = gpus_[stream.gpu].next_event();
    }
    if (bound == kNever) return kNever;
    for (std::size_t i = 1; i < stream.operations.size(); ++i) {
        const Pending& next = stream.operations[i];
        if (next.request.sequence > sequence) break;
        if (next.request.operation == wire::Operation::kHost) return bound;
        bound += next.work.total();
    }
    return bound;
}

Time Streams::next_deadline(Time now) const {
    Time next = kNever;
    for (const auto& [slot, stream] : streams_) {
        if (!stream.operations.empty() && stream.watched > completed(slot)) {
            const Time due = deadline(slot, stream.watched, now, 0);
            page_->streams[slot].expected.store(due, std::memory_order_relaxed);
            next = std::min(next, due);
        }
    }
    return next;
}

void Streams::prepare(Time before, Time now) {
    for (auto& [slot, stream] : streams_) {
        if (stream.operations.empty() || stream.watched <= completed(slot) || stream.woken >= stream.watched) continue;
        if (deadline(slot, stream.watched, now, 0) > before) continue;
        stream.woken = stream.watched;
        wake(slot);
        Pending& head = stream.operations.front();
        if (head.run && stream.started && head.request.sequence == stream.watched && !head.work.holds &&
            !head.run->run_to(1.0, memory_))
            fail(stream.context, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

Time Streams::poll_flags(Time now) {
    constexpr Time kCloseLook = 3 * timing::kMillisecond;  // as long as this, without leaving the processor
    constexpr Time kInterval = 200 * timing::kMicrosecond;
    Time next = kNever;
    std::vector<std::uint32_t> holding;
    for (const auto& [slot, stream] : streams_) {
        if (!stream.started || stream.operations.empty() || !stream.operations.front().work.holds) continue;
        const Time from = gpus_[stream.gpu].runlist.executing_from(stream.queue);
        if (from <= now)
            holding.push_back(slot);
        else
            next = std::min({next, from, gpus_[stream.gpu].runlist.next_event()});
    }
    for (const std::uint32_t slot : holding) {
        Stream& stream = streams_.at(slot);
        if (stream.holding_since == 0) stream.holding_since = now;
        const std::optional<bool> released = stream.operations.front().run->released(memory_);
        if (!released) fail(stream.context, CUDA_ERROR_ILLEGAL_ADDRESS);
        if (released.value_or(true)) {
            gpus_[stream.gpu].runlist.release(now, stream.queue);
            next = now;  // what comes behind it may wait for a flag, too
        } else {
            next = std::min(next, now - stream.holding_since < kCloseLook ? now : now + kInterval);
        }
    }
    return next;
}

}  // namespace emulator

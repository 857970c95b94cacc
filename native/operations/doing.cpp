// One operation of a client: whether it goes now, and its way through the queue.
#include "core/guest.hpp"
#include "core/relaxed.hpp"
#include "operations/engine.hpp"
#include "operations/patience.hpp"

namespace runlist::operations {
namespace {

std::uint64_t pending_word(int client, std::uint64_t number) {
    return static_cast<std::uint64_t>(client) << 56 | number;
}

void* reserve_for(Engine& all, Client& client, std::size_t bytes) {
    Patience patience(client.queue, 2 * all.bound_ns);
    for (;;) {
        if (void* place = client.queue.reserve(bytes)) return place;
        if (bytes > Queue::kMost / 2 || patience.is_over() || all.stopping.load()) return nullptr;
        pause_ns(50'000);
    }
}

// Whether there is room to know that what the client queues next records an event.
bool knows_event(Engine& all, const Client& client, CUevent event) {
    const std::uint64_t word = pending_word(client.index, client.queue.written() + 1);
    const Held held(all.eventing);
    auto* place = all.events.add(
        event, [](auto&) {},
        [&](const auto& other) {
            const std::uint64_t there = other.load(kRelaxed);
            return all.all[there >> 56 & 15].queue.done() >= (there & ((std::uint64_t{1} << 56) - 1));
        });
    if (place != nullptr) place->store(word, std::memory_order_release);
    return place != nullptr;
}

bool fails_without_context(Kind kind) { return kind == Kind::kKernel || kind == Kind::kCopy || kind == Kind::kFill; }

}  // namespace

Doing::Doing(const Call& made, Client& client, const Calls& calls, Kind kind, CUstream stream, bool per_thread,
             CUfunction function)
    : made_(made),
      client_(client),
      work_{.calls = &calls, .kind = kind, .handle = stream, .per_thread = per_thread, .function = function} {
    Engine& all = here();
    work_.stream = entry_of(all, client, calls, stream, kNobody);
    if (function != nullptr) work_.cost = all.kernels.cost_of(calls, function);
    if (all.logging.load(kRelaxed)) work_.called_ns = monotonic_ns();
    if (client.began_ns.load(kRelaxed) == 0) client.began_ns.store(monotonic_ns(), kRelaxed);
    if (per_thread) use_per_thread(client);
    // Another client has work queued for this stream: whoever gave it first goes first.
    if (work_.stream != nullptr && work_.stream->pending.load(std::memory_order_acquire) != 0) {
        const int other = work_.stream->queued_by.load(kRelaxed) & 15;
        if (other != client.index) wait_until_done(all.all[other], all.all[other].queue.written(), true);
    }
    gives(all, work_.stream, per_thread);
}

bool Doing::goes_now() {
    if (client_.index == 0) return true;
    if (client_.queue.is_empty() && admitted(here(), client_, work_.kind, work_.cost)) return true;
    if (work_.called_ns == 0) work_.called_ns = monotonic_ns();
    // It is called later as it is now, also in a thread without a context, such as one that runs host functions.
    work_.calls->cuCtxGetCurrent(&context_);
    // But a green one is current to one thread alone: its stream can be given work by the whole one as well.
    if (work_.stream != nullptr && context_ == work_.stream->part) context_ = work_.stream->context;
    return context_ == nullptr && fails_without_context(work_.kind);
}

Record* Doing::reserve(std::size_t bytes, CUevent event) {
    Engine& all = here();
    client_.writing.lock();  // who stops the scheduler takes it, too
    void* place = !all.closed.load() && made_.is_of_now() ? reserve_for(all, client_, sizeof(Record) + bytes) : nullptr;
    auto* record = static_cast<Record*>(place);
    if (record == nullptr || (event != nullptr && !knows_event(all, client_, event))) {
        client_.writing.unlock();
        return nullptr;
    }
    *record = {.context = context_, .work = work_};
    return record;
}

void Doing::commit() {
    if (work_.stream != nullptr) {
        work_.stream->queued_by.store(client_.index, kRelaxed);
        work_.stream->pending.fetch_add(1, std::memory_order_acq_rel);
    }
    client_.queue.commit();
    client_.writing.unlock();
    wake();
}

void Doing::wait_for_turn() {
    Record* record = reserve(0, nullptr);
    if (record == nullptr) {
        if (here().closed.load() || !made_.is_of_now()) wait_until_done(client_, client_.queue.written(), true);
        return;
    }
    record->work.stream = nullptr;
    record->work.function = nullptr;
    const std::uint64_t number = client_.queue.commit();
    client_.writing.unlock();
    wake();
    client_.flushed.fetch_add(1, kRelaxed);
    wait_until_done(client_, number, false);
}

void Doing::begin() {
    Engine& all = here();
    if (!made_.is_of_now()) work_.stream = nullptr;  // it may be another one's entry by now
    if (client_.index == 0) {
        all.page->first.works(work_.cost);
        if (work_.per_thread) all.first_per_thread.store(1, std::memory_order_release);
        if (work_.stream != nullptr && !work_.stream->of_first.load(kRelaxed)) work_.stream->of_first.store(true);
    }
    if (work_.per_thread) order_per_thread(client_, *work_.calls);
    order(client_, work_.stream, *work_.calls);
}

void Doing::end(CUresult result) {
    Engine& all = here();
    gave(client_, work_.stream);
    if (client_.index == 0) {
        if (work_.per_thread && result == CUDA_SUCCESS) follow_first(*work_.calls);
        all.page->first.works(work_.cost);  // it may have been asked between the two
    } else if (result == CUDA_SUCCESS) {
        meter(all, client_, work_);
    }
    client_.has_launched(work_.cost);
    if (all.logging.load(kRelaxed) && result == CUDA_SUCCESS) note(all, client_, work_, monotonic_ns());
}

// In the dispatcher.
void run_record(Engine& all, Client& client, Record& record, std::int64_t now) {
    if (record.run == nullptr) return;  // the thread that waits for it does the rest
    order(client, record.work.stream, *record.work.calls);
    const CUresult result = record.run(record);
    gave(client, record.work.stream);
    if (result == CUDA_SUCCESS) {
        meter(all, client, record.work);
    } else {
        int none = 0;
        client.error.compare_exchange_strong(none, static_cast<int>(result));
    }
    const auto waited_ns = static_cast<std::uint64_t>(now - record.work.called_ns);
    client.has_launched(record.work.cost);
    client.deferred.fetch_add(1, kRelaxed);
    client.waited_ns.fetch_add(waited_ns, kRelaxed);
    client.lately.add_wait(waited_ns);
    if (all.logging.load(kRelaxed) && result == CUDA_SUCCESS) note(all, client, record.work, now);
    if (record.work.stream != nullptr) record.work.stream->pending.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace runlist::operations

// Makes programs: what clients do, by luck, in an order that has one right result.
#include <algorithm>

#include "ordered.hpp"

namespace operations {
namespace {

class Generator : Ordered {
  public:
    // A gate that is closed holds up an event of the whole context, and that whoever waits for it.
    Generator(std::uint64_t seed, int clients, bool helpers, bool events)
        : Ordered(seed, clients, helpers), events_of_contexts_(chance(25)), events_in_graphs_(events) {}

    Program make(int steps) {
        const int most = steps > 0 ? steps : pick(10, 60) * static_cast<int>(clients_.size());
        for (int i = 0; i < most; ++i) step(clients_[upto(clients_.size())]);
        for (Client& client : clients_)
            if (client.closed) open(client);
        for (std::size_t i = 0; i < program_.buffers.size(); ++i) program_.alive.push_back(alive_[i]);
        program_.contents = contents_;
        return std::move(program_);
    }

  private:
    // --- what clients do
    std::vector<int> buffers_where(const Client& client, bool device, bool pinned, bool pageable) {
        std::vector<int> found;
        for (const int index : client.buffers) {
            if (!alive_[static_cast<std::size_t>(index)]) continue;
            if ((device && on_device(index)) || (pinned && is(index, Place::kPinned)) ||
                (pageable && is(index, Place::kPageable)))
                found.push_back(index);
        }
        return found;
    }

    Work some_work(const Client& client, bool pageable, bool host) {
        Work work;
        work.kind = static_cast<Kind>(pick(0, host ? 4 : 3));
        work.count = chance(20) ? kWords : static_cast<std::uint32_t>(pick(1, kWords));
        work.to_at = static_cast<std::uint32_t>(pick(0, static_cast<int>(kWords - work.count)));
        work.from_at = static_cast<std::uint32_t>(pick(0, static_cast<int>(kWords - work.count)));
        work.value = static_cast<std::uint32_t>(draw());
        switch (work.kind) {
            case Kind::kAdvance:
                work.value = static_cast<std::uint32_t>(chance(5) ? pick(1000, 20000) : pick(1, 8));
                [[fallthrough]];
            case Kind::kFillKernel:
                work.to = one_of(buffers_where(client, true, false, false));
                break;
            case Kind::kSet:
                work.to = one_of(buffers_where(client, true, false, false));
                work.width = 1U << pick(0, 2);
                break;
            case Kind::kCopy:
                if (chance(50)) {
                    work.to = one_of(buffers_where(client, true, false, false));
                    work.from = one_of(buffers_where(client, true, true, pageable));
                } else {
                    work.from = one_of(buffers_where(client, true, false, false));
                    work.to = one_of(buffers_where(client, true, true, pageable));
                }
                if (work.to == work.from) work.kind = Kind::kFillKernel, work.from = kNone;
                break;
            case Kind::kHost:
                work.to = one_of(buffers_where(client, false, true, false));
                work.from = one_of(buffers_where(client, false, true, false));
                break;
        }
        return work;
    }

    static std::vector<int> reads_of(const Work& work) {
        return work.from == kNone ? std::vector<int>{} : std::vector<int>{work.from};
    }

    // The streams that are there; while the gate is closed most of the time those behind it.
    int some_stream(const Client& client) {
        for (;;) {
            const int slot = one_of(client.streams);
            if (!helpers_ && stream(slot).helper) continue;
            if (stream_alive_[static_cast<std::size_t>(slot)]) return slot;
        }
    }

    bool work_on(const Client& client, int slot, const Work& work, Do what = Do::kWork) {
        const std::vector<int> reads = reads_of(work);
        const bool now_read = work.from != kNone && is(work.from, Place::kPageable);  // before the call returns
        if (now_read && !order_all(client, client.host, reads, {})) return false;
        if (!order_all(client, slot, reads, {work.to})) return false;
        const std::uint16_t number = enter(client, slot, work.kind != Kind::kHost);
        touched({slot, number}, now_read ? std::vector<int>{} : reads, {work.to});
        tell(client, {.what = what, .stream = slot, .helper = by_helper(slot), .variant = variant(), .work = work});
        if (what == Do::kWorkAtOnce && work.kind == Kind::kCopy && !on_device(work.to))
            clock(client.host).join(clock(slot));
        do_work(work, contents_);
        return true;
    }

    void work(const Client& client) {
        const int slot = some_stream(client);
        const Work work = some_work(client, !client.closed, !client.closed);
        work_on(client, slot, work);
    }

    void work_at_once(const Client& client) {
        const Work work = some_work(client, true, false);
        if (work.kind == Kind::kSet || work.kind == Kind::kCopy)
            work_on(client, client.streams[0], work, Do::kWorkAtOnce);
    }

    void module_work(const Client& client) {
        Work work = some_work(client, false, false);
        work.kind = Kind::kFillKernel;
        if (!on_device(work.to)) return;
        work.from = kNone;
        work_on(client, some_stream(client), work, Do::kModuleWork);
    }

    void host_work(const Client& client) {
        Work work = some_work(client, true, true);
        work.kind = Kind::kHost;
        work.to = one_of(buffers_where(client, false, true, true));
        work.from = one_of(buffers_where(client, false, true, true));
        if (!order_all(client, client.host, reads_of(work), {work.to})) return;
        const std::uint16_t number = ++clock(client.host).seen[static_cast<std::size_t>(client.host)];
        touched({client.host, number}, reads_of(work), {work.to});
        tell(client, {.what = Do::kHostWrite, .work = work});
        do_work(work, contents_);
    }

    void check(const Client& client) {
        const int index = one_of(buffers_where(client, false, true, true));
        if (!order_all(client, client.host, {index}, {})) return;
        tell(client, {.what = Do::kHostCheck, .buffer = index, .expected = contents_[static_cast<std::size_t>(index)]});
    }

    std::vector<int> events_of(const Client& client) {
        std::vector<int> found;
        for (std::size_t i = 0; i < recorded_.size(); ++i)
            if (recorded_[i].owner == client.index && recorded_[i].alive && recorded_[i].stream != kNone &&
                !recorded_[i].message)
                found.push_back(static_cast<int>(i));
        return found;
    }

    bool has_happened(const Client& client, int event) {
        const Recorded& recorded = recorded_[static_cast<std::size_t>(event)];
        return recorded.stream != kNone && covers(clock(client.host), {recorded.stream, recorded.number});
    }

    // Something about events: records, waits, looks, destroys.
    void events(const Client& client) {
        const std::vector<int> known = events_of(client);
        const int what = pick(0, 6);
        if (events_of_contexts_ && chance(20)) {
            if (known.empty() || chance(50)) return record_context(client, some_event(client));
            return wait_context(client, one_of(known));
        }
        if (known.empty() || what < 2) {
            record(client, some_stream(client), some_event(client));
            return;
        }
        const int event = one_of(known);
        const Recorded& recorded = recorded_[static_cast<std::size_t>(event)];
        const bool pending = client.closed && covers(recorded.clock, client.gate);
        if (what == 2) {
            wait(client, some_stream(client), event);
        } else if (what == 3 && !recorded.held) {
            recorded_[static_cast<std::size_t>(event)].alive = false;
            tell(client, {.what = Do::kEventDestroy, .event = event, .helper = chance(10) && helpers_});
        } else if (what == 4 && !client.closed) {
            await_event(client, event);
            const int other = one_of(known);
            if (has_happened(client, other) && has_happened(client, event))
                tell(client, {.what = Do::kElapsed, .event = event, .event2 = other});
        } else if (has_happened(client, event)) {
            tell(client, {.what = Do::kEventReady, .event = event, .helper = chance(10) && helpers_});
        } else if (pending) {
            tell(client, {.what = Do::kEventPending, .event = event, .helper = chance(10) && helpers_});
        }
    }

    void destroy_stream(const Client& client) {
        const int slot = some_stream(client);
        if (stream(slot).kind != StreamKind::kMade || slot == client.streams.back()) return;
        stream_alive_[static_cast<std::size_t>(slot)] = false;
        tell(client, {.what = Do::kStreamDestroy, .stream = slot});
    }

    // Streams that nobody can be made to wait for.
    std::vector<int> free_streams(const Client& client) {
        std::vector<int> found;
        for (const int slot : client.streams)
            if (!stream(slot).blocking && stream_alive_[static_cast<std::size_t>(slot)]) found.push_back(slot);
        return found;
    }

    void close(Client& client) {
        const int slot = one_of(free_streams(client));
        const std::uint32_t form = variant();
        client.closed = true;
        const std::uint16_t number = enter(client, slot, true);
        client.gate = {slot, number};
        tell(client, {.what = Do::kClose, .stream = slot, .variant = form});
    }

    void open(Client& client) {
        client.closed = false;
        tell(client, {.what = Do::kOpen});
    }

    void look_at_gate(const Client& client) {
        if (stream_alive_[static_cast<std::size_t>(client.gate.slot)])
            tell(client, {.what = Do::kStreamPending, .stream = client.gate.slot, .helper = chance(10) && helpers_});
    }

    // A work that a graph may have: the same each time that it is launched, on what is always there.
    Work node(const Client& client, int first, int last) {
        for (;;) {
            Work work = some_work(client, false, true);
            const auto inside = [&](int index) {
                return index == kNone ||
                       (index >= first && index <= last && !is(index, Place::kMade) && !is(index, Place::kMadeInOrder));
            };
            if (inside(work.to) && inside(work.from)) return work;
        }
    }

    // Two branches touch different memory: the first two buffers and the rest.
    void capture(const Client& client) {
        const std::vector<int> streams = free_streams(client);
        std::vector<int> own;
        for (std::size_t i = 0; i < execs_.size(); ++i)
            if (execs_[i].owner == client.index && execs_[i].alive) own.push_back(static_cast<int>(i));
        Action action{.what = Do::kCapture, .stream = one_of(streams), .variant = variant()};
        const int base = client.buffers[0];
        if (!own.empty() && chance(50)) {
            action.update = true;
            action.exec = one_of(own);
            Exec& exec = execs_[static_cast<std::size_t>(action.exec)];
            action.stream2 = exec.stream2 == kNone ? kNone : action.stream == exec.stream ? exec.stream2 : exec.stream;
            if (action.stream2 == action.stream || !stream_alive_[static_cast<std::size_t>(action.stream)]) return;
            if (action.stream2 != kNone && !stream_alive_[static_cast<std::size_t>(action.stream2)]) return;
            for (std::vector<Work>* works : {&exec.works, &exec.works2})
                for (Work& work : *works) {
                    if (work.kind == Kind::kAdvance) work.value = static_cast<std::uint32_t>(pick(1, 8));
                    if (work.kind == Kind::kFillKernel || work.kind == Kind::kHost)
                        work.value = static_cast<std::uint32_t>(draw());
                }
            action.works = exec.works;
            action.works2 = exec.works2;
            action.event = exec.records;
            action.event2 = exec.waits;
        } else {
            const int nodes = pick(1, 5);
            const bool forks = streams.size() > 1 && chance(40);
            for (int i = 0; i < nodes; ++i) action.works.push_back(node(client, base, forks ? base + 1 : base + 5));
            if (forks) {
                do action.stream2 = one_of(streams);
                while (action.stream2 == action.stream);
                for (int i = 0; i < nodes; ++i) action.works2.push_back(node(client, base + 2, base + 5));
            }
            action.exec = program_.execs++;
            if (events_in_graphs_ && chance(50)) action.event = held(some_event(client));
            const std::vector<int> known = events_of(client);
            if (events_in_graphs_ && !known.empty() && chance(50)) action.event2 = held(one_of(known));
            execs_.push_back({client.index,
                              action.event2,
                              action.event,
                              action.works,
                              action.works2,
                              action.stream,
                              action.stream2,
                              {}});
        }
        tell(client, action);
    }

    int held(int event) {
        recorded_[static_cast<std::size_t>(event)].held = true;
        return event;
    }

    Clock recorded_at(int event) { return event == kNone ? Clock{} : recorded_[static_cast<std::size_t>(event)].clock; }

    void launch(const Client& client) {
        std::vector<int> own;
        for (std::size_t i = 0; i < execs_.size(); ++i)
            if (execs_[i].owner == client.index && execs_[i].alive) own.push_back(static_cast<int>(i));
        if (own.empty()) return;
        const int index = one_of(own);
        Exec& exec = execs_[static_cast<std::size_t>(index)];
        const int slot = some_stream(client);
        const bool hosts = std::ranges::any_of(exec.works, is_host) || std::ranges::any_of(exec.works2, is_host);
        if (client.closed && hosts) return;
        std::vector<int> reads;
        std::vector<int> writes;
        for (const std::vector<Work>* works : {&exec.works, &exec.works2})
            for (const Work& work : *works) {
                if (work.from != kNone) reads.push_back(work.from);
                writes.push_back(work.to);
            }
        Clock now = before(client, slot);
        now.join(exec.clock);
        now.join(recorded_at(exec.waits));
        if (!may(client, slot, now) || !order_all(client, slot, reads, writes)) return;
        now.join(recorded_at(exec.waits));  // which may have been recorded anew
        if (!may(client, slot, now)) return;
        clock(slot).join(exec.clock);  // launches of one graph come one after the other
        clock(slot).join(recorded_at(exec.waits));
        const std::uint16_t number = enter(client, slot, !hosts);
        exec.clock = clock(slot);
        if (exec.records != kNone) {
            Recorded& recorded = recorded_[static_cast<std::size_t>(exec.records)];
            recorded.stream = slot;
            recorded.number = number;
            recorded.clock = clock(slot);
        }
        touched({slot, number}, reads, writes);
        tell(client,
             {.what = Do::kLaunch, .stream = slot, .exec = index, .helper = by_helper(slot), .variant = variant()});
        for (const std::vector<Work>* works : {&exec.works, &exec.works2})
            for (const Work& work : *works) do_work(work, contents_);
        if (!client.closed && chance(20)) {
            exec.alive = false;
            tell(client, {.what = Do::kExecDestroy, .exec = index});
        }
    }

    static bool is_host(const Work& work) { return work.kind == Kind::kHost; }

    void allocate(Client& client) {
        const bool in_order = chance(60);
        const int slot = some_stream(client);
        const int index = add_buffer(in_order ? Place::kMadeInOrder : Place::kMade, client.index);
        client.buffers.push_back(index);
        if (in_order) {
            const std::uint16_t number = enter(client, slot);
            touched({slot, number}, {}, {index});
        }
        tell(client, {.what = in_order ? Do::kAllocateInOrder : Do::kAllocate,
                      .stream = slot,
                      .buffer = index,
                      .helper = by_helper(slot),
                      .variant = variant()});
        const Work all{.kind = Kind::kSet, .to = index, .count = kWords, .value = static_cast<std::uint32_t>(draw())};
        work_on(client, slot, all);
    }

    void release(Client& client) {
        const auto found = std::ranges::find_if(client.buffers, [&](int index) {
            return (is(index, Place::kMade) || is(index, Place::kMadeInOrder)) &&
                   alive_[static_cast<std::size_t>(index)];
        });
        if (found == client.buffers.end()) return;
        const int index = *found;
        const int slot = some_stream(client);
        const bool in_order = is(index, Place::kMadeInOrder);
        if (in_order) {
            if (!order_all(client, slot, {}, {index})) return;
            enter(client, slot);
        }
        alive_[static_cast<std::size_t>(index)] = false;
        client.buffers.erase(found);
        tell(client, {.what = in_order ? Do::kFreeInOrder : Do::kFree,
                      .stream = slot,
                      .buffer = index,
                      .helper = by_helper(slot),
                      .variant = variant()});
    }

    void send(const Client& client) {
        const int slot = some_stream(client);
        const int box = add_buffer(Place::kDevice, kNone);
        const int event = new_event(client, true);
        const Work copy{.kind = Kind::kCopy, .to = box, .from = client.buffers[upto(3)], .count = kWords};
        if (!work_on(client, slot, copy) || !record(client, slot, event)) return;
        tell(client, {.what = Do::kSend, .message = program_.messages});
        messages_.push_back({client.index, event, box});
        messages_made_.push_back(program_.messages++);
    }

    void receive(const Client& client) {
        if (messages_.empty() || messages_.back().from == client.index) return;
        const Message message = messages_.back();
        messages_.pop_back();
        Recorded& recorded = recorded_[static_cast<std::size_t>(message.event)];
        tell(client, {.what = Do::kReceive, .message = messages_made_.back()});
        messages_made_.pop_back();
        const int slot = some_stream(client);
        if (chance(60))
            wait(client, slot, message.event);
        else
            await_event(client, message.event);
        if (chance(50)) {
            recorded.alive = false;
            tell(client, {.what = Do::kEventDestroy, .event = message.event});
        }
        const Work copy{.kind = Kind::kCopy, .to = client.buffers[upto(3)], .from = message.buffer, .count = kWords};
        work_on(client, slot, copy);
    }

    void set(const Client& client) {
        const std::vector<int> streams = free_streams(client);
        tell(client, {.what = Do::kSet,
                      .stream = one_of(streams),
                      .stream2 = one_of(streams),
                      .helper = chance(10) && helpers_,
                      .variant = variant()});
    }

    bool events_of_contexts_;
    bool events_in_graphs_;

    void step(Client& client) {
        const int what = pick(0, 99);
        if (client.closed) {
            if (what < 55) return work(client);
            if (what < 75) return events(client);
            if (what < 80) return look_at_gate(client);
            if (what < 84) return launch(client);
            if (what < 88)
                return void(tell(client, {.what = Do::kPause, .value = static_cast<std::uint32_t>(pick(1, 100))}));
            return open(client);
        }
        if (what < 44) return work(client);
        if (what < 56) return events(client);
        if (what < 62) return work_at_once(client);
        if (what < 64) return module_work(client);
        if (what < 69) return host_work(client);
        if (what < 73) return check(client);
        if (what < 77) return capture(client);
        if (what < 82) return launch(client);
        if (what < 85) return allocate(client);
        if (what < 88) return release(client);
        if (what < 91) return send(client);
        if (what < 95) return receive(client);
        if (what < 96) return destroy_stream(client);
        if (what < 97 || events_of_contexts_) return set(client);
        return close(client);
    }
};

}  // namespace

Program generate(std::uint64_t seed, int clients, int steps, bool helpers, bool events) {
    return Generator(seed, clients, helpers, events).make(steps);
}

}  // namespace operations

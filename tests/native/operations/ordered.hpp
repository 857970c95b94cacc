// What programs are made of, and their order: a clock for each stream and each thread says what lies behind what, as
// far as CUDA promises it; what touches memory without being ordered behind what did so before is made to wait.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "program.hpp"

namespace operations {

constexpr std::size_t kSlots = 192;  // streams, and threads behind them

// Of each slot, how much of what it was given lies before.
struct Clock {
    std::array<std::uint16_t, kSlots> seen{};

    void join(const Clock& other) {
        for (std::size_t i = 0; i < kSlots; ++i) seen[i] = std::max(seen[i], other.seen[i]);
    }
};

struct Point {
    int slot;
    std::uint16_t number;
};

struct Access {
    std::vector<Point> write;  // the last, if any
    std::vector<Point> reads;  // since
};

struct Exec {
    int owner;
    int waits;  // events of its nodes
    int records;
    std::vector<Work> works;
    std::vector<Work> works2;
    int stream;
    int stream2;
    Clock clock;
    bool alive = true;
};

struct Recorded {
    int owner;
    int stream = kNone;  // where it was last recorded
    std::uint16_t number = 0;
    Clock clock = {};
    bool alive = true;
    bool message = false;
    bool held = false;  // by a graph
};

struct Client {
    int index;
    int host;   // slot
    int whole;  // another: what is recorded of the whole context
    std::vector<int> streams;
    std::vector<int> buffers;
    bool closed = false;  // the gate
    Point gate = {};
};

struct Message {
    int from;
    int event;
    int buffer;
};

class Ordered {
  protected:
    Ordered(std::uint64_t seed, int clients, bool helpers) : random_(seed * 2 + 1), helpers_(helpers) {
        program_.seed = seed;
        program_.clients.resize(static_cast<std::size_t>(clients));
        for (int i = 0; i < clients; ++i) add_client(i);
    }

    // --- luck
    std::uint64_t draw() {  // the same with every library
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return random_ * 0x9E3779B97F4A7C15ULL >> 24;
    }
    std::size_t upto(std::size_t many) { return static_cast<std::size_t>(draw() % many); }
    int pick(int least, int most) { return least + static_cast<int>(upto(static_cast<std::size_t>(most - least + 1))); }
    bool chance(int percent) { return pick(1, 100) <= percent; }
    template <typename T>
    const T& one_of(const std::vector<T>& all) {
        return all[upto(all.size())];
    }

    // --- what there is
    int add_stream(Stream stream) {
        program_.streams.push_back(stream);
        stream_alive_.push_back(true);
        return static_cast<int>(program_.streams.size()) - 1;
    }

    int add_buffer(Place place, int owner) {
        program_.buffers.push_back({place, owner});
        alive_.push_back(true);
        accesses_.emplace_back();
        contents_.emplace_back();
        contents_.back().fill(static_cast<std::uint32_t>(contents_.size()));
        return static_cast<int>(program_.buffers.size()) - 1;
    }

    void add_client(int index) {
        Client client{.index = index,
                      .host = static_cast<int>(kSlots) - 1 - index,
                      .whole = static_cast<int>(kSlots) - 17 - index,
                      .streams = {},
                      .buffers = {}};
        client.streams.push_back(add_stream({StreamKind::kLegacy, index}));
        client.streams.push_back(add_stream({StreamKind::kPerThread, index}));
        client.streams.push_back(add_stream({StreamKind::kPerThread, index, true}));
        const int made = pick(1, 3);
        for (int i = 0; i < made; ++i)
            client.streams.push_back(add_stream({StreamKind::kMade, index, false, chance(50), -pick(0, 5)}));
        client.streams.push_back(add_stream({StreamKind::kMade, index, false, false, 0, chance(30)}));
        for (const Place place :
             {Place::kDevice, Place::kDevice, Place::kDevice, Place::kPinned, Place::kPinned, Place::kPageable})
            client.buffers.push_back(add_buffer(place, index));
        clients_.push_back(client);
    }

    Stream& stream(int slot) { return program_.streams[static_cast<std::size_t>(slot)]; }
    Buffer& buffer(int index) { return program_.buffers[static_cast<std::size_t>(index)]; }
    bool on_device(int index) {
        return buffer(index).place != Place::kPinned && buffer(index).place != Place::kPageable;
    }
    bool is(int index, Place place) { return buffer(index).place == place; }
    Clock& clock(int slot) { return clocks_[static_cast<std::size_t>(slot)]; }

    Action& tell(const Client& client, Action action) {
        program_.clients[static_cast<std::size_t>(client.index)].push_back(std::move(action));
        return program_.clients[static_cast<std::size_t>(client.index)].back();
    }

    // --- order
    // Whether it is ordered with its client's default stream. Who the owner of a thread is that is no client's nobody
    // can know, so that a default stream of that thread's own is taken for one that is not.
    bool ordered(int slot) { return stream(slot).blocking && !stream(slot).helper; }

    // A client that waits for the context waits for its own streams, and for none of a thread that is no client's.
    bool is_others(int slot) { return stream(slot).kind == StreamKind::kPerThread && stream(slot).helper; }

    // What lies before anything that a client gives a stream now. A stream is idle while all that it has left are
    // functions of the host: a default stream waits for work of the GPU, and for what comes before that. What that
    // waited for on streams that are not ordered with it is not promised: NVIDIA's driver begins small copies before.
    Clock before(const Client& client, int slot) {
        Clock all = clock(slot);
        all.join(clock(client.host));
        for (const int other : client.streams) {
            if (!stream_alive_[static_cast<std::size_t>(other)]) continue;
            const bool orders =
                slot == client.streams[0] ? ordered(other) : ordered(slot) && other == client.streams[0];
            if (!orders) continue;
            Clock promised;
            for (const int of : client.streams) {
                if (of != client.streams[0] && !ordered(of)) continue;
                const auto at = static_cast<std::size_t>(of);
                promised.seen[at] = worked_[static_cast<std::size_t>(other)].seen[at];
            }
            all.join(promised);
        }
        return all;
    }

    bool covers(const Clock& clock, Point point) {
        return clock.seen[static_cast<std::size_t>(point.slot)] >= point.number;
    }

    // Gives the stream something to do, `work` for the GPU or something else.
    std::uint16_t enter(const Client& client, int slot, bool work = false) {
        Clock now = before(client, slot);
        const std::uint16_t number = ++now.seen[static_cast<std::size_t>(slot)];
        clock(slot) = now;
        if (work) worked_[static_cast<std::size_t>(slot)] = now;
        return number;
    }

    // What a work has to come behind and does not.
    std::vector<Point> missing(const Clock& now, const std::vector<int>& reads, const std::vector<int>& writes) {
        std::vector<Point> found;
        const auto look = [&](const std::vector<Point>& points) {
            for (const Point& point : points)
                if (!covers(now, point)) found.push_back(point);
        };
        for (const int index : writes) look(accesses_[static_cast<std::size_t>(index)].reads);
        for (const std::vector<int>* all : {&reads, &writes})
            for (const int index : *all) look(accesses_[static_cast<std::size_t>(index)].write);
        return found;
    }

    void touched(Point point, const std::vector<int>& reads, const std::vector<int>& writes) {
        for (const int index : reads) accesses_[static_cast<std::size_t>(index)].reads.push_back(point);
        for (const int index : writes) accesses_[static_cast<std::size_t>(index)] = {{point}, {}};
    }

    // Whether something may be done on a stream that comes behind what `now` says: what is behind a closed gate keeps
    // to streams that nobody else can be made to wait for.
    bool may(const Client& client, int slot, const Clock& now) {
        return !client.closed || !covers(now, client.gate) || !stream(slot).blocking;
    }

    int new_event(const Client& client, bool message = false) {
        program_.events.push_back({chance(60)});
        recorded_.push_back({.owner = client.index, .message = message});
        return static_cast<int>(program_.events.size()) - 1;
    }

    // An event that may be recorded anew.
    int some_event(const Client& client) {
        std::vector<int> own;
        for (std::size_t i = 0; i < recorded_.size(); ++i)
            if (recorded_[i].owner == client.index && recorded_[i].alive && !recorded_[i].message)
                own.push_back(static_cast<int>(i));
        return own.empty() || chance(30) ? new_event(client) : one_of(own);
    }

    bool record(const Client& client, int slot, int event) {
        Recorded& recorded = recorded_[static_cast<std::size_t>(event)];
        if (!may(client, slot, before(client, slot))) return false;
        recorded.number = enter(client, slot);
        recorded.stream = slot;
        recorded.clock = clock(slot);
        tell(client,
             {.what = Do::kRecord, .stream = slot, .event = event, .helper = by_helper(slot), .variant = variant()});
        return true;
    }

    // Of the client's streams, of which alone it is known what they were given.
    void record_context(const Client& client, int event) {
        Recorded& recorded = recorded_[static_cast<std::size_t>(event)];
        Clock now = clock(client.host);
        for (const int slot : client.streams)
            if (stream_alive_[static_cast<std::size_t>(slot)]) now.join(before(client, slot));
        recorded.stream = client.whole;
        recorded.number = now.seen[static_cast<std::size_t>(client.whole)] =
            static_cast<std::uint16_t>(clock(client.whole).seen[static_cast<std::size_t>(client.whole)] + 1);
        clock(client.whole) = now;
        recorded.clock = now;
        tell(client, {.what = Do::kContextRecord, .event = event, .helper = chance(10) && helpers_});
    }

    void wait_context(const Client& client, int event) {
        for (const int slot : client.streams) {
            enter(client, slot);
            clock(slot).join(recorded_[static_cast<std::size_t>(event)].clock);
        }
        tell(client, {.what = Do::kContextWait, .event = event, .helper = chance(10) && helpers_});
    }

    bool wait(const Client& client, int slot, int event) {
        const Recorded& recorded = recorded_[static_cast<std::size_t>(event)];
        Clock now = before(client, slot);
        now.join(recorded.clock);
        if (!may(client, slot, now)) return false;
        enter(client, slot);
        clock(slot).join(recorded.clock);
        tell(client,
             {.what = Do::kWait, .stream = slot, .event = event, .helper = by_helper(slot), .variant = variant()});
        return true;
    }

    std::uint32_t variant() { return static_cast<std::uint32_t>(draw()); }

    // A stream of the other thread's own can be named there alone; others now and then.
    bool by_helper(int slot) {
        if (stream(slot).kind == StreamKind::kPerThread) return stream(slot).helper;
        return chance(15) && helpers_;
    }

    void synchronize_context(const Client& client) {
        for (const int slot : client.streams)
            if (!is_others(slot)) clock(client.host).join(clock(slot));
        for (const int slot : client.streams)
            if (!is_others(slot)) clock(client.host).join(before(client, slot));
        tell(client, {.what = Do::kContextSynchronize, .helper = chance(10) && helpers_});
    }

    // Makes what comes next on a stream, or on the client's thread, come behind a point.
    bool order(const Client& client, int slot, Point point) {
        const bool host = slot == client.host;
        if (!host && chance(30)) {  // an event that happens to say so
            for (std::size_t i = 0; i < recorded_.size(); ++i)
                if (recorded_[i].owner == client.index && recorded_[i].alive && !recorded_[i].message &&
                    recorded_[i].stream != kNone && covers(recorded_[i].clock, point))
                    return wait(client, slot, static_cast<int>(i));
        }
        const bool there = stream_alive_[static_cast<std::size_t>(point.slot)];
        if (client.closed) {
            if (host || !there) return false;
            const int event = some_event(client);
            return record(client, point.slot, event) && wait(client, slot, event);
        }
        if (!there) {
            synchronize_context(client);
            return true;
        }
        switch (pick(host ? 2 : 0, is_others(point.slot) ? 7 : 8)) {
            case 0:
            case 1: {
                const int event = some_event(client);
                return record(client, point.slot, event) && wait(client, slot, event);
            }
            case 2:
            case 3:
            case 4: {
                const int event = some_event(client);
                if (!record(client, point.slot, event)) return false;
                await_event(client, event);
                return true;
            }
            case 5:
            case 6:
            case 7: {
                clock(client.host).join(clock(point.slot));
                tell(client, {.what = chance(60) ? Do::kStreamSynchronize : Do::kStreamAwait,
                              .stream = point.slot,
                              .helper = by_helper(point.slot),
                              .variant = variant()});
                return true;
            }
            default:
                synchronize_context(client);
                return true;
        }
    }

    void await_event(const Client& client, int event) {
        clock(client.host).join(recorded_[static_cast<std::size_t>(event)].clock);
        tell(client, {.what = chance(60) ? Do::kEventSynchronize : Do::kEventAwait,
                      .event = event,
                      .helper = chance(10) && helpers_});
    }

    // Brings a stream behind all that reads or wrote what it is to write, or wrote what it is to read.
    bool order_all(const Client& client, int slot, const std::vector<int>& reads, const std::vector<int>& writes) {
        for (;;) {
            const Clock now = slot == client.host ? clock(slot) : before(client, slot);
            const std::vector<Point> points = missing(now, reads, writes);
            if (points.empty()) return slot == client.host || may(client, slot, now);
            if (!order(client, slot, points.front())) return false;
        }
    }

    std::uint64_t random_;
    bool helpers_;
    Program program_{};
    std::vector<Client> clients_;
    std::array<Clock, kSlots> clocks_{};
    std::array<Clock, kSlots> worked_{};  // after the last work for the GPU
    std::vector<Access> accesses_;
    std::vector<Words> contents_;
    std::vector<bool> alive_;
    std::vector<bool> stream_alive_;
    std::vector<Recorded> recorded_;
    std::vector<Exec> execs_;
    std::vector<Message> messages_;
    std::vector<int> messages_made_;
};

}  // namespace operations

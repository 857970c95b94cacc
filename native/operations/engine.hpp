// Who the clients are, what they have queued, and the thread that gives it to the driver.
//
// A call of a client is one of: work, which goes now or is queued; what waits until the client's queue is empty
// (flush); or what also waits for other clients' queues, since it takes away what those may name. Nothing waits for
// ever: after a bound what is queued goes without the rule, and is said once.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "driver/streams.hpp"
#include "include/runlist_operations.h"
#include "operations/calls.hpp"
#include "operations/kernels.hpp"
#include "operations/lately.hpp"
#include "operations/logged.hpp"
#include "operations/owed.hpp"
#include "operations/page.hpp"
#include "operations/queue.hpp"
#include "operations/spin.hpp"
#include "operations/table.hpp"

namespace runlist::operations {

inline constexpr int kNobody = -1;

// A stream that a client used or made.
struct alignas(64) Stream {  // what every launch looks at is in its first line
    CUstream handle;
    CUcontext context;  // of a stream of a green context the primary one, which any number of threads can have
    const Calls* calls;
    std::atomic<std::uint32_t> pending;
    std::atomic<int> queued_by;
    std::atomic<int> ordered_by;  // the client in order with whose default stream it is; kNobody: it does not block
    std::atomic<std::uint16_t> used_by;  // a bit for each client that gave it something
    // Under the lock of meters of its user: what it was given since an event was recorded.
    std::int64_t duration_ns;
    std::uint32_t sms;
    std::uint32_t guessed;  // operations whose duration is not known
    int maker;              // the client that made it; kNobody
    int user;               // the client that used it first
    bool blocking;
    bool ordered;                // blocking, or a client's default stream
    bool vague;                  // under the lock of meters, too: how long something of it takes nobody can say
    std::atomic<bool> of_first;  // client 0 gave it work
    std::atomic<int> joining;    // calls by which it may come to capture
    // How much it was given, counted when the driver has it. Under the client's lock of order: how much of it the event
    // is behind, and how much of the default stream's it waited for.
    std::atomic<std::uint64_t> given;
    std::uint64_t recorded, joined;
    CUevent event;
    CUcontext part;  // the context that is current where it is made: a green one, or `context`
};

// How large a launch is; all 0 where that is not asked for.
struct Shape {
    std::uint64_t blocks;
    unsigned threads;  // of a block
    unsigned shared;   // bytes of a block, besides those of the kernel
};

// What is known of a call that gives the GPU work.
struct Work {
    const Calls* calls;
    Kind kind;
    CUstream handle;
    bool per_thread;  // the thread's own default stream
    CUfunction function;
    Stream* stream;
    Cost cost;
    std::int64_t called_ns;
    Shape shape;
};

struct Record;
using Run = CUresult (*)(const Record& record);

// What is queued; what it is made of follows. Without `run` it is the turn of a thread that waits for it.
struct alignas(16) Record {
    Run run;
    void* real;
    CUcontext context;
    CUevent event;
    Work work;

    const void* rest() const { return this + 1; }
    void* rest() { return this + 1; }
};

struct Flight {
    CUevent event;
    CUcontext context;
    const Calls* calls;
    bool used, vague;
    Cost cost;
    std::uint32_t guessed;
};

struct Client {
    Queue queue;
    // What every launch looks at, in one line.
    alignas(64) int index;
    std::atomic<int> blocking;  // its blocking streams, besides default ones
    std::atomic<std::uint64_t> launched;
    std::atomic<std::int64_t> began_ns;
    std::atomic<std::int64_t> loose_ns;  // how much its streams were given since an event was recorded, or more
    std::int64_t guess_ns;               // how long its kernels took of which nothing is known; 0: none was seen yet
    std::int64_t flew_ns;   // since when something of it may have been in flight all the time; 0: nothing was
    std::int64_t moved_ns;  // when something of it last landed, or went though nothing did
    std::atomic<std::int32_t> per_thread;  // a thread that uses its own default stream; -1: several do
    Spin metering;
    std::atomic<bool> mixes;  // its default stream was left behind, and ordered with such threads' own

    alignas(64) Spin writing;
    std::atomic<std::uint64_t> forced;  // what goes whatever the rule says: up to this number
    std::atomic<std::uint32_t> drained;
    std::atomic<std::uint64_t> awaited;  // the first number that somebody waits for; 0: nobody does
    std::atomic<int> error;              // of an operation that was queued, for the next call that waits
    std::atomic<std::uint64_t> deferred, flushed, opened, waited_ns, requests, latency_ns;
    std::atomic<std::uint64_t> sm_ns;  // SMs times how long, of what was launched, by profiles

    OwedInEach
        legacy;  // the driver's own default stream was given work that may be this client's, as by calls that name none
    OwedInEach context;  // its threads gave work to streams of which it is not known that they are its

    struct Default {
        std::atomic<CUcontext> context;
        CUstream stream;
        const Calls* calls;
        std::atomic<std::uint64_t> settled;
    };
    Spin making;
    std::array<Default, 16> defaults;
    Spin ordering;
    std::array<Flight, 64> flights;
    Lately lately;

    void has_launched(const Cost& cost) {
        launched.fetch_add(1, std::memory_order_relaxed);
        if (cost.duration_ns != 0)
            sm_ns.fetch_add(cost.sms * static_cast<std::uint64_t>(cost.duration_ns), std::memory_order_relaxed);
    }
};

// Zeroed memory, which a child of fork finds zeroed.
struct Engine {
    std::atomic<std::uint32_t> turn;  // odd while it runs: how often it was started and stopped
    std::atomic<bool> logging;
    Owed unsettled;  // what default streams were given has to come before all that follows on others (settle)
    std::atomic<bool> stopping, ended, said, gave_up;
    std::atomic<bool> changing;          // somebody starts or stops it
    std::atomic<bool> left;              // the process ends
    std::atomic<std::uint64_t> gone;     // streams that have ended
    std::atomic<bool> closed;            // nothing more is queued
    std::atomic<bool> crowded;           // blocking streams have no entry
    Owed given_unknown, given_defaults;  // since then: what those were given, and clients' default streams
    bool processes;                      // clients are processes; `own` is this one
    int own;
    std::atomic<int> clients;
    std::atomic<std::int64_t> bound_ns;
    Page* page;
    std::atomic<std::uint64_t> live;
    std::atomic<std::int64_t> lived_ns;
    Bell* bell;
    Bell own_bell;
    std::atomic<std::uint32_t>
        first_per_thread;  // client 0 gave its thread's own stream work, and has not waited since
    struct Followed {
        std::atomic<CUevent> event;
        std::atomic<CUcontext> context;
        std::atomic<const Calls*> calls;
    };
    std::array<Followed, 64> followed;  // events behind client 0's work on threads' own streams
    bool (*any_capture)();
    unsigned long thread;
    Spin asking;     // what is done of what streams were given, which no capture may begin in the midst of
    Spin streaming;  // entries of streams that come and go, and questions about them
    Spin eventing;
    Kernels kernels;
    Table<Stream, 256> streams;
    Table<std::atomic<std::uint64_t>, 2048> events;  // of a record that is queued: client and number
    Table<char, 64> shared;                          // events that other processes may wait for
    std::atomic<bool> any_shared;                    // there is no room for more of them: any may be one
    std::array<Client, kClients> all;
    Latencies latencies;
    Log log;
    Telling telling;
    std::int64_t told_ns;
    std::int64_t worked_ns;  // when client 0 was last seen to have given something

    bool runs() const { return runs(turn.load()); }
    bool halt();  // whether it ran
    static bool runs(std::uint32_t turn) { return turn % 2 != 0; }
    bool first_is_here() const { return !processes || own == 0; }
    bool first_is_busy() {
        return page->first.is_busy(page->admission.rest_ns.load(std::memory_order_relaxed)) && busy_first_lives();
    }
    bool busy_first_lives();
};

extern constinit std::atomic<Engine*> engine;                              // null: never started
inline Engine& here() { return *engine.load(std::memory_order_acquire); }  // once it was started

// Whether operations are kept in the log.
inline bool is_logging() {
    const Engine* there = engine.load(std::memory_order_acquire);
    return there != nullptr && there->logging.load(std::memory_order_relaxed);
}

// What nodes of graphs do with events, of which the driver does not tell which graphs have them.
enum GraphEvents : unsigned { kGraphRecords = 1, kGraphWaits = 2 };
extern constinit std::atomic<unsigned> graph_events;

// Whether calls are any business of ours. All that is paid where it is not started.
[[gnu::always_inline]] inline bool on() {
    const Engine* there = engine.load(std::memory_order_acquire);
    return there != nullptr && Engine::runs(there->turn.load(std::memory_order_relaxed));
}

// Whether there is or was one.
inline bool started() { return engine.load(std::memory_order_acquire) != nullptr; }
bool prepare();  // so that there is one, which does not run; whether that could be

extern constinit thread_local std::int8_t own_client;  // 1 + its index; 0: none
extern constinit thread_local bool inside;             // a call that was looked at already
extern constinit thread_local std::uint8_t gave_as;    // as whom it gave: 1 + a client's index, kNone; 0: nothing yet
inline constexpr int kNone = 255;                      // as no client
extern constinit thread_local bool dispatches;         // what it asks disturbs no capture of other streams
extern constinit thread_local bool gave_elsewhere;     // to streams of none, or of another client

class Inside {
  public:
    Inside() { inside = true; }
    ~Inside() { inside = false; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
};

// A call that any thread makes. Where the scheduler was started or stopped in its midst, what it gave comes before all
// that follows, as it may have been given to a stream that is not the default one any more.
class Call {
  public:
    Call() : turn_(engine.load(std::memory_order_acquire)->turn.load()) {}
    ~Call() {
        if (!is_of_now()) [[unlikely]]
            came_between();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    bool is_of_now() const { return engine.load(std::memory_order_acquire)->turn.load() == turn_; }
    bool runs() const { return Engine::runs(turn_); }
    std::uint32_t turn() const { return turn_; }

  private:
    static void came_between();
    std::uint32_t turn_;
};

// While a capture begins: a question about a stream that captures would end the capture. While a context may end:
// nobody asks about what was made in it.
class NotAsked {
  public:
    NotAsked();
    ~NotAsked();
    NotAsked(const NotAsked&) = delete;
    NotAsked& operator=(const NotAsked&) = delete;
};

// While a stream may come to capture: nobody asks about it. The call may take long, as where the stream is full.
class Joins {
  public:
    explicit Joins(CUstream stream);
    ~Joins();
    Joins(const Joins&) = delete;
    Joins& operator=(const Joins&) = delete;

  private:
    Stream* stream_;
};

// What preload.cpp says: whether the hooks are in force, whether any stream captures, and where functions are.
struct Surroundings {
    bool (*hooking)();
    bool (*any_capture)();
    void (*join)();                   // makes this process a client of its page, if it has one
    void* (*find)(const char* name);  // a function of the C library
    Telling (*told_in)();
};
extern const Surroundings surroundings;

// 0, or the negative of an errno value.
int start_threads(int clients);
int stop();
// This process is a client of a page. Called when the library comes; the thread starts with the first work.
void start_process(const char* path, int client);
void set_bound(std::int64_t nanoseconds);  // for tests

// The client whose call it is: the thread's, or the one that made the stream. nullptr: nobody's.
Client* client_of(CUstream stream);

// The stream that a client means: its own instead of the legacy default stream.
CUstream stream_of(Client& client, const Calls& calls, CUstream stream, bool per_thread);

using driver::is_default;

// All that blocking streams were given so far, clients' default streams among them, comes before all that they are
// given from now on, by the driver's default stream.
void unsettle(Engine& all);
void settle(Engine& all);
inline void settle_if_needed(Engine& all = *engine.load(std::memory_order_acquire)) {
    if (all.unsettled.any()) [[unlikely]]
        settle(all);
}

// A thread gives work as somebody: what it gave before as somebody else comes first.
void change_hands(int who);
void gives(Engine& all, const Stream* stream, bool per_thread);
// The same of a stream that may be no client's.
void gives(const Calls& calls, CUstream stream, bool per_thread);

// The driver's default stream was given something that may be any client's.
void gave_legacy();

// This thread is a client; -1: none.
void become(int index);

// The entry of a stream, made for this client if there is none; nullptr where there is no room for more.
// `is_default`: of a client, and so none of those that are ordered with one.
Stream* entry_of(Engine& all, const Client& client, const Calls& calls, CUstream handle, int maker,
                 bool is_default = false);

// Of a thread that is no client's: it waits for all that is queued.
void wait_for_all();

// Before a call that may depend on what is queued: of nobody's thread, or on a stream that another client's queue
// names.
void before(const Client* client, CUstream stream, bool ordered_with_all);

// What the driver's handles meant: code is unloaded, or a context has ended and with it all that was made in it. That
// one while NotAsked.
void forget_kernels();
void forget_context(CUcontext context);
void forget_green(const Calls& calls, CUcontext part);  // before it ends

// How large a kernel's parameters are; false where that is not known.
bool parameters_of(const Calls& calls, CUfunction function, int& count, std::uint16_t (&sizes)[Kernel::kParameters]);

// Work of a client on a stream that does not capture; `stream` is the client's already.
class Doing {
  public:
    Doing(const Call& made, Client& client, const Calls& calls, Kind kind, CUstream stream, bool per_thread,
          CUfunction function);

    // Whether the engine knows its stream, and so could tell that something is queued for it.
    bool can_be_queued() const { return work_.stream != nullptr; }

    void is_so_large(const Shape& shape) { work_.shape = shape; }

    // Whether it goes to the driver now; else it is to be queued, or to wait for its turn.
    bool goes_now();
    void wait_for_turn();
    // A record of so many bytes after it, to be filled and committed; nullptr where it cannot be queued. Between the
    // two the client's queue is held. The event that it records is known as queued from now on.
    Record* reserve(std::size_t bytes, CUevent event);
    void commit();

    void begin();               // before the driver is called
    void end(CUresult result);  // after it

  private:
    const Call& made_;
    Client& client_;
    Work work_;
    CUcontext context_ = nullptr;  // the thread's, where it is not to go now
};

// Waits until what a client has queued is with the driver.
void flush(Client& client);
void flush_others(const Client* client);  // of all but this one, without the rule
CUresult take_error(Client& client);      // of a queued operation
CUresult error_of_before();               // the same of the client that this thread was
bool is_queued(const Client& client, CUstream stream);
bool is_queued(CUevent event);
// Another process may wait for it: its record is never queued from now on.
void share_event(CUevent event);
void forget_shared(CUevent event);
bool is_shared(CUevent event);
void await_event(const Client* client, CUevent event);
void await_record(CUevent event);                                 // whoever queued it, without the rule
void await_event_of_others(const Client* client, CUevent event);  // before it is recorded again
void await_events_of_others(const Client* client);                // of whichever
bool has_legacy(Client& client, const Calls& calls);
void await_legacy(Client& client, const Calls& calls);
// Of the default streams that clients have in the current context: whether they are done, or when they are.
CUresult of_defaults(const Calls& calls, bool waits);
Stream* order_default(Client& client, const Calls& calls, CUstream stream);
Stream* order_flushed(Client& client, const Calls& calls, CUstream stream);  // before work that is never queued
void stretch_ended(Client& client, bool all);

// Whether all that the client's threads gave in the current context is on streams that are known as its; then: waits
// for them, one after the other.
bool knows_streams(Client& client, const Calls& calls);
CUresult synchronize(Client& client, const Calls& calls);

// Else all of the context is waited for.
class WholeContext {
  public:
    WholeContext(Client& client, const Calls& calls);
    void is_idle();

  private:
    Client& client_;
    std::array<std::uint64_t, 2> given_;
    CUcontext context_ = nullptr;
};

int priority_of(const Client& client, const Calls& calls);
void made_stream(const Client& client, const Calls& calls, CUstream stream);
void made_between(const Calls& calls, CUstream stream);  // by a thread that was a client, and may be one again
void forget_stream(CUstream stream);
void use_per_thread(Client& client);
void order_per_thread(Client& client, const Calls& calls);
void follow_first(const Calls& calls);
bool is_pinned(const Calls& calls, const void* memory);

// Between the parts of the engine.
CUresult make_event(const Stream& stream, unsigned flags, CUevent& event);
void wait_until_done(Client& client, std::uint64_t number, bool force);
void wake();
void run_record(Engine& all, Client& client, Record& record, std::int64_t now);
void order_with_default(Client& client, Stream& stream, const Calls& calls);
void take_over(Client& client, Stream& stream);
void order_unknown(Owed Engine::* given);
void gave_ordered(Stream* stream);
inline void order(Client& client, Stream* stream, const Calls& calls) {
    if (stream == nullptr) [[unlikely]]
        return order_unknown(&Engine::given_defaults);
    const int by = stream->ordered_by.load(std::memory_order_acquire);
    if (by != client.index && by != kNobody) [[unlikely]]
        take_over(client, *stream);
    if (client.blocking.load(std::memory_order_acquire) == 0) [[likely]]
        return;
    order_with_default(client, *stream, calls);
}
// After the driver was given it. Before, who looks between the two would take what it has for all.
inline void gave(const Client& client, Stream* stream) {
    if (client.blocking.load(std::memory_order_acquire) == 0) [[likely]]
        return;
    if (stream == nullptr || stream->ordered) gave_ordered(stream);
}
void meter(Engine& all, Client& client, const Work& work);
bool admitted(Engine& all, Client& client, Kind kind, const Cost& cost);
void note(Engine& all, const Client& client, const Work& work, std::int64_t launched_ns);
bool poll_log(Engine& all);
bool any_flies(Engine& all);
void land_all(Engine& all);
void forget_flights(Engine& all, CUcontext context);
void forget_logged(Engine& all, CUcontext context);
bool start_dispatcher(Engine& all);
void leave();
void look_who_lives(Engine& all, std::int64_t now);
void begin_telling(Engine& all);
void tell(Engine& all, std::int64_t now);  // in the dispatcher, if it is time
void end_telling(Engine& all);

}  // namespace runlist::operations

#include "runlist.h"
#include "tenant/tenant.hpp"

namespace {

constinit runlist::Tenant tenant;

}  // namespace

int rl_segment_begin(int priority) { return tenant.begin(priority); }

int rl_segment_end(void) { return tenant.end(); }

int rl_segment_in_force(void) { return tenant.in_force(); }

int rl_report_latency_ns(uint64_t nanoseconds) { return tenant.say(runlist::Kind::kReportLatency, nanoseconds); }

int rl_hint_ns(uint64_t nanoseconds) {
    runlist::on_hint(nanoseconds);
    return tenant.say(runlist::Kind::kHint, nanoseconds);
}

void runlist::say_work() { ::tenant.say(Kind::kWork, 0, 0); }

int runlist::say_announcement(std::int64_t lead_ns) {
    return ::tenant.say(Kind::kAnnounce, static_cast<std::uint64_t>(lead_ns), 0);
}

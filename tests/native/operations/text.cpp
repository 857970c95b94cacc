// Programs as text, for who has to find out what went wrong.
#include "program.hpp"

namespace operations {
namespace {

constexpr std::array kKinds{"advance", "fill kernel", "set", "copy", "host function"};

constexpr std::array kNames{"work",
                            "work at once",
                            "module work",
                            "record",
                            "wait",
                            "synchronize event",
                            "synchronize stream",
                            "synchronize context",
                            "await event",
                            "await stream",
                            "event has happened",
                            "event is pending",
                            "stream is pending",
                            "record of the context",
                            "context waits",
                            "elapsed",
                            "destroy event",
                            "destroy stream",
                            "host writes",
                            "host checks",
                            "capture",
                            "launch graph",
                            "destroy graph",
                            "allocate",
                            "free",
                            "allocate in order",
                            "free in order",
                            "close gate",
                            "open gate",
                            "send",
                            "receive",
                            "pause",
                            "set"};

std::string text(const Work& work) {
    std::string said = kKinds.at(static_cast<std::size_t>(work.kind));
    said += " b" + std::to_string(work.to) + "[" + std::to_string(work.to_at) + "+" + std::to_string(work.count) + "]";
    if (work.from != kNone) said += " of b" + std::to_string(work.from) + "[" + std::to_string(work.from_at) + "]";
    return said + " value " + std::to_string(work.value) + " width " + std::to_string(work.width);
}

}  // namespace

std::string text(const Action& action) {
    std::string said = kNames.at(static_cast<std::size_t>(action.what));
    const auto number = [&](const char* name, int value) {
        if (value != kNone) said += std::string(" ") + name + std::to_string(value);
    };
    number("s", action.stream);
    number("s", action.stream2);
    number("e", action.event);
    number("e", action.event2);
    number("b", action.buffer);
    number("x", action.exec);
    number("m", action.message);
    if (action.work.count > 0) said += ": " + text(action.work);
    for (const std::vector<Work>* works : {&action.works, &action.works2}) {
        if (works->empty()) continue;
        said += " {";
        for (const Work& work : *works) said += " " + text(work) + ";";
        said += " }";
    }
    if (action.update) said += " (update)";
    if (action.helper) said += " (by the helper)";
    return said + " variant " + std::to_string(action.variant % 12);
}

}  // namespace operations

// The union of intervals of time: what several streams did at once counts once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace runlist::cap {

// Intervals come nearly in order. The latest kSpans that do not touch are known; a gap older than those counts as
// covered.
class Cover {
  public:
    // Adds [begin, end) and returns how much of it was in no interval before.
    std::int64_t add(std::int64_t begin, std::int64_t end) {
        if (end <= begin) return 0;
        std::int64_t fresh = end - begin;
        int kept = 0;
        int place = 0;
        Span merged{begin, end};
        for (int index = 0; index < count_; ++index) {
            const Span span = spans_[index];
            fresh -= std::max<std::int64_t>(0, std::min(end, span.end) - std::max(begin, span.begin));
            if (span.begin <= end && begin <= span.end) {
                merged = {std::min(merged.begin, span.begin), std::max(merged.end, span.end)};
                continue;
            }
            if (span.end < begin) place = kept + 1;
            spans_[kept++] = span;
        }
        for (int index = kept; index > place; --index) spans_[index] = spans_[index - 1];
        spans_[place] = merged;
        count_ = kept + 1;
        if (count_ > kSpans) forget_oldest_gap();
        return fresh;
    }

  private:
    static constexpr int kSpans = 8;
    struct Span {
        std::int64_t begin;
        std::int64_t end;
    };

    void forget_oldest_gap() {
        spans_[0].end = spans_[1].end;
        for (int index = 2; index < count_; ++index) spans_[index - 1] = spans_[index];
        --count_;
    }

    Span spans_[kSpans + 1]{};  // in order, none touches the next
    int count_ = 0;
};

}  // namespace runlist::cap

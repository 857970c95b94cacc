#include "cuda/kernel/ptx.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace emulator::cuda {
namespace {

std::string without_comments(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
        if (text.substr(i, 2) == "//") {
            i = std::min(text.find('\n', i), text.size());
        } else if (text.substr(i, 2) == "/*") {
            const std::size_t end = text.find("*/", i + 2);
            i = end == std::string_view::npos ? text.size() : end + 2;
            out += ' ';
        } else {
            out += text[i++];
        }
    }
    return out;
}

bool is_name(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.' || c == '%';
}

class Tokens {
  public:
    explicit Tokens(std::string_view text) : text_(text) {}

    // The next word (directives keep their dot) or single character; empty at the end.
    std::string_view next() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
        const std::size_t start = at_;
        if (at_ == text_.size()) return {};
        if (!is_name(text_[at_])) return text_.substr(at_++, 1);
        while (at_ < text_.size() && is_name(text_[at_]) && !(text_[at_] == '.' && at_ > start)) ++at_;
        return text_.substr(start, at_ - start);
    }

  private:
    std::string_view text_;
    std::size_t at_ = 0;
};

// Bytes of `.u32` and its like; 0 for what is not a type.
std::uint32_t type_size(std::string_view word) {
    if (word.size() < 3 || word[0] != '.' || std::string_view("usbf").find(word[1]) == std::string_view::npos) return 0;
    const std::string_view bits = word.substr(2);
    if (bits == "8") return 1;
    if (bits == "16") return 2;
    if (bits == "32") return 4;
    if (bits == "64") return 8;
    return 0;
}

PtxEntry parse_entry(Tokens& tokens) {
    PtxEntry entry{std::string(tokens.next()), {}};
    std::string_view word = tokens.next();
    if (word != "(") return entry;
    for (word = tokens.next(); !word.empty() && word != ")"; word = tokens.next()) {
        if (const std::uint32_t size = type_size(word); size != 0) {
            entry.parameter_sizes.push_back(size);
        } else if (word == "[" && !entry.parameter_sizes.empty()) {
            entry.parameter_sizes.back() *=
                static_cast<std::uint32_t>(std::strtoul(std::string(tokens.next()).c_str(), nullptr, 0));
        }
    }
    return entry;
}

}  // namespace

std::optional<std::vector<PtxEntry>> parse_ptx(std::string_view image) {
    const std::string text = without_comments(image);
    Tokens tokens(text);
    std::vector<PtxEntry> entries;
    bool version = false;
    bool target = false;
    for (std::string_view word = tokens.next(); !word.empty(); word = tokens.next()) {
        version |= word == ".version";
        target |= word == ".target";
        if (word == ".entry") entries.push_back(parse_entry(tokens));
    }
    if (!version || !target) return std::nullopt;
    return entries;
}

}  // namespace emulator::cuda

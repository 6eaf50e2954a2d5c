// What toploc's ndd.cpp takes from torch and pybind11, so that it compiles without them.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#define TORCH_CHECK(condition, ...) \
    if (!(condition)) throw std::runtime_error(#condition)
#define PYBIND11_MODULE(name, module) [[maybe_unused]] static void name(pybind11::Module& module)

namespace pybind11 {
struct arg {
    explicit arg(const char*) {}
};
struct Module {
    std::string& doc() { return text; }
    template <typename... Rest>
    void def(Rest&&...) {}
    std::string text;
};
}  // namespace pybind11

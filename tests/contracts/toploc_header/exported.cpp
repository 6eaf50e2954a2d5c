// Exports toploc's interpolation and evaluation to ctypes.
#include TOPLOC_SOURCE

extern "C" void interpolate(const int* x, const int* y, int count, int* coefficients) {
    auto found = compute_newton_coefficients({x, x + count}, {y, y + count});
    std::copy(found.begin(), found.end(), coefficients);
}

extern "C" void evaluate(const int* coefficients, const int* x, int count, int* values) {
    auto found = evaluate_polynomials({coefficients, coefficients + count}, {x, x + count});
    std::copy(found.begin(), found.end(), values);
}

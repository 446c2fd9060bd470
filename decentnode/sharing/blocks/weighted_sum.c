/* The weighted sum of vectors of fp32 in one pass over memory: out <- w_0 x_0 + w_1 x_1 + ..., in that order.
 *
 * The first product is rounded, every other one is added without prior rounding (fma), as torch's `mul` and
 * `add_` with `alpha` do it on processors with such an instruction. eval/build_native.py compiles this file.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One copy of the code for each kind of processor; the loader chooses. Elsewhere the compiler's own choice. */
#if defined(__x86_64__)
#define FOR_PROCESSORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_PROCESSORS
#endif

/* Elements that a pass adds up: 8 KiB of `out`, which stay in the first-level cache until the next pass. */
enum { BLOCK = 2048 };
/* Sources of one pass; each further pass reads the sum so far and adds as many. */
enum { AT_ONCE = 5 };
/* The bits of infinity; those of every finite number without its sign are smaller. */
static const uint32_t INFINITE = 0x7f800000u;

/* Adds up `terms` sources, a constant for the compiler, and returns the largest bits of a sum without sign. */
static inline __attribute__((always_inline)) uint32_t add_block(
    const size_t terms, const int is_first, size_t count, size_t begin, const float *weights,
    const float *const *sources, float *restrict sum)
{
    const float *x[AT_ONCE];
    float w[AT_ONCE];
    uint32_t largest = 0;

    for (size_t k = 0; k < terms; k++) {
        x[k] = sources[k] + begin;
        w[k] = weights[k];
    }
    for (size_t i = 0; i < count; i++) {
        float s = is_first ? x[0][i] * w[0] : __builtin_fmaf(x[0][i], w[0], sum[i]);
#pragma GCC unroll 5
        for (size_t k = 1; k < terms; k++)
            s = __builtin_fmaf(x[k][i], w[k], s);
        sum[i] = s;
        uint32_t bits;
        memcpy(&bits, &s, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

#define CASE(TERMS)                                                                            \
    case TERMS:                                                                                \
        bits = k ? add_block(TERMS, 0, count, begin, weights + k, sources + k, out + begin)    \
                 : add_block(TERMS, 1, count, begin, weights, sources, out + begin);           \
        break;

/* Writes the sum of `terms` sources of n elements, one or more; returns whether every sum is finite. */
FOR_PROCESSORS int weighted_sum_fp32(
    size_t n, size_t terms, const float *weights, const float *const *sources, float *restrict out)
{
    uint32_t largest = 0;

    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t count = n - begin < BLOCK ? n - begin : BLOCK;
        uint32_t bits = 0;
        for (size_t k = 0; k < terms; k += AT_ONCE) {
            switch (terms - k < AT_ONCE ? terms - k : AT_ONCE) {
                CASE(1)
                CASE(2)
                CASE(3)
                CASE(4)
                CASE(5)
            }
        }
        /* What is not finite after one pass is not finite after the last. */
        largest = bits > largest ? bits : largest;
    }
    return largest < INFINITE;
}

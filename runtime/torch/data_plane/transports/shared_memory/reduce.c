/* Sums, products, minima and maxima of two arrays, for each type of element. */
#include "reduce.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_F16C 1
#include <immintrin.h>
#endif

#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHER(a, b) ((a) < (b) ? (b) : (a))

/* `wide` is what is computed in: without a sign for sums of integers, which wrap around. */
#define DEFINE(name, type, wide, operation)                                                                   \
    static void name(void *into, const void *one, const void *other, size_t count) {                          \
        type *out = into;                                                                                     \
        const type *a = one, *b = other;                                                                      \
        for (size_t i = 0; i < count; i++) out[i] = (type)operation((wide)a[i], (wide)b[i]);                  \
    }

#define DEFINE_ALL(name, type, wide)           \
    DEFINE(sum_##name, type, wide, ADD)        \
    DEFINE(product_##name, type, wide, MULTIPLY) \
    DEFINE(min_##name, type, type, LOWER)      \
    DEFINE(max_##name, type, type, HIGHER)

DEFINE_ALL(float32, float, float)
DEFINE_ALL(float64, double, double)
DEFINE_ALL(int32, int32_t, uint32_t)
DEFINE_ALL(int64, int64_t, uint64_t)

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* bfloat16: the upper half of a float, rounded to the nearest, to even in the middle. */

static float from_bfloat16(uint16_t half) { return float_of_bits((uint32_t)half << 16); }

static uint16_t to_bfloat16(float value) {
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* stays not a number */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* float16: by the processor where it can, else by hand. */

static float from_float16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * (1.0f / (1 << 24));
    return sign ? -small : small;
}

static uint16_t to_float16(float value) {
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more: infinite */
    if (size >= 0x38800000) { /* normal */
        size -= 112u << 23;
        return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1)) >> 13);
    }
    /* Adding 0.5 leaves in the last bits what a small number has in units of 2^-24, rounded. */
    return (uint16_t)(sign | (bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000));
}

#define DEFINE_NARROW(name, from, to, operation_name, operation)                                              \
    static void operation_name##_##name(void *into, const void *one, const void *other, size_t count) {       \
        uint16_t *out = into;                                                                                 \
        const uint16_t *a = one, *b = other;                                                                  \
        for (size_t i = 0; i < count; i++) out[i] = to(operation(from(a[i]), from(b[i])));                    \
    }

#define DEFINE_ALL_NARROW(name, from, to)             \
    DEFINE_NARROW(name, from, to, sum, ADD)           \
    DEFINE_NARROW(name, from, to, product, MULTIPLY)  \
    DEFINE_NARROW(name, from, to, min, LOWER)         \
    DEFINE_NARROW(name, from, to, max, HIGHER)

DEFINE_ALL_NARROW(bfloat16, from_bfloat16, to_bfloat16)
DEFINE_ALL_NARROW(float16, from_float16, to_float16)

#ifdef HAS_F16C
__attribute__((target("avx,f16c"))) static void sum_float16_f16c(
    void *into, const void *one, const void *other, size_t count
) {
    uint16_t *out = into;
    const uint16_t *a = one, *b = other;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 left = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i)));
        __m256 right = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(b + i)));
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_add_ps(left, right), 0));
    }
    sum_float16(out + i, a + i, b + i, count - i);
}
#endif

#define OF_TYPE(type, width)                                                          \
    {#type, "sum", width, sum_##type}, {#type, "product", width, product_##type},     \
    {#type, "min", width, min_##type}, {#type, "max", width, max_##type}

static const struct {
    const char *dtype, *op;
    size_t width;
    Reduce reduce;
} functions[] = {
    OF_TYPE(float32, 4), OF_TYPE(float64, 8), OF_TYPE(int32, 4), OF_TYPE(int64, 8), OF_TYPE(bfloat16, 2), OF_TYPE(float16, 2),
};

Reduce find_reduce(const char *dtype, const char *op, size_t *width) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].dtype, dtype) != 0 || strcmp(functions[i].op, op) != 0) continue;
        *width = functions[i].width;
#ifdef HAS_F16C
        if (functions[i].reduce == sum_float16 && __builtin_cpu_supports("f16c")) return sum_float16_f16c;
#endif
        return functions[i].reduce;
    }
    return NULL;
}

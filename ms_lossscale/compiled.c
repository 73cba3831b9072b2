/* What a step does on CPU with its gradients and its state, as operators of MindSpore's "aot" kind.
 *
 * Such an operator is a function int f(n, data, ranks, shapes, dtypes, stream, extra): `n` tensors, the inputs and then
 * the outputs, each with its data, its rank, its shape and the name of its dtype. It returns 0, or an error.
 *
 * Built with -ffp-contract=off: a product rounded to float32 is what NumPy and MindSpore make, too.
 */

#include <stdint.h>
#include <string.h>

#define OPERATOR(name)                                                                                       \
    int name(int n, void **data, int *ranks, int64_t **shapes, const char **dtypes, void *stream, void *extra)

enum { FINE = 0, UNKNOWN_DTYPE = 1 };

/* What compiled.py was written for; it does not use a library that answers another number. */
int revision(void) { return 1; }

static int64_t size_of(int rank, const int64_t *shape) {
    int64_t size = 1;
    for (int axis = 0; axis < rank; axis++) size *= shape[axis];
    return size;
}

/* NaN and Inf are the numbers whose exponent is all ones. */
#define NOT_FINITE(dtype, bits, exponent)                                   \
    static int not_finite_##dtype(const bits *grad, int64_t size) {         \
        bits found = 0;                                                     \
        for (int64_t i = 0; i < size; i++)                                  \
            found |= (bits)((grad[i] & (exponent)) == (exponent));          \
        return found != 0;                                                  \
    }
NOT_FINITE(float16, uint16_t, 0x7c00u)
NOT_FINITE(bfloat16, uint16_t, 0x7f80u)
NOT_FINITE(float32, uint32_t, 0x7f800000u)
NOT_FINITE(float64, uint64_t, 0x7ff0000000000000u)

/* Gradients -> bool of shape (1,): whether any element is NaN or infinite. */
OPERATOR(not_finite) {
    int found = 0;
    for (int k = 0; k < n - 1 && !found; k++) {
        int64_t size = size_of(ranks[k], shapes[k]);
        if (!strcmp(dtypes[k], "float32")) found = not_finite_float32(data[k], size);
        else if (!strcmp(dtypes[k], "float16")) found = not_finite_float16(data[k], size);
        else if (!strcmp(dtypes[k], "bfloat16")) found = not_finite_bfloat16(data[k], size);
        else if (!strcmp(dtypes[k], "float64")) found = not_finite_float64(data[k], size);
        else return UNKNOWN_DTYPE;
    }
    *(uint8_t *)data[n - 1] = (uint8_t)found;
    return FINE;
}

static uint32_t multiply(const float *from, float factor, float *to, int64_t size) {
    uint32_t found = 0;
    for (int64_t i = 0; i < size; i++) {
        float product = from[i] * factor;
        uint32_t bits;
        memcpy(&bits, &product, sizeof bits);
        to[i] = product;
        found |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return found;
}

/* float32 gradients, scale -> the gradients divided by it, and a bool of shape (1,): whether one is NaN or infinite. */
OPERATOR(unscale_and_check) {
    int count = (n - 2) / 2;
    float inverse = 1.0f / *(float *)data[count];
    uint32_t found = 0;
    for (int k = 0; k < count; k++) {
        if (strcmp(dtypes[k], "float32")) return UNKNOWN_DTYPE;
        found |= multiply(data[k], inverse, data[count + 1 + k], size_of(ranks[k], shapes[k]));
    }
    *(uint8_t *)data[n - 1] = found != 0;
    return FINE;
}

/* overflow, and the int32 counters applied, skipped, in a row, which it writes -> overflow, of shape (1,). */
OPERATOR(count_step) {
    uint8_t overflow = *(uint8_t *)data[0];
    int32_t *applied = data[1], *skipped = data[2], *in_a_row = data[3];
    *applied += !overflow;
    *skipped += overflow;
    *in_a_row = overflow ? *in_a_row + 1 : 0;
    *(uint8_t *)data[n - 1] = overflow;
    return FINE;
}

/* The rule of rule.py. Inputs: overflow; scale, cur_iter, last_overflow_iter, tolerated_overflows, which it writes;
 * window, growth, backoff, minimum, maximum, hysteresis, consecutive. Output: overflow, of shape (1,).
 * Without hysteresis, tolerated_overflows is neither read nor written. */
OPERATOR(move_scale) {
    uint8_t overflow = *(uint8_t *)data[0];
    float *scale = data[1];
    int32_t *cur_iter = data[2], *last_overflow_iter = data[3], *tolerated = data[4];
    int32_t window = *(int32_t *)data[5], hysteresis = *(int32_t *)data[10], consecutive = *(int32_t *)data[11];
    float growth = *(float *)data[6], backoff = *(float *)data[7];
    float minimum = *(float *)data[8], maximum = *(float *)data[9];

    int full = window <= *cur_iter - *last_overflow_iter;
    int forgiven = hysteresis > 0 && overflow && *tolerated < hysteresis;
    float moved = *scale;
    if (overflow && !forgiven) moved *= backoff;
    if (!overflow && full) moved *= growth;
    if (moved < minimum) moved = minimum;
    if (moved > maximum) moved = maximum;
    *scale = moved;
    if (forgiven) *tolerated += 1;
    else if (hysteresis > 0 && !overflow && (full || consecutive)) *tolerated = 0;
    if (overflow || full) *last_overflow_iter = *cur_iter;
    *cur_iter += 1;
    *(uint8_t *)data[n - 1] = overflow;
    return FINE;
}

/* What a step does on CPU with its gradients and its state, as operators of MindSpore's "aot" kind.
 *
 * Such an operator is a function int f(n, data, ranks, shapes, dtypes, stream, extra): `n` tensors, the inputs and then
 * the outputs, each with its data, its rank, its shape and the name of its dtype. It returns 0, or an error.
 *
 * Built with -ffp-contract=off: a product rounded to float32 is what NumPy and MindSpore make, too.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OPERATOR(name)                                                                                       \
    int name(int n, void **data, int *ranks, int64_t **shapes, const char **dtypes, void *stream, void *extra)

enum { FINE = 0, UNKNOWN_DTYPE = 1 };

/* What compiled.py was written for; it does not use a library that answers another number. */
int revision(void) { return 2; }

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

/* Writes the gradients times `inverse`, limited; returns whether a product is NaN or infinite. */
static inline uint32_t unscale(const float *from, float inverse, float factor, float bound, float *to, int64_t size) {
    uint32_t found = 0;
    for (int64_t i = 0; i < size; i++) {
        float product = from[i] * inverse;
        uint32_t bits;
        memcpy(&bits, &product, sizeof bits);
        found |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
        product *= factor;
        product = product > bound ? bound : product;
        to[i] = product < -bound ? -bound : product;
    }
    return found;
}

/* float32 gradients, scale, factor, bound -> the gradients divided by the scale, times the factor, between -bound and
 * bound; and a bool of shape (1,): whether a quotient is NaN or infinite. */
OPERATOR(unscale_and_check) {
    int count = (n - 4) / 2;
    float inverse = 1.0f / *(float *)data[count], factor = *(float *)data[count + 1], bound = *(float *)data[count + 2];
    int limited = factor != 1.0f || bound != INFINITY;
    uint32_t found = 0;
    for (int k = 0; k < count; k++) {
        float *to = data[count + 3 + k];
        int64_t size = size_of(ranks[k], shapes[k]);
        if (strcmp(dtypes[k], "float32")) return UNKNOWN_DTYPE;
        if (limited) found |= unscale(data[k], inverse, factor, bound, to, size);
        else found |= unscale(data[k], inverse, 1.0f, INFINITY, to, size);
    }
    *(uint8_t *)data[n - 1] = found != 0;
    return FINE;
}

/* The sum of squares in an order that NumPy can keep, too: host_pass.py has the same. Each square is exact. */
#define LANES 64
static double sum_of_squares(const float *grad, float inverse, int64_t size) {
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float product = grad[i + j] * inverse;
            lane[j] += (double)product * product;
        }
    for (int j = 0; i < size; i++, j++) {
        float product = grad[i] * inverse;
        lane[j] += (double)product * product;
    }
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

/* float32 gradients; scale, limit; and the global norm of the gradients divided by the scale, which it writes -> what to
 * multiply them by so that their norm is at most the limit, of shape (1,); and whether one is NaN or infinite. */
OPERATOR(clip_factor) {
    int count = n - 5;
    float inverse = 1.0f / *(float *)data[count], limit = *(float *)data[count + 1];
    double sum = 0;
    for (int k = 0; k < count; k++) {
        if (strcmp(dtypes[k], "float32")) return UNKNOWN_DTYPE;
        sum += sum_of_squares(data[k], inverse, size_of(ranks[k], shapes[k]));
    }
    double norm = sqrt(sum);
    *(float *)data[count + 2] = (float)norm;
    *(float *)data[n - 2] = norm > limit ? (float)(limit / norm) : 1.0f;
    *(uint8_t *)data[n - 1] = !(sum < INFINITY);
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

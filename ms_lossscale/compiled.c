/* What a step does on CPU with its gradients and its state, as operators of MindSpore's "aot" kind.
 *
 * Such an operator is a function int f(n, data, ranks, shapes, dtypes, stream, extra): `n` tensors, the inputs and then
 * the outputs, each with its data, its rank, its shape and the name of its dtype. It returns 0, or an error.
 *
 * Built with -ffp-contract=off: a product rounded to float32 is what NumPy and MindSpore make, too.
 */

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define OPERATOR(name)                                                                                       \
    int name(int n, void **data, int *ranks, int64_t **shapes, const char **dtypes, void *stream, void *extra)

enum { FINE = 0, UNKNOWN_DTYPE = 1, NO_MEMORY = 2 };

/* What compiled.py was written for; it does not use a library that answers another number. */
int revision(void) { return 2; }

static int64_t size_of(int rank, const int64_t *shape) {
    int64_t size = 1;
    for (int axis = 0; axis < rank; axis++) size *= shape[axis];
    return size;
}

/* A pass over gradients, block by block; blocks are shared out among threads. */
#define BLOCK 65536
#define MOST_THREADS 8
/* A thread is worth its start for so many. */
#define BLOCKS_A_THREAD 8

typedef struct Pass {
    void (*look)(struct Pass *pass, int k, int64_t start, int64_t size, int64_t block);
    int count;                /* of gradients */
    void **data, **products;
    int *ranks;
    int64_t **shapes;
    const char **dtypes;
    float inverse, factor, bound;
    double *sums;             /* of every block */
    int found;                /* NaN or Inf */
} Pass;

typedef struct {
    Pass *pass;
    int64_t first, last;
} Share;

static int64_t blocks_of(const Pass *pass, int k) {
    return (size_of(pass->ranks[k], pass->shapes[k]) + BLOCK - 1) / BLOCK;
}

static void *work(void *argument) {
    const Share *share = argument;
    Pass *pass = share->pass;
    int64_t before = 0;
    for (int k = 0; k < pass->count && before < share->last; k++) {
        int64_t size = size_of(pass->ranks[k], pass->shapes[k]), blocks = blocks_of(pass, k);
        int64_t from = share->first > before ? share->first - before : 0;
        int64_t to = share->last - before < blocks ? share->last - before : blocks;
        for (int64_t i = from; i < to; i++) {
            int64_t start = i * BLOCK;
            pass->look(pass, k, start, size - start < BLOCK ? size - start : BLOCK, before + i);
        }
        before += blocks;
    }
    return NULL;
}

static int64_t processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static int64_t total_blocks(const Pass *pass) {
    int64_t blocks = 0;
    for (int k = 0; k < pass->count; k++) blocks += blocks_of(pass, k);
    return blocks;
}

static void run(Pass *pass) {
    int64_t blocks = total_blocks(pass), threads = blocks / BLOCKS_A_THREAD;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > 1 && threads > processors()) threads = processors();
    if (threads < 1) threads = 1;
    pthread_t others[MOST_THREADS];
    Share shares[MOST_THREADS];
    int started[MOST_THREADS];
    for (int64_t t = threads - 1; t >= 0; t--) {
        shares[t] = (Share){pass, t * blocks / threads, (t + 1) * blocks / threads};
        started[t] = t && !pthread_create(&others[t], NULL, work, &shares[t]);
        if (!started[t]) work(&shares[t]);
    }
    for (int64_t t = 1; t < threads; t++)
        if (started[t]) pthread_join(others[t], NULL);
}

static void see(Pass *pass, int found) {
    if (found) __atomic_store_n(&pass->found, 1, __ATOMIC_RELAXED);
}

/* NaN and Inf are the numbers whose exponent is all ones. */
#define LOOK_FOR_NOT_FINITE(dtype, bits, exponent)                                                     \
    static void look_at_##dtype(Pass *pass, int k, int64_t start, int64_t size, int64_t block) {       \
        const bits *grad = (const bits *)pass->data[k] + start;                                        \
        bits found = 0;                                                                                \
        (void)block;                                                                                   \
        for (int64_t i = 0; i < size; i++)                                                             \
            found |= (bits)((grad[i] & (exponent)) == (exponent));                                     \
        see(pass, found != 0);                                                                         \
    }
LOOK_FOR_NOT_FINITE(float16, uint16_t, 0x7c00u)
LOOK_FOR_NOT_FINITE(bfloat16, uint16_t, 0x7f80u)
LOOK_FOR_NOT_FINITE(float32, uint32_t, 0x7f800000u)
LOOK_FOR_NOT_FINITE(float64, uint64_t, 0x7ff0000000000000u)

static void look_at_any(Pass *pass, int k, int64_t start, int64_t size, int64_t block) {
    if (__atomic_load_n(&pass->found, __ATOMIC_RELAXED)) return;
    if (!strcmp(pass->dtypes[k], "float32")) look_at_float32(pass, k, start, size, block);
    else if (!strcmp(pass->dtypes[k], "float16")) look_at_float16(pass, k, start, size, block);
    else if (!strcmp(pass->dtypes[k], "bfloat16")) look_at_bfloat16(pass, k, start, size, block);
    else look_at_float64(pass, k, start, size, block);
}

static int all_are(const char **dtypes, int count, const char *names[], int known) {
    for (int k = 0; k < count; k++) {
        int found = 0;
        for (int i = 0; i < known; i++) found |= !strcmp(dtypes[k], names[i]);
        if (!found) return 0;
    }
    return 1;
}

static const char *FLOATS[] = {"float32", "float16", "bfloat16", "float64"};

/* Gradients -> bool of shape (1,): whether any element is NaN or infinite. */
OPERATOR(not_finite) {
    Pass pass = {look_at_any, n - 1, data, NULL, ranks, shapes, dtypes};
    if (!all_are(dtypes, pass.count, FLOATS, 4)) return UNKNOWN_DTYPE;
    run(&pass);
    *(uint8_t *)data[n - 1] = (uint8_t)pass.found;
    return FINE;
}

static int is_not_finite(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

static void unscale(Pass *pass, int k, int64_t start, int64_t size, int64_t block) {
    const float *from = (const float *)pass->data[k] + start;
    float *to = (float *)pass->products[k] + start, inverse = pass->inverse;
    int found = 0;
    (void)block;
    for (int64_t i = 0; i < size; i++) {
        float product = from[i] * inverse;
        found |= is_not_finite(product);
        to[i] = product;
    }
    see(pass, found);
}

static void unscale_and_limit(Pass *pass, int k, int64_t start, int64_t size, int64_t block) {
    float *to = (float *)pass->products[k] + start, factor = pass->factor, bound = pass->bound;
    unscale(pass, k, start, size, block);
    for (int64_t i = 0; i < size; i++) {
        float product = to[i] * factor;
        product = product > bound ? bound : product;
        to[i] = product < -bound ? -bound : product;
    }
}

/* float32 gradients, scale, factor, bound -> the gradients divided by the scale, times the factor, between -bound and
 * bound; and a bool of shape (1,): whether a quotient is NaN or infinite. */
OPERATOR(unscale_and_check) {
    int count = (n - 4) / 2;
    Pass pass = {unscale, count, data, data + count + 3, ranks, shapes, dtypes, 1.0f / *(float *)data[count],
                 *(float *)data[count + 1], *(float *)data[count + 2]};
    if (!all_are(dtypes, count, FLOATS, 1)) return UNKNOWN_DTYPE;
    if (pass.factor != 1.0f || pass.bound != INFINITY) pass.look = unscale_and_limit;
    run(&pass);
    *(uint8_t *)data[n - 1] = (uint8_t)pass.found;
    return FINE;
}

/* The sum of squares of a block, in an order that NumPy can keep, too: host_pass.py has the same. Squares are exact. */
#define LANES 64
static void add_squares(Pass *pass, int k, int64_t start, int64_t size, int64_t block) {
    const float *grad = (const float *)pass->data[k] + start;
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float product = grad[i + j] * pass->inverse;
            lane[j] += (double)product * product;
        }
    for (int j = 0; i < size; i++, j++) {
        float product = grad[i] * pass->inverse;
        lane[j] += (double)product * product;
    }
    for (int j = 0; j < LANES; j++) sum += lane[j];
    pass->sums[block] = sum;
}

/* float32 gradients; scale, limit; and the global norm of the gradients divided by the scale, which it writes -> what to
 * multiply them by so that their norm is at most the limit, of shape (1,); and whether one is NaN or infinite. */
OPERATOR(clip_factor) {
    int count = n - 5;
    float limit = *(float *)data[count + 1];
    Pass pass = {add_squares, count, data, NULL, ranks, shapes, dtypes, 1.0f / *(float *)data[count]};
    if (!all_are(dtypes, count, FLOATS, 1)) return UNKNOWN_DTYPE;
    int64_t blocks = total_blocks(&pass);
    pass.sums = malloc((blocks + 1) * sizeof *pass.sums);
    if (pass.sums == NULL) return NO_MEMORY;
    run(&pass);
    double sum = 0;
    for (int64_t i = 0; i < blocks; i++) sum += pass.sums[i];
    free(pass.sums);
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

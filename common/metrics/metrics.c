// A family is a list of series, one per label value, that only ever grows: a series is found by
// walking it and added by one compare-and-swap, so counting never takes a lock. Histograms count
// nanoseconds in integers.
#include "metrics/metrics.h"
#include "base/str.h"
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

// From a fast local answer to a minute of waiting.
static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                0.25,   0.5,   1,      2.5,   5,    10,    30,   60};
enum { BOUNDS = sizeof bounds / sizeof *bounds };

typedef struct series {
    struct series *next;
    char *label_value;     // "" when unlabelled
    _Atomic int64_t count; // a counter's value
    _Atomic double gauge;
    double (*_Atomic fn)(void *arg); // computes the gauge when set
    void *_Atomic arg;
    _Atomic int64_t buckets[BOUNDS + 1]; // not cumulative; the last is +Inf
    _Atomic int64_t sum_ns;
} series;

struct po_metric {
    po_metric *next;
    po_metric_type type;
    const char *name, *help, *label;
    series *_Atomic first;
};

static struct {
    pthread_mutex_t lock; // for declaring and printing
    po_metric *first, **end;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .end = &registry.first};

static const char *const type_names[] = {"counter", "gauge", "histogram"};

static bool is_name(const char *name) {
    if (strncmp(name, "payonce_", 8) != 0)
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

static series *series_find(series *from, const series *until, const char *label_value) {
    for (; from != until; from = from->next)
        if (strcmp(from->label_value, label_value) == 0)
            return from;
    return NULL;
}

static series *series_of(po_metric *metric, const char *label_value) {
    assert((label_value != NULL) == (metric->label != NULL));
    if (!label_value)
        label_value = "";
    series *seen = atomic_load(&metric->first);
    series *found = series_find(seen, NULL, label_value);
    if (found)
        return found;
    series *fresh = calloc(1, sizeof *fresh);
    if (!fresh || !(fresh->label_value = strdup(label_value)))
        abort();
    fresh->next = seen;
    while (!atomic_compare_exchange_weak(&metric->first, &fresh->next, fresh)) {
        found = series_find(fresh->next, seen, label_value); // somebody else's additions only
        if (found) {
            free(fresh->label_value);
            free(fresh);
            return found;
        }
        seen = fresh->next;
    }
    return fresh;
}

po_metric *po_metric_new(po_metric_type type, const char *name, const char *help,
                         const char *label) {
    assert(is_name(name));
    po_metric *metric = calloc(1, sizeof *metric);
    if (!metric)
        abort();
    *metric = (po_metric){.type = type, .name = name, .help = help, .label = label};
    pthread_mutex_lock(&registry.lock);
    for (const po_metric *m = registry.first; m; m = m->next)
        assert(strcmp(m->name, name) != 0);
    *registry.end = metric;
    registry.end = &metric->next;
    pthread_mutex_unlock(&registry.lock);
    if (!label)
        series_of(metric, NULL); // an unlabelled metric shows 0 from the start
    return metric;
}

void po_count(po_metric *metric, const char *label_value, int64_t n) {
    assert(metric->type == PO_COUNTER && n >= 0);
    atomic_fetch_add_explicit(&series_of(metric, label_value)->count, n, memory_order_relaxed);
}

void po_gauge(po_metric *metric, const char *label_value, double value) {
    assert(metric->type == PO_GAUGE);
    atomic_store(&series_of(metric, label_value)->gauge, value);
}

void po_gauge_fn(po_metric *metric, const char *label_value, double (*fn)(void *arg), void *arg) {
    assert(metric->type == PO_GAUGE);
    series *s = series_of(metric, label_value);
    atomic_store(&s->arg, arg);
    atomic_store(&s->fn, fn);
}

void po_observe(po_metric *metric, const char *label_value, double seconds) {
    assert(metric->type == PO_HISTOGRAM);
    series *s = series_of(metric, label_value);
    if (!(seconds > 0)) // a clock set back, or not a number
        seconds = 0;
    size_t i = 0;
    while (i < BOUNDS && seconds > bounds[i])
        i++;
    atomic_fetch_add_explicit(&s->buckets[i], 1, memory_order_relaxed);
    int64_t ns = seconds < 1e9 ? (int64_t)(seconds * 1e9) : (int64_t)1e18;
    atomic_fetch_add_explicit(&s->sum_ns, ns, memory_order_relaxed);
}

// ---- printing ----

static void put_escaped(FILE *out, const char *text, const char *specials) {
    for (; *text; text++)
        if (*text == '\n')
            fputs("\\n", out);
        else if (strchr(specials, *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
}

// name{label="value",le="0.5"}, with as many of the two as there are.
static void put_name(FILE *out, const po_metric *m, const char *suffix, const series *s,
                     const char *le) {
    fprintf(out, "%s%s", m->name, suffix);
    if (!m->label && !le) {
        fputc(' ', out);
        return;
    }
    fputc('{', out);
    if (m->label) {
        fprintf(out, "%s=\"", m->label);
        put_escaped(out, s->label_value, "\\\"");
        fputc('"', out);
    }
    if (le)
        fprintf(out, "%sle=\"%s\"", m->label ? "," : "", le);
    fputs("} ", out);
}

static void put_double(FILE *out, double value) {
    if (isnan(value))
        fputs("NaN\n", out);
    else if (isinf(value))
        fputs(value > 0 ? "+Inf\n" : "-Inf\n", out);
    else
        fprintf(out, "%.15g\n", value);
}

static void put_histogram(FILE *out, const po_metric *m, series *s) {
    int64_t total = 0;
    for (size_t i = 0; i <= BOUNDS; i++) {
        char le[32] = "+Inf";
        if (i < BOUNDS)
            snprintf(le, sizeof le, "%g", bounds[i]);
        total += atomic_load(&s->buckets[i]);
        put_name(out, m, "_bucket", s, le);
        fprintf(out, "%" PRId64 "\n", total);
    }
    int64_t sum_ns = atomic_load(&s->sum_ns);
    put_name(out, m, "_sum", s, NULL);
    fprintf(out, "%" PRId64 ".%09" PRId64 "\n", sum_ns / 1000000000, sum_ns % 1000000000);
    put_name(out, m, "_count", s, NULL);
    fprintf(out, "%" PRId64 "\n", total);
}

static void put_series(FILE *out, const po_metric *m, series *s) {
    if (m->type == PO_HISTOGRAM) {
        put_histogram(out, m, s);
        return;
    }
    put_name(out, m, "", s, NULL);
    if (m->type == PO_COUNTER) {
        fprintf(out, "%" PRId64 "\n", atomic_load(&s->count));
        return;
    }
    double (*fn)(void *) = atomic_load(&s->fn);
    put_double(out, fn ? fn(atomic_load(&s->arg)) : atomic_load(&s->gauge));
}

void po_metrics_write(FILE *out) {
    pthread_mutex_lock(&registry.lock);
    for (po_metric *m = registry.first; m; m = m->next) {
        fprintf(out, "# HELP %s ", m->name);
        put_escaped(out, m->help, "\\");
        fprintf(out, "\n# TYPE %s %s\n", m->name, type_names[m->type]);
        for (series *s = atomic_load(&m->first); s; s = s->next)
            put_series(out, m, s);
    }
    pthread_mutex_unlock(&registry.lock);
}

void po_metrics_list(FILE *out) {
    pthread_mutex_lock(&registry.lock);
    for (const po_metric *m = registry.first; m; m = m->next)
        fprintf(out, "| `%s` | %s | %s | %s |\n", m->name, type_names[m->type],
                m->label ? m->label : "", m->help);
    pthread_mutex_unlock(&registry.lock);
}

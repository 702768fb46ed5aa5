#include "metrics/metrics.h"
#include "base/str.h"
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <cmocka.h>

static char *exposition(void) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    po_metrics_write(out);
    fclose(out);
    return text;
}

static void shows(const char *line) {
    char *text = exposition();
    if (!strstr(text, line))
        fail_msg("no %s in %s", line, text);
    free(text);
}

static void counters_count(void **state) {
    (void)state;
    po_metric *plain = po_metric_new(PO_COUNTER, "payonce_rows_total", "Rows.", NULL);
    shows("# HELP payonce_rows_total Rows.\n# TYPE payonce_rows_total counter\npayonce_rows_total "
          "0\n");
    po_count(plain, NULL, 1);
    po_count(plain, NULL, 41);
    shows("\npayonce_rows_total 42\n");
    po_metric *verdicts =
        po_metric_new(PO_COUNTER, "payonce_verdicts_total", "By \\ verdict.", "verdict");
    po_count(verdicts, "paid", 2);
    po_count(verdicts, "a\"b\\c\nd", 1);
    po_count(verdicts, "paid", 1);
    shows("payonce_verdicts_total{verdict=\"paid\"} 3\n");
    shows("payonce_verdicts_total{verdict=\"a\\\"b\\\\c\\nd\"} 1\n");
    shows("# HELP payonce_verdicts_total By \\\\ verdict.\n");
}

static double half(void *arg) {
    return *(double *)arg / 2;
}

static void gauges_show_the_last_value_or_compute_it(void **state) {
    (void)state;
    static double age = 3;
    po_metric *gauge = po_metric_new(PO_GAUGE, "payonce_age_seconds", "Age.", "loop");
    po_gauge(gauge, "a", 0.25);
    po_gauge(gauge, "b", NAN);
    po_gauge(gauge, "c", -INFINITY);
    po_gauge_fn(gauge, "d", half, &age);
    po_gauge(gauge, "e", 1234567890123);
    shows("payonce_age_seconds{loop=\"a\"} 0.25\n");
    shows("payonce_age_seconds{loop=\"b\"} NaN\n");
    shows("payonce_age_seconds{loop=\"c\"} -Inf\n");
    shows("payonce_age_seconds{loop=\"d\"} 1.5\n");
    shows("payonce_age_seconds{loop=\"e\"} 1234567890123\n");
    age = 5;
    shows("payonce_age_seconds{loop=\"d\"} 2.5\n");
}

static void histograms_are_cumulative(void **state) {
    (void)state;
    po_metric *h = po_metric_new(PO_HISTOGRAM, "payonce_wait_seconds", "Wait.", NULL);
    po_observe(h, NULL, 0.0005); // a bound belongs to its bucket
    po_observe(h, NULL, 0.0006);
    po_observe(h, NULL, 60);
    po_observe(h, NULL, 61);
    po_observe(h, NULL, -1);
    shows("payonce_wait_seconds_bucket{le=\"0.0005\"} 2\n");
    shows("payonce_wait_seconds_bucket{le=\"0.001\"} 3\n");
    shows("payonce_wait_seconds_bucket{le=\"30\"} 3\n");
    shows("payonce_wait_seconds_bucket{le=\"60\"} 4\n");
    shows("payonce_wait_seconds_bucket{le=\"+Inf\"} 5\n");
    shows("payonce_wait_seconds_sum 121.0011");
    shows("payonce_wait_seconds_count 5\n");
    po_metric *labelled = po_metric_new(PO_HISTOGRAM, "payonce_step_seconds", "Step.", "step");
    po_observe(labelled, "commit", 0.3);
    shows("payonce_step_seconds_bucket{step=\"commit\",le=\"0.25\"} 0\n");
    shows("payonce_step_seconds_bucket{step=\"commit\",le=\"0.5\"} 1\n");
}

enum { THREADS = 2, LABELS = 300, ROUNDS = 10 };
static po_metric *shared;
static atomic_int arrived;

static void *hammer(void *arg) {
    (void)arg;
    char label[16];
    for (int i = 0; i < LABELS * ROUNDS; i++) {
        if (i < LABELS)
            for (atomic_fetch_add(&arrived, 1); atomic_load(&arrived) < (i + 1) * THREADS;)
                ; // both meet at each new label, spinning: a sleeper would come too late to collide
        snprintf(label, sizeof label, "l%d", i % LABELS);
        po_count(shared, label, 1);
    }
    return NULL;
}

static void threads_lose_no_count_and_add_no_series_twice(void **state) {
    (void)state;
    shared = po_metric_new(PO_COUNTER, "payonce_shared_total", "Shared.", "l");
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, hammer, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = exposition();
    int lines = 0;
    for (char *at = text; (at = strstr(at, "payonce_shared_total{")); at++, lines++)
        assert_memory_equal(strstr(at, "} "), "} 20\n", 5);
    assert_int_equal(lines, LABELS);
    free(text);
}

static void the_list_is_for_the_docs(void **state) {
    (void)state;
    po_metric_new(PO_GAUGE, "payonce_listed_bytes", "A size.", "kind");
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    po_metrics_list(out);
    fclose(out);
    assert_non_null(strstr(text, "| `payonce_listed_bytes` | gauge | kind | A size. |\n"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_count),
        cmocka_unit_test(gauges_show_the_last_value_or_compute_it),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(threads_lose_no_count_and_add_no_series_twice),
        cmocka_unit_test(the_list_is_for_the_docs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Prometheus metrics, declared with their help text and counted where the verdict falls. Names
// carry the base unit (`_seconds`, `_bytes`, `_total`) and the prefix `payonce_`. Labels are few
// and bounded: never an id. Declare before threads start; counting is lock-free (atomic) and safe
// from any thread.
#pragma once
#include "base/err.h"
#include <stdint.h>
#include <stdio.h>

typedef struct po_metric po_metric;

typedef enum po_metric_type { PO_COUNTER, PO_GAUGE, PO_HISTOGRAM } po_metric_type;

// One family; `label` is NULL or one label name whose values are given when counting, e.g.
// "verdict". Aborts on a duplicate name. Handles live for the whole process.
po_metric *po_metric_new(po_metric_type type, const char *name, const char *help,
                         const char *label);

// counter += n; label_value is NULL when unlabelled, here and below.
void po_count(po_metric *metric, const char *label_value, int64_t n);
// gauge = value.
void po_gauge(po_metric *metric, const char *label_value, double value);
// Fixed buckets, 0.5 ms to 60 s.
void po_observe(po_metric *metric, const char *label_value, double seconds);
// The gauge is computed when scraped (ages); `fn` must be quick and must not block.
void po_gauge_fn(po_metric *metric, const char *label_value, double (*fn)(void *arg), void *arg);

void po_metrics_write(FILE *out); // the exposition text of the process
void po_metrics_list(FILE *out);  // `name | type | label | help` rows for docs/metrics.md

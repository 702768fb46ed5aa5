// What the SDK counts. The handles live as long as the process.
#pragma once
#include "metrics/metrics.h"

typedef struct po_consumer_meter {
    po_metric *events, *duplicates, *ignored;                    // counted after COMMIT
    po_metric *conflicts;                                        // before it
    po_metric *batches, *batch_messages, *batch_time, *failures; // of transactions
    po_metric *missed, *other_log, *lag, *unread, *blocked, *waiting, *alarm, *partitions,
        *last_commit, *pruned, *window;
} po_consumer_meter;

extern po_consumer_meter po_meter;
void po_meter_declare(void); // before threads start, once
// payonce_consumer_waiting_seconds of whoever has no work in hand, who waits as well once what it
// needs (life/need.h) is away.
void po_meter_show_waiting(void);

// The SDK's metrics, declared in one place with their help text.
#include "consumer/meter.h"

#include "base/clock.h"
#include "life/need.h"

po_consumer_meter po_meter;

void po_meter_declare(void) {
    po_meter = (po_consumer_meter){
        .events = po_metric_new(PO_COUNTER, "payonce_consumer_events_total",
                                "Events handled, after COMMIT.", "type"),
        .duplicates = po_metric_new(PO_COUNTER, "payonce_consumer_duplicates_total",
                                    "Events that the inbox knew already.", NULL),
        .ignored = po_metric_new(PO_COUNTER, "payonce_consumer_ignored_total",
                                 "Events of a type without a handler.", NULL),
        .conflicts =
            po_metric_new(PO_COUNTER, "payonce_consumer_conflicts_total",
                          "Events that say another thing under a known business key.", NULL),
        .batches =
            po_metric_new(PO_COUNTER, "payonce_consumer_batches_total", "Batches committed.", NULL),
        .batch_messages =
            po_metric_new(PO_COUNTER, "payonce_consumer_batch_messages_total",
                          "Messages in committed batches; by batches: their size.", NULL),
        .batch_time =
            po_metric_new(PO_HISTOGRAM, "payonce_consumer_batch_seconds",
                          "Time from the first statement of a batch to its COMMIT.", NULL),
        .failures = po_metric_new(PO_COUNTER, "payonce_consumer_batch_failures_total",
                                  "Batches that failed and were rolled back, by kind.", "kind"),
        .missed = po_metric_new(PO_COUNTER, "payonce_consumer_missed_total",
                                "Offsets that the topic's retention had passed before this group "
                                "read them: their events are lost to it.",
                                NULL),
        .other_log = po_metric_new(
            PO_COUNTER, "payonce_consumer_other_log_total",
            "Times a partition's log was another one than had been read (a topic made "
            "anew, a log that lost its end) and was read again from then on.",
            NULL),
        .unread = po_metric_new(PO_GAUGE, "payonce_consumer_unread_messages",
                                "Messages behind the group's committed offsets in all partitions "
                                "of its topics, whoever reads them; NaN: not known. Every member "
                                "says the same: take the maximum, not the sum.",
                                NULL),
        .lag = po_metric_new(PO_GAUGE, "payonce_consumer_lag_seconds",
                             "Age of the oldest message in hand, those behind a refused event "
                             "included; 0 when there is none; NaN while that is not known: no "
                             "assignment yet, or the brokers are away.",
                             NULL),
        .blocked = po_metric_new(PO_GAUGE, "payonce_consumer_blocked_partitions",
                                 "Partitions that an event holds up: refused, or waiting for "
                                 "a lock that somebody else keeps.",
                                 NULL),
        .waiting = po_metric_new(
            PO_GAUGE, "payonce_consumer_waiting_seconds",
            "How long the consumer has been waiting for something it needs, also when "
            "it has nothing to do.",
            NULL),
        .alarm = po_metric_new(PO_GAUGE, "payonce_consumer_deployment_fault",
                               "1 while it waits for what only an operator mends.", NULL),
        .partitions = po_metric_new(PO_GAUGE, "payonce_consumer_partitions",
                                    "Partitions assigned to this member.", NULL),
        .last_commit = po_metric_new(PO_GAUGE, "payonce_consumer_last_commit_timestamp_seconds",
                                     "When a batch was last committed; 0: not yet.", NULL),
        .pruned = po_metric_new(PO_COUNTER, "payonce_consumer_inbox_pruned_total",
                                "Inbox rows deleted after the dedupe window.", NULL),
        .window = po_metric_new(PO_GAUGE, "payonce_consumer_window_too_short",
                                "1 while a topic keeps events longer than the inbox knows them; "
                                "told hourly.",
                                NULL),
    };
}

void po_meter_show_waiting(void) {
    po_need_state away;
    bool any = po_needs_away(&away);
    po_gauge(po_meter.waiting, NULL, any ? (double)(po_now_us() - away.away_since_us) / 1e6 : 0);
}

// Publishes one outbox: every committed row at least once, in commit order per key (P18). One thread per outbox,
// and with it the thread that registers schemas. README.md explains the way of reading.
#pragma once
#include "life/life.h"
#include "pg/pg.h"
#include <jansson.h>

typedef struct relay relay;

typedef struct relay_options {
    po_pg_options pg;
    const char *brokers, *kafka_settings, *registry_url, *registry_ca_file;
    const char *holder; // who we are, for people and for the lease: no other process has the same
    int32_t look_limit; // rows
    int64_t overlap_us;
    // Called on the relay's thread when it learns whether it holds the lease: first as soon as it
    // has had a session with its outbox.
    void (*on_role)(const char *outbox, bool active);
} relay_options;

void relay_declare_metrics(void);
// `options` and `outbox` outlive the relay.
PO_MUST_CHECK bool relay_open(const relay_options *options, const char *outbox, relay **ret_relay,
                              po_err *err);
// Until the process is stopping; then drains and gives the lease back. False when it must not go on: settings that
// cannot work, or another relay has taken over ("fenced").
PO_MUST_CHECK bool relay_run(relay *relay, po_err *err);
void relay_close(relay **relay);
// From any thread. A number that is not known, without a session or while another relay is active, is null.
json_t *relay_status(relay *relay); // new reference
bool relay_active(relay *relay);    // holds the lease

// A program of payonce: `payonce-NAME run | migrate | check-config | print-config | print-settings
// | print-states | print-metrics | --version | --help`. main() describes itself in one struct and
// calls po_service_main(); that owns settings, log, lifecycle, the admin listener (/healthz /readyz
// /statusz /metrics) and the exit code (0 fine, 1 failed, 2 usage or settings).
#pragma once
#include "base/arena.h"
#include "config/config.h"
#include "http/http.h"
#include "life/life.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include <jansson.h>

typedef struct po_service {
    const char *name;           // "ingest"
    const char *about;          // one sentence for --help
    const po_setting *settings; // own settings, ends with {0}; the common ones below are added
    const po_file *migrations;  // NULL: the service owns no tables; else its database, with a
                                // schema at least as new as these, is a need (life/need.h)
    const po_http_route *admin; // further routes of the admin listener, ends with {0}, or NULL;
        // each needs the bearer token of PAYONCE_ADMIN_TOKEN_FILE (404 without one)
    void (*declare_metrics)(void); // before run and for print-metrics; NULL: none
    bool (*check)(const po_config *config,
                  po_err *err); // settings that depend on each other; no network; NULL
    po_config_show show;        // own settings that hold a secret beside other things; NULL: none
    // Runs until po_stopping(); returns false with *err when it could not start or had to give up;
    // REFUSED "setting" is an unusable setting, named in the text: exit code 2. Makes
    // a need of what it uses beside the database, ends it before it returns, and calls
    // po_ready_set(true) when it serves.
    bool (*run)(const po_config *config, po_err *err);
    void (*print_states)(FILE *out); // NULL: no state machine
    json_t *(*status)(void); // object shown at /statusz (new reference; quick, no I/O); NULL: none
} po_service;

// Common settings: DSN (when migrations != NULL or dsn is used), ADMIN_LISTEN (127.0.0.1:9090),
// LOG_LEVEL, ADMIN_TOKEN (secret, optional); `migrate` reads MIGRATE_DSN and falls back to DSN.
int po_service_main(int argc, char **argv, const po_service *service);

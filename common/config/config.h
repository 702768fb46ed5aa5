// Settings are one table: name, type, range, default, secret?, sentence. They come from the
// environment
// (`PAYONCE_…`), secrets from the file that `NAME_FILE` points at. --help, print-config,
// check-config and docs/settings.md all come from the table. An unusable value refuses to start and
// names the setting, never its value. A name that no program knows refuses to start as well.
#pragma once
#include "base/err.h"
#include "base/str.h"
#include <stdio.h>

typedef enum po_setting_type {
    PO_SET_TEXT,
    PO_SET_INT,         // within [min, max]
    PO_SET_BOOL,        // true | false
    PO_SET_DURATION_MS, // 250ms, 30s, 5m, 24h, 400d; within [min, max] milliseconds
    PO_SET_BYTES,       // 4096, 64KiB, 16MiB; within [min, max]
    // Read whole from the regular file named by NAME_FILE, a trailing newline is cut; never printed.
    // An empty file is refused even when the fallback is "" (= none).
    PO_SET_SECRET,
    PO_SET_PATH, // a readable file
    // These may be empty where their fallback is.
    PO_SET_LISTEN,  // 127.0.0.1:8080, [::]:0: a numeric address and a port, 0 = any
    PO_SET_SERVERS, // host:port,host:port
    PO_SET_URL,     // scheme://[user:password@]host[:port][/path]; shown without user and query
} po_setting_type;

typedef struct po_setting {
    const char *name; // without the prefix PAYONCE_ ("RELAY_RETENTION")
    po_setting_type type;
    const char *fallback; // as text; NULL = required
    int64_t min, max;     // for numbers, both 0 = any; for text and secrets: bytes (max 0 = 4096)
    const char *doc;      // one sentence, with unit
} po_setting;

typedef struct po_config po_config;

// `table` ends with {0}. Every fault found is in err->text, one a line, as far as they fit;
// PO_REFUSED "setting".
PO_MUST_CHECK bool po_config_load(const po_setting *table, po_config **ret_config, po_err *err);
void po_config_free(po_config **config);

// Asking for a name or a type that the table does not have is our mistake: abort. Text is lent by
// the config. TEXT, SECRET, PATH; "" when empty.
const char *po_config_text(const po_config *config, const char *name);
// INT, BOOL, DURATION_MS, BYTES.
int64_t po_config_int(const po_config *config, const char *name);

// How to print a text that holds a secret beside what may be seen: puts that into out. False: print
// as the type says.
typedef bool (*po_config_show)(const po_setting *setting, const char *text, po_buf *out);
// Values as JSON lines under the names of the variables that set them (a secret's ends with _FILE); secrets as
// "(set)" unless show (or NULL) knows better.
void po_config_print(const po_config *config, po_config_show show, FILE *out);
// The table of docs/settings.md.
void po_config_markdown(const po_setting *table, FILE *out);

// One environment may serve several programs, so a name is right when a table has it or any program
// of this tree. Adds a line with the right names that are like it for each other PAYONCE_ entry of
// `environment`; the variables that Kubernetes sets for a service (NAME_SERVICE_HOST and its
// companions) are passed over. `tables` ends with NULL.
void po_config_strangers(const po_setting *const tables[], const char *const *environment,
                         po_buf *faults);

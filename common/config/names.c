// Which PAYONCE_ names of an environment belong to nobody. Several programs may be given the same
// environment (one file, one ConfigMap), so the names of all programs of this tree are right in each; they
// are read from the sources when it is built (setting_names.h). A slip of the pen is refused, for a setting
// that is ignored is found out when it was needed.
#include "config/config.h"
#include "base/cleanup.h"
#include "setting_names.h"
#include <stdlib.h>

enum { NAME_MAX_BYTES = 128 };

static const char prefix[] = "PAYONCE_";

// ---- the nearest name ----

// How many letters must be put in, taken out or changed to make one of the other.
static size_t distance(const char *a, const char *b) {
    size_t n = strlen(b), row[NAME_MAX_BYTES + 1];
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t changed = corner + (a[i - 1] != b[j - 1]);
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            corner = row[j];
            row[j] = changed < least ? changed : least;
        }
    }
    return row[n];
}

// What has been looked at on the way through all names.
typedef struct search {
    const char *name;
    bool found;
    size_t distance;
    char nearest[NAME_MAX_BYTES];
} search;

static void look_at(search *s, const char *known) {
    size_t far = distance(s->name, known);
    s->found |= far == 0;
    if (s->nearest[0] && far >= s->distance)
        return;
    s->distance = far;
    snprintf(s->nearest, sizeof s->nearest, "%s", known);
}

static void look_at_row(search *s, const po_setting *row) {
    char known[NAME_MAX_BYTES];
    snprintf(known, sizeof known, "%s%s%s", prefix, row->name,
             row->type == PO_SET_SECRET ? "_FILE" : "");
    look_at(s, known);
}

static void look_everywhere(search *s, const po_setting *const tables[]) {
    for (const char *const *known = setting_names; *known; known++)
        look_at(s, *known);
    for (; *tables; tables++)
        for (const po_setting *row = *tables; row->name; row++)
            look_at_row(s, row);
}

// ---- what is not a setting ----

static bool is_set(const char *const *environment, const char *name) {
    size_t n = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
            return true;
    return false;
}

// Kubernetes tells each pod of the services around it: of one named payonce-ingest by
// PAYONCE_INGEST_SERVICE_HOST, …_SERVICE_PORT, …_SERVICE_PORT_NAME, …_PORT and …_PORT_8080_TCP with its
// parts. Only beside the first are the others taken for such.
static bool is_service_link(const char *const *environment, const char *name) {
    for (const char *at = name; (at = strchr(at, '_')); at++) {
        bool link = strncmp(at, "_SERVICE_", 9) == 0 ||
                    (strncmp(at, "_PORT", 5) == 0 && (at[5] == 0 || at[5] == '_'));
        char host[NAME_MAX_BYTES + 16];
        snprintf(host, sizeof host, "%.*s_SERVICE_HOST", (int)(at - name), name);
        if (link && is_set(environment, host))
            return true;
    }
    return false;
}

// A name may hold anything but '=' and would otherwise write on the terminal, or a line of its own.
static void make_printable(char *name) {
    for (char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~')
            *c = '?';
}

void po_config_strangers(const po_setting *const tables[], const char *const *environment,
                         po_buf *faults) {
    for (const char *const *entry = environment; *entry; entry++) {
        size_t n = strcspn(*entry, "=");
        if (strncmp(*entry, prefix, sizeof prefix - 1) != 0)
            continue;
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%.*s", (int)n, *entry);
        search s = {.name = name};
        look_everywhere(&s, tables);
        if (n < sizeof name && (s.found || is_service_link(environment, name)))
            continue;
        make_printable(name);
        po_buf_printf(faults, "%s is no setting; the nearest is %s\n", name, s.nearest);
    }
}

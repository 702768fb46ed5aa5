// Which PAYONCE_ names of an environment belong to nobody. Several programs may be given the same
// environment (one file, one ConfigMap), so the names of all programs of this tree are right in each; they
// are read from the sources when it is built (setting_names.h). A slip of the pen is refused, for a setting
// that is ignored is found out when it was needed.
#include "config/config.h"
#include "base/cleanup.h"
#include "setting_names.h"
#include <ctype.h>
#include <stdlib.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 128 };

static const char prefix[] = "PAYONCE_";

// ---- names that are like it ----

// How many letters must be put in, taken out or changed to make one of the other; case counts for nothing.
static size_t distance(const char *a, const char *b) {
    size_t n = strlen(b), row[NAME_MAX_BYTES + 1];
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t changed = corner + (toupper((unsigned char)a[i - 1]) != b[j - 1]);
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            corner = row[j];
            row[j] = changed < least ? changed : least;
        }
    }
    return row[n];
}

// Cuts the first word of "A_B_C".
static po_str next_word(const char **rest) {
    *rest += strspn(*rest, "_");
    po_str word = {*rest, strcspn(*rest, "_")};
    *rest += word.n;
    return word;
}

static bool has_word(const char *name, po_str wanted) {
    for (po_str word; (word = next_word(&name)).n;)
        if (word.n == wanted.n && strncasecmp(word.p, wanted.p, word.n) == 0)
            return true;
    return false;
}

static int words_in_common(const char *name, const char *known) {
    int n = 0;
    for (po_str word; (word = next_word(&name)).n;)
        n += has_word(known, word);
    return n;
}

// A slip of the pen is the likest; else names are as like as they have words in common, since an old
// name or a guessed one speaks of the same thing. 0: not at all.
static int likeness(const char *name, const char *known) {
    size_t far = distance(name, known), letters = strlen(name);
    if (far <= (letters + 3) / 4)
        return NAME_MAX_BYTES - (int)far;
    return words_in_common(name, known);
}

// What has been looked at on the way through all names; those without the prefix.
typedef struct search {
    const char *name;
    bool found;
    int likeness;
    po_buf like; // ", PAYONCE_A, PAYONCE_B"
} search;

static void search_done(search *s) {
    po_buf_done(&s->like);
}

static bool is_listed(const po_buf *like, const char *known) {
    size_t n = strlen(known);
    for (const char *at = like->n ? like->p : NULL; at && (at = strstr(at, prefix));) {
        at += sizeof prefix - 1;
        if (strncmp(at, known, n) == 0 && (at[n] == ',' || !at[n]))
            return true;
    }
    return false;
}

static void look_at(search *s, const char *known) {
    s->found |= strcmp(s->name, known) == 0;
    int like = likeness(s->name, known);
    if (like > s->likeness) {
        s->likeness = like;
        s->like.n = 0;
    }
    if (like > 0 && like == s->likeness && !is_listed(&s->like, known))
        po_buf_printf(&s->like, ", %s%s", prefix, known);
}

static void look_at_row(search *s, const po_setting *row) {
    char known[NAME_MAX_BYTES];
    snprintf(known, sizeof known, "%s%s", row->name, row->type == PO_SET_SECRET ? "_FILE" : "");
    look_at(s, known);
}

static void look_everywhere(search *s, const po_setting *const tables[]) {
    for (const char *const *known = setting_names; *known; known++)
        look_at(s, *known + sizeof prefix - 1);
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
        PO_AUTO(search_done) search s = {.name = name + sizeof prefix - 1};
        look_everywhere(&s, tables);
        if (n < sizeof name && (s.found || is_service_link(environment, name)))
            continue;
        make_printable(name);
        po_buf_printf(faults, "%s is no setting; ", name);
        if (s.like.n)
            po_buf_printf(faults, "names like it: %s\n", s.like.p + 2);
        else
            po_buf_puts(faults, "docs/settings.md lists them\n");
    }
}

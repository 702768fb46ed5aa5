// Loading reads every setting before it judges, so that one start names every fault. Values are
// kept as text beside the number they mean; readers look a name up in the table, for settings are
// few and read at start.
#include "config/config.h"
#include "base/cleanup.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_MAX = 4096 };

typedef struct scale {
    const char *suffix;
    int64_t factor;
} scale;
// Printing takes the last factor that divides.
static const scale durations[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}, {NULL, 0},
};
static const scale sizes[] = {
    {"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {NULL, 0},
};

typedef struct value {
    const po_setting *setting;
    char *text; // owned; never NULL after loading
    int64_t number;
    bool given; // by the environment, not by the default
} value;

struct po_config {
    size_t n;
    value values[];
};

// ---- one value ----

static bool parse_scaled(po_str text, const scale *scales, int64_t *ret_number) {
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    po_str suffix = {text.p + digits, text.n - digits};
    for (; scales->suffix; scales++)
        if (po_str_is(suffix, scales->suffix))
            return po_parse_i64((po_str){text.p, digits}, ret_number) &&
                   !__builtin_mul_overflow(*ret_number, scales->factor, ret_number);
    return false;
}

static void put_scaled(po_buf *out, int64_t number, const scale *scales) {
    const scale *best = scales;
    for (; scales->suffix; scales++)
        if (number != 0 && number % scales->factor == 0)
            best = scales;
    po_buf_printf(out, "%" PRId64 "%s", number / best->factor, best->suffix);
}

static void put_number(po_buf *out, const po_setting *setting, int64_t number) {
    if (setting->type == PO_SET_INT)
        po_buf_printf(out, "%" PRId64, number);
    else
        put_scaled(out, number, setting->type == PO_SET_BYTES ? sizes : durations);
}

static bool has_range(const po_setting *setting) {
    return setting->min != 0 || setting->max != 0;
}

static const char *const bad_form[] = {
    [PO_SET_TEXT] = "",
    [PO_SET_INT] = "is not a whole number",
    [PO_SET_BOOL] = "is neither true nor false",
    [PO_SET_DURATION_MS] = "is not a duration such as 250ms, 30s, 5m, 24h or 400d",
    [PO_SET_BYTES] = "is not a size such as 4096, 64KiB or 16MiB",
    [PO_SET_SECRET] = "",
    [PO_SET_PATH] = "",
};

// Puts what is wrong with a number into faults, if anything.
static void read_number(value *v, po_buf *faults) {
    const po_setting *s = v->setting;
    po_str text = po_s(v->text);
    bool ok = s->type == PO_SET_INT     ? po_parse_i64(text, &v->number)
              : s->type == PO_SET_BYTES ? parse_scaled(text, sizes, &v->number)
                                        : parse_scaled(text, durations, &v->number);
    if (!ok) {
        po_buf_printf(faults, "PAYONCE_%s %s\n", s->name, bad_form[s->type]);
    } else if (has_range(s) && (v->number < s->min || v->number > s->max)) {
        po_buf_printf(faults, "PAYONCE_%s is outside ", s->name);
        put_number(faults, s, s->min);
        po_buf_puts(faults, " to ");
        put_number(faults, s, s->max);
        po_buf_puts(faults, "\n");
    }
}

static void read_value(value *v, po_buf *faults) {
    const po_setting *s = v->setting;
    size_t most = s->max > 0 ? (size_t)s->max : TEXT_MAX;
    switch (s->type) {
    case PO_SET_TEXT:
    case PO_SET_SECRET:
        if (strlen(v->text) > most)
            po_buf_printf(faults, "PAYONCE_%s is longer than %zu bytes\n", s->name, most);
        break;
    case PO_SET_PATH:
        if (v->text[0] && access(v->text, R_OK) != 0)
            po_buf_printf(faults, "PAYONCE_%s: cannot read the file: %s\n", s->name,
                          strerror(errno));
        break;
    case PO_SET_BOOL:
        v->number = strcmp(v->text, "true") == 0;
        if (!v->number && strcmp(v->text, "false") != 0)
            po_buf_printf(faults, "PAYONCE_%s %s\n", s->name, bad_form[s->type]);
        break;
    case PO_SET_INT:
    case PO_SET_DURATION_MS:
    case PO_SET_BYTES:
        read_number(v, faults);
        break;
    }
}

// ---- where values come from ----

static const char *from_environment(const char *name, const char *suffix) {
    char variable[128];
    int n = snprintf(variable, sizeof variable, "PAYONCE_%s%s", name, suffix);
    assert(n > 0 && (size_t)n < sizeof variable);
    return getenv(variable);
}

// The whole file, at most one byte more than `most` (so that too long a one is seen to be so); -1
// on failure.
static ssize_t read_file(const char *path, char *out, size_t most) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t have = 0;
    ssize_t n;
    while (have <= most && (n = read(fd, out + have, most + 1 - have)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int why = errno;
            close(fd);
            errno = why;
            return -1;
        }
        have += (size_t)n;
    }
    close(fd);
    return (ssize_t)have;
}

// An empty secret is refused even where none is required: with one, anybody can sign.
static char *read_secret(const po_setting *s, const char *path, po_buf *faults) {
    size_t most = s->max > 0 ? (size_t)s->max : TEXT_MAX;
    char *text = calloc(1, most + 4);
    if (!text)
        abort();
    ssize_t n = read_file(path, text, most + 2); // a line end may follow the longest secret
    if (n < 0) {
        po_buf_printf(faults, "PAYONCE_%s_FILE: cannot read the file: %s\n", s->name,
                      strerror(errno));
        return text;
    }
    if (n > 0 && text[n - 1] == '\n') {
        text[--n] = '\0';
        if (n > 0 && text[n - 1] == '\r')
            text[--n] = '\0';
    }
    if (n == 0)
        po_buf_printf(faults, "PAYONCE_%s_FILE is an empty file\n", s->name);
    else if (strlen(text) != (size_t)n)
        po_buf_printf(faults, "PAYONCE_%s_FILE holds a NUL byte\n", s->name);
    return text;
}

static char *heap_copy(const char *text) {
    char *copy = strdup(text);
    if (!copy)
        abort();
    return copy;
}

static void load_secret(value *v, po_buf *faults) {
    const po_setting *s = v->setting;
    const char *path = from_environment(s->name, "_FILE");
    v->given = path && path[0];
    if (from_environment(s->name, ""))
        po_buf_printf(faults, "PAYONCE_%s: a secret is read from the file PAYONCE_%s_FILE names\n",
                      s->name, s->name);
    if (v->given)
        v->text = read_secret(s, path, faults);
    else if (!s->fallback)
        po_buf_printf(faults, "PAYONCE_%s_FILE is required\n", s->name);
}

static void load_value(value *v, po_buf *faults) {
    const po_setting *s = v->setting;
    size_t faults_before = faults->n;
    if (s->type == PO_SET_SECRET) {
        load_secret(v, faults);
    } else {
        const char *text = from_environment(s->name, "");
        v->given = text != NULL;
        if (!s->fallback && (!text || !text[0]))
            po_buf_printf(faults, "PAYONCE_%s is required\n", s->name);
        else if (text)
            v->text = heap_copy(text);
    }
    if (!v->text)
        v->text = heap_copy(s->fallback ? s->fallback : "");
    if (faults->n == faults_before)
        read_value(v, faults);
}

// ---- the whole table ----

static size_t table_length(const po_setting *table) {
    size_t n = 0;
    for (; table[n].name; n++)
        for (size_t i = 0; i < n; i++)
            assert(strcmp(table[i].name, table[n].name) != 0); // one name, one meaning
    return n;
}

// What does not fit is left out by whole lines, and said to be.
static bool refuse(po_err *err, const po_buf *faults) {
    static const char more[] = "more settings are at fault";
    size_t room = sizeof err->text - 1, n = faults->n - 1; // without the last line end
    if (n <= room)
        return po_fail(err, PO_REFUSED, "setting", "%.*s", (int)n, faults->p);
    for (n = room - (sizeof more - 1); n > 0 && faults->p[n - 1] != '\n'; n--)
        ;
    return po_fail(err, PO_REFUSED, "setting", "%.*s%s", (int)n, faults->p, more);
}

bool po_config_load(const po_setting *table, po_config **ret_config, po_err *err) {
    size_t n = table_length(table);
    PO_AUTO(po_config_free) po_config *config = calloc(1, sizeof *config + n * sizeof(value));
    if (!config)
        abort();
    config->n = n;
    PO_AUTO(po_buf_done) po_buf faults = {0};
    for (size_t i = 0; i < n; i++) {
        config->values[i].setting = &table[i];
        load_value(&config->values[i], &faults);
    }
    if (faults.n)
        return refuse(err, &faults);
    *ret_config = po_take(&config);
    return true;
}

void po_config_free(po_config **config) {
    if (!*config)
        return;
    for (size_t i = 0; i < (*config)->n; i++) {
        char *text = (*config)->values[i].text;
        if (text)
            explicit_bzero(text, strlen(text));
        free(text);
    }
    free(*config);
    *config = NULL;
}

static const value *value_named(const po_config *config, const char *name) {
    for (size_t i = 0; i < config->n; i++)
        if (strcmp(config->values[i].setting->name, name) == 0)
            return &config->values[i];
    fprintf(stderr, "no setting %s\n", name);
    abort();
}

static bool is_text(po_setting_type type) {
    return type == PO_SET_TEXT || type == PO_SET_SECRET || type == PO_SET_PATH;
}

const char *po_config_text(const po_config *config, const char *name) {
    const value *v = value_named(config, name);
    assert(is_text(v->setting->type));
    return v->text;
}

int64_t po_config_int(const po_config *config, const char *name) {
    const value *v = value_named(config, name);
    assert(!is_text(v->setting->type));
    return v->number;
}

// ---- printing ----

void po_config_print(const po_config *config, FILE *out) {
    for (size_t i = 0; i < config->n; i++) {
        const value *v = &config->values[i];
        bool secret = v->setting->type == PO_SET_SECRET;
        json_t *line = json_pack("{s:s+, s:s, s:s}", "name", "PAYONCE_", v->setting->name, "value",
                                 secret ? (v->given ? "(set)" : "") : v->text, "source",
                                 v->given ? "environment" : "default");
        if (line) { // a text that is not UTF-8 cannot be shown in JSON
            json_dumpf(line, out, JSON_COMPACT);
            fputc('\n', out);
        }
        json_decref(line);
    }
}

static const char *type_name(const po_setting *setting) {
    static const char *const names[] = {
        [PO_SET_TEXT] = "text",          [PO_SET_INT] = "number",
        [PO_SET_BOOL] = "true or false", [PO_SET_DURATION_MS] = "duration",
        [PO_SET_BYTES] = "size",         [PO_SET_SECRET] = "secret file",
        [PO_SET_PATH] = "file",
    };
    return names[setting->type];
}

void po_config_markdown(const po_setting *table, FILE *out) {
    fputs("| setting | type | range | default | meaning |\n|---|---|---|---|---|\n", out);
    for (const po_setting *s = table; s->name; s++) {
        PO_AUTO(po_buf_done) po_buf range = {0};
        if (!is_text(s->type) && s->type != PO_SET_BOOL && has_range(s)) {
            put_number(&range, s, s->min);
            po_buf_puts(&range, " to ");
            put_number(&range, s, s->max);
        }
        po_buf_puts(&range, "");
        fprintf(out, "| `PAYONCE_%s%s` | %s | %s |", s->name,
                s->type == PO_SET_SECRET ? "_FILE" : "", type_name(s), range.p);
        if (!s->fallback)
            fputs(" required |", out);
        else
            fprintf(out, s->fallback[0] ? " `%s` |" : "%s |", s->fallback);
        fprintf(out, " %s |\n", s->doc);
    }
}

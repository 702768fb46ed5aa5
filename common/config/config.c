// Loading reads every setting before it judges, so that one start names every fault. Values are
// kept as text beside the number they mean; readers look a name up in the table, for settings are
// few and read at start.
#define _GNU_SOURCE // memrchr
#include "config/config.h"
#include "base/cleanup.h"
#include <arpa/inet.h>
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

static bool is_text(po_setting_type type) {
    return type != PO_SET_INT && type != PO_SET_BOOL && type != PO_SET_DURATION_MS &&
           type != PO_SET_BYTES;
}

static void put_number(po_buf *out, const po_setting *setting, int64_t number) {
    if (setting->type == PO_SET_INT || is_text(setting->type))
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
    [PO_SET_LISTEN] = "is not an address such as 127.0.0.1:8080 or [::]:0",
    [PO_SET_SERVERS] = "is not a list of servers such as host:9092,host:9092",
    [PO_SET_URL] = "is not a URL such as https://host:8081/path",
};

// ---- addresses ----

// Cuts "host:port" or "[v6]:port"; the port is a number up to 65535.
static bool split_address(po_str text, po_str *ret_host, int64_t *ret_port) {
    const char *colon = text.n ? memrchr(text.p, ':', text.n) : NULL;
    if (!colon)
        return false;
    size_t n = (size_t)(colon - text.p);
    *ret_host = (po_str){text.p, n};
    return po_parse_i64((po_str){colon + 1, text.n - n - 1}, ret_port) && *ret_port >= 0 &&
           *ret_port <= UINT16_MAX;
}

static bool in_brackets(po_str host) {
    return host.n > 2 && host.p[0] == '[' && host.p[host.n - 1] == ']';
}

static bool is_numeric(po_str host) {
    unsigned char address[sizeof(struct in6_addr)];
    char text[INET6_ADDRSTRLEN];
    bool six = in_brackets(host);
    if (six)
        host = (po_str){host.p + 1, host.n - 2};
    if (host.n >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)host.n, host.p);
    return inet_pton(six ? AF_INET6 : AF_INET, text, address) == 1;
}

static bool is_host(po_str host) {
    if (in_brackets(host))
        return is_numeric(host);
    for (size_t i = 0; i < host.n; i++)
        if (host.p[i] <= ' ' || host.p[i] > '~' || strchr("[]:/?#@,'\"\\", host.p[i]))
            return false;
    return host.n > 0;
}

static bool is_listen(po_str text) {
    po_str host;
    int64_t port;
    return split_address(text, &host, &port) && is_numeric(host);
}

static bool is_server(po_str text) {
    po_str host;
    int64_t port;
    return split_address(text, &host, &port) && port > 0 && is_host(host);
}

static bool is_servers(po_str text) {
    for (size_t n; text.n; text = (po_str){text.p + n + 1, text.n - n - 1}) {
        const char *comma = memchr(text.p, ',', text.n);
        n = comma ? (size_t)(comma - text.p) : text.n;
        if (!is_server((po_str){text.p, n}))
            return false;
        if (!comma)
            return true;
    }
    return false;
}

typedef struct url {
    po_str scheme, user, host, path; // host: with the port; path: up to the query
} url;

// An @ behind the host is that of a password with a / in it, which must be written %2F.
static bool split_url(const char *text, url *ret) {
    size_t scheme = strspn(text, "abcdefghijklmnopqrstuvwxyz");
    if (scheme == 0 || strncmp(text + scheme, "://", 3) != 0)
        return false;
    const char *from = text + scheme + 3;
    size_t n = strcspn(from, "/?#"), path = strcspn(from + n, "?#");
    const char *at = n ? memrchr(from, '@', n) : NULL;
    size_t user = at ? (size_t)(at - from) : 0, skip = at ? user + 1 : 0;
    *ret = (url){{text, scheme}, {from, user}, {from + skip, n - skip}, {from + n, path}};
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~' || (*c == '@' && c >= from + n))
            return false;
    return is_host(ret->host) || is_server(ret->host);
}

static bool is_url(po_str text) {
    url url;
    return split_url(text.p, &url);
}

static bool is_well_formed(po_setting_type type, po_str text) {
    return type == PO_SET_LISTEN    ? is_listen(text)
           : type == PO_SET_SERVERS ? is_servers(text)
                                    : is_url(text);
}

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

// Empty means none only where the default does.
static bool is_absent(const value *v) {
    return !v->text[0] && v->setting->fallback && !v->setting->fallback[0];
}

static void read_value(value *v, po_buf *faults) {
    const po_setting *s = v->setting;
    size_t most = s->max > 0 ? (size_t)s->max : TEXT_MAX;
    switch (s->type) {
    case PO_SET_TEXT:
    case PO_SET_SECRET:
        if (strlen(v->text) > most)
            po_buf_printf(faults, "PAYONCE_%s is longer than %zu bytes\n", s->name, most);
        else if (v->given && strlen(v->text) < (size_t)s->min)
            po_buf_printf(faults, "PAYONCE_%s is shorter than %" PRId64 " bytes\n", s->name,
                          s->min);
        break;
    case PO_SET_LISTEN:
    case PO_SET_SERVERS:
    case PO_SET_URL:
        if (strlen(v->text) > most || (!is_absent(v) && !is_well_formed(s->type, po_s(v->text))))
            po_buf_printf(faults, "PAYONCE_%s %s\n", s->name, bad_form[s->type]);
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
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO would wait for its writer
    if (fd < 0)
        return -1;
    struct stat about = {0};
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        errno = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
        return -1;
    }
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

// User and query may be secrets.
static void show_url(const char *text, po_buf *out) {
    url url;
    if (!split_url(text, &url))
        return;
    po_buf_printf(out, "%.*s://%s%.*s%.*s", (int)url.scheme.n, url.scheme.p,
                  url.user.n ? "***@" : "", (int)url.host.n, url.host.p, (int)url.path.n,
                  url.path.p);
    if (url.path.p[url.path.n])
        po_buf_printf(out, "%c***", url.path.p[url.path.n]);
}

static void show_value(const value *v, po_config_show show, po_buf *out) {
    if (show && v->text[0] && show(v->setting, v->text, out))
        return;
    if (v->setting->type == PO_SET_SECRET)
        po_buf_puts(out, v->given ? "(set)" : "");
    else if (v->setting->type == PO_SET_URL)
        show_url(v->text, out);
    else
        po_buf_puts(out, v->text);
}

void po_config_print(const po_config *config, po_config_show show, FILE *out) {
    for (size_t i = 0; i < config->n; i++) {
        const value *v = &config->values[i];
        PO_AUTO(po_buf_done) po_buf text = {0};
        show_value(v, show, &text);
        po_buf_put(&text, "", 1);
        const char *suffix = v->setting->type == PO_SET_SECRET ? "_FILE" : "";
        json_t *line = json_pack("{s:s++, s:s, s:s}", "name", "PAYONCE_", v->setting->name, suffix,
                                 "value", text.p, "source", v->given ? "environment" : "default");
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
        [PO_SET_PATH] = "file",          [PO_SET_LISTEN] = "address",
        [PO_SET_SERVERS] = "servers",    [PO_SET_URL] = "URL",
    };
    return names[setting->type];
}

static void put_range(po_buf *out, const po_setting *s) {
    bool text = is_text(s->type);
    if (s->type == PO_SET_BOOL || !has_range(s))
        return;
    if (text && s->max == 0) {
        po_buf_printf(out, "≥ %" PRId64 " bytes", s->min);
    } else if (text && s->min == 0) {
        po_buf_printf(out, "≤ %" PRId64 " bytes", s->max);
    } else {
        put_number(out, s, s->min);
        po_buf_puts(out, " to ");
        put_number(out, s, s->max);
        po_buf_puts(out, text ? " bytes" : "");
    }
}

void po_config_markdown(const po_setting *table, FILE *out) {
    fputs("| setting | type | range | default | meaning |\n|---|---|---|---|---|\n", out);
    for (const po_setting *s = table; s->name; s++) {
        PO_AUTO(po_buf_done) po_buf range = {0};
        put_range(&range, s);
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

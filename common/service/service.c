// How a program of payonce starts, answers for itself and ends. Everything it can be asked is one
// row of `commands`; the settings are one table, the service's own behind the common ones. Faults
// of settings go to stderr, one a line, and end in exit code 2 before anything is opened. `run`
// fixes the order of life: signals, log, metrics, admin listener, the service's own run; then not
// ready, listener closed, exit. The listener answers from its own threads until the very end, so a
// slow drain is seen and not guessed.
#define _GNU_SOURCE // environ
#include "service/service.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/need.h"
#include "pg/migrate.h"

#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char version[] = PO_VERSION; // of the CMake project

enum { EXIT_FINE, EXIT_FAILED, EXIT_SETTINGS };

// A migration may rewrite or index a large table.
enum { MIGRATE_STATEMENT_MS = 3600 * 1000 };

// A DSN may hold a password, so it may also come from the file that NAME_FILE points at.
static const po_setting dsn_settings[] = {
    {"DSN", PO_SET_TEXT, NULL, 0, 0,
     "PostgreSQL connection string of the service's own role; or `PAYONCE_DSN_FILE`, a file that "
     "holds it."},
    {"MIGRATE_DSN", PO_SET_TEXT, "", 0, 0,
     "Connection string of the role that may change the schema, for `migrate` alone; or "
     "`PAYONCE_MIGRATE_DSN_FILE`; empty: `PAYONCE_DSN`."},
    {0},
};

static const po_setting common_settings[] = {
    {"ADMIN_LISTEN", PO_SET_LISTEN, "127.0.0.1:9090", 0, 255,
     "Address of the admin listener (`/healthz`, `/readyz`, `/statusz`, `/metrics`); port 0: "
     "chosen and logged."},
    {"ADMIN_TOKEN", PO_SET_SECRET, "", 0, 0,
     "Bearer token of the admin listener's further routes; empty: they do not exist."},
    {"LOG_LEVEL", PO_SET_TEXT, "info", 0, 16,
     "Least level that is logged: `debug`, `info`, `warn` or `error`."},
    {"LOG_RATE", PO_SET_INT, "50", 0, 100000,
     "Most lines a second for ordinary outcomes; those above are counted, and one line a second "
     "says how many."},
    {0},
};

static const char *const level_names[] = {
    [PO_DEBUG] = "debug", [PO_INFO] = "info", [PO_WARN] = "warn", [PO_ERROR] = "error"};

// What one call of po_service_main works on.
typedef struct program {
    const po_service *service;
    po_setting *settings; // every row, on the heap
    bool for_migrate;     // without the service's own rows
    po_config *config;    // NULL until loaded
} program;

// --- Settings

static size_t table_size(const po_setting *table) {
    size_t n = 0;
    while (table && table[n].name)
        n++;
    return n;
}

static void settings_add(program *prog, const po_setting *table) {
    size_t have = table_size(prog->settings), n = table_size(table);
    prog->settings = realloc(prog->settings, (have + n + 1) * sizeof *prog->settings);
    if (!prog->settings)
        abort();
    if (n)
        memcpy(prog->settings + have, table, n * sizeof *table);
    prog->settings[have + n] = (po_setting){0};
}

// `migrate` takes either DSN and nothing of the service's own.
static void settings_build(program *prog, bool for_migrate) {
    if (prog->service->migrations)
        settings_add(prog, dsn_settings);
    settings_add(prog, common_settings);
    if (!for_migrate)
        settings_add(prog, prog->service->settings);
    else if (prog->service->migrations)
        prog->settings[0].fallback = "";
    prog->for_migrate = for_migrate;
}

static void variable_name(const po_setting *setting, const char *suffix, char out[64]) {
    snprintf(out, 64, "PAYONCE_%s%s", setting->name, suffix);
}

static bool is_dsn(const po_setting *setting) {
    return strcmp(setting->name, "DSN") == 0 || strcmp(setting->name, "MIGRATE_DSN") == 0;
}

// A DSN with a file beside it is read as a secret. Only for loading: the printed table never
// depends on the environment.
static void settings_follow_environment(program *prog) {
    char name[64];
    for (po_setting *s = prog->settings; s->name; s++) {
        variable_name(s, "_FILE", name);
        const char *path = getenv(name);
        if (is_dsn(s) && path && *path)
            s->type = PO_SET_SECRET;
    }
}

// `port[,port…]`; an empty one is the default.
static bool ports_valid(const char *text) {
    for (size_t n; *text; text += n + (text[n] == ',')) {
        int64_t port = 1;
        n = strcspn(text, ",");
        if (n > 0 && (!po_parse_i64((po_str){text, n}, &port) || port < 1 || port > UINT16_MAX))
            return false;
    }
    return true;
}

// libpq itself looks at the port only when it connects.
static bool dsn_parses(const char *dsn) {
    PQconninfoOption *options = PQconninfoParse(dsn, NULL);
    bool fine = options != NULL;
    for (PQconninfoOption *one = options; fine && one->keyword; one++)
        if (one->val && strcmp(one->keyword, "port") == 0)
            fine = ports_valid(one->val);
    PQconninfoFree(options);
    return fine;
}

static bool level_parse(const char *text, po_level *ret_level) {
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++) {
        if (strcmp(text, level_names[i]) != 0)
            continue;
        *ret_level = (po_level)i;
        return true;
    }
    return false;
}

static void print_fault(const program *prog, const char *text) {
    fprintf(stderr, "payonce-%s: %s\n", prog->service->name, text);
}

// Faults that the table's types cannot see. libpq's own words are left out: they quote the string.
static bool settings_check(const program *prog) {
    bool fine = true;
    po_level level;
    if (!level_parse(po_config_text(prog->config, "LOG_LEVEL"), &level)) {
        print_fault(prog, "PAYONCE_LOG_LEVEL must be debug, info, warn or error");
        fine = false;
    }
    for (const po_setting *s = prog->settings; s->name; s++) {
        if (!is_dsn(s) || dsn_parses(po_config_text(prog->config, s->name)))
            continue;
        char name[64], text[128];
        variable_name(s, "", name);
        snprintf(text, sizeof text, "%s is not a PostgreSQL connection string", name);
        print_fault(prog, text);
        fine = false;
    }
    po_err err = {0};
    if (!prog->for_migrate && prog->service->check && !prog->service->check(prog->config, &err)) {
        print_fault(prog, err.text);
        fine = false;
    }
    return fine;
}

static void print_faults(const program *prog, char *text) {
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        print_fault(prog, line);
}

// Each name must be known, also what `migrate` does not use.
static bool settings_are_known(const program *prog) {
    const po_setting *const tables[] = {
        dsn_settings, common_settings,
        prog->service->settings ? prog->service->settings : (const po_setting[]){{0}}, NULL};
    PO_AUTO(po_buf_done) po_buf faults = {0};
    po_config_strangers(tables, (const char *const *)environ, &faults);
    if (faults.n)
        print_faults(prog, faults.p);
    return faults.n == 0;
}

// Loads and checks; every fault is on stderr.
static bool settings_load(program *prog) {
    settings_follow_environment(prog);
    bool known = settings_are_known(prog);
    po_err err = {0};
    if (po_config_load(prog->settings, &prog->config, &err))
        return settings_check(prog) && known;
    print_faults(prog, err.text);
    return false;
}

// --- The admin listener

typedef struct admin {
    const po_service *service;
    const char *token;
    int64_t started_us;
} admin;

static void on_healthz(po_request *request, void *arg) {
    (void)arg;
    const char *loop = NULL;
    if (po_life_healthy(&loop))
        return po_reply_json(request, 200, json_pack("{s:s}", "status", "ok"));
    po_reply_json(request, 503, json_pack("{s:s,s:s}", "status", "stuck", "loop", loop));
}

static void on_readyz(po_request *request, void *arg) {
    (void)arg;
    bool ready = po_ready();
    const char *missing = NULL;
    json_t *body = json_pack("{s:s}", "status", ready ? "ok" : "not_ready");
    if (!ready && !po_needs_reached(&missing))
        json_object_set_new(body, "waiting_for", json_string(missing));
    po_reply_json(request, ready ? 200 : 503, body);
}

static json_t *time_or_null(int64_t instant_us) {
    char text[PO_RFC3339_SIZE];
    po_rfc3339(instant_us, text);
    return instant_us ? json_string(text) : json_null();
}

// What is not known is null, never 0.
static json_t *dependencies(void) {
    po_need_state all[PO_NEEDS_MOST];
    size_t n = po_needs_list(all, PO_NEEDS_MOST);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const po_need_state *s = &all[i];
        json_t *one = json_pack("{s:s,s:o}", "name", s->name, "last_success_at",
                                time_or_null(s->last_success_us));
        double age_s = (double)(po_now_us() - s->last_success_us) / 1e6;
        json_object_set_new(one, "last_success_age_seconds",
                            s->last_success_us ? json_real(age_s > 0 ? age_s : 0) : json_null());
        json_object_set_new(one, "away_since", time_or_null(s->away_since_us));
        if (s->away_since_us) // a text that is no UTF-8 is left out; the log has it all the same
            json_object_update_new(one, json_pack("{s:s,s:s,s:o*}", "kind",
                                                  po_kind_name(s->why.kind), "code", s->why.code,
                                                  "error", json_string(s->why.text)));
        json_array_append_new(list, one);
    }
    return list;
}

static void on_statusz(po_request *request, void *arg) {
    const admin *self = arg;
    char started[PO_RFC3339_SIZE];
    po_rfc3339(self->started_us, started);
    json_t *body = json_pack("{s:s,s:s,s:s,s:b,s:b,s:b}", "service", self->service->name, "version",
                             version, "started_at", started, "healthy", po_life_healthy(NULL),
                             "ready", po_ready(), "stopping", po_stopping());
    json_object_set_new(body, "dependencies", dependencies());
    if (self->service->status)
        json_object_set_new(body, "status", self->service->status());
    po_reply_json(request, 200, body);
}

static void on_metrics(po_request *request, void *arg) {
    (void)arg;
    PO_AUTO(po_free_auto) char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        abort();
    po_metrics_write(out);
    if (fclose(out) != 0)
        abort();
    po_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", (po_str){text, size}, 0);
}

// A further route of the service, behind the token.
typedef struct guarded {
    const po_http_route *route;
    const char *token;
} guarded;

static void on_guarded(po_request *request, void *arg) {
    const guarded *self = arg;
    if (po_request_authorized(request, self->token))
        self->route->handler(request, self->route->arg);
}

// The listener's table, in the arena. Without a token the further routes are left out, so they are
// 404.
static const po_http_route *admin_routes(admin *self, po_arena *arena) {
    static const po_http_route own[] = {{"GET", "/healthz", on_healthz, NULL},
                                        {"GET", "/readyz", on_readyz, NULL},
                                        {"GET", "/statusz", on_statusz, NULL},
                                        {"GET", "/metrics", on_metrics, NULL}};
    const size_t n_own = sizeof own / sizeof *own;
    const po_http_route *further = self->service->admin;
    size_t n = 0;
    while (further && *self->token && further[n].path)
        n++;
    po_http_route *routes = po_alloc_array(arena, n_own + n + 1, sizeof *routes);
    memcpy(routes, own, sizeof own);
    for (size_t i = 0; i < n_own; i++)
        routes[i].arg = self;
    for (size_t i = 0; i < n; i++) {
        guarded *guard = po_alloc(arena, sizeof *guard);
        *guard = (guarded){&further[i], self->token};
        routes[n_own + i] = (po_http_route){further[i].method, further[i].path, on_guarded, guard};
    }
    return routes;
}

// --- The database as a need

// A session of its own, opened by the first question and kept: what the program's own sessions wait
// for does not hold it up.
typedef struct database {
    po_pg_options options;
    const po_service *service;
    po_pg *pg;
    char application[64];
} database;

static bool ask_database(void *arg, po_err *err) {
    database *self = arg;
    if (self->pg && !po_pg_alive(self->pg))
        po_pg_close(&self->pg);
    if (!self->pg && !po_pg_open(&self->options, &self->pg, err))
        return false;
    const po_service *service = self->service;
    if (po_migrated(self->pg, service->name, service->migrations, err))
        return true;
    if (strcmp(err->code, "schema_version") != 0)
        po_pg_close(&self->pg); // a session may be at fault itself: of a server gone read-only, say
    return false;
}

static po_need *need_database(const program *prog, database *self) {
    if (!prog->service->migrations)
        return NULL;
    self->service = prog->service;
    snprintf(self->application, sizeof self->application, "payonce-%s-watch", prog->service->name);
    self->options = (po_pg_options){.dsn = po_config_text(prog->config, "DSN"),
                                    .application_name = self->application,
                                    .connect_timeout_ms = 3000,
                                    .statement_timeout_ms = 2000};
    return po_need_new("database", ask_database, self);
}

// --- Commands

static int failed(const char *msg, const po_err *err) {
    po_log_err(PO_ERROR, msg, err);
    return EXIT_FAILED;
}

// A setting that only what it points at could prove wrong.
static bool is_setting(const po_err *err) {
    return err->kind == PO_REFUSED && strcmp(err->code, "setting") == 0;
}

static int unusable(const program *prog, const po_err *err) {
    print_fault(prog, err->text);
    return EXIT_SETTINGS;
}

static void log_open(const program *prog) {
    po_level level = PO_INFO;
    (void)level_parse(po_config_text(prog->config, "LOG_LEVEL"), &level);
    po_log_init(prog->service->name, level);
}

static int cmd_run(program *prog) {
    const po_service *service = prog->service;
    if (!settings_load(prog))
        return EXIT_SETTINGS;
    log_open(prog); // first: the thread that waits for signals may log
    po_life_init();
    po_log_metrics();
    po_log_start(po_config_int(prog->config, "LOG_RATE"));
    po_needs_metrics();
    if (service->declare_metrics)
        service->declare_metrics();

    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_http_close) po_http *http = NULL; // closed before the arena that holds its routes
    admin self = {.service = service,
                  .token = po_config_text(prog->config, "ADMIN_TOKEN"),
                  .started_us = po_now_us()};
    po_http_options options = {.name = "admin",
                               .listen = po_config_text(prog->config, "ADMIN_LISTEN"),
                               .routes = admin_routes(&self, arena)};
    po_err err = {0};
    if (!po_http_open(&options, &http, &err)) {
        po_wrap(&err, "PAYONCE_ADMIN_LISTEN");
        return err.kind == PO_REFUSED ? unusable(prog, &err)
                                      : failed("admin listener not opened", &err);
    }
    po_log(PO_INFO, "started", PO_TEXT("version", version));
    database db = {0};
    po_need *need = need_database(prog, &db);
    bool fine = service->run(prog->config, &err);
    po_ready_set(false);
    po_need_end(need);
    po_pg_close(&db.pg);
    if (!fine)
        return is_setting(&err) ? unusable(prog, &err) : failed("gave up", &err);
    po_log(PO_INFO, "stopped");
    return EXIT_FINE;
}

// Needs the database and none of the service's own settings, so that it can be a job of its own.
static int cmd_migrate(program *prog) {
    const po_service *service = prog->service;
    if (!service->migrations)
        return EXIT_FINE;
    if (!settings_load(prog))
        return EXIT_SETTINGS;
    const char *dsn = po_config_text(prog->config, "MIGRATE_DSN");
    if (!*dsn)
        dsn = po_config_text(prog->config, "DSN");
    if (!*dsn) {
        print_fault(prog, "PAYONCE_MIGRATE_DSN is required, or PAYONCE_DSN");
        return EXIT_SETTINGS;
    }
    log_open(prog);
    char application[64];
    snprintf(application, sizeof application, "payonce-%s-migrate", service->name);
    po_pg_options options = {.dsn = dsn,
                             .application_name = application,
                             .statement_timeout_ms = MIGRATE_STATEMENT_MS,
                             .idle_in_tx_timeout_ms = 60000};
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_err err = {0};
    if (!po_pg_open(&options, &pg, &err))
        return failed("database not reached", &err);
    if (!po_migrate(pg, service->name, service->migrations, &err))
        return failed("not migrated", &err);
    po_log(PO_INFO, "migrated");
    return EXIT_FINE;
}

static int cmd_check_config(program *prog) {
    if (!settings_load(prog))
        return EXIT_SETTINGS;
    puts("ok");
    return EXIT_FINE;
}

// keyword='value', quoted where libpq would read it otherwise than as one value.
static void put_option(po_buf *out, const char *keyword, const char *value) {
    bool quoted = !*value || strpbrk(value, " \t\n\r\f\v'\\");
    po_buf_printf(out, "%s%s=%s", out->n ? " " : "", keyword, quoted ? "'" : "");
    for (; *value; value++) {
        if (*value == '\'' || *value == '\\')
            po_buf_puts(out, "\\");
        po_buf_put(out, value, 1);
    }
    po_buf_puts(out, quoted ? "'" : "");
}

// What of a connection string may be seen; whatever else it holds is hidden.
static bool is_shown(const char *keyword) {
    static const char *const shown[] = {"application_name",
                                        "connect_timeout",
                                        "dbname",
                                        "host",
                                        "hostaddr",
                                        "options",
                                        "port",
                                        "sslcert",
                                        "sslkey",
                                        "sslmode",
                                        "sslrootcert",
                                        "target_session_attrs",
                                        "user",
                                        "channel_binding"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strcmp(keyword, shown[i]) == 0)
            return true;
    return false;
}

static void show_dsn(const char *text, po_buf *out) {
    PQconninfoOption *options = PQconninfoParse(text, NULL);
    for (const PQconninfoOption *o = options; o && o->keyword; o++)
        if (o->val)
            put_option(out, o->keyword, is_shown(o->keyword) ? o->val : "***");
    PQconninfoFree(options);
}

static const po_service *shown_service; // the callback carries no argument

static bool show(const po_setting *setting, const char *text, po_buf *out) {
    if (is_dsn(setting)) {
        show_dsn(text, out);
        return true;
    }
    return shown_service->show && shown_service->show(setting, text, out);
}

static int cmd_print_config(program *prog) {
    if (!settings_load(prog))
        return EXIT_SETTINGS;
    shown_service = prog->service;
    po_config_print(prog->config, show, stdout);
    return EXIT_FINE;
}

static void print_heading(const program *prog) {
    printf("## payonce-%s\n\n%s\n\n", prog->service->name, prog->service->about);
}

static int cmd_print_settings(program *prog) {
    print_heading(prog);
    po_config_markdown(prog->settings, stdout);
    return EXIT_FINE;
}

static int cmd_print_states(program *prog) {
    if (prog->service->print_states)
        prog->service->print_states(stdout);
    return EXIT_FINE;
}

static int cmd_print_metrics(program *prog) {
    print_heading(prog);
    po_http_metrics();
    po_log_metrics();
    po_needs_metrics();
    if (prog->service->declare_metrics)
        prog->service->declare_metrics();
    puts("| metric | type | label | meaning |\n|---|---|---|---|");
    po_metrics_list(stdout);
    return EXIT_FINE;
}

static int cmd_version(program *prog) {
    printf("payonce-%s %s\n", prog->service->name, version);
    return EXIT_FINE;
}

static int cmd_help(program *prog);

static const struct command {
    const char *name;
    int (*go)(program *prog);
    const char *doc;
} commands[] = {
    {"run", cmd_run, "serve until SIGTERM"},
    {"migrate", cmd_migrate, "bring the schema up to date, then end"},
    {"check-config", cmd_check_config, "print ok, or each fault of the settings"},
    {"print-config", cmd_print_config, "print the settings in force, secrets hidden"},
    {"print-settings", cmd_print_settings, "print the table of settings (docs/settings.md)"},
    {"print-states", cmd_print_states, "print the state tables (docs/states.md)"},
    {"print-metrics", cmd_print_metrics, "print the metrics (docs/metrics.md)"},
    {"--version", cmd_version, "print the version"},
    {"--help", cmd_help, "print this"},
    {0},
};

static void print_usage(const program *prog, FILE *out) {
    fprintf(out, "usage: payonce-%s COMMAND\n\n%s\n\n", prog->service->name, prog->service->about);
    for (const struct command *c = commands; c->name; c++)
        fprintf(out, "  %-16s%s\n", c->name, c->doc);
}

static int cmd_help(program *prog) {
    print_usage(prog, stdout);
    printf("\nSettings, from the environment; a secret is the content of the file named by "
           "NAME_FILE:\n\n");
    po_config_markdown(prog->settings, stdout);
    return EXIT_FINE;
}

static const struct command *command_find(int argc, char **argv) {
    for (const struct command *c = commands; argc == 2 && c->name; c++)
        if (strcmp(argv[1], c->name) == 0)
            return c;
    return NULL;
}

int po_service_main(int argc, char **argv, const po_service *service) {
    program prog = {.service = service};
    const struct command *command = command_find(argc, argv);
    if (!command) {
        print_usage(&prog, stderr);
        return EXIT_SETTINGS;
    }
    // What has been printed is out before a log line goes past stdio to the same descriptor.
    setvbuf(stdout, NULL, _IOLBF, 0);
    settings_build(&prog, command->go == cmd_migrate);
    int code = command->go(&prog);
    po_log_stop();
    po_config_free(&prog.config);
    free(prog.settings);
    return code;
}

// payonce-ingest: the one door. Records what providers say, decides it in the same transaction, and
// leaves the events in the outbox for relay. Needs PostgreSQL alone: no broker, no registry.
#include "accounts.h"
#include "base/cleanup.h"
#include "doors.h"
#include "intake.h"
#include "migration_files.h"
#include "orders.h"
#include "service/service.h"
#include "undecided.h"

static const po_setting SETTINGS[] = {
    {"LISTEN", PO_SET_LISTEN, "127.0.0.1:8080", 0, 0,
     "Address and port of the providers' doors and the orders API."},
    {"ACCOUNTS_FILE", PO_SET_PATH, NULL, 0, 0,
     "JSON file of the accounts at the providers: name, aliases, mode, secrets (docs/accounts.md)."},
    {"API_TOKEN", PO_SET_SECRET, NULL, 16, 0, "Bearer token of the shop's servers."},
    {"HTTP_THREADS", PO_SET_INT, "2", 1, 64, "Threads that serve HTTP."},
    {"WRITERS", PO_SET_INT, "2", 1, 64,
     "Threads that commit events in groups, a database connection each."},
    {"ORDER_THREADS", PO_SET_INT, "4", 1, 64,
     "Threads of the orders API, a database connection each."},
    {"UNDECIDED_WORKERS", PO_SET_INT, "2", 1, 64,
     "Threads that drain undecided events, a database connection each."},
    {"BODY_LIMIT", PO_SET_BYTES, "1MiB", 1024, 16 << 20, "Largest request body."},
    {"IDLE_TIMEOUT", PO_SET_DURATION_MS, "75s", 10000, 650000,
     "How long a connection may wait for its next request: above what the load balancer in front "
     "waits (docs/operations.md)."},
    {"CONNECTIONS", PO_SET_INT, "4096", 16, 16384,
     "Connections at once; never more than a third of the files the process may open."},
    {"CONNECTIONS_PER_ADDRESS", PO_SET_INT, "0", 0, 16384,
     "Connections at once of one IPv4 address or IPv6 /64; 0: no bound, as it must be behind a "
     "load balancer."},
    {0},
};

// With anything else in it, or a space at its ends, no header can hold it and nobody is let in.
static bool token_valid(po_str token) {
    for (size_t i = 0; i < token.n; i++)
        if (token.p[i] < ' ' || token.p[i] > '~')
            return false;
    return po_str_trim(token).n == token.n;
}

static bool load_accounts(const po_config *config, accounts **ret_accounts, po_err *err) {
    return accounts_load(po_config_text(config, "ACCOUNTS_FILE"), ret_accounts, err) ||
           po_wrap(err, "PAYONCE_ACCOUNTS_FILE");
}

static bool check(const po_config *config, po_err *err) {
    if (!token_valid(po_s(po_config_text(config, "API_TOKEN")))) {
        return po_fail(err, PO_REFUSED, "setting",
                       "PAYONCE_API_TOKEN_FILE is not printable ASCII without space at its ends");
    }
    PO_AUTO(accounts_free) accounts *accounts = NULL;
    return load_accounts(config, &accounts, err);
}

static void declare_metrics(void) {
    doors_declare_metrics();
    intake_declare_metrics();
    orders_declare_metrics();
    po_work_declare_metrics();
    undecided_declare_metrics();
}

typedef struct parts {
    accounts *accounts;
    po_ring *ring;
    intake *in;
    orders *orders;
    po_workers *undecided;
    sweep *sweep;
    doors doors;
    po_http_route routes[7]; // as long as the server
    po_http *http;
} parts;

static bool not_full(void *in) {
    return !intake_full(in);
}

static bool open_http(const po_config *config, parts *p, po_err *err) {
    const po_http_route routes[] = {
        {"POST", "/webhooks/*/*", doors_webhook, &p->doors},
        {"POST", "/observations/*/*", doors_observation, &p->doors},
        {"POST", "/v1/orders", orders_register, p->orders},
        {"GET", "/v1/orders/*", orders_show, p->orders},
        {"POST", "/v1/orders/*/cancel", orders_cancel, p->orders},
        {"POST", "/v1/orders/*/references", orders_add_refs, p->orders},
        {0},
    };
    _Static_assert(sizeof routes == sizeof p->routes, "every route is kept");
    memcpy(p->routes, routes, sizeof routes);
    po_http_options options = {
        .name = "http",
        .listen = po_config_text(config, "LISTEN"),
        .routes = p->routes,
        .threads = (unsigned)po_config_int(config, "HTTP_THREADS"),
        .body_limit = (size_t)po_config_int(config, "BODY_LIMIT"),
        // A body is here, and copied there: 64 MiB in all.
        .memory_limit = INTAKE_BYTES,
        .idle_timeout_s = (unsigned)(po_config_int(config, "IDLE_TIMEOUT") / 1000),
        .max_connections = (unsigned)po_config_int(config, "CONNECTIONS"),
        .max_per_address = (unsigned)po_config_int(config, "CONNECTIONS_PER_ADDRESS")};
    return po_http_open(&options, &p->http, err);
}

// Waits for the database, without limit (or until stopping); false when it is not one we may use.
// Told when its cause changes, not each time.
static bool prepare(const po_pg_options *pg_options, accounts *accounts, po_err *ret_err) {
    po_err before = {0};
    for (int attempt = 0; !po_stopping(); attempt++) {
        PO_AUTO(po_pg_close) po_pg *pg = NULL;
        po_err err = {0};
        if (store_open(pg_options, accounts, &pg, &err))
            return true;
        if (po_pg_is(&err, "setting")) {
            *ret_err = err;
            return false;
        }
        if (strcmp(err.code, before.code) != 0) {
            po_log_err(po_pg_is_deployment(&err) ? PO_ERROR : PO_WARN, "waiting for the database",
                       &err);
        }
        before = err;
        po_life_wait(po_backoff_ms(attempt, 100, 5000));
    }
    return true;
}

static bool start(const po_config *config, const po_pg_options *pg, const po_pg_options *orders_pg,
                  parts *p, po_err *err) {
    intake_options in = {.pg = pg, .writers = (unsigned)po_config_int(config, "WRITERS")};
    orders_options orders = {.pg = orders_pg,
                             .token = po_config_text(config, "API_TOKEN"),
                             .threads = (unsigned)po_config_int(config, "ORDER_THREADS")};
    if (!load_accounts(config, &p->accounts, err) || !po_ring_open(pg, "ingest", &p->ring, err))
        return false;
    in.ring = orders.ring = p->ring;
    in.accounts = orders.accounts = p->accounts;
    return intake_open(&in, &p->in, err) && orders_open(&orders, &p->orders, err);
}

// What begins by itself, and therefore not before the database knows our schemas.
static bool start_workers(const po_config *config, const po_pg_options *pg, parts *p, po_err *err) {
    unsigned workers = (unsigned)po_config_int(config, "UNDECIDED_WORKERS");
    return undecided_start(p->accounts, pg, p->ring, workers, &p->undecided, err) &&
           sweep_start(pg, p->in, &p->sweep, err);
}

// Stop accepting → writers finish → every suspended connection resumed → stop the daemon; only then
// is memory freed that a request on a connection kept alive still looks at.
static void drain(parts *p) {
    po_ready_set(false);
    if (p->http)
        po_http_quiesce(p->http);
    sweep_stop(&p->sweep);
    po_work_stop(&p->undecided);
    intake_finish(p->in);
    orders_finish(p->orders);
    po_http_close(&p->http);
    intake_close(&p->in);
    orders_close(&p->orders);
    po_ring_close(&p->ring);
    accounts_free(&p->accounts);
}

static bool run(const po_config *config, po_err *err) {
    po_pg_options pg = {.dsn = po_config_text(config, "DSN"),
                        .application_name = "payonce-ingest",
                        .lock_timeout_ms = 250,
                        .statement_timeout_ms = 5000, // a frozen server is given up after 15 s
                        .idle_in_tx_timeout_ms = 5000,
                        .by_index = true};
    po_pg_options orders_pg = pg;
    orders_pg.statement_timeout_ms = 2000;
    parts p = {0};
    bool ok = start(config, &pg, &orders_pg, &p, err);
    p.doors = (doors){p.accounts, p.in};
    if (ok) {
        po_ready_check(not_full, p.in);
        ok = open_http(config, &p, err);
    }
    ok = ok && prepare(&pg, p.accounts, err) &&
         (po_stopping() || start_workers(config, &pg, &p, err));
    po_ready_set(ok); // and stays so without a database: then the answer is 503
    while (ok && po_life_wait(60000)) {
    }
    drain(&p);
    return ok;
}

int main(int argc, char **argv) {
    static const po_service service = {
        .name = "ingest",
        .about =
            "Records what payment providers say, decides it, and leaves the events in its outbox.",
        .settings = SETTINGS,
        .migrations = migration_files,
        .declare_metrics = declare_metrics,
        .check = check,
        .run = run,
        .print_states = decide_print_states,
        .status = undecided_status,
    };
    return po_service_main(argc, argv, &service);
}

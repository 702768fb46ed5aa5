// What PostgreSQL alone can take of ingest's work: the very statements and parameters that ingest sends, without
// HTTP, signatures, JSON and decisions. settle() runs once per batch with everything it sends written down, and is
// rolled back; then the recorded batches are played on a few connections against the clock. "lean" plays only the
// insert of the events and of the outbox rows: the least any record-and-tell service does.
// po_pipe_send, po_pipe_sync and po_tx_commit as settle() knows them are those below (ld --wrap).
#include "accounts.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "settle.h"
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MARK = 10, MOST_BATCH = 512, MOST_SENDS = 24, MOST_THREADS = 16 };

typedef struct settings {
    const char *dsn, *owner_dsn, *accounts_file, *alias, *template_file;
    int64_t first, count, batch, connections;
} settings;

typedef struct sent {
    const po_stmt *stmt; // NULL: the end of a flight
    po_args *args;
} sent;

typedef struct recording {
    po_arena *arena;
    size_t n, events, rows; // rows: of the outbox
    sent sends[MOST_SENDS];
} recording;

typedef struct player {
    const settings *s;
    recording *all;
    size_t n_all, first, step;
    bool lean;
    pthread_barrier_t *start;
    pthread_t thread;
} player;

static recording *recorder; // of the batch that settle() has in hand

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

// --- Recording

bool __real_po_pipe_send(po_pg *pg, const po_stmt *stmt, po_args *args, po_err *err);
bool __wrap_po_pipe_send(po_pg *pg, const po_stmt *stmt, po_args *args, po_err *err);
bool __real_po_pipe_sync(po_pg *pg, po_res **ret_res, size_t n, po_err *err);
bool __wrap_po_pipe_sync(po_pg *pg, po_res **ret_res, size_t n, po_err *err);
bool __wrap_po_tx_commit(po_tx *tx, po_err *err);

static void record(const po_stmt *stmt, po_args *args) {
    if (recorder->n == MOST_SENDS)
        die("more statements than expected");
    recorder->sends[recorder->n++] = (sent){stmt, args};
}

bool __wrap_po_pipe_send(po_pg *pg, const po_stmt *stmt, po_args *args, po_err *err) {
    record(stmt, args);
    return __real_po_pipe_send(pg, stmt, args, err);
}

bool __wrap_po_pipe_sync(po_pg *pg, po_res **ret_res, size_t n, po_err *err) {
    record(NULL, NULL);
    return __real_po_pipe_sync(pg, ret_res, n, err);
}

bool __wrap_po_tx_commit(po_tx *tx, po_err *err) {
    (void)err;
    po_tx_rollback(tx);
    return true;
}

static po_str read_template(po_arena *arena, const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "re");
    if (!file)
        die("cannot open %s", path);
    size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    return po_str_copy(arena, (po_str){text, n});
}

static event make_event(const account *account, po_arena *arena, po_str template, int64_t number) {
    char digits[24];
    snprintf(digits, sizeof digits, "%0*lld", MARK, (long long)number);
    char *text = (char *)(uintptr_t)po_str_copy(arena, template).p;
    for (char *at = text; (at = strstr(at, "@@@@@@@@@@")); at += MARK)
        memcpy(at, digits, MARK);
    header_value headers[4] = {0};
    po_str *copies = po_alloc_array(arena, 4, sizeof *copies);
    copies[0] =
        po_s("t=1700000000,v1=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    event e = {.account = account,
               .provider = po_s(account->provider->name),
               .alias = po_s(account->name),
               .raw = {text, template.n},
               .headers = copies,
               .n_headers = 1,
               .trace.parent = po_s("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")};
    po_sha256(e.raw, e.raw_sha256);
    account->provider->read(account, headers, e.raw, arena, &e.obs);
    if (e.obs.disposition != OBS_FACTS)
        die("the template is no event with facts: %s", e.obs.problem.p ? e.obs.problem.p : "");
    return e;
}

static void record_batch(po_pg *pg, const account *account, po_str template, int64_t number,
                         recording *r) {
    r->arena = po_arena_new();
    event *events[MOST_BATCH];
    for (size_t i = 0; i < r->events; i++) {
        events[i] = po_alloc(r->arena, sizeof **events);
        *events[i] = make_event(account, r->arena, template, number + (int64_t)i);
    }
    recorder = r;
    settle_report report;
    po_err err = {0};
    if (!settle(pg, r->arena, events, r->events, &(settle_options){0}, &report, &err))
        die("settling: %s: %s", err.code, err.text);
    if (report.emitted != r->events || report.undecided)
        die("%zu of %zu events were decided", report.emitted, r->events);
    r->rows = report.emitted;
}

static recording *record_all(const settings *s, size_t *ret_n) {
    PO_AUTO(accounts_free) accounts *accounts = NULL;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_err err = {0};
    if (!accounts_load(s->accounts_file, &accounts, &err) ||
        !po_pg_open(&(po_pg_options){.dsn = s->dsn, .by_index = true}, &pg, &err))
        die("%s: %s", err.code, err.text);
    const account *account = accounts_at(accounts, po_s("stripe"), po_s(s->alias));
    if (!account)
        die("no such account");
    po_str template = read_template(arena, s->template_file);
    size_t n = (size_t)((s->count + s->batch - 1) / s->batch);
    recording *all = calloc(n, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        int64_t done = (int64_t)i * s->batch, left = s->count - done;
        all[i].events = (size_t)(left < s->batch ? left : s->batch);
        record_batch(pg, account, template, s->first + done, &all[i]);
    }
    *ret_n = n;
    return all;
}

// --- Playing

static bool is_lean(const po_stmt *stmt) {
    return strcmp(stmt->name, "put_events") == 0 || stmt == &ingest_outbox.put;
}

static void land(po_pg *pg, size_t *sends) {
    po_err err = {0};
    if (*sends && !__real_po_pipe_sync(pg, NULL, *sends, &err))
        die("playing: %s: %s", err.code, err.text);
    *sends = 0;
}

bool __real_po_tx_commit(po_tx *tx, po_err *err);

static void play_batch(po_pg *pg, const recording *r, bool lean) {
    po_err err = {0};
    po_tx tx = {0};
    if (!po_pipe_begin(pg, &err) || !po_tx_send_begin(pg, &tx, &err))
        die("playing: %s: %s", err.code, err.text);
    size_t sends = 1;
    for (size_t i = 0; i < r->n; i++) {
        const sent *one = &r->sends[i];
        if (!one->stmt && !lean)
            land(pg, &sends);
        if (!one->stmt || (lean && !is_lean(one->stmt)))
            continue;
        if (!__real_po_pipe_send(pg, one->stmt, one->args, &err))
            die("playing %s: %s", one->stmt->name, err.text);
        sends++;
    }
    if (!__real_po_tx_commit(&tx, &err) || !po_pipe_end(pg, &err))
        die("committing: %s: %s", err.code, err.text);
}

static void *play(void *arg) {
    player *p = arg;
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_err err = {0};
    if (!po_pg_open(&(po_pg_options){.dsn = p->s->dsn, .by_index = true}, &pg, &err))
        die("%s: %s", err.code, err.text);
    pthread_barrier_wait(p->start);
    for (size_t i = p->first; i < p->n_all; i += p->step)
        play_batch(pg, &p->all[i], p->lean);
    return NULL;
}

static double play_all(const settings *s, recording *all, size_t n, bool lean) {
    player players[MOST_THREADS];
    pthread_barrier_t start;
    size_t threads = (size_t)s->connections;
    pthread_barrier_init(&start, NULL, (unsigned)threads + 1);
    for (size_t i = 0; i < threads; i++) {
        players[i] = (player){s, all, n, i, threads, lean, &start, 0};
        if (pthread_create(&players[i].thread, NULL, play, &players[i]) != 0)
            die("no thread");
    }
    pthread_barrier_wait(&start);
    int64_t started_us = po_now_us();
    for (size_t i = 0; i < threads; i++)
        pthread_join(players[i].thread, NULL);
    pthread_barrier_destroy(&start);
    return (double)(po_now_us() - started_us) / 1e6;
}

// What was played or rolled back before leaves no trace.
static void clean(const settings *s) {
    PO_AUTO(po_pg_close) po_pg *pg = NULL;
    po_err err = {0};
    if (!po_pg_open(&(po_pg_options){.dsn = s->owner_dsn}, &pg, &err) ||
        !po_pg_exec(pg, "TRUNCATE ingest.provider_event, ingest.undecided, ingest.outbox", &err) ||
        !po_pg_exec(pg, "VACUUM (ANALYZE)", &err) || !po_pg_exec(pg, "CHECKPOINT", &err))
        die("%s: %s", err.code, err.text);
}

static settings read_settings(int argc, char **argv) {
    settings s = {.alias = "shop", .count = 1024, .batch = MOST_BATCH, .connections = 2};
    static const struct option options[] = {{"dsn", 1, 0, 'D'},       {"accounts", 1, 0, 'A'},
                                            {"alias", 1, 0, 'a'},     {"template", 1, 0, 't'},
                                            {"first", 1, 0, 'f'},     {"count", 1, 0, 'n'},
                                            {"batch", 1, 0, 'b'},     {"connections", 1, 0, 'c'},
                                            {"owner-dsn", 1, 0, 'o'}, {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        int64_t number = 0;
        if (strchr("fnbc", c) && (!po_parse_i64(po_s(optarg), &number) || number < 0))
            die("'%s' is not a number", optarg);
        switch (c) {
        case 'D':
            s.dsn = optarg;
            break;
        case 'A':
            s.accounts_file = optarg;
            break;
        case 'a':
            s.alias = optarg;
            break;
        case 't':
            s.template_file = optarg;
            break;
        case 'f':
            s.first = number;
            break;
        case 'n':
            s.count = number;
            break;
        case 'b':
            s.batch = number;
            break;
        case 'c':
            s.connections = number;
            break;
        case 'o':
            s.owner_dsn = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (!s.dsn || !s.owner_dsn || !s.accounts_file || !s.template_file || s.batch < 1 ||
        s.batch > MOST_BATCH || s.connections < 1 || s.connections > MOST_THREADS)
        die("wanted: --dsn --owner-dsn --accounts --template; --batch ≤ %d, --connections ≤ %d",
            MOST_BATCH, MOST_THREADS);
    return s;
}

int main(int argc, char **argv) {
    settings s = read_settings(argc, argv);
    size_t n = 0;
    recording *all = record_all(&s, &n);
    clean(&s);
    double lean = play_all(&s, all, n, true);
    clean(&s);
    double full = play_all(&s, all, n, false);
    json_t *out = json_pack("{s:I, s:f, s:f}", "events", (json_int_t)s.count, "lean_rate",
                            (double)s.count / lean, "full_rate", (double)s.count / full);
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    for (size_t i = 0; i < n; i++)
        po_arena_free(&all[i].arena);
    free(all);
    return 0;
}

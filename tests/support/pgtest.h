// A private PostgreSQL cluster for one cmocka program: pgtest_start() in a group's setup, pgtest_stop() in its
// teardown. It listens on a socket in its own scratch folder alone. A guardian process owns server and folder
// and holds one end of a pipe: when the test program ends, in whatever way, the guardian reads the end of the
// pipe, stops the server and removes the folder.
#pragma once
#include "base/cleanup.h"
#include "base/clock.h"
#include "pg/pg.h"
#include <assert.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { PGTEST_WAIT_MS = 30000 };

typedef struct pgtest {
    char folder[64];
    char dsn[128];
    pid_t guardian;
    int leash; // closing it ends the cluster
} pgtest;

// PostgreSQL refuses root.
static inline void pgtest_become_postgres(void) {
    struct passwd *user = getpwnam("postgres");
    if (geteuid() != 0)
        return;
    if (!user || setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid))
        _exit(126);
}

// Runs argv as the user of the cluster, its output in the folder's log; the child's pid.
static inline pid_t pgtest_spawn(const pgtest *t, char *const argv[]) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    char log[96];
    snprintf(log, sizeof log, "%s/log", t->folder);
    pgtest_become_postgres();
    prctl(PR_SET_PDEATHSIG, SIGQUIT);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (chdir(t->folder) == 0)
        execv(argv[0], argv);
    _exit(127);
}

static inline void pgtest_guard(const pgtest *t, int leash, int started) {
    glob_t bins;
    char initdb[256], postgres[256], data[96];
    setsid();                 // the terminal's ^C is not for us
    signal(SIGPIPE, SIG_IGN); // the test may be gone before the server is there
    if (glob("/usr/lib/postgresql/*/bin", 0, NULL, &bins) != 0)
        _exit(1);
    const char *bin = bins.gl_pathv[bins.gl_pathc - 1];
    snprintf(initdb, sizeof initdb, "%s/initdb", bin);
    snprintf(postgres, sizeof postgres, "%s/postgres", bin);
    snprintf(data, sizeof data, "%s/data", t->folder);
    char *init[] = {initdb, "-D",   data,         "-U",        "postgres",          "-A", "trust",
                    "-E",   "UTF8", "--locale=C", "--no-sync", "--no-instructions", NULL};
    char *serve[] = {postgres,
                     "-D",
                     data,
                     "-c",
                     "listen_addresses=",
                     "-k",
                     (char *)t->folder,
                     "-c",
                     "fsync=off",
                     "-c",
                     "shared_buffers=16MB",
                     "-c",
                     "max_connections=40",
                     "-c",
                     "max_prepared_transactions=20",
                     NULL};
    int status = 1;
    pid_t server = -1;
    if (waitpid(pgtest_spawn(t, init), &status, 0) > 0 && status == 0)
        server = pgtest_spawn(t, serve);
    char byte = server > 0;
    (void)!write(started, &byte, 1);
    while (read(leash, &byte, 1) > 0) {
    }
    while (server > 0 &&
           waitpid(server, NULL, WNOHANG) == 0) { // a server that just starts may miss one
        kill(server, SIGQUIT);
        usleep(10000);
    }
    char *clean[] = {"/bin/rm", "-rf", (char *)t->folder, NULL};
    waitpid(pgtest_spawn(t, clean), NULL, 0);
    _exit(0);
}

static inline void pgtest_stop(pgtest *t) {
    close(t->leash);
    waitpid(t->guardian, NULL, 0);
}

static inline void pgtest_start(pgtest *t) {
    int leash[2], started[2];
    char byte = 0;
    snprintf(t->folder, sizeof t->folder, "/tmp/pgtest-XXXXXX");
    assert(mkdtemp(t->folder) && pipe(leash) == 0 && pipe(started) == 0);
    struct passwd *user = getpwnam("postgres");
    if (geteuid() == 0)
        assert(user && chown(t->folder, user->pw_uid, user->pw_gid) == 0);
    snprintf(t->dsn, sizeof t->dsn, "host=%s user=postgres dbname=postgres", t->folder);
    t->guardian = fork();
    if (t->guardian == 0) {
        close(leash[1]);
        close(started[0]);
        pgtest_guard(t, leash[0], started[1]);
    }
    close(leash[0]);
    close(started[1]);
    t->leash = leash[1];
    assert(read(started[0], &byte, 1) == 1 && byte == 1);
    close(started[0]);
    for (int tries = 0; PQping(t->dsn) != PQPING_OK; tries++) {
        assert(tries < 1500);
        usleep(20000);
    }
}

// --- What a test asks it. Each fails the test when it cannot be had.

// Between two statements of a transaction a test may be kept from running for a while.
static inline po_pg *pgtest_connection(const pgtest *t) {
    po_pg_options options = {.dsn = t->dsn, .idle_in_tx_timeout_ms = PGTEST_WAIT_MS};
    po_pg *pg = NULL;
    po_err err = {0};
    if (!po_pg_open(&options, &pg, &err))
        fail_msg("%s", err.text);
    return pg;
}

static inline void pgtest_exec(po_pg *pg, const char *sql) {
    po_err err = {0};
    if (!po_pg_exec(pg, sql, &err))
        fail_msg("%s: %s", sql, err.text);
}

static inline int64_t pgtest_number(po_pg *pg, const char *sql) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    if (!po_pg_run(pg, &(po_stmt){NULL, sql}, NULL, &res, &err))
        fail_msg("%s: %s", sql, err.text);
    return po_res_i64(res, 0, 0);
}

static inline void pgtest_wait_for(po_pg *pg, const char *sql, int64_t wanted) {
    int64_t end_ms = po_mono_ms() + PGTEST_WAIT_MS, is;
    while ((is = pgtest_number(pg, sql)) != wanted) {
        if (po_mono_ms() >= end_ms)
            fail_msg("%s: %lld, not %lld", sql, (long long)is, (long long)wanted);
        usleep(5000);
    }
}

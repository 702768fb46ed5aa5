// A pool: a stack of idle connections, the warmest on top, and a count of all that are open. A
// connection is opened outside the lock by the thread that needs it; nobody waits behind somebody
// else's connect.
#include "base/clock.h"
#include "pg/pg_impl.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct po_pool {
    pthread_mutex_t lock;
    pthread_cond_t freed; // an idle connection, or room for another
    po_pg_options options;
    unsigned size, open, n_idle;
    po_pg **idle;
};

static char *copied(const char *text) {
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy)
        abort();
    return copy;
}

bool po_pool_open(const po_pg_options *options, unsigned size, po_pool **ret_pool, po_err *err) {
    assert(size > 0);
    PQconninfoOption *given = PQconninfoParse(options->dsn, NULL);
    if (!given)
        return po_fail(err, PO_REFUSED, "invalid_dsn", "the DSN cannot be read");
    PQconninfoFree(given);
    po_pool *pool = po_grow(NULL, 1, sizeof *pool);
    *pool = (po_pool){.options = *options, .size = size};
    pool->options.dsn = copied(options->dsn);
    pool->options.application_name = copied(options->application_name);
    pool->idle = po_grow(NULL, size, sizeof(po_pg *));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->freed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&pool->lock, NULL);
    *ret_pool = pool;
    return true;
}

void po_pool_close(po_pool **pool) {
    po_pool *gone = po_take(pool);
    if (!gone)
        return;
    assert(gone->open == gone->n_idle); // somebody still holds one
    for (unsigned i = 0; i < gone->n_idle; i++)
        po_pg_close(&gone->idle[i]);
    pthread_mutex_destroy(&gone->lock);
    pthread_cond_destroy(&gone->freed);
    free((char *)gone->options.dsn);
    free((char *)gone->options.application_name);
    free(gone->idle);
    free(gone);
}

static void give_up_slot(po_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->open--;
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->lock);
}

// Takes an idle connection into *ret_pg, or the right to open one (*ret_pg NULL); false at the
// deadline.
static bool take_slot(po_pool *pool, const struct timespec *deadline, po_pg **ret_pg) {
    bool taken = true;
    pthread_mutex_lock(&pool->lock);
    while (pool->n_idle == 0 && pool->open == pool->size && taken)
        taken = pthread_cond_timedwait(&pool->freed, &pool->lock, deadline) == 0;
    taken = pool->n_idle > 0 || pool->open < pool->size;
    *ret_pg = pool->n_idle > 0 ? pool->idle[--pool->n_idle] : NULL;
    if (taken && !*ret_pg)
        pool->open++;
    pthread_mutex_unlock(&pool->lock);
    return taken;
}

bool po_pool_acquire(po_pool *pool, int timeout_ms, po_pg **ret_pg, po_err *err) {
    int64_t deadline_ms = po_mono_ms() + timeout_ms;
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (deadline.tv_nsec >= 1000000000L) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000L;
    }
    po_pg *pg = NULL;
    if (!take_slot(pool, &deadline, &pg))
        return po_fail(err, PO_RETRY, "pool_timeout", "no free connection within %d ms",
                       timeout_ms);
    if (pg && !po_pg_still_there(pg)) // its slot stays ours
        po_pg_close(&pg);
    int64_t left_ms = deadline_ms - po_mono_ms();
    if (!pg && !po_pg_open_within(&pool->options, left_ms > 0 ? (int)left_ms : 0, &pg, err)) {
        give_up_slot(pool);
        return false;
    }
    *ret_pg = pg;
    return true;
}

void po_pool_release(po_pool *pool, po_pg **pg) {
    po_pg *back = po_take(pg);
    if (!back)
        return;
    if (!po_pg_reusable(back)) {
        po_pg_close(&back);
        give_up_slot(pool);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->idle[pool->n_idle++] = back;
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->lock);
}

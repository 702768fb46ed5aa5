// The ring: one thread, one connection, one flag. Writers raise the flag; the thread lowers it
// before it rings, so a flag raised meanwhile rings again. Since rings are 2 ms apart, any number
// of commits costs at most 500 small transactions a second. When the database is away the ring is
// dropped: then relay cannot read either, and its idle interval finds the rows later.
#include "log/log.h"
#include "outbox/outbox.h"
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { APART_NS = 2 * 1000 * 1000, CONNECT_MS = 1000 };

struct po_ring {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool wanted, closing;
    pthread_t thread;
    po_pool *pool; // of one: it connects again after a loss
    po_stmt notify;
    char sql[96];
};

static void log_change(bool rung, bool was_rung, const po_err *err) {
    if (!rung && was_rung)
        po_log_err(PO_WARN, "the ring is lost: relay finds new rows at its idle interval", err);
    if (rung && !was_rung)
        po_log(PO_INFO, "the ring is back");
}

static bool ring_once(po_ring *ring, po_err *err) {
    po_pg *pg = NULL;
    if (!po_pool_acquire(ring->pool, CONNECT_MS, &pg, err))
        return false;
    bool rung = po_pg_run(pg, &ring->notify, NULL, NULL, err);
    po_pool_release(ring->pool, &pg);
    return rung;
}

static struct timespec after(struct timespec at, long ns) {
    at.tv_nsec += ns;
    at.tv_sec += at.tv_nsec / 1000000000L;
    at.tv_nsec %= 1000000000L;
    return at;
}

// Waits until a ring is wanted and the last one is long enough ago; false when closing with none
// wanted.
static bool wait_wanted(po_ring *ring, struct timespec earliest) {
    pthread_mutex_lock(&ring->lock);
    while (!ring->wanted && !ring->closing)
        pthread_cond_wait(&ring->changed, &ring->lock);
    while (!ring->closing && pthread_cond_timedwait(&ring->changed, &ring->lock, &earliest) == 0) {
    }
    bool wanted = ring->wanted;
    ring->wanted = false;
    pthread_mutex_unlock(&ring->lock);
    return wanted;
}

static void *run(void *arg) {
    po_ring *ring = arg;
    bool was_rung = true;
    struct timespec earliest = {0};
    while (wait_wanted(ring, earliest)) {
        po_err err = {0};
        bool rung = ring_once(ring, &err);
        log_change(rung, was_rung, &err);
        was_rung = rung;
        clock_gettime(CLOCK_MONOTONIC, &earliest);
        earliest = after(earliest, APART_NS);
    }
    return NULL;
}

static void free_ring(po_ring *ring) {
    po_pool_close(&ring->pool);
    pthread_mutex_destroy(&ring->lock);
    pthread_cond_destroy(&ring->changed);
    free(ring);
}

bool po_ring_open(const po_pg_options *options, const char *schema, po_ring **ret_ring,
                  po_err *err) {
    po_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        abort();
    int n = snprintf(ring->sql, sizeof ring->sql, "NOTIFY outbox_%s", schema);
    assert(n > 0 && (size_t)n < sizeof ring->sql);
    ring->notify = (po_stmt){"outbox_ring", ring->sql};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ring->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&ring->lock, NULL);
    bool fine = po_pool_open(options, 1, &ring->pool, err);
    if (fine && pthread_create(&ring->thread, NULL, run, ring) != 0)
        fine = po_fail(err, PO_RETRY, "thread", "the ring's thread cannot be started");
    if (!fine) {
        free_ring(ring);
        return false;
    }
    *ret_ring = ring;
    return true;
}

void po_ring_ring(po_ring *ring) {
    pthread_mutex_lock(&ring->lock);
    if (!ring->wanted) {
        ring->wanted = true;
        pthread_cond_signal(&ring->changed);
    }
    pthread_mutex_unlock(&ring->lock);
}

// The last ring that is wanted still rings: what was committed just before is published at once.
void po_ring_close(po_ring **ring) {
    po_ring *gone = po_take(ring);
    if (!gone)
        return;
    pthread_mutex_lock(&gone->lock);
    gone->closing = true;
    pthread_cond_signal(&gone->changed);
    pthread_mutex_unlock(&gone->lock);
    pthread_join(gone->thread, NULL);
    free_ring(gone);
}

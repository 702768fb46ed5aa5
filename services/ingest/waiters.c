// A list in order of arrival, so that the clock looks at its head alone.
#include "waiters.h"
#include "base/clock.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 50 };

struct waiters {
    void (*late)(po_request *request, int64_t waited_ms);
    pthread_mutex_t lock;
    waiter *oldest, *newest;
    _Atomic bool closing;
    pthread_t clock;
};

static void unlist(waiters *all, waiter *one) {
    if (one->listed) {
        *(one->older ? &one->older->newer : &all->oldest) = one->newer;
        *(one->newer ? &one->newer->older : &all->newest) = one->older;
        one->listed = false;
    }
}

static void answer_late(waiters *all, int64_t now_ms) {
    pthread_mutex_lock(&all->lock);
    while (all->oldest && now_ms - all->oldest->since_ms >= WAITER_MS) {
        waiter *one = all->oldest;
        unlist(all, one);
        po_request *request = waiter_take(one);
        if (request)
            all->late(request, now_ms - one->since_ms);
    }
    pthread_mutex_unlock(&all->lock);
}

static void *clock_main(void *arg) {
    waiters *all = arg;
    while (!all->closing) {
        answer_late(all, po_mono_ms());
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    }
    return NULL;
}

bool waiters_open(void (*late)(po_request *request, int64_t waited_ms), waiters **ret_waiters,
                  po_err *err) {
    waiters *all = calloc(1, sizeof *all);
    if (!all)
        abort();
    all->late = late;
    pthread_mutex_init(&all->lock, NULL);
    if (pthread_create(&all->clock, NULL, clock_main, all) != 0) {
        pthread_mutex_destroy(&all->lock);
        free(all);
        return po_fail(err, PO_RETRY, "thread", "cannot start the clock of answers");
    }
    *ret_waiters = all;
    return true;
}

void waiters_close(waiters **waiters) {
    struct waiters *all = *waiters;
    if (!all)
        return;
    all->closing = true;
    pthread_join(all->clock, NULL);
    pthread_mutex_destroy(&all->lock);
    free(all);
    *waiters = NULL;
}

void waiters_add(waiters *all, waiter *one, po_request *request) {
    *one = (waiter){.since_ms = po_mono_ms()};
    atomic_init(&one->request, request);
    if (!request)
        return;
    pthread_mutex_lock(&all->lock);
    one->older = all->newest;
    *(all->newest ? &all->newest->newer : &all->oldest) = one;
    all->newest = one;
    one->listed = true;
    pthread_mutex_unlock(&all->lock);
}

po_request *waiter_take(waiter *one) {
    return atomic_exchange(&one->request, NULL);
}

bool waiter_waits(const waiter *one) {
    return atomic_load(&one->request) != NULL;
}

void waiters_remove(waiters *all, waiter *one) {
    pthread_mutex_lock(&all->lock);
    unlist(all, one);
    pthread_mutex_unlock(&all->lock);
}

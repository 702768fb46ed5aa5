// Needs are a short array whose places are used again. The thread takes the one whose time has come, asks it
// with the lock released, and writes down the answer; who ends a need waits for that.
#include "life/need.h"
#include "base/clock.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    FIRST_MS = 500,  // between questions until it was reached once
    AWAY_MS = 1000,  // and while it is away later
    AGAIN_MS = 5000, // and while it answers
    ALARM_US = 60 * PO_SECOND_US,
};

struct po_need {
    po_need_ask ask;
    void *arg;
    po_need_state state;
    int64_t due_ms, told_us;
    bool ended;
};

// A process has one set of needs.
static struct {
    pthread_mutex_t lock; // guards all that follows
    pthread_cond_t changed;
    bool running;
    po_need *asking; // now, with the lock released
    po_need all[PO_NEEDS_MOST];
    size_t n;
    po_metric *last_success;
} needs = {.lock = PTHREAD_MUTEX_INITIALIZER};

void po_needs_metrics(void) {
    needs.last_success =
        po_metric_new(PO_GAUGE, "payonce_dependency_last_success_timestamp_seconds",
                      "When the program last had a good answer from what it depends on; 0: never. "
                      "Asked every few seconds, also when idle.",
                      "dependency");
}

static void show(const po_need *need) {
    if (needs.last_success)
        po_gauge(needs.last_success, need->state.name, (double)need->state.last_success_us / 1e6);
}

// --- Answers, under the lock

static void note_reached(po_need *need, int64_t now_us) {
    po_need_state *s = &need->state;
    if (s->away_since_us)
        po_log(PO_INFO, "dependency reached", PO_TEXT("dependency", s->name),
               PO_INT("waited_ms", (now_us - s->away_since_us) / 1000));
    s->away_since_us = need->told_us = 0;
    s->last_success_us = now_us;
    show(need);
    need->due_ms = po_mono_ms() + AGAIN_MS;
}

static void note_away(po_need *need, const po_err *why, int64_t now_us) {
    po_need_state *s = &need->state;
    bool other = strcmp(s->why.code, why->code) != 0;
    if (!s->away_since_us)
        s->away_since_us = need->told_us = now_us;
    else if (now_us - need->told_us >= ALARM_US || other)
        need->told_us = now_us;
    if (need->told_us == now_us)
        po_log_err(now_us - s->away_since_us >= ALARM_US ? PO_ERROR : PO_WARN,
                   "waiting for a dependency", why, PO_TEXT("dependency", s->name),
                   PO_BOOL("reached_before", s->last_success_us));
    s->why = *why;
    need->due_ms = po_mono_ms() + (s->last_success_us ? AWAY_MS : FIRST_MS);
}

// --- The thread

static po_need *next_due(void) {
    po_need *next = NULL;
    for (size_t i = 0; i < needs.n; i++) {
        po_need *one = &needs.all[i];
        if (!one->ended && (!next || one->due_ms < next->due_ms))
            next = one;
    }
    return next;
}

static void wait_until(int64_t due_ms) {
    struct timespec at = {.tv_sec = due_ms / 1000, .tv_nsec = due_ms % 1000 * 1000000};
    pthread_cond_timedwait(&needs.changed, &needs.lock, &at);
}

static void *ask_all(void *arg) {
    (void)arg;
    pthread_mutex_lock(&needs.lock);
    for (po_need *need; (need = next_due());) {
        if (need->due_ms > po_mono_ms()) {
            wait_until(need->due_ms);
            continue;
        }
        needs.asking = need;
        pthread_mutex_unlock(&needs.lock);
        po_err why = {0};
        bool fine = need->ask(need->arg, &why);
        pthread_mutex_lock(&needs.lock);
        needs.asking = NULL;
        if (fine)
            note_reached(need, po_now_us());
        else if (!need->ended) // else it may only have been told to stop
            note_away(need, &why, po_now_us());
        pthread_cond_broadcast(&needs.changed);
    }
    needs.running = false;
    pthread_mutex_unlock(&needs.lock);
    return NULL;
}

static void make_cond(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&needs.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

// Ends with the last need.
static void run_thread(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_cond);
    pthread_t thread;
    if (needs.running)
        return;
    if (pthread_create(&thread, NULL, ask_all, NULL) != 0)
        abort();
    pthread_detach(thread);
    needs.running = true;
}

// --- Public

static po_need *place(void) {
    for (size_t i = 0; i < needs.n; i++)
        if (needs.all[i].ended && needs.asking != &needs.all[i])
            return &needs.all[i];
    assert(needs.n < PO_NEEDS_MOST);
    return &needs.all[needs.n++];
}

po_need *po_need_new(const char *name, po_need_ask ask, void *arg) {
    pthread_mutex_lock(&needs.lock);
    po_need *need = place();
    *need = (po_need){.ask = ask, .arg = arg, .state = {.name = name, .demanded = true}};
    show(need);
    run_thread();
    pthread_cond_broadcast(&needs.changed); // it may be asleep until another one's time
    pthread_mutex_unlock(&needs.lock);
    return need;
}

void po_need_demand(po_need *need, bool demanded) {
    pthread_mutex_lock(&needs.lock);
    need->state.demanded = demanded;
    pthread_mutex_unlock(&needs.lock);
}

void po_need_end(po_need *need) {
    if (!need)
        return;
    pthread_mutex_lock(&needs.lock);
    need->ended = true;
    pthread_cond_broadcast(&needs.changed);
    while (needs.asking == need)
        pthread_cond_wait(&needs.changed, &needs.lock);
    pthread_mutex_unlock(&needs.lock);
}

bool po_needs_reached(const char **ret_name) {
    const char *missing = NULL;
    pthread_mutex_lock(&needs.lock);
    for (size_t i = 0; !missing && i < needs.n; i++) {
        const po_need_state *s = &needs.all[i].state;
        if (s->demanded && !s->last_success_us && !needs.all[i].ended)
            missing = s->name;
    }
    pthread_mutex_unlock(&needs.lock);
    if (missing && ret_name)
        *ret_name = missing;
    return !missing;
}

bool po_need_away(po_need *need, po_need_state *ret) {
    if (!need)
        return false;
    pthread_mutex_lock(&needs.lock);
    bool away = need->state.away_since_us;
    if (away && ret)
        *ret = need->state;
    pthread_mutex_unlock(&needs.lock);
    return away;
}

size_t po_needs_list(po_need_state *ret, size_t most) {
    pthread_mutex_lock(&needs.lock);
    size_t n = 0;
    for (size_t i = 0; i < needs.n && n < most; i++)
        if (!needs.all[i].ended)
            ret[n++] = needs.all[i].state;
    pthread_mutex_unlock(&needs.lock);
    return n;
}

bool po_needs_away(po_need_state *ret) {
    po_need_state all[PO_NEEDS_MOST];
    size_t n = po_needs_list(all, PO_NEEDS_MOST);
    for (size_t i = 0; i < n; i++) {
        if (!all[i].away_since_us)
            continue;
        *ret = all[i];
        return true;
    }
    return false;
}

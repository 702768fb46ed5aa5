// One flag and one descriptor say "stop": the flag for loops that look, an eventfd that is never
// read for those that poll. Signals are taken by a thread of their own, so nothing runs in a signal
// handler.
#include "life/life.h"
#include "base/clock.h"
#include "base/id.h"
#include "life/need.h"
#include "log/log.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CHECKS_MAX = 16 };

struct po_beat {
    po_beat *next;
    const char *name;
    int64_t limit_ms;
    _Atomic int64_t last_ms;
    atomic_bool ended;
};

// A process has one life: this is the state of it.
static struct {
    pthread_once_t once;
    int stop_fd;
    atomic_bool stopping;
    po_beat *_Atomic beats;
    pthread_mutex_t ready_lock; // guards what follows; held while checks run
    bool started, reached;      // reached: every need, once
    size_t n_checks;
    struct {
        bool (*fn)(void *arg);
        void *arg;
    } checks[CHECKS_MAX];
} life = {.once = PTHREAD_ONCE_INIT, .stop_fd = -1, .ready_lock = PTHREAD_MUTEX_INITIALIZER};

static void open_stop_fd(void) {
    life.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (life.stop_fd < 0)
        abort();
}

int po_stop_fd(void) {
    pthread_once(&life.once, open_stop_fd);
    return life.stop_fd;
}

bool po_stopping(void) {
    return atomic_load(&life.stopping);
}

void po_stop(void) {
    int fd = po_stop_fd();
    atomic_store(&life.stopping, true);
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0 && errno != EAGAIN)
        abort();
}

static void stop_signals(sigset_t *ret_set) {
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGINT);
}

static void *wait_for_signals(void *arg) {
    (void)arg;
    sigset_t set;
    stop_signals(&set);
    for (;;) {
        int number;
        if (sigwait(&set, &number) != 0)
            continue;
        po_stop(); // before the line: a reader of the log may rely on it
        po_log(PO_INFO, "stopping", PO_TEXT("signal", number == SIGTERM ? "SIGTERM" : "SIGINT"));
    }
    return NULL;
}

// The soft limit is low for the sake of select(2), which nothing here uses; strangers' connections
// alone could reach it.
static void raise_open_files(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        abort();
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files); // what cannot be raised stays
}

void po_life_init(void) {
    sigset_t set;
    stop_signals(&set);
    signal(SIGPIPE, SIG_IGN);
    raise_open_files();
    po_stop_fd();
    pthread_t thread;
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0 ||
        pthread_create(&thread, NULL, wait_for_signals, NULL) != 0)
        abort();
    pthread_detach(thread);
}

bool po_life_wait(int64_t timeout_ms) {
    int64_t until = po_mono_ms() + timeout_ms;
    for (int64_t left = timeout_ms; !po_stopping() && left > 0; left = until - po_mono_ms()) {
        struct pollfd p = {.fd = po_stop_fd(), .events = POLLIN};
        poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
    }
    return !po_stopping();
}

// ---- liveness ----

po_beat *po_beat_new(const char *name, int64_t limit_ms) {
    po_beat *beat = calloc(1, sizeof *beat);
    if (!beat)
        abort();
    beat->name = name;
    beat->limit_ms = limit_ms;
    po_beat_tick(beat);
    beat->next = atomic_load(&life.beats);
    while (!atomic_compare_exchange_weak(&life.beats, &beat->next, beat))
        ;
    return beat;
}

void po_beat_tick(po_beat *beat) {
    atomic_store(&beat->last_ms, po_mono_ms());
}

void po_beat_end(po_beat *beat) {
    atomic_store(&beat->ended, true);
}

bool po_life_healthy(const char **ret_name) {
    int64_t now = po_mono_ms();
    for (po_beat *beat = atomic_load(&life.beats); beat; beat = beat->next) {
        if (atomic_load(&beat->ended) || now - atomic_load(&beat->last_ms) <= beat->limit_ms)
            continue;
        if (ret_name)
            *ret_name = beat->name;
        return false;
    }
    return true;
}

// ---- readiness ----

void po_ready_set(bool started) {
    pthread_mutex_lock(&life.ready_lock);
    life.started = started;
    pthread_mutex_unlock(&life.ready_lock);
}

void po_ready_check(bool (*fn)(void *arg), void *arg) {
    pthread_mutex_lock(&life.ready_lock);
    assert(life.n_checks < CHECKS_MAX);
    life.checks[life.n_checks].fn = fn;
    life.checks[life.n_checks].arg = arg;
    life.n_checks++;
    pthread_mutex_unlock(&life.ready_lock);
}

bool po_ready(void) {
    pthread_mutex_lock(&life.ready_lock);
    if (life.started && !life.reached)
        life.reached = po_needs_reached(NULL);
    bool ready = life.started && life.reached && !po_stopping();
    for (size_t i = 0; ready && i < life.n_checks; i++)
        ready = life.checks[i].fn(life.checks[i].arg);
    pthread_mutex_unlock(&life.ready_lock);
    return ready;
}

// ---- backoff ----

int64_t po_backoff_ms(int attempt, int64_t base_ms, int64_t cap_ms) {
    assert(base_ms >= 0 && cap_ms >= 0);
    int64_t full = base_ms < cap_ms ? base_ms : cap_ms;
    for (; attempt > 0 && full > 0 && full < cap_ms; attempt--)
        full = full > cap_ms / 2 ? cap_ms : full * 2;
    uint64_t dice;
    po_random(&dice, sizeof dice);
    int64_t half = full / 2;
    return half + (int64_t)(dice % (uint64_t)(full - half + 1));
}

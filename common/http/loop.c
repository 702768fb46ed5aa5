// One turn: wait until the daemon has something ready, is due, or somebody woke us; add who has
// come; let the daemon work off what is ready.
#include "http/loop.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    BEAT_LIMIT_MS = 30000,
    TURN_MS = 10000,   // a turn at least that often, for the beat
    BLANK_TURNS = 100, // enough to read the longest head, which the library does in small steps
    PAUSE_MS = 10,     // after those; what happens meanwhile ends it
};

void loop_init(loop *l, void *owner) {
    *l = (loop){.owner = owner, .wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    if (l->wake_fd < 0)
        abort();
    pthread_mutex_init(&l->lock, NULL);
}

// A wake-up that the thread has not seen yet stands for all that follow it.
void loop_wake(loop *l) {
    uint64_t one = 1;
    if (!atomic_exchange(&l->woken, true) && write(l->wake_fd, &one, sizeof one) < 0 &&
        errno != EAGAIN)
        abort();
}

void loop_take(loop *l, caller *c) {
    pthread_mutex_lock(&l->lock);
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->queue = reallocarray(l->queue, l->cap, sizeof *l->queue);
        if (!l->queue)
            abort();
    }
    l->queue[l->n++] = c;
    pthread_mutex_unlock(&l->lock);
    loop_wake(l);
}

caller *loop_arrived(loop *l) {
    caller *c = l->arriving;
    l->arriving = NULL;
    return c;
}

static bool next_caller(loop *l, caller **ret_caller) {
    pthread_mutex_lock(&l->lock);
    bool any = l->n > 0;
    if (any)
        *ret_caller = l->queue[--l->n];
    pthread_mutex_unlock(&l->lock);
    return any;
}

static void add_callers(loop *l) {
    for (caller *c; next_caller(l, &c);) {
        socklen_t size;
        const struct sockaddr *address = caller_address(c, &size);
        l->arriving = c;
        // Refused, the library has closed the descriptor.
        if (MHD_add_connection(l->daemon, caller_fd(c), address, size) != MHD_YES && l->arriving)
            caller_free(&l->arriving);
    }
}

void loop_moved(loop *l) {
    l->moved = true;
}

static int wait_ms(loop *l) {
    MHD_UNSIGNED_LONG_LONG due;
    if (MHD_get_timeout(l->daemon, &due) != MHD_YES || due > TURN_MS)
        due = TURN_MS;
    if (due > 0 || l->moved)
        l->blank = 0;
    else if (l->blank < BLANK_TURNS)
        l->blank++;
    else
        due = PAUSE_MS;
    l->moved = false;
    return (int)due;
}

static void *turn(void *arg) {
    loop *l = arg;
    while (!atomic_load(&l->ended)) {
        struct pollfd fds[] = {{l->wake_fd, POLLIN, 0}, {l->epoll_fd, POLLIN, 0}};
        poll(fds, 2, wait_ms(l));
        po_beat_tick(l->beat);
        if (fds[0].revents) {
            uint64_t count;
            (void)!read(l->wake_fd, &count, sizeof count);
            atomic_store(&l->woken, false); // before what it stands for is looked at
        }
        add_callers(l);
        MHD_run(l->daemon);
    }
    return NULL;
}

void loop_start(loop *l, struct MHD_Daemon *daemon, const char *name) {
    l->daemon = daemon;
    l->epoll_fd = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    l->beat = po_beat_new(name, BEAT_LIMIT_MS);
    if (pthread_create(&l->thread, NULL, turn, l) != 0)
        abort();
}

static void stop(loop *l) {
    atomic_store(&l->ended, true);
    loop_wake(l);
    pthread_join(l->thread, NULL);
    po_beat_end(l->beat);
    for (caller *c; next_caller(l, &c);) {
        int fd = caller_fd(c);
        caller_free(&c);
        close(fd);
    }
    MHD_stop_daemon(l->daemon);
}

void loop_done(loop *l) {
    if (l->daemon)
        stop(l);
    free(l->queue);
    close(l->wake_fd);
    pthread_mutex_destroy(&l->lock);
}

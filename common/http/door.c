// Callers are a list; the thread walks it once a second and shuts the sockets of those who are late,
// which the library sees as their having gone. What a request changes is one atomic, so that
// requests take no lock for it.
#define _GNU_SOURCE // accept4
#include "http/door.h"
#include "base/clock.h"
#include "log/log.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PAID = 0, LOOK_MS = 1000 };

struct caller {
    door *door;
    caller *next, *previous;
    int fd;
    _Atomic int64_t owes_since_ms; // PAID: nothing
};

struct door {
    door_options options;
    pthread_t thread;
    int wake_fd;
    bool refused; // accept() failed for want of something: not before the next look again
    atomic_bool shut;
    atomic_uint inside;
    pthread_mutex_t lock; // guards the list, and sockets in it against being closed
    caller *first;
};

static void wake(const door *d) {
    uint64_t one = 1;
    if (write(d->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        abort();
}

// ---- letting in ----

static void leave(door *d) {
    if (atomic_fetch_sub(&d->inside, 1) == d->options.most)
        wake(d); // there is room for another
}

static bool has_room(const door *d) {
    return !d->refused && atomic_load(&d->inside) < d->options.most;
}

static bool is_scarcity(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void let_in(door *d) {
    while (has_room(d) && !atomic_load(&d->shut)) {
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        int fd = accept4(d->options.listen_fd, (struct sockaddr *)&from, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            d->refused = is_scarcity(errno);
            if (d->refused)
                po_log(PO_WARN, "connections wait to be accepted",
                       PO_TEXT("error", strerror(errno)));
            return; // nobody is there any more, or somebody who has gone again
        }
        atomic_fetch_add(&d->inside, 1);
        if (!d->options.take(fd, (struct sockaddr *)&from, size, d->options.arg))
            leave(d);
    }
}

// ---- hanging up ----

static void hang_up_on_the_late(door *d) {
    int64_t now = po_mono_ms();
    pthread_mutex_lock(&d->lock);
    for (caller *c = d->first; c; c = c->next) {
        int64_t since = atomic_load(&c->owes_since_ms);
        if (since != PAID && now - since > d->options.patience_ms)
            shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&d->lock);
}

static void *watch(void *arg) {
    door *d = arg;
    int64_t look_at = po_mono_ms() + LOOK_MS;
    while (!atomic_load(&d->shut)) {
        int64_t left = look_at - po_mono_ms();
        struct pollfd fds[] = {{d->wake_fd, POLLIN, 0},
                               {has_room(d) ? d->options.listen_fd : -1, POLLIN, 0}};
        poll(fds, 2, left > 0 ? (int)left : 0);
        uint64_t woken;
        (void)!read(d->wake_fd, &woken, sizeof woken);
        if (fds[1].revents)
            let_in(d);
        if (po_mono_ms() < look_at)
            continue;
        look_at = po_mono_ms() + LOOK_MS;
        d->refused = false;
        hang_up_on_the_late(d);
    }
    return NULL;
}

// ---- life ----

door *door_new(const door_options *options) {
    door *d = calloc(1, sizeof *d);
    if (!d || (d->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        abort();
    d->options = *options;
    pthread_mutex_init(&d->lock, NULL);
    if (pthread_create(&d->thread, NULL, watch, d) != 0)
        abort();
    return d;
}

void door_shut(door *d) {
    atomic_store(&d->shut, true);
    shutdown(d->options.listen_fd, SHUT_RDWR); // from here on callers are refused
    wake(d);
    pthread_join(d->thread, NULL);
}

void door_free(door **door) {
    struct door *gone = *door;
    if (!gone)
        return;
    pthread_mutex_destroy(&gone->lock);
    close(gone->wake_fd);
    free(gone);
    *door = NULL;
}

// ---- callers ----

caller *caller_new(door *door, int fd) {
    caller *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->door = door;
    c->fd = fd;
    caller_owes(c);
    pthread_mutex_lock(&door->lock);
    c->next = door->first;
    if (c->next)
        c->next->previous = c;
    door->first = c;
    pthread_mutex_unlock(&door->lock);
    return c;
}

void caller_paid(caller *caller) {
    atomic_store(&caller->owes_since_ms, PAID);
}

void caller_owes(caller *caller) {
    atomic_store(&caller->owes_since_ms, po_mono_ms());
}

void caller_free(caller **caller) {
    struct caller *gone = *caller;
    door *d = gone->door;
    pthread_mutex_lock(&d->lock);
    if (gone->next)
        gone->next->previous = gone->previous;
    *(gone->previous ? &gone->previous->next : &d->first) = gone->next;
    pthread_mutex_unlock(&d->lock);
    free(gone);
    *caller = NULL;
    leave(d);
}

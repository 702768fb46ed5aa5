// Callers are a list. Once a second the thread walks it and shuts the sockets of those who are
// late, which the library sees as their having gone. Whether an idle connection has begun another
// request, which the library tells nobody before the head is whole, is asked of the kernel: when
// did the last byte come? What a request changes is atomic, so that requests take no lock for it.
#define _GNU_SOURCE // accept4
#include "http/door.h"
#include "base/clock.h"
#include "log/log.h"
#include "metrics/metrics.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    LOOK_MS = 1000,
    STAY_MS = 1000, // nobody gives way sooner: its request may lie unread in the kernel
    CROWD_MS = 100, // when nobody can, we look again after that
    TICK_MS = 10,   // the kernel's clock of a socket is coarser than ours
    KEY = 16,
};

// ARRIVING: its descriptor is not ours to touch. WAITS: a request is due, or its head is under way.
typedef enum stage { ARRIVING, WAITS, SPEAKS, SERVED, ANSWERED } stage;

struct caller {
    door *door;
    caller *next, *previous;
    int fd;
    struct sockaddr_storage address;
    socklen_t address_size;
    uint8_t key[KEY]; // of those who share one share
    int64_t began_ms;
    _Atomic stage stage;
    _Atomic int64_t since_ms;  // its beginning, or the last answer
    _Atomic int64_t wanted_ms; // the last wanted answer; 0: none yet
    atomic_bool answered;      // ever
    // The door's thread alone:
    int64_t turn_ms;  // the value of since_ms that the next line is about
    int64_t spoke_ms; // when the request under way began; 0: none is
    bool hung_up;     // it has not gone yet; guarded by the lock
};

struct door {
    door_options options;
    pthread_t thread;
    int wake_fd;
    bool refused;        // accept() failed for want of something: not before the next look again
    int64_t told_ms;     // when somebody was last told to make room
    int64_t crowded_ms;  // nobody could give way then; 0: not tried
    unsigned gave_way;   // since the last look
    atomic_uint inside;  // callers
    atomic_uint parting; // those told to make room that have not gone yet
    atomic_bool shut;
    pthread_mutex_t lock; // guards the list, and sockets in it against being closed
    caller *first;
};

static struct {
    pthread_once_t once;
    po_metric *hung_up;
} metrics = {.once = PTHREAD_ONCE_INIT};

static void declare_metrics(void) {
    metrics.hung_up = po_metric_new(
        PO_COUNTER, "payonce_http_hung_up_total",
        "Connections ended by the listener: idle, late (over a request or with taking "
        "an answer), gave_way (to a new one at the limit), share (of one address), "
        "memory (its incomplete body gave way to another).",
        "reason");
}

void door_metrics(void) {
    pthread_once(&metrics.once, declare_metrics);
}

static void wake(const door *d) {
    uint64_t one = 1;
    if (write(d->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        abort();
}

// ---- callers ----

// An IPv6 host has a /64 at least, so that is what counts as one address.
static void put_key(caller *c) {
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&c->address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&c->address;
    bool mapped = c->address.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
    if (c->address.ss_family == AF_INET)
        memcpy(c->key + KEY - 4, &four->sin_addr, 4);
    else if (c->address.ss_family == AF_INET6)
        memcpy(c->key + (mapped ? KEY - 4 : 0), six->sin6_addr.s6_addr + (mapped ? 12 : 0),
               mapped ? 4 : 8);
}

static caller *caller_new(door *d, int fd, const struct sockaddr_storage *address, socklen_t size) {
    caller *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->door = d;
    c->fd = fd;
    c->address = *address;
    c->address_size = size;
    put_key(c);
    c->began_ms = po_mono_ms();
    atomic_store(&c->since_ms, c->began_ms);
    atomic_fetch_add(&d->inside, 1);
    pthread_mutex_lock(&d->lock);
    c->next = d->first;
    if (c->next)
        c->next->previous = c;
    d->first = c;
    pthread_mutex_unlock(&d->lock);
    return c;
}

int caller_fd(const caller *caller) {
    return caller->fd;
}

const struct sockaddr *caller_address(const caller *caller, socklen_t *ret_size) {
    *ret_size = caller->address_size;
    return (const struct sockaddr *)&caller->address;
}

void caller_enters(caller *caller) {
    atomic_store(&caller->stage, WAITS);
}

void caller_speaks(caller *caller) {
    atomic_store(&caller->stage, SPEAKS);
}

void caller_paid(caller *caller) {
    atomic_store(&caller->stage, SERVED);
}

void caller_answered(caller *caller, bool wanted) {
    int64_t now = po_mono_ms();
    if (wanted)
        atomic_store(&caller->wanted_ms, now);
    atomic_store(&caller->answered, true);
    atomic_store(&caller->since_ms, now);
    atomic_store(&caller->stage, ANSWERED);
}

void caller_owes(caller *caller) {
    atomic_store(&caller->since_ms, po_mono_ms());
    atomic_store(&caller->stage, WAITS);
}

bool caller_is_welcome(const caller *caller) {
    int64_t wanted = atomic_load(&caller->wanted_ms);
    return wanted && po_mono_ms() - wanted <= caller->door->options.idle_ms;
}

bool caller_was_wanted(const caller *caller) {
    return atomic_load(&caller->wanted_ms) != 0;
}

void caller_free(caller **caller) {
    struct caller *gone = *caller;
    door *d = gone->door;
    pthread_mutex_lock(&d->lock);
    if (gone->next)
        gone->next->previous = gone->previous;
    *(gone->previous ? &gone->previous->next : &d->first) = gone->next;
    bool was_told = gone->hung_up;
    pthread_mutex_unlock(&d->lock);
    free(gone);
    *caller = NULL;
    if (was_told)
        atomic_fetch_sub(&d->parting, 1);
    if (atomic_fetch_sub(&d->inside, 1) >= d->options.most || was_told)
        wake(d); // there is room for another
}

// ---- hanging up ----

// With the lock held.
static void hang_up(door *d, caller *c, const char *reason) {
    c->hung_up = true;
    atomic_fetch_add(&d->parting, 1);
    shutdown(c->fd, SHUT_RDWR);
    po_count(metrics.hung_up, reason, 1);
}

void caller_gives_way(caller *caller) {
    door *d = caller->door;
    pthread_mutex_lock(&d->lock);
    if (!caller->hung_up)
        hang_up(d, caller, "memory");
    pthread_mutex_unlock(&d->lock);
}

static int64_t heard_ms(const caller *c, int64_t now) {
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0)
        return now; // it is going
    return now - info.tcpi_last_data_recv;
}

// Why we hang up on it now, or NULL.
static const char *is_late(const door *d, caller *c, int64_t now) {
    const door_options *o = &d->options;
    stage stage = atomic_load(&c->stage);
    int64_t since = atomic_load(&c->since_ms);
    if (stage == ARRIVING || stage == SERVED)
        return NULL;
    if (stage == ANSWERED)
        return now - since > o->patience_ms ? "late" : NULL;
    int64_t heard = heard_ms(c, now);
    if (c->turn_ms != since) {
        c->turn_ms = since;
        c->spoke_ms = atomic_load(&c->answered) ? 0 : since;
    }
    if (!c->spoke_ms && (stage == SPEAKS || heard > since + TICK_MS))
        c->spoke_ms = now;
    if (!c->spoke_ms)
        return now - since > o->idle_ms ? "idle" : NULL;
    int64_t silence = now - (heard > since ? heard : since);
    return silence > o->request_ms || now - c->spoke_ms > o->patience_ms ? "late" : NULL;
}

static void hang_up_on_the_late(door *d) {
    int64_t now = po_mono_ms();
    pthread_mutex_lock(&d->lock);
    for (caller *c = d->first; c; c = c->next) {
        const char *reason = c->hung_up ? NULL : is_late(d, c, now);
        if (reason)
            hang_up(d, c, reason);
    }
    pthread_mutex_unlock(&d->lock);
}

// Of two that may give way, whether `a` is the one; of equal ones the later in the list came first.
static bool is_wanted_less(const caller *a, const caller *b) {
    bool a_was = atomic_load(&a->wanted_ms), b_was = atomic_load(&b->wanted_ms);
    if (a_was != b_was)
        return b_was;
    if (!a_was)
        return a->began_ms <= b->began_ms;
    return atomic_load(&a->since_ms) <= atomic_load(&b->since_ms);
}

static bool may_give_way(const caller *c) {
    stage stage = atomic_load(&c->stage);
    return !c->hung_up && (stage == WAITS || (stage == SPEAKS && !atomic_load(&c->wanted_ms)));
}

static bool stayed(const caller *c) {
    return po_mono_ms() - atomic_load(&c->since_ms) >= STAY_MS;
}

static bool is_like(const caller *c, const caller *other) {
    return memcmp(c->key, other->key, KEY) == 0;
}

// With the lock held. A stranger that may not go yet stands for all: strangers that keep coming
// never reach those who were of use.
static caller *least_wanted(const door *d) {
    caller *least = NULL;
    for (caller *c = d->first; c; c = c->next)
        if (may_give_way(c) && (!least || is_wanted_less(c, least)))
            least = c;
    return least && stayed(least) ? least : NULL;
}

// With the lock held. Those of one address have no strangers among them.
static caller *least_wanted_like(const door *d, const caller *newcomer) {
    caller *least = NULL;
    for (caller *c = d->first; c; c = c->next)
        if (c != newcomer && is_like(c, newcomer) && may_give_way(c) && stayed(c) &&
            (!least || is_wanted_less(c, least)))
            least = c;
    return least;
}

static void make_room(door *d) {
    pthread_mutex_lock(&d->lock);
    caller *c = least_wanted(d);
    if (c)
        hang_up(d, c, "gave_way");
    pthread_mutex_unlock(&d->lock);
    if (c) {
        d->told_ms = po_mono_ms();
        d->gave_way++;
    } else {
        d->crowded_ms = po_mono_ms();
    }
}

// Over its address's share one of that address gives way: the newcomer itself if need be.
static bool fits_share(door *d, caller *newcomer) {
    unsigned n = 0, most = d->options.most_of_one;
    if (!most)
        return true;
    pthread_mutex_lock(&d->lock);
    for (const caller *c = d->first; c; c = c->next)
        n += !c->hung_up && is_like(c, newcomer);
    caller *least = n > most ? least_wanted_like(d, newcomer) : NULL;
    if (least)
        hang_up(d, least, "share");
    pthread_mutex_unlock(&d->lock);
    return n <= most || least;
}

// ---- letting in ----

static bool has_room(const door *d) {
    return atomic_load(&d->inside) < d->options.most;
}

// Whether a caller at the door is to be looked after now. One at a time is told to make room; that
// one may be long about it, if its request came at that very moment.
static bool listens(const door *d) {
    bool parted = atomic_load(&d->parting) == 0 || po_mono_ms() - d->told_ms >= LOOK_MS;
    return !d->refused && (has_room(d) || (!d->crowded_ms && parted));
}

static bool is_scarcity(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void turn_away(caller *c) {
    int fd = c->fd;
    caller_free(&c);
    close(fd);
    po_count(metrics.hung_up, "share", 1);
}

static void let_in(door *d) {
    while (has_room(d) && !atomic_load(&d->shut)) {
        struct sockaddr_storage from = {0};
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
        caller *c = caller_new(d, fd, &from, size);
        if (fits_share(d, c))
            d->options.take(c, d->options.arg);
        else
            turn_away(c);
    }
}

static void look(door *d) {
    d->refused = false;
    hang_up_on_the_late(d);
    if (d->gave_way)
        po_log(PO_WARN, "connections gave way to new ones", PO_INT("connections", d->gave_way),
               PO_INT("limit", d->options.most));
    d->gave_way = 0;
}

static void *watch(void *arg) {
    door *d = arg;
    int64_t look_at = po_mono_ms() + LOOK_MS;
    while (!atomic_load(&d->shut)) {
        int64_t now = po_mono_ms(), left = look_at - now;
        if (d->crowded_ms && now - d->crowded_ms >= CROWD_MS)
            d->crowded_ms = 0;
        if (d->crowded_ms && left > CROWD_MS)
            left = CROWD_MS;
        struct pollfd fds[] = {{d->wake_fd, POLLIN, 0},
                               {listens(d) ? d->options.listen_fd : -1, POLLIN, 0}};
        poll(fds, 2, left > 0 ? (int)left : 0);
        uint64_t woken;
        (void)!read(d->wake_fd, &woken, sizeof woken);
        if (fds[1].revents && has_room(d))
            let_in(d);
        else if (fds[1].revents)
            make_room(d);
        if (po_mono_ms() < look_at)
            continue;
        look_at = po_mono_ms() + LOOK_MS;
        look(d);
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

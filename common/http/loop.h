// A thread that drives one of the library's daemons. The library's own thread repeats epoll_wait()
// with its time-out as long as a call filled its array of 128 (0.9.75 to 1.0.1), before it handles
// what it got: exactly k × 128 ready connections then wait until something else happens. MHD_run()
// gives that epoll_wait() no time, so here it cannot wait, and the waiting is poll()'s.
//
// A daemon without a thread of its own wants to be touched by one thread alone, and nothing wakes
// it: new connections come through a queue, and loop_wake() follows MHD_resume_connection(), which
// is the one call that any thread may make.
//
// Such a daemon counts a connection as ready for ever once its buffer is full and what is in it can
// neither be taken nor refused: a chunk's line without an end, or the body of a head that left no
// room. (With a thread of its own, the library gives such a connection up.) It does not tell which
// one that is, so turns in which nothing is done are spaced out, and the door ends it. Internal to
// http/.
#pragma once
#include "http/door.h"
#include "life/life.h"
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct loop {
    void *owner; // for the daemon's callbacks, whose argument is the loop
    struct MHD_Daemon *daemon;
    po_beat *beat;
    pthread_t thread;
    int wake_fd, epoll_fd;
    atomic_bool woken, ended;
    bool moved;           // in this turn; as what follows, the thread's alone
    unsigned blank;       // turns in a row that were due at once and moved nothing
    pthread_mutex_t lock; // guards what follows
    caller **queue;       // accepted, not yet the daemon's
    size_t n, cap;
    caller *arriving; // the one MHD_add_connection() is about; the thread's alone
} loop;

void loop_init(loop *loop, void *owner);
// Takes the daemon over: MHD_USE_EPOLL, without MHD_USE_INTERNAL_POLLING_THREAD. `name`, of the
// beat, must outlive the process.
void loop_start(loop *loop, struct MHD_Daemon *daemon, const char *name);
void loop_take(loop *loop, caller *caller); // from any thread; the caller's descriptor with it
void loop_wake(loop *loop);                 // from any thread
caller *loop_arrived(loop *loop);           // to be called when MHD says that a connection began
void loop_moved(loop *loop);                // to be called when MHD says anything of a request
// Ends the thread and the daemon, its connections with it; also after loop_init() alone.
void loop_done(loop *loop);

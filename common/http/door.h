// The door of a listener: a thread that accepts connections and hangs up on those who take too
// long.
//
// Room is for whoever is served. At the limit the connection that is wanted least gives way to a
// new one: first those that never had a wanted answer, the oldest first; then those that idle, the
// longest first. A connection whose request is here, or whose answer is under way, never does; so
// only when all are like that does a new one wait. One address may be given a share of its own.
//
// The library is not given the listening socket, because its way of giving one up again
// (MHD_quiesce_daemon, 0.9.75) races with its own threads and then aborts the process. Nor does it
// keep time: it has one time-out for all of a connection's life, and each byte begins it anew.
// Internal to http/.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct door door;
typedef struct caller caller; // one connection

typedef struct door_options {
    int listen_fd;        // not blocking; stays the owner's
    unsigned most;        // connections at once
    unsigned most_of_one; // of one IPv4 address or IPv6 /64; 0: no bound
    int64_t request_ms;   // the longest silence within a request; the first one begins with the
                          // connection, a later one with its first byte
    int64_t patience_ms;  // for the whole of a request, and for an answer to be taken
    int64_t idle_ms;      // from an answer to the next request's first byte
    void (*take)(caller *caller, void *arg); // a connection and its descriptor are handed on
    void *arg;
} door_options;

void door_metrics(void);                     // declares them
door *door_new(const door_options *options); // opens
void door_shut(door *door);  // nobody is let in any more; the late are left to others. Once
void door_free(door **door); // shut, and every caller gone; accepts NULL

// What the thread that serves a connection says of it. The door leaves a descriptor alone until
// caller_enters(), and again once caller_free() has returned; only then may it be closed.
int caller_fd(const caller *caller);
const struct sockaddr *caller_address(const caller *caller, socklen_t *ret_size);
void caller_enters(caller *caller);
void caller_speaks(caller *caller); // the head of a request is here
void caller_paid(caller *caller);   // the whole request is, or will not be read
// Its answer goes out. `wanted`: the request was one we are here to serve.
void caller_answered(caller *caller, bool wanted);
void caller_owes(caller *caller); // the answer is out: the next request is due
// Whether it had a wanted answer within the idle time.
bool caller_is_welcome(const caller *caller);
bool caller_was_wanted(const caller *caller); // whether it ever had one
void caller_gives_way(caller *caller);        // hangs up on it; from any thread, while it is there
void caller_free(caller **caller);

// The door of a listener: a thread that accepts connections, up to a limit, and hangs up on who
// takes too long over sending a request (the library's own time-out begins anew with each byte).
// The library is not given the listening socket, because its way of giving one up again
// (MHD_quiesce_daemon, 0.9.75) races with its own threads and then aborts the process. Internal to
// http/.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct door door;
typedef struct caller caller; // one connection

typedef struct door_options {
    int listen_fd;       // not blocking; stays the owner's
    unsigned most;       // connections at once; further ones wait to be accepted
    int64_t patience_ms; // from a connection's beginning, or its last answer, to the whole of its
                         // next request
    // Hands a connection on, its descriptor with it; false: it is closed already.
    bool (*take)(int fd, const struct sockaddr *address, socklen_t size, void *arg);
    void *arg;
} door_options;

door *door_new(const door_options *options); // opens
void door_shut(door *door);  // nobody is let in any more; the late are left to others. Once
void door_free(door **door); // shut, and every caller gone; accepts NULL

// `fd` stays the library's; the caller is to be freed before it is closed. It owes us a request.
caller *caller_new(door *door, int fd);
void caller_paid(caller *caller); // its request is here, or will not be read
void caller_owes(caller *caller); // it has its answer: the next one is due
void caller_free(caller **caller);

// Every unfinished row, by its (topic, key): at most one row of a key, its head, is on its way; later ones wait
// behind it as ids alone and are read again when their turn comes. So no successor is in flight when a row
// fails, and a key keeps its order whatever happens to one of its rows. Pure; one thread.
#pragma once
#include "base/str.h"
#include <sys/queue.h>

typedef struct keys keys;
struct topic;

typedef enum key_state {
    KEY_READY,   // its head is to be read and sent
    KEY_SENT,    // its head is with the producer
    KEY_HELD,    // its head waits for its schema
    KEY_REFUSED, // Kafka does not take its head: the key is blocked
} key_state;

typedef struct waiting {
    int64_t id, since_ms;
} waiting;

typedef struct key {
    TAILQ_ENTRY(key) link; // in the list of its state (not while KEY_SENT)
    struct key *chain;
    struct topic *topic;
    uint64_t hash;
    key_state state;
    bool
        alone; // the head goes in a batch of its own: an earlier one was rejected, perhaps for another row
    bool reported; // its refusal was logged
    // The head.
    int64_t id, since_ms, created_us;
    int64_t retry_at_ms; // KEY_REFUSED
    size_t bytes;        // KEY_SENT
    // Behind it: a queue in `waiting`, from `first`, n long.
    waiting *waiting;
    size_t first, n, cap;
    size_t size; // of the name
    char name[];
} key;

typedef TAILQ_HEAD(key_list, key) key_list;

keys *keys_new(void);
void keys_free(keys **keys);

// A row that was just read. The key, when the row is its head and may be sent (state KEY_READY, in no list);
// NULL when it waits behind another.
key *keys_add(keys *keys, struct topic *topic, po_str name, int64_t id, int64_t now_ms);
// The head is finished. The key, when another row has become its head (KEY_READY, in no list); NULL when the key
// was the last and is gone.
key *keys_finish(keys *keys, key *key);

size_t keys_count(const keys *keys);   // heads
size_t keys_waiting(const keys *keys); // ids behind heads
// Calls fn for each unfinished row, in no order.
void keys_each(const keys *keys, void (*fn)(void *arg, int64_t id, int64_t since_ms), void *arg);
// The key with the most rows behind its head; NULL when there is none. Slow: for an alarm.
const key *keys_longest(const keys *keys);

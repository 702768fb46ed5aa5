// A chained hash table. The hash is seeded: keys come from outside.
#include "keys.h"
#include "base/id.h"

#include <assert.h>
#include <stdlib.h>

struct keys {
    key **buckets;
    size_t n_buckets; // a power of two
    size_t count, waiting;
    uint64_t seed;
};

static void *must(void *p) {
    if (!p)
        abort();
    return p;
}

keys *keys_new(void) {
    keys *k = must(calloc(1, sizeof *k));
    k->n_buckets = 1024;
    k->buckets = must(calloc(k->n_buckets, sizeof *k->buckets));
    po_random(&k->seed, sizeof k->seed);
    return k;
}

static void key_free(key *one) {
    free(one->waiting);
    free(one);
}

void keys_free(keys **keys) {
    if (!*keys)
        return;
    for (size_t i = 0; i < (*keys)->n_buckets; i++) {
        for (key *one = (*keys)->buckets[i], *next; one; one = next) {
            next = one->chain;
            key_free(one);
        }
    }
    free((*keys)->buckets);
    free(*keys);
    *keys = NULL;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h;
}

static uint64_t hash_of(const keys *k, const struct topic *topic, po_str name) {
    uint64_t h = mix(k->seed ^ (uint64_t)(uintptr_t)topic);
    size_t at = 0;
    for (uint64_t word; at + sizeof word <= name.n; at += sizeof word) {
        memcpy(&word, name.p + at, sizeof word);
        h = mix(h ^ word);
    }
    uint64_t last = 0;
    if (at < name.n)
        memcpy(&last, name.p + at, name.n - at);
    return mix(h ^ last ^ ((uint64_t)name.n << 56));
}

static key **bucket(const keys *k, uint64_t hash) {
    return &k->buckets[hash & (k->n_buckets - 1)];
}

static void widen(keys *k) {
    keys old = *k;
    k->n_buckets *= 2;
    k->buckets = must(calloc(k->n_buckets, sizeof *k->buckets));
    for (size_t i = 0; i < old.n_buckets; i++) {
        for (key *one = old.buckets[i], *next; one; one = next) {
            next = one->chain;
            key **to = bucket(k, one->hash);
            one->chain = *to;
            *to = one;
        }
    }
    free(old.buckets);
}

static void wait_behind(keys *k, key *one, int64_t id, int64_t now_ms) {
    if (one->n == one->cap) {
        size_t cap = one->cap ? one->cap * 2 : 4;
        waiting *wider = must(reallocarray(NULL, cap, sizeof *wider));
        for (size_t i = 0; i < one->n; i++)
            wider[i] = one->waiting[(one->first + i) % one->cap];
        free(one->waiting);
        one->waiting = wider;
        one->first = 0;
        one->cap = cap;
    }
    one->waiting[(one->first + one->n) % one->cap] = (waiting){id, now_ms};
    one->n++;
    k->waiting++;
}

key *keys_add(keys *k, struct topic *topic, po_str name, int64_t id, int64_t now_ms) {
    uint64_t hash = hash_of(k, topic, name);
    for (key *one = *bucket(k, hash); one; one = one->chain) {
        if (one->hash != hash || one->topic != topic || one->size != name.n ||
            memcmp(one->name, name.p, name.n) != 0)
            continue;
        wait_behind(k, one, id, now_ms);
        return NULL;
    }
    if (k->count == k->n_buckets)
        widen(k);
    key *one = must(malloc(sizeof *one + name.n));
    *one = (key){.chain = *bucket(k, hash),
                 .topic = topic,
                 .hash = hash,
                 .state = KEY_READY,
                 .id = id,
                 .since_ms = now_ms,
                 .size = name.n};
    if (name.n > 0)
        memcpy(one->name, name.p, name.n);
    *bucket(k, hash) = one;
    k->count++;
    return one;
}

key *keys_finish(keys *k, key *one) {
    one->alone = one->reported = false;
    if (one->n > 0) {
        waiting next = one->waiting[one->first];
        one->first = (one->first + 1) % one->cap;
        one->n--;
        k->waiting--;
        one->id = next.id;
        one->since_ms = next.since_ms;
        one->state = KEY_READY;
        return one;
    }
    key **at = bucket(k, one->hash);
    while (*at != one)
        at = &(*at)->chain;
    *at = one->chain;
    k->count--;
    key_free(one);
    return NULL;
}

size_t keys_count(const keys *k) {
    return k->count;
}

size_t keys_waiting(const keys *k) {
    return k->waiting;
}

void keys_each(const keys *k, void (*fn)(void *arg, int64_t id, int64_t since_ms), void *arg) {
    for (size_t i = 0; i < k->n_buckets; i++) {
        for (const key *one = k->buckets[i]; one; one = one->chain) {
            fn(arg, one->id, one->since_ms);
            for (size_t w = 0; w < one->n; w++) {
                waiting w_at = one->waiting[(one->first + w) % one->cap];
                fn(arg, w_at.id, w_at.since_ms);
            }
        }
    }
}

const key *keys_longest(const keys *k) {
    const key *longest = NULL;
    for (size_t i = 0; i < k->n_buckets; i++)
        for (const key *one = k->buckets[i]; one; one = one->chain)
            if (one->n > (longest ? longest->n : 0))
                longest = one;
    return longest;
}

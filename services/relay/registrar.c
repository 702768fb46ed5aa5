// A list of what is not registered yet, gone through by one thread, each with its own next time.
#include "registrar.h"
#include "avro/registry.h"
#include "base/clock.h"
#include "life/life.h"
#include "log/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { BACKOFF_MS = 200, BACKOFF_CAP_MS = 5000 };

typedef struct request {
    struct request *next;
    registration *registration;
    int64_t due_ms;
    int attempts;
    char code[40]; // the last failure that was logged
    po_str subject, text;
} request;

struct registrar {
    po_registry *registry;
    int wake_fd;
    pthread_t thread;
    pthread_mutex_t lock; // the list and stopping
    pthread_cond_t changed;
    request *requests;
    bool stopping;
};

static po_str copy(po_str text) {
    char *p = strndup(text.p, text.n);
    if (!p)
        abort();
    return (po_str){p, text.n};
}

static void request_free(request *one) {
    free((char *)one->subject.p);
    free((char *)one->text.p);
    free(one);
}

// Logged when it begins and when its cause changes, not each time.
static void later(request *one, const po_err *err) {
    if (strcmp(one->code, err->code) != 0) {
        memcpy(one->code, err->code, sizeof one->code);
        po_log_err(PO_ERROR, "a schema cannot be registered: its rows wait", err,
                   PO_TEXT("subject", one->subject.p));
    }
    one->due_ms = po_mono_ms() + po_backoff_ms(one->attempts++, BACKOFF_MS, BACKOFF_CAP_MS);
}

static void known(registrar *r, request *one, int32_t id) {
    po_log(PO_INFO, "schema registered", PO_TEXT("subject", one->subject.p),
           PO_INT("schema_id", id));
    atomic_store(&one->registration->id, id);
    (void)!write(r->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
}

static void take_out(registrar *r, request *one) {
    request **at = &r->requests;
    while (*at != one)
        at = &(*at)->next;
    *at = one->next;
}

static request *earliest(const registrar *r) {
    request *first = r->requests;
    for (request *one = first; one; one = one->next)
        if (one->due_ms < first->due_ms)
            first = one;
    return first;
}

static void wait_until(registrar *r, int64_t due_ms) {
    struct timespec at = {.tv_sec = due_ms / 1000, .tv_nsec = due_ms % 1000 * 1000000};
    pthread_cond_timedwait(&r->changed, &r->lock, &at);
}

static void *work(void *arg) {
    registrar *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        request *one = earliest(r);
        if (!one || one->due_ms > po_mono_ms()) {
            wait_until(r, one ? one->due_ms : po_mono_ms() + 1000);
            continue;
        }
        // Only this thread takes requests out, so it may be used unlocked.
        pthread_mutex_unlock(&r->lock);
        po_err err = {0};
        int32_t id = 0;
        bool ok = po_registry_register(r->registry, one->subject, one->text, &id, &err);
        pthread_mutex_lock(&r->lock);
        if (!ok) {
            later(one, &err);
            continue;
        }
        take_out(r, one);
        known(r, one, id);
        request_free(one);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

bool registrar_open(const char *registry_url, const char *registry_ca_file, int wake_fd,
                    registrar **ret_registrar, po_err *err) {
    registrar *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->wake_fd = wake_fd;
    if (!po_registry_open(registry_url, registry_ca_file, &r->registry, err)) {
        free(r);
        return false;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&r->thread, NULL, work, r) != 0)
        abort();
    *ret_registrar = r;
    return true;
}

void registrar_close(registrar **registrar) {
    if (!*registrar)
        return;
    struct registrar *r = *registrar;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (request *one = r->requests, *next; one; one = next) {
        next = one->next;
        request_free(one);
    }
    po_registry_close(&r->registry);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
    *registrar = NULL;
}

void registrar_ask(registrar *r, po_str subject, po_str text, registration *registration) {
    request *one = calloc(1, sizeof *one);
    if (!one)
        abort();
    *one = (request){.registration = registration, .subject = copy(subject), .text = copy(text)};
    pthread_mutex_lock(&r->lock);
    one->next = r->requests;
    r->requests = one;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

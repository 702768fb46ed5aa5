// C11's threads, locks and conditions as calls of POSIX. librdkafka uses those of <threads.h>, which
// the thread sanitizer of gcc 12 does not intercept: our callbacks crash on a thread of which it
// was not told, and a lock that it does not see orders nothing. glibc's types are the same objects
// under both names.
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "a mtx_t is a pthread_mutex_t");
static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "a cnd_t is a pthread_cond_t");

typedef struct start {
    thrd_start_t run;
    void *arg;
} start;

static int result(int code) {
    switch (code) {
    case 0:
        return thrd_success;
    case EBUSY:
        return thrd_busy;
    case ETIMEDOUT:
        return thrd_timedout;
    case ENOMEM:
        return thrd_nomem;
    default:
        return thrd_error;
    }
}

static void *run(void *arg) {
    start s = *(start *)arg;
    free(arg);
    return (void *)(intptr_t)s.run(s.arg);
}

int thrd_create(thrd_t *thread, thrd_start_t f, void *arg) {
    start *s = malloc(sizeof *s);
    if (!s)
        return thrd_nomem;
    *s = (start){f, arg};
    int code = pthread_create(thread, NULL, run, s);
    if (code != 0)
        free(s);
    return result(code);
}

int thrd_join(thrd_t thread, int *ret_code) {
    void *value = NULL;
    int code = pthread_join(thread, &value);
    if (ret_code)
        *ret_code = (int)(intptr_t)value;
    return result(code);
}

int thrd_detach(thrd_t thread) {
    return result(pthread_detach(thread));
}

int mtx_init(mtx_t *mutex, int type) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, type & mtx_recursive ? PTHREAD_MUTEX_RECURSIVE
                                                                : PTHREAD_MUTEX_NORMAL);
    int code = pthread_mutex_init((pthread_mutex_t *)mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return result(code);
}

int mtx_lock(mtx_t *mutex) {
    return result(pthread_mutex_lock((pthread_mutex_t *)mutex));
}

int mtx_trylock(mtx_t *mutex) {
    return result(pthread_mutex_trylock((pthread_mutex_t *)mutex));
}

int mtx_timedlock(mtx_t *restrict mutex, const struct timespec *restrict until) {
    return result(pthread_mutex_timedlock((pthread_mutex_t *)mutex, until));
}

int mtx_unlock(mtx_t *mutex) {
    return result(pthread_mutex_unlock((pthread_mutex_t *)mutex));
}

void mtx_destroy(mtx_t *mutex) {
    pthread_mutex_destroy((pthread_mutex_t *)mutex);
}

int cnd_init(cnd_t *cond) {
    return result(pthread_cond_init((pthread_cond_t *)cond, NULL));
}

int cnd_signal(cnd_t *cond) {
    return result(pthread_cond_signal((pthread_cond_t *)cond));
}

int cnd_broadcast(cnd_t *cond) {
    return result(pthread_cond_broadcast((pthread_cond_t *)cond));
}

int cnd_wait(cnd_t *cond, mtx_t *mutex) {
    return result(pthread_cond_wait((pthread_cond_t *)cond, (pthread_mutex_t *)mutex));
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
    return result(pthread_cond_timedwait((pthread_cond_t *)cond, (pthread_mutex_t *)mutex, until));
}

void cnd_destroy(cnd_t *cond) {
    pthread_cond_destroy((pthread_cond_t *)cond);
}

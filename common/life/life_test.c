#define _GNU_SOURCE // pthread_timedjoin_np
#include "life/life.h"
#include "base/clock.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

// A process stops once: what stops it runs in a child, whose exit code is the verdict.
static void in_child(int (*body)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool fd_is_readable(void) {
    struct pollfd p = {.fd = po_stop_fd(), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static int stops_on(int number) {
    po_life_init();
    po_ready_set(true);
    if (po_stopping() || fd_is_readable() || !po_ready())
        return 1;
    kill(getpid(), number);
    if (po_life_wait(10000)) // returns as soon as the signal has been taken
        return 2;
    return po_stopping() && fd_is_readable() && !po_ready() && !po_life_wait(10000) ? 0 : 3;
}

static int on_sigterm(void) {
    return stops_on(SIGTERM);
}

static int on_sigint(void) {
    return stops_on(SIGINT);
}

static int by_ourselves(void) {
    po_stop();
    po_stop();
    return po_stopping() && fd_is_readable() ? 0 : 1;
}

static int past_sigpipe(void) {
    po_life_init();
    int ends[2];
    if (pipe(ends) != 0)
        return 1;
    close(ends[0]);
    return write(ends[1], "x", 1) == -1 ? 0 : 2;
}

static void signals_stop_the_process(void **state) {
    (void)state;
    in_child(on_sigterm);
    in_child(on_sigint);
    in_child(by_ourselves);
    in_child(past_sigpipe);
}

static int opens_what_it_may(void) {
    struct rlimit few = {64, 128}, now;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        return 2;
    po_life_init();
    return getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == 128 ? 0 : 1;
}

static void the_limit_of_open_files_is_raised(void **state) {
    (void)state;
    in_child(opens_what_it_may);
}

static void waiting_takes_its_time(void **state) {
    (void)state;
    int64_t before = po_mono_ms();
    assert_true(po_life_wait(30));
    assert_true(po_mono_ms() - before >= 29);
    assert_true(po_life_wait(0));
    assert_true(po_life_wait(-5));
}

static void a_late_loop_is_named(void **state) {
    (void)state;
    const char *name = NULL;
    assert_true(po_life_healthy(&name));
    po_beat *fine = po_beat_new("fine", 60000), *late = po_beat_new("late", 1);
    po_life_wait(5);
    assert_false(po_life_healthy(&name));
    assert_string_equal(name, "late");
    assert_false(po_life_healthy(NULL));
    po_beat_end(late);
    po_beat_tick(fine);
    assert_true(po_life_healthy(NULL));
}

static bool flag(void *arg) {
    return *(bool *)arg;
}

static void readiness_needs_every_check(void **state) {
    (void)state;
    static bool first = true, second = true;
    po_ready_check(flag, &first);
    po_ready_check(flag, &second);
    assert_false(po_ready());
    po_ready_set(true);
    assert_true(po_ready());
    second = false;
    assert_false(po_ready());
    second = true;
    po_ready_set(false);
    assert_false(po_ready());
}

// A check that is inside until it is let go.
static struct { atomic_bool inside, go; } slow;

static bool be_slow(void *arg) {
    (void)arg;
    atomic_store(&slow.inside, true);
    while (!atomic_load(&slow.go))
        po_life_wait(1);
    atomic_store(&slow.inside, false);
    return true;
}

static void *ask(void *arg) {
    (void)arg;
    po_ready();
    return NULL;
}

static void *end_readiness(void *arg) {
    (void)arg;
    po_ready_set(false);
    return atomic_load(&slow.inside) ? &slow : NULL;
}

static void readiness_ends_behind_the_last_check(void **state) {
    (void)state;
    pthread_t asking, ending;
    struct timespec until;
    void *inside = NULL;
    po_ready_check(be_slow, NULL);
    po_ready_set(true);
    assert_int_equal(pthread_create(&asking, NULL, ask, NULL), 0);
    while (!atomic_load(&slow.inside))
        po_life_wait(1);
    assert_int_equal(pthread_create(&ending, NULL, end_readiness, NULL), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    assert_int_equal(pthread_timedjoin_np(ending, &inside, &until), ETIMEDOUT);
    atomic_store(&slow.go, true);
    pthread_join(ending, &inside);
    pthread_join(asking, NULL);
    assert_null(inside);
}

static void backoff_doubles_up_to_the_cap_with_jitter(void **state) {
    (void)state;
    static const struct {
        int attempt;
        int64_t base, cap, full;
    } rows[] = {
        {0, 100, 30000, 100},   {1, 100, 30000, 200},          {5, 100, 30000, 3200},
        {9, 100, 30000, 30000}, {1000000, 100, 30000, 30000},  {-3, 100, 30000, 100},
        {3, 500, 100, 100},     {70, 1, INT64_MAX, INT64_MAX}, {4, 0, 1000, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 50; k++) {
            int64_t ms = po_backoff_ms(rows[i].attempt, rows[i].base, rows[i].cap);
            assert_true(ms >= rows[i].full / 2 && ms <= rows[i].full);
        }
    int64_t first = po_backoff_ms(20, 1000, 1000000), k = 0;
    while (po_backoff_ms(20, 1000, 1000000) == first)
        assert_true(++k < 50); // there is jitter
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_stop_the_process),
        cmocka_unit_test(the_limit_of_open_files_is_raised),
        cmocka_unit_test(waiting_takes_its_time),
        cmocka_unit_test(a_late_loop_is_named),
        cmocka_unit_test(readiness_needs_every_check),
        cmocka_unit_test(readiness_ends_behind_the_last_check),
        cmocka_unit_test(backoff_doubles_up_to_the_cap_with_jitter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "log/log.h"
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

// Stdout goes to a file while the lines are written, and comes back as text.
static int saved_stdout;
static FILE *captured;

static void capture_begin(void) {
    captured = tmpfile();
    assert_non_null(captured);
    fflush(stdout);
    saved_stdout = dup(STDOUT_FILENO);
    dup2(fileno(captured), STDOUT_FILENO);
}

static char *capture_end(void) {
    dup2(saved_stdout, STDOUT_FILENO);
    close(saved_stdout);
    off_t n = lseek(fileno(captured), 0, SEEK_END);
    char *text = calloc(1, (size_t)n + 1);
    assert_int_equal(pread(fileno(captured), text, (size_t)n, 0), n);
    fclose(captured);
    return text;
}

static json_t *one_line(void) {
    char *text = capture_end();
    char *end = strchr(text, '\n');
    assert_non_null(end);
    assert_string_equal(end, "\n");
    json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(line);
    free(text);
    return line;
}

static const char *text_of(const json_t *line, const char *name) {
    return json_string_value(json_object_get(line, name));
}

static void a_line_carries_its_fields(void **state) {
    (void)state;
    capture_begin();
    po_log(PO_WARN, "gap \"open\"", PO_TEXT("topic", "payments.v1"), PO_INT("id", INT64_MIN),
           PO_BOOL("first", 2), PO_TEXT("nothing", NULL));
    json_t *line = one_line();
    assert_string_equal(text_of(line, "level"), "warn");
    assert_string_equal(text_of(line, "service"), "test");
    assert_string_equal(text_of(line, "msg"), "gap \"open\"");
    assert_string_equal(text_of(line, "topic"), "payments.v1");
    assert_int_equal(strlen(text_of(line, "ts")), 27);
    assert_int_equal(json_integer_value(json_object_get(line, "id")), INT64_MIN);
    assert_true(json_is_true(json_object_get(line, "first")));
    assert_true(json_is_null(json_object_get(line, "nothing")));
    json_decref(line);
}

static void an_error_adds_kind_code_and_text(void **state) {
    (void)state;
    po_err err = {0};
    po_fail(&err, PO_RETRY, "08006", "connection lost");
    capture_begin();
    po_log_err(PO_ERROR, "batch failed", &err, PO_INT("events", 3));
    json_t *line = one_line();
    assert_string_equal(text_of(line, "kind"), "retry");
    assert_string_equal(text_of(line, "code"), "08006");
    assert_string_equal(text_of(line, "error"), "connection lost");
    assert_int_equal(json_integer_value(json_object_get(line, "events")), 3);
    json_decref(line);
}

static void any_bytes_make_valid_json(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"a\n\t\"\\\x01z", "a\n\t\"\\\x01z"},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xbf \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f \xe2\x82\xbf \xf0\x9f\x98\x80"},
        {"x\xffy", "x\xef\xbf\xbdy"},
        {"cut\xe2\x82", "cut\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        capture_begin();
        po_log(PO_INFO, "m", PO_TEXT("t", rows[i].text));
        json_t *line = one_line();
        assert_string_equal(text_of(line, "t"), rows[i].want);
        json_decref(line);
    }
}

static void long_texts_are_cut_between_characters(void **state) {
    (void)state;
    char text[6001];
    for (size_t i = 0; i < 6000; i += 3)
        memcpy(text + i, "\xe2\x82\xbf", 4);
    capture_begin();
    po_log(PO_INFO, "m", PO_TEXT("t", text));
    json_t *line = one_line();
    assert_int_equal(strlen(text_of(line, "t")), 2048 / 3 * 3 + 3);
    json_decref(line);
}

static void the_context_is_inherited_and_gives_way(void **state) {
    (void)state;
    po_log_context("evt_1", "o-77", NULL);
    capture_begin();
    po_log(PO_INFO, "m", PO_TEXT("order_id", "o-78"));
    json_t *line = one_line();
    assert_string_equal(text_of(line, "event_id"), "evt_1");
    assert_string_equal(text_of(line, "order_id"), "o-78");
    assert_null(json_object_get(line, "traceparent"));
    json_decref(line);
    po_log_context(NULL, NULL, NULL);
    capture_begin();
    po_log(PO_INFO, "m");
    line = one_line();
    assert_null(json_object_get(line, "event_id"));
    json_decref(line);
}

static void lines_below_the_level_are_not_written(void **state) {
    (void)state;
    capture_begin();
    po_log(PO_DEBUG, "too fine");
    char *text = capture_end();
    assert_string_equal(text, "");
    free(text);
}

static void *chatter(void *arg) {
    char text[5000]; // more than a pipe takes in one piece
    memset(text, *(char *)arg, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 50; i++)
        po_log(PO_INFO, "m", PO_TEXT("a", text), PO_TEXT("b", text), PO_TEXT("c", text));
    return NULL;
}

struct reader {
    int fd;
    po_buf all;
};

static void *read_all(void *arg) {
    struct reader *reader = arg;
    char piece[4096];
    for (ssize_t n; (n = read(reader->fd, piece, sizeof piece)) > 0;)
        po_buf_put(&reader->all, piece, (size_t)n);
    return NULL;
}

static void threads_do_not_mix_their_lines(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    struct reader reader = {.fd = ends[0]};
    pthread_t collector, chatters[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&chatters[i], NULL, chatter, &"wxyz"[i]);
    for (int held = 0; held < 50000; sched_yield()) // the pipe is full: a line waits half written
        assert_int_equal(ioctl(ends[0], FIONREAD, &held), 0);
    pthread_create(&collector, NULL, read_all, &reader);
    for (int i = 0; i < 4; i++)
        pthread_join(chatters[i], NULL);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    pthread_join(collector, NULL);
    close(ends[0]);
    int lines = 0;
    char *rest = reader.all.p;
    for (char *line; (line = strsep(&rest, "\n")) && *line; lines++) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        assert_string_equal(text_of(object, "a"), text_of(object, "c"));
        json_decref(object);
    }
    assert_int_equal(lines, 200);
    po_buf_done(&reader.all);
}

// --- The buffer (FAULTS 65): a process of its own writes to a pipe, which we read when we like.

typedef struct child {
    pid_t pid;
    int out, done; // done: it says when its body is through
} child;

static child child_start(void (*body)(void)) {
    int out[2], done[2];
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(done), 0);
    fflush(stdout);
    child c = {.pid = fork(), .out = out[0], .done = done[0]};
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        body();
        (void)!write(done[1], "x", 1);
        po_log_stop();
        _exit(0);
    }
    close(out[1]);
    close(done[1]);
    return c;
}

// Long, since it is for faults alone.
static bool child_is_through(const child *c) {
    struct pollfd p = {.fd = c->done, .events = POLLIN};
    return poll(&p, 1, 60000) == 1;
}

// All that it has written and will write, as lines; their number.
static size_t child_lines(child *c, json_t **ret_lines) {
    struct reader reader = {.fd = c->out};
    read_all(&reader);
    *ret_lines = json_array();
    char *rest = reader.all.p;
    for (char *line; rest && (line = strsep(&rest, "\n")) && *line;) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        json_array_append_new(*ret_lines, object);
    }
    po_buf_done(&reader.all);
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    close(c->out);
    close(c->done);
    return json_array_size(*ret_lines);
}

static int64_t count_lines(const json_t *lines, const char *level, const char *msg) {
    int64_t n = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        n += strcmp(text_of(line, "level"), level) == 0 && strcmp(text_of(line, "msg"), msg) == 0;
    }
    return n;
}

// The sum of an integer field over all lines.
static int64_t sum_of(const json_t *lines, const char *field) {
    int64_t sum = 0;
    for (size_t i = 0; i < json_array_size(lines); i++)
        sum += json_integer_value(json_object_get(json_array_get(lines, i), field));
    return sum;
}

enum { MANY = 20000, FEW = 100 };

static void flood(void) {
    po_log_start(50);
    for (int i = 0; i < MANY; i++)
        po_log(PO_INFO, "flood", PO_INT("i", i), PO_TEXT("pad", "a line of about 150 bytes"));
    for (int i = 0; i < FEW; i++)
        po_log(PO_ERROR, "alarm", PO_INT("i", i));
}

static void a_reader_that_stands_still_holds_nobody_up(void **state) {
    (void)state;
    child c = child_start(flood);
    assert_true(child_is_through(&c)); // and not a byte was read
    json_t *lines;
    size_t n = child_lines(&c, &lines);
    assert_int_equal(count_lines(lines, "error", "alarm"), FEW);
    int64_t floods = count_lines(lines, "info", "flood");
    assert_true(floods > 0 && floods < MANY);
    assert_int_equal(floods + sum_of(lines, "lines"), MANY); // what was dropped was told
    assert_int_equal(sum_of(lines, "errors"), 0);
    assert_true(n > (size_t)floods + FEW);
    json_decref(lines);
}

static void say_and_abort(void) {
    po_log_start(50);
    for (int i = 0; i < 2000; i++)
        po_log(PO_INFO, "before", PO_INT("i", i));
    abort();
}

static void an_abort_waits_for_what_was_said(void **state) {
    (void)state;
    child c = child_start(say_and_abort);
    json_t *lines;
    assert_int_equal(child_lines(&c, &lines), 2000);
    json_decref(lines);
}

static void work(void) {
    static po_log_site refused = {.name = "refused_test", .per_second = 3};
    po_log_start(5);
    int asked = 0;
    for (int i = 0; i < 1000; i++)
        po_log_outcome("thing_done", "thing done", PO_INT("asked", ++asked));
    for (int i = 0; i < 1000; i++)
        if (po_log_admit(&refused))
            po_log(PO_WARN, "refused");
    po_log(PO_INFO, "end", PO_INT("evaluated", asked));
}

static void outcomes_above_the_rate_are_counted_alone(void **state) {
    (void)state;
    child c = child_start(work);
    json_t *lines;
    child_lines(&c, &lines);
    int64_t done = count_lines(lines, "info", "thing done"),
            refused = count_lines(lines, "warn", "refused");
    assert_true(done >= 5 && done < 1000 && refused >= 3 && refused < 1000);
    assert_int_equal(done + sum_of(lines, "thing_done"), 1000);
    assert_int_equal(refused + sum_of(lines, "refused_test"), 1000);
    assert_int_equal(sum_of(lines, "evaluated"), done); // the fields of the others were not touched
    json_decref(lines);
}

static void work_at_warn(void) {
    po_log_init("test", PO_WARN);
    work();
}

// Whoever wants no outcomes wants the refusals all the same.
static void refusals_are_told_at_warn(void **state) {
    (void)state;
    child c = child_start(work_at_warn);
    json_t *lines;
    child_lines(&c, &lines);
    int64_t refused = count_lines(lines, "warn", "refused");
    assert_true(refused >= 3);
    assert_int_equal(refused + sum_of(lines, "refused_test"), 1000);
    assert_int_equal(count_lines(lines, "info", "thing done"), 0);
    json_decref(lines);
}

static void end_at_once(void) {
    po_log_start(50);
    for (int i = 0; i < 1000; i++)
        po_log(PO_INFO, "last words");
}

static void the_end_writes_what_is_left(void **state) {
    (void)state;
    child c = child_start(end_at_once);
    json_t *lines;
    assert_int_equal(child_lines(&c, &lines), 1000);
    json_decref(lines);
}

static void the_end_does_not_wait_for_ever(void **state) {
    (void)state;
    child c = child_start(flood);
    assert_true(child_is_through(&c));
    int status;
    assert_int_equal(waitpid(c.pid, &status, 0),
                     c.pid); // nobody reads: the test hangs, or this ends
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(c.out);
    close(c.done);
}

int main(void) {
    po_log_init("test", PO_INFO);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_carries_its_fields),
        cmocka_unit_test(an_error_adds_kind_code_and_text),
        cmocka_unit_test(any_bytes_make_valid_json),
        cmocka_unit_test(long_texts_are_cut_between_characters),
        cmocka_unit_test(the_context_is_inherited_and_gives_way),
        cmocka_unit_test(lines_below_the_level_are_not_written),
        cmocka_unit_test(threads_do_not_mix_their_lines),
        cmocka_unit_test(a_reader_that_stands_still_holds_nobody_up),
        cmocka_unit_test(an_abort_waits_for_what_was_said),
        cmocka_unit_test(outcomes_above_the_rate_are_counted_alone),
        cmocka_unit_test(refusals_are_told_at_warn),
        cmocka_unit_test(the_end_writes_what_is_left),
        cmocka_unit_test(the_end_does_not_wait_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// What a program answers to its arguments and settings, and what its admin listener says while it
// runs. Each call runs in a process of its own, as it does in life: metrics and signals belong to a
// process.
#include "base/cleanup.h"
#include "service/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// --- A trivial service

static const po_setting settings[] = {
    {"GREETING", PO_SET_TEXT, "hello", 0, 0, "What it says."},
    {"LIMIT", PO_SET_INT, "5", 1, 10, "How often it says it."},
    {0},
};
static const po_file migrations[] = {{"0001_init.sql", "SELECT 1"}, {0, 0}};

static void declare_metrics(void) {
    po_metric_new(PO_COUNTER, "payonce_trivial_greetings_total", "Greetings said.", NULL);
}

static bool check(const po_config *config, po_err *err) {
    if (strcmp(po_config_text(config, "GREETING"), "rude") != 0)
        return true;
    return po_fail(err, PO_REFUSED, "setting", "PAYONCE_GREETING: must not be rude");
}

static void print_states(FILE *out) {
    fputs("open -> closed\n", out);
}

static json_t *status(void) {
    return json_pack("{s:i}", "answer", 42);
}

static void on_secret(po_request *request, void *arg) {
    po_reply_json(request, 200, json_pack("{s:s}", "secret", (const char *)arg));
}
static const po_http_route admin[] = {{"GET", "/secret", on_secret, "treasure"}, {0}};

static const char *out_path; // where this process's stdout goes

// The port that the "listening" line names, once it is written out.
static int logged_port(void) {
    for (int i = 0; i < 6000; i++, po_life_wait(10)) {
        char text[4096] = {0};
        int fd = open(out_path, O_RDONLY);
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        const char *at = n > 0 ? strstr(text, "\"port\":") : NULL;
        if (at)
            return atoi(at + strlen("\"port\":"));
    }
    return 0;
}

// The raw answer to GET path, closed by the server.
static void get(int port, const char *path, const char *header, char *answer, size_t size) {
    char request[512];
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n", path, header);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t have = 0;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && write(fd, request, (size_t)n) == n)
        for (ssize_t r; have < size - 1 && (r = read(fd, answer + have, size - 1 - have)) > 0;)
            have += (size_t)r;
    answer[have] = 0;
    close(fd);
}

static bool expect(int port, const char *path, const char *header, const char *status_line,
                   const char *body, po_err *err) {
    char answer[16384];
    get(port, path, header, answer, sizeof answer);
    if (strncmp(answer, status_line, strlen(status_line)) == 0 && strstr(answer, body))
        return true;
    return po_fail(err, PO_BUG, "test", "%s answered %.300s", path, answer);
}

static bool run(const po_config *config, po_err *err) {
    if (strcmp(po_config_text(config, "GREETING"), "fail") == 0)
        return po_fail(err, PO_RETRY, "test", "told to fail");
    if (strcmp(po_config_text(config, "GREETING"), "unusable") == 0)
        return po_fail(err, PO_REFUSED, "setting", "PAYONCE_GREETING is too short for the topic");
    bool token = *po_config_text(config, "ADMIN_TOKEN") != 0;
    int port = logged_port();
    if (!expect(port, "/readyz", "", "HTTP/1.1 503", "not_ready", err))
        return false;
    po_ready_set(true);
    // FAULTS 62: it serves, but never could work without its database, and says so.
    return expect(port, "/readyz", "", "HTTP/1.1 503", "\"waiting_for\":\"database\"", err) &&
           expect(port, "/statusz", "", "HTTP/1.1 200", "\"last_success_at\":null", err) &&
           expect(port, "/healthz", "", "HTTP/1.1 200", "ok", err) &&
           expect(port, "/statusz", "", "HTTP/1.1 200", "\"answer\":42", err) &&
           expect(port, "/metrics", "", "HTTP/1.1 200", "payonce_trivial_greetings_total 0", err) &&
           expect(port, "/secret", "", token ? "HTTP/1.1 401" : "HTTP/1.1 404", "", err) &&
           expect(port, "/secret", "Authorization: Bearer open-sesame\r\n",
                  token ? "HTTP/1.1 200" : "HTTP/1.1 404", token ? "treasure" : "", err);
}

static const po_service trivial = {
    .name = "trivial",
    .about = "Says hello.",
    .settings = settings,
    .migrations = migrations,
    .admin = admin,
    .declare_metrics = declare_metrics,
    .check = check,
    .run = run,
    .print_states = print_states,
    .status = status,
};

// --- Calling it

typedef struct answer {
    int code;
    char out[16384], err[4096];
} answer;

static void slurp(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, size - 1);
    assert_true(n >= 0);
    text[n] = 0;
    close(fd);
    unlink(path);
}

// Runs `payonce-trivial arg` with env, "NAME=value" entries ended by NULL, and nothing else set.
static answer call(const char *arg, const char *const *env) {
    char out[] = "/tmp/service_out_XXXXXX", err[] = "/tmp/service_err_XXXXXX";
    int out_fd = mkstemp(out), err_fd = mkstemp(err);
    assert_true(out_fd >= 0 && err_fd >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out_fd, STDOUT_FILENO);
        dup2(err_fd, STDERR_FILENO);
        out_path = out;
        clearenv();
        for (; env && *env; env++)
            putenv((char *)(uintptr_t)*env);
        char name[] = "payonce-trivial", text[64];
        snprintf(text, sizeof text, "%s", arg ? arg : "");
        char *argv[] = {name, arg ? text : NULL, NULL};
        exit(po_service_main(arg ? 2 : 1, argv, &trivial));
    }
    answer a = {0};
    int wait_status = 0;
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    a.code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    close(out_fd);
    close(err_fd);
    slurp(out, a.out, sizeof a.out);
    slurp(err, a.err, sizeof a.err);
    return a;
}

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define DSN "PAYONCE_DSN=host=db dbname=shop user=trivial password=hunter2"

static void assert_says(const answer *a, int code, const char *out, const char *err) {
    if (a->code != code || !strstr(a->out, out) || !strstr(a->err, err))
        fail_msg("exit %d\nstdout: %s\nstderr: %s", a->code, a->out, a->err);
}

// Whether it is what CMakeLists.txt says; `line` ends with a line end.
static bool is_project_version(const char *line) {
    FILE *file = fopen(PO_SOURCE_DIR "/CMakeLists.txt", "r");
    char text[256], version[32] = "";
    while (file && fgets(text, sizeof text, file) &&
           sscanf(text, "project(payonce VERSION %30s", version) != 1)
        ;
    fclose(file);
    return version[0] && strcmp(strcat(version, "\n"), line) == 0;
}

static void test_usage(void **state) {
    (void)state;
    answer a = call(NULL, NULL);
    assert_says(&a, 2, "", "usage: payonce-trivial COMMAND");
    a = call("dance", ENV(DSN));
    assert_says(&a, 2, "", "check-config");
    a = call("--version", NULL);
    assert_says(&a, 0, "payonce-trivial ", "");
    assert_true(is_project_version(a.out + strlen("payonce-trivial ")));
    a = call("--help", NULL);
    assert_says(&a, 0, "Says hello.", "");
    assert_says(&a, 0, "GREETING", "");
    assert_says(&a, 0, "ADMIN_LISTEN", "");
}

static void test_printed_tables(void **state) {
    (void)state;
    answer a = call("print-settings", NULL);
    assert_says(&a, 0, "## payonce-trivial", "");
    assert_says(&a, 0, "LIMIT", "");
    assert_says(&a, 0, "MIGRATE_DSN", "");
    // What is printed for the docs does not depend on how this process was set up.
    answer b = call("print-settings", ENV("PAYONCE_DSN_FILE=/nowhere"));
    assert_string_equal(a.out, b.out);
    a = call("print-states", NULL);
    assert_string_equal(a.out, "open -> closed\n");
    a = call("print-metrics", NULL);
    assert_says(&a, 0, "payonce_trivial_greetings_total", "");
}

static void test_check_config(void **state) {
    (void)state;
    static const struct {
        const char *env[4];
        const char *fault; // NULL: ok
    } rows[] = {
        {{DSN}, NULL},
        {{"PAYONCE_DSN=postgresql://u:hunter2@db/shop"}, NULL},
        {{"PAYONCE_DSN=host=a,b port=5432,5433"}, NULL},
        {{"PAYONCE_DSN=host=db port=99999"}, "PAYONCE_DSN is not"},
        {{"PAYONCE_DSN=postgresql://u@a,b:0/shop"}, "PAYONCE_DSN is not"},
        {{"PAYONCE_LIMIT=3"}, "PAYONCE_DSN"},
        {{DSN, "PAYONCE_LIMIT=11"}, "PAYONCE_LIMIT"},
        {{DSN, "PAYONCE_LIMIT=x"}, "PAYONCE_LIMIT"},
        {{DSN, "PAYONCE_LOG_LEVEL=loud"}, "PAYONCE_LOG_LEVEL"},
        {{DSN, "PAYONCE_GREETING=rude"}, "PAYONCE_GREETING"},
        {{DSN, "PAYONCE_MIGRATE_DSN=hunter2 nonsense"}, "PAYONCE_MIGRATE_DSN"},
        {{"PAYONCE_DSN_FILE=/nowhere"}, "PAYONCE_DSN"},
        {{DSN, "PAYONCE_ADMIN_TOKEN_FILE=/nowhere"}, "PAYONCE_ADMIN_TOKEN"},
        // FAULTS 66
        {{DSN, "PAYONCE_ADMIN_LISTEN=:9090"}, "PAYONCE_ADMIN_LISTEN is not an address"},
        {{DSN, "PAYONCE_LIMTI=3"}, "PAYONCE_LIMTI is no setting; names like it: PAYONCE_LIMIT"},
        {{DSN, "PAYONCE_WRITERS=4"}, NULL}, // another program's
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer a = call("check-config", rows[i].env);
        if (!rows[i].fault)
            assert_string_equal(a.out, "ok\n");
        assert_says(&a, rows[i].fault ? 2 : 0, "", rows[i].fault ? rows[i].fault : "");
        assert_null(strstr(a.err, "hunter2"));
        if (!rows[i].fault)
            continue;
        // run refuses for the same reason, before it does anything.
        a = call("run", rows[i].env);
        assert_says(&a, 2, "", rows[i].fault);
        assert_string_equal(a.out, "");
    }
    // Every fault at once, the service's own after the common ones.
    answer a = call("check-config", ENV(DSN, "PAYONCE_LOG_LEVEL=loud", "PAYONCE_GREETING=rude"));
    assert_says(&a, 2, "", "PAYONCE_LOG_LEVEL");
    assert_says(&a, 2, "", "PAYONCE_GREETING");
}

static void test_no_password_is_printed(void **state) {
    (void)state;
    answer a = call("print-config", ENV(DSN));
    assert_says(&a, 0, "host=db", "");
    assert_null(strstr(a.out, "hunter2"));
    a = call("print-config", ENV("PAYONCE_DSN=postgresql://u:hunter2@db/shop",
                                 "PAYONCE_MIGRATE_DSN=postgresql://root:hunter2@db/shop"));
    assert_says(&a, 0, "user=root", "");
    assert_null(strstr(a.out, "hunter2"));
    assert_null(strstr(a.err, "hunter2"));

    a = call("print-config",
             ENV("PAYONCE_DSN=host=db password='hunter\\' 2' options='-c a=\\'b c\\\\'"));
    assert_says(&a, 0, "password=*** ", "");
    assert_says(&a, 0, "options='-c a=\\\\'b c\\\\\\\\'", ""); // a backslash is two in JSON
    assert_null(strstr(a.out, "hunter"));

    char path[] = "/tmp/service_dsn_XXXXXX", env[64];
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "host=db password=hunter2\n", 25), 25);
    close(fd);
    snprintf(env, sizeof env, "PAYONCE_DSN_FILE=%s", path);
    a = call("print-config", ENV(env));
    unlink(path);
    assert_says(&a, 0, "host=db", ""); // FAULTS 60: by what may be seen, also from a file
    assert_null(strstr(a.out, "hunter2"));

    // FAULTS 60: what is not known to be harmless is hidden.
    a = call("print-config", ENV("PAYONCE_DSN=host=db sslpassword=hunter2 passfile=/x/hunter2"));
    assert_says(&a, 0, "passfile=*** host=db sslpassword=***", "");
    assert_null(strstr(a.out, "hunter2"));
}

// migrate needs a DSN and nothing else: neither the other settings nor their being right.
static void test_migrate(void **state) {
    (void)state;
    answer a = call("migrate", ENV("PAYONCE_LIMIT=11"));
    assert_says(&a, 2, "", "PAYONCE_MIGRATE_DSN");
    a = call("migrate", ENV("PAYONCE_LIMIT=11", "PAYONCE_DSN=host=/nowhere"));
    assert_says(&a, 1, "database not reached", "");
    a = call("migrate", ENV("PAYONCE_LIMTI=1", "PAYONCE_DSN=host=/nowhere"));
    assert_says(&a, 2, "", "PAYONCE_LIMIT");
    a = call("migrate", ENV("PAYONCE_MIGRATE_DSN=host=/nowhere"));
    assert_says(&a, 1, "database not reached", "");
}

static void test_run(void **state) {
    (void)state;
    answer a = call("run", ENV(DSN, "PAYONCE_ADMIN_LISTEN=127.0.0.1:0"));
    assert_says(&a, 0, "\"stopped\"", "");
    a = call("run", ENV(DSN, "PAYONCE_ADMIN_LISTEN=127.0.0.1:0", "PAYONCE_GREETING=fail"));
    assert_says(&a, 1, "told to fail", "");
    a = call("run", ENV(DSN, "PAYONCE_ADMIN_LISTEN=127.0.0.1:0", "PAYONCE_GREETING=unusable"));
    assert_says(&a, 2, "", "PAYONCE_GREETING is too short");

    char path[] = "/tmp/service_token_XXXXXX", env[64];
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "open-sesame\n", 12), 12);
    close(fd);
    snprintf(env, sizeof env, "PAYONCE_ADMIN_TOKEN_FILE=%s", path);
    a = call("run", ENV(DSN, "PAYONCE_ADMIN_LISTEN=127.0.0.1:0", env));
    unlink(path);
    assert_says(&a, 0, "\"stopped\"", "");
    assert_null(strstr(a.out, "open-sesame"));
}

static void test_unusable_listen_address(void **state) {
    (void)state;
    answer a = call("run", ENV(DSN, "PAYONCE_ADMIN_LISTEN=nonsense"));
    assert_says(&a, 2, "", "PAYONCE_ADMIN_LISTEN");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_printed_tables),
        cmocka_unit_test(test_check_config),
        cmocka_unit_test(test_no_password_is_printed),
        cmocka_unit_test(test_migrate),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_unusable_listen_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

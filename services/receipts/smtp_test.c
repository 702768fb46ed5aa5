// What each end of an SMTP conversation means, as a table and against a server that plays it on a real socket.
#include "base/cleanup.h"
#include "base/clock.h"
#include "life/life.h"
#include "smtp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_verdict(void **state) {
    (void)state;
    static const struct {
        smtp_phase phase;
        long reply;
        po_kind kind;
        const char *code;
    } rows[] = {
        {SMTP_GREETING, 0, PO_RETRY, "unreachable"},
        {SMTP_GREETING, 554, PO_RETRY, "554"}, // about us, not about this mail
        {SMTP_GREETING, 535, PO_RETRY, "535"},
        {SMTP_GREETING, 250, PO_RETRY, "unreachable"},
        {SMTP_MAIL, 550, PO_RETRY, "550"},
        {SMTP_MAIL, 451, PO_RETRY, "451"},
        {SMTP_RCPT, 450, PO_RETRY, "450"},
        {SMTP_RCPT, 550, PO_REFUSED, "550"},
        {SMTP_RCPT, 250, PO_RETRY, "unreachable"},
        {SMTP_DATA, 554, PO_REFUSED, "554"},
        {SMTP_DATA, 421, PO_RETRY, "421"},
        {SMTP_DATA, 354, PO_RETRY, "unreachable"},
        {SMTP_BODY, 354, PO_UNCERTAIN, "no_reply"},
        {SMTP_BODY, 451, PO_RETRY, "451"},
        {SMTP_BODY, 552, PO_REFUSED, "552"},
        {SMTP_BODY, 0, PO_UNCERTAIN, "no_reply"},
        {SMTP_BODY, 199, PO_UNCERTAIN, "no_reply"}, // says neither yes nor no
        {SMTP_BODY, 300, PO_UNCERTAIN, "no_reply"},
        {SMTP_BODY, 600, PO_UNCERTAIN, "no_reply"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        po_err err = {0};
        assert_false(smtp_verdict(rows[i].phase, rows[i].reply, &err));
        assert_int_equal(err.kind, rows[i].kind);
        assert_string_equal(err.code, rows[i].code);
    }
    po_err err = {0}; // FAULTS 43: 250 is not the only yes
    for (long reply = 200; reply <= 299; reply++)
        assert_true(smtp_verdict(SMTP_BODY, reply, &err));
}

// --- A server that follows a script: the reply to each command, or "" to hang up, or NULL to stay silent.

typedef struct fake_script {
    const char *greeting, *mail, *rcpt, *data, *body;
    bool silent_after_quit;
} fake_script;

typedef struct fake_server {
    fake_script script;
    int listener, port;
    pthread_t thread;
    bool
        stops; // tells the process to stop when it falls silent, or 2 s before its reply to the message
    char heard[8192]; // everything the client said
} fake_server;

static bool answer(int fd, const char *reply) {
    if (!reply) {
        char sink[64];
        while (read(fd, sink, sizeof sink) > 0) // until the client gives up
            ;
        return false;
    }
    char line[128];
    int n = snprintf(line, sizeof line, "%s\r\n", reply);
    return *reply && write(fd, line, (size_t)n) == n;
}

// Reads up to `end`, appending to heard; NULL when the client has gone. Returns where this part starts.
static const char *hear(fake_server *self, int fd, const char *end) {
    size_t start = strlen(self->heard), n = start;
    while (n < sizeof self->heard - 1 && read(fd, self->heard + n, 1) == 1) {
        self->heard[++n] = 0;
        if (n - start >= strlen(end) && strcmp(self->heard + n - strlen(end), end) == 0)
            return self->heard + start;
    }
    return NULL;
}

static const char *reply_to(const fake_script *script, const char *line) {
    if (strncmp(line, "EHLO", 4) == 0)
        return "250 fake";
    if (strncmp(line, "MAIL", 4) == 0)
        return script->mail;
    if (strncmp(line, "RCPT", 4) == 0)
        return script->rcpt;
    if (strncmp(line, "DATA", 4) == 0)
        return script->data;
    return "221 bye";
}

static bool say(const fake_server *self, int fd, const char *reply) {
    if (self->stops && !reply)
        po_stop();
    return answer(fd, reply);
}

static bool answer_message(const fake_server *self, int fd) {
    if (self->stops && self->script.body) {
        po_stop();
        sleep(2);
    }
    return say(self, fd, self->script.body);
}

static void *serve(void *arg) {
    fake_server *self = arg;
    int fd = accept(self->listener, NULL, NULL);
    bool on = fd >= 0 && say(self, fd, self->script.greeting);
    for (const char *line; on && (line = hear(self, fd, "\r\n"));) {
        const char *reply = reply_to(&self->script, line);
        if (strncmp(line, "QUIT", 4) == 0 && self->script.silent_after_quit)
            reply = NULL;
        on = say(self, fd, reply) && strncmp(line, "QUIT", 4) != 0;
        if (on && strncmp(line, "DATA", 4) == 0 && *reply == '3')
            on = hear(self, fd, "\r\n.\r\n") && answer_message(self, fd);
    }
    close(fd);
    return NULL;
}

static void server_start(fake_server *self, fake_script script, bool stops) {
    *self = (fake_server){
        .script = script, .stops = stops, .listener = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    assert_int_equal(bind(self->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(self->listener, 1), 0);
    assert_int_equal(getsockname(self->listener, (struct sockaddr *)&at, &size), 0);
    self->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&self->thread, NULL, serve, self), 0);
}

// Only a server that stays silent is given up: by then it has to have heard the whole message.
enum { PATIENT_MS = 20000, SILENCE_MS = 3000 };

// Sends one mail to a server that follows the script.
static bool play_until(fake_server *server, fake_script script, bool stops, po_err *err) {
    bool silent = script.data && *script.data == '3' && !script.body && !stops;
    server_start(server, script, stops);
    char url[64];
    snprintf(url, sizeof url, "smtp://127.0.0.1:%d", server->port);
    smtp_server to = {.url = url,
                      .helo = "shop.example",
                      .user = "",
                      .password = "",
                      .ca_file = "",
                      .tls = SMTP_TLS_TRY,
                      .timeout_ms = silent ? SILENCE_MS : PATIENT_MS};
    smtp_talk *talk = smtp_open(&to);
    bool sent = smtp_send(talk, "shop@shop.example", "ann@example.org",
                          po_s("Subject: hi\r\n\r\n.hidden dot\r\n"), err);
    smtp_close(&talk);
    (void)shutdown(server->listener, SHUT_RDWR); // one that was never called waits no longer
    pthread_join(server->thread, NULL);
    close(server->listener);
    return sent;
}

static bool play(fake_server *server, fake_script script, po_err *err) {
    return play_until(server, script, false, err);
}

static const fake_script fine = {"220 fake", "250 ok", "250 ok", "354 go on", "250 taken", false};

static void test_sent(void **state) {
    (void)state;
    fake_server server;
    po_err err = {0};
    assert_true(play(&server, fine, &err));
    assert_string_equal(server.heard, "EHLO shop.example\r\n"
                                      "MAIL FROM:<shop@shop.example>\r\n"
                                      "RCPT TO:<ann@example.org>\r\n"
                                      "DATA\r\n"
                                      "Subject: hi\r\n\r\n..hidden dot\r\n.\r\n"
                                      "QUIT\r\n");
}

static void test_ends(void **state) {
    (void)state;
    static const struct {
        fake_script script;
        po_kind kind;
        const char *code;
    } rows[] = {
        {{"421 busy", 0, 0, 0, 0, 0}, PO_RETRY, "421"},
        {{"554 go away", 0, 0, 0, 0, 0}, PO_RETRY, "554"},
        {{"", 0, 0, 0, 0, 0}, PO_RETRY, "unreachable"},
        {{"220 fake", "", 0, 0, 0, 0}, PO_RETRY, "unreachable"},
        {{"220 fake", "550 not you", 0, 0, 0, 0}, PO_RETRY, "550"},
        {{"220 fake", "250 ok", "450 full", 0, 0, 0}, PO_RETRY, "450"},
        {{"220 fake", "250 ok", "550 5.1.1 <ann@example.org> unknown", 0, 0, 0}, PO_REFUSED, "550"},
        {{"220 fake", "250 ok", "", 0, 0, 0}, PO_RETRY, "unreachable"},
        {{"220 fake", "250 ok", "250 ok", "451 later", 0, 0}, PO_RETRY, "451"},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "451 later", 0}, PO_RETRY, "451"},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "554 spam", 0}, PO_REFUSED, "554"},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "", 0}, PO_UNCERTAIN, "no_reply"},
        {{"220 fake", "250 ok", "250 ok", "354 go on", NULL, 0}, PO_UNCERTAIN, "no_reply"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake_server server;
        po_err err = {0};
        assert_false(play(&server, rows[i].script, &err));
        if (err.kind != rows[i].kind || strcmp(err.code, rows[i].code) != 0)
            fail_msg("row %zu: %s %s, %s", i, po_kind_name(err.kind), err.code, err.text);
        assert_null(strstr(err.text, "ann@"));
    }
}

// FAULTS 43: a server that does not vouch for the address has the mail all the same.
static void test_any_yes_is_acceptance(void **state) {
    (void)state;
    static const char *const replies[] = {"252 cannot verify", "251-forwarded\r\n251 elsewhere",
                                          "299 well"};
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        fake_server server;
        fake_script script = fine;
        po_err err = {0};
        script.body = replies[i];
        if (!play(&server, script, &err))
            fail_msg("%s: %s %s", replies[i], po_kind_name(err.kind), err.code);
    }
}

// FAULTS 50: what a server does about QUIT costs nothing, whatever it said before.
static void test_silence_after_quit_costs_nothing(void **state) {
    (void)state;
    static const struct {
        fake_script script;
        bool sent;
    } rows[] = {
        {{"220 fake", "250 ok", "250 ok", "354 go on", "250 taken", true}, true},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "252 taken", true}, true},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "451 later", true}, false},
        {{"220 fake", "250 ok", "250 ok", "354 go on", "554 spam", true}, false},
        {{"220 fake", "250 ok", "250 ok", "451 later", 0, true}, false},
        {{"220 fake", "250 ok", "550 unknown", 0, 0, true}, false},
        {{"220 fake", "550 not you", 0, 0, 0, true}, false},
        {{"554 go away", 0, 0, 0, 0, true}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake_server server;
        po_err err = {0};
        int64_t began_ms = po_mono_ms();
        assert_int_equal(play(&server, rows[i].script, &err), rows[i].sent);
        if (po_mono_ms() - began_ms > PATIENT_MS / 2)
            fail_msg("row %zu took %d ms", i, (int)(po_mono_ms() - began_ms));
    }
}

static void test_nobody_listens(void **state) {
    (void)state;
    smtp_server to = {.url = "smtp://127.0.0.1:1",
                      .helo = "x",
                      .user = "",
                      .password = "",
                      .ca_file = "",
                      .timeout_ms = PATIENT_MS};
    smtp_talk *talk = smtp_open(&to);
    po_err err = {0};
    assert_false(smtp_send(talk, "a@b", "c@d", po_s("x\r\n"), &err));
    assert_int_equal(err.kind, PO_RETRY);
    smtp_close(&talk);
    assert_null(talk);
    smtp_close(&talk);
}

// A server that cannot do TLS gets no mail when TLS is required.
static void test_tls_required(void **state) {
    (void)state;
    fake_server server;
    server_start(&server, fine, false);
    char url[64];
    snprintf(url, sizeof url, "smtp://127.0.0.1:%d", server.port);
    smtp_server to = {.url = url,
                      .helo = "x",
                      .user = "",
                      .password = "",
                      .ca_file = "",
                      .tls = SMTP_TLS_REQUIRE,
                      .timeout_ms = PATIENT_MS};
    smtp_talk *talk = smtp_open(&to);
    po_err err = {0};
    assert_false(smtp_send(talk, "a@b", "c@d", po_s("x\r\n"), &err));
    assert_int_equal(err.kind, PO_RETRY);
    smtp_close(&talk);
    pthread_join(server.thread, NULL);
    close(server.listener);
    assert_null(strstr(server.heard, "MAIL"));
}

typedef struct stop_row {
    fake_script script;
    bool sent;
    po_kind kind;
    const char *code;
} stop_row;

static bool stops_well(const stop_row *row) {
    fake_server server;
    po_err err = {0};
    int64_t began_ms = po_mono_ms();
    bool sent = play_until(&server, row->script, true, &err);
    int64_t took_ms = po_mono_ms() - began_ms;
    bool fine = sent == row->sent &&
                (sent || (err.kind == row->kind && !strcmp(err.code, row->code))) &&
                took_ms < PATIENT_MS - 5000;
    if (!fine)
        print_error("%d %s, after %d ms\n", sent, err.code, (int)took_ms);
    return fine;
}

// SIGTERM ends in time whatever PAYONCE_SMTP_TIMEOUT is: the reply to a message is awaited a little, anything else not
// at all. Each in a process of its own, since a process stops once.
static void test_stopping_is_not_up_to_the_server(void **state) {
    (void)state;
    static const stop_row rows[] = {
        {{"220 fake", "250 ok", "250 ok", "354 go on", "250 taken", false}, true, PO_RETRY, ""},
        {{"220 fake", "250 ok", "250 ok", "354 go on", 0, false}, false, PO_UNCERTAIN, "no_reply"},
        {{"220 fake", "250 ok", "250 ok", 0, 0, false}, false, PO_RETRY, SMTP_STOPPING},
        {{"220 fake", 0, 0, 0, 0, false}, false, PO_RETRY, SMTP_STOPPING},
        {{0, 0, 0, 0, 0, false}, false, PO_RETRY, SMTP_STOPPING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(stops_well(&rows[i]) ? 0 : 1);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0)
            fail_msg("row %zu", i);
    }
}

static int setup(void **state) {
    (void)state;
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    curl_global_cleanup();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdict),
        cmocka_unit_test(test_sent),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_tls_required),
        cmocka_unit_test(test_any_yes_is_acceptance),
        cmocka_unit_test(test_silence_after_quit_costs_nothing),
        cmocka_unit_test(test_stopping_is_not_up_to_the_server),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

// SMTP by libcurl, a connection per mail: no mail can meet a connection that another one has left half dead. The
// phase is read off the commands that libcurl says it sends; what a reply means depends on it.
#include "smtp.h"
#include "base/clock.h"
#include "life/life.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static const long QUIT_SECONDS = 1; // libcurl's shortest
static const int64_t STOPPING_REPLY_MS = 5000;

struct smtp_talk {
    CURL *curl;
    struct curl_slist *recipients;
    const smtp_server *server;
    po_str message;
    size_t given; // bytes of the message that libcurl took
    smtp_phase phase;
    int64_t stopping_ms; // when it learned that the process is stopping; 0: not yet
};

bool smtp_verdict(smtp_phase phase, long reply, po_err *err) {
    if (phase == SMTP_BODY && reply >= 200 && reply <= 299)
        return true;
    char code[16];
    snprintf(code, sizeof code, "%ld", reply);
    if (reply >= 500 && reply <= 599 && phase >= SMTP_RCPT)
        return po_fail(err, PO_REFUSED, code, "refused by the mail server");
    if (reply >= 400 && reply <= 599)
        return po_fail(err, PO_RETRY, code, "put off by the mail server");
    if (phase == SMTP_BODY)
        return po_fail(err, PO_UNCERTAIN, "no_reply", "no reply to the message");
    return po_fail(err, PO_RETRY, "unreachable", "no conversation with the mail server");
}

static size_t on_read(char *out, size_t size, size_t n, void *arg) {
    smtp_talk *self = arg;
    size_t left = self->message.n - self->given, take = size * n < left ? size * n : left;
    memcpy(out, self->message.p + self->given, take);
    self->given += take;
    if (self->given == self->message.n)
        self->phase = SMTP_BODY;
    return take;
}

static int on_debug(CURL *curl, curl_infotype type, char *data, size_t n, void *arg) {
    static const struct {
        const char *command;
        smtp_phase phase;
    } commands[] = {{"MAIL ", SMTP_MAIL}, {"RCPT ", SMTP_RCPT}, {"DATA", SMTP_DATA}};
    smtp_talk *self = arg;
    if (type != CURLINFO_HEADER_OUT)
        return 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        size_t length = strlen(commands[i].command);
        if (n >= length && memcmp(data, commands[i].command, length) == 0)
            self->phase = commands[i].phase;
    }
    // After a refusal libcurl says QUIT by itself; its wait for the answer is bounded from here on.
    if (n >= 4 && memcmp(data, "QUIT", 4) == 0)
        (void)curl_easy_setopt(curl, CURLOPT_SERVER_RESPONSE_TIMEOUT, QUIT_SECONDS);
    return 0;
}

// libcurl asks once a second or more often. What the server cannot have taken is given up at once; a reply that says
// whether it took the message is worth a wait.
static int on_progress(void *arg, curl_off_t down_all, curl_off_t down, curl_off_t up_all,
                       curl_off_t up) {
    (void)down_all, (void)down, (void)up_all, (void)up;
    smtp_talk *self = arg;
    if (!po_stopping())
        return 0;
    int64_t now_ms = po_mono_ms();
    if (!self->stopping_ms)
        self->stopping_ms = now_ms;
    return self->phase != SMTP_BODY || now_ms - self->stopping_ms >= STOPPING_REPLY_MS;
}

smtp_talk *smtp_open(const smtp_server *server) {
    smtp_talk *self = calloc(1, sizeof *self);
    if (!self || !(self->curl = curl_easy_init()))
        abort();
    self->server = server;
    return self;
}

// A connection that is kept is told QUIT when it is closed, and libcurl waits for the answer as long as for any
// other. With nothing more to be read the wait ends at once, also under TLS.
static void hear_no_more(CURL *curl) {
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &fd) == CURLE_OK && fd != CURL_SOCKET_BAD)
        (void)shutdown(fd, SHUT_RD);
}

void smtp_close(smtp_talk **talk) {
    if (!*talk)
        return;
    hear_no_more((*talk)->curl);
    curl_easy_cleanup((*talk)->curl);
    curl_slist_free_all((*talk)->recipients);
    free(*talk);
    *talk = NULL;
}

static void must(CURLcode code) {
    if (code != CURLE_OK)
        abort(); // an option this libcurl does not know, or no memory
}

static void set_options(smtp_talk *self, const char *from) {
    const smtp_server *server = self->server;
    CURL *curl = self->curl;
    char url[1024];
    snprintf(url, sizeof url, "%s/%s", server->url, server->helo);
    must(curl_easy_setopt(curl, CURLOPT_URL, url));
    must(curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "smtp,smtps"));
    must(curl_easy_setopt(curl, CURLOPT_PROXY, "")); // not what the environment says for the web
    must(curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L));
    must(curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)server->timeout_ms));
    must(curl_easy_setopt(curl, CURLOPT_SERVER_RESPONSE_TIMEOUT,
                          (long)(server->timeout_ms + 999) / 1000));
    static const long tls[] = {[SMTP_TLS_NONE] = CURLUSESSL_NONE,
                               [SMTP_TLS_TRY] = CURLUSESSL_TRY,
                               [SMTP_TLS_REQUIRE] = CURLUSESSL_ALL};
    must(curl_easy_setopt(curl, CURLOPT_USE_SSL, tls[server->tls]));
    if (*server->ca_file) {
        must(curl_easy_setopt(curl, CURLOPT_CAINFO, server->ca_file));
        must(curl_easy_setopt(curl, CURLOPT_CAPATH, NULL));
    }
    if (*server->user) {
        must(curl_easy_setopt(curl, CURLOPT_USERNAME, server->user));
        must(curl_easy_setopt(curl, CURLOPT_PASSWORD, server->password));
    }
    must(curl_easy_setopt(curl, CURLOPT_MAIL_FROM, from));
    must(curl_easy_setopt(curl, CURLOPT_MAIL_RCPT, self->recipients));
    must(curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L));
    must(curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_read));
    must(curl_easy_setopt(curl, CURLOPT_READDATA, self));
    must(curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)self->message.n));
    must(curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L));
    must(curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress));
    must(curl_easy_setopt(curl, CURLOPT_XFERINFODATA, self));
    must(curl_easy_setopt(curl, CURLOPT_VERBOSE, 1L));
    must(curl_easy_setopt(curl, CURLOPT_DEBUGFUNCTION, on_debug));
    must(curl_easy_setopt(curl, CURLOPT_DEBUGDATA, self));
}

static bool is_certificate(CURLcode code) {
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_ISSUER_ERROR;
}

bool smtp_send(smtp_talk *self, const char *from, const char *to, po_str message, po_err *err) {
    self->message = message;
    self->recipients = curl_slist_append(NULL, to);
    if (!self->recipients)
        abort();
    set_options(self, from);
    CURLcode code = curl_easy_perform(self->curl);
    long reply = 0;
    curl_easy_getinfo(self->curl, CURLINFO_RESPONSE_CODE, &reply);
    if (is_certificate(code))
        return po_fail(err, PO_RETRY, "certificate", "%s", curl_easy_strerror(code));
    if (code == CURLE_ABORTED_BY_CALLBACK && self->phase != SMTP_BODY && reply < 400)
        return po_fail(err, PO_RETRY, SMTP_STOPPING, "given up, since the process is stopping");
    if (smtp_verdict(self->phase, reply, err))
        return true;
    return reply >= 400 ? false : po_wrap(err, "%s", curl_easy_strerror(code));
}

// One mail over SMTP (libcurl), and what its end means. Any 2xx after the message is acceptance. A 4xx, a dead server
// or a refusal that is about us (our greeting, login, sender) only delays; a 5xx to the recipient or the message is
// final for this mail; no reply, or one that says nothing, after the whole message was handed over leaves it in doubt.
#pragma once
#include "base/arena.h"
#include "base/str.h"

typedef enum smtp_tls { SMTP_TLS_NONE, SMTP_TLS_TRY, SMTP_TLS_REQUIRE } smtp_tls;

typedef struct smtp_server {
    const char *url;             // smtp://host:port or smtps://host:port, nothing behind
    const char *helo;            // our name in EHLO
    const char *user, *password; // "" = no login
    smtp_tls tls;                // STARTTLS on an smtp:// connection
    const char *ca_file;         // PEM, the only certificates trusted; "" = the system's
    int64_t timeout_ms;          // of one whole mail
} smtp_server;

// How far the conversation got: what the last reply, or its absence, is about.
typedef enum smtp_phase {
    SMTP_GREETING, // connect, EHLO, STARTTLS, AUTH
    SMTP_MAIL,
    SMTP_RCPT,
    SMTP_DATA, // DATA was said, the message is on its way
    SMTP_BODY, // the whole message was handed over
} smtp_phase;

// `reply`: the last reply code, 0 when none came. True when the mail is accepted; else err->kind is RETRY, REFUSED or
// UNCERTAIN and err->code "421", "unreachable", "no_reply"…
PO_MUST_CHECK bool smtp_verdict(smtp_phase phase, long reply, po_err *err);

#define SMTP_STOPPING "stopping"

typedef struct smtp_talk smtp_talk; // one conversation
smtp_talk *smtp_open(const smtp_server *server);
// Blocks up to timeout_ms. Once the process is stopping (po_stopping) whatever timeout_ms is: a message that was not yet
// handed over whole is given up within about a second, RETRY SMTP_STOPPING; the reply to one that was is awaited for 5 s
// more, then it is in doubt. Fails as smtp_verdict says; RETRY "certificate" when the server's certificate is not
// trusted, which no time mends. The server's words are left out of err: they often quote the address. Call once.
PO_MUST_CHECK bool smtp_send(smtp_talk *talk, const char *from, const char *to, po_str message,
                             po_err *err);
// Says QUIT if it may; a server that does not answer that costs at most a second, here and in smtp_send. Call it once
// the outcome is recorded all the same.
void smtp_close(smtp_talk **talk);

// receipts: one mail per paid order. A qualified payment puts one row into `mail`, unique by what it means;
// contacts.v1 keeps the newest address per order; workers send what is due and record the outcome, guarded by
// their lease. The Message-ID is derived from the row's key, so a delivery in doubt is repeated as a copy of the
// same mail and never as another one. A row moves
//   waiting_address ─contact.set─► due ─accepted─► sent
//   waiting_address ─wait over, no address─► review ─contact.set─► due
//   due ─refused for good, attempts used up, too often in doubt, or address erased─► review
//   (nothing) ─no contact─► not_wanted ─contact.set─► due
// and nothing that comes again moves it back. contact.set counts here when its address is another one than before.
// What a worker learns of an address may be out of date by the time it is recorded: another address puts `attempts` of
// a row that is due to 0 as well, under whatever lease, and such a row goes to no review but is due again at once.
// What is not done may be tried as often as an outage lasts. What may be done is tried a few times only, since each
// may be a copy in the customer's mailbox: an attempt is counted as in doubt before the mail goes out, and that is
// taken back once it is known that the server did not take it.
#include "base/cleanup.h"
#include "base/clock.h"
#include "consumer/consumer.h"
#include "mail.h"
#include "migration_files.h"
#include "smtp.h"

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    ST_CONTACT,
    ST_WANT_AGAIN,
    ST_ASK,
    ST_SAME,
    ST_CLAIM,
    ST_LATER,
    ST_DEPTH,
    ST_BEGIN,
    ST_SENT,
    ST_REVIEW,
};
static const po_stmt statements[] = {
    // $1 order, $2 sequence, $3 address or NULL. A row comes back when it was news: is the address another one?
    [ST_CONTACT] = {"contact",
                    "INSERT INTO receipts.contact AS c (order_id, sequence, email, email_since) "
                    "VALUES ($1, $2, $3, $2) ON CONFLICT (order_id) DO UPDATE SET "
                    "sequence = excluded.sequence, email = excluded.email, email_since = CASE "
                    "WHEN c.email = excluded.email THEN c.email_since ELSE excluded.sequence END "
                    "WHERE c.sequence < excluded.sequence RETURNING email_since = sequence"},
    // $1 order. Mails that nobody gave an address for, or that are not delivered to the one before. A worker that tries
    // that one keeps its lease; it knows by the attempts that its verdict is out of date. (One that was claimed, but not
    // begun, tries the new one, and at worst once more than it need.)
    [ST_WANT_AGAIN] = {"want_again",
                       "UPDATE receipts.mail SET state = 'due', due_at = now(), attempts = 0, "
                       "doubts = 0, last_error = NULL WHERE order_id = $1 "
                       "AND state IN ('waiting_address', 'due', 'not_wanted', 'review')"},
    // $1 key, $2 Message-ID, $3 order, $4 customer, $5 purpose, $6 item, $7 minor, $8 currency, $9 exponent,
    // $10 paid at, $11 wanted, $12 wait for the address in ms. A row comes back when it was news. The contact's row is
    // made if need be, and locked: an address that is on its way in another session is either seen here, or finds this
    // mail. One that is known is used whatever the event says, since it was given after the event.
    [ST_ASK] =
        {"ask",
         "WITH contact AS (INSERT INTO receipts.contact AS c (order_id, sequence) VALUES ($3, 0) "
         "ON CONFLICT (order_id) DO UPDATE SET sequence = c.sequence "
         "RETURNING email IS NOT NULL AS known) "
         "INSERT INTO receipts.mail (mail_key, message_id, order_id, customer_id, purpose, item, "
         "amount_minor, currency, exponent, paid_at, state, due_at) "
         "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, "
         "CASE WHEN known THEN 'due' WHEN $11 THEN 'waiting_address' ELSE 'not_wanted' END, "
         "CASE WHEN known THEN now() WHEN $11 THEN now() + $12::bigint * interval '1 ms' END "
         "FROM contact ON CONFLICT (mail_key) DO NOTHING RETURNING true"},
    // $1 key, $2 order, $3 customer, $4 minor, $5 currency, $6 exponent → says the same?
    [ST_SAME] =
        {"same",
         "SELECT order_id = $2 AND customer_id = $3 AND amount_minor = $4 AND currency = $5 "
         "AND exponent = $6 FROM receipts.mail WHERE mail_key = $1"},
    [ST_CLAIM] = {"mail_claim",
                  "UPDATE receipts.mail m SET attempts = attempts + 1, lease_token = $2, "
                  "lease_until = now() + $3::bigint * interval '1 ms' "
                  "FROM (SELECT mail_key FROM receipts.mail WHERE due_at <= now() "
                  "AND (due_at, mail_key) > (now() - $4::bigint * interval '1 ms', '') "
                  "AND (lease_until IS NULL OR lease_until <= now()) ORDER BY due_at LIMIT $1 "
                  "FOR UPDATE SKIP LOCKED) AS due WHERE m.mail_key = due.mail_key "
                  "RETURNING m.mail_key, m.attempts, m.message_id, m.order_id, m.purpose, m.item, "
                  "m.amount_minor, m.currency, m.exponent, m.paid_at, "
                  "(extract(epoch FROM now() - m.due_at) * 1000)::bigint"},
    // At once when another address came since the claim: the patience was with the one before.
    [ST_LATER] =
        {"mail_later",
         "UPDATE receipts.mail SET state = 'due', due_at = now() + "
         "CASE WHEN attempts > 0 THEN $3::bigint ELSE 0 END * interval '1 ms', "
         "doubts = CASE WHEN $5 THEN doubts ELSE greatest(doubts - 1, 0) END, "
         "lease_token = NULL, lease_until = NULL, last_error = $4 "
         "WHERE mail_key = $1 AND lease_token = $2 AND state IN ('waiting_address', 'due')"},
    [ST_DEPTH] =
        {"mail_depth",
         "SELECT count(*), coalesce((extract(epoch FROM max(now() - paid_at)) * 1000)::bigint, 0) "
         "FROM receipts.mail WHERE due_at IS NOT NULL AND (state = 'due' OR due_at <= now())"},
    // $1 key, $2 token → the address, or NULL; attempts in doubt, this one included until its outcome says otherwise. No
    // row when the lease is lost.
    [ST_BEGIN] = {"begin", "UPDATE receipts.mail m SET doubts = doubts + 1 WHERE mail_key = $1 "
                           "AND lease_token = $2 AND lease_until > now() RETURNING (SELECT email "
                           "FROM receipts.contact c WHERE c.order_id = m.order_id), doubts"},
    // $1 key, $2 token
    [ST_SENT] =
        {"sent",
         "UPDATE receipts.mail SET state = 'sent', sent_at = now(), due_at = NULL, "
         "lease_token = NULL, lease_until = NULL, last_error = NULL "
         "WHERE mail_key = $1 AND lease_token = $2 AND state IN ('waiting_address', 'due')"},
    // $1 key, $2 token, $3 why. No row when another address came since the claim, or the lease is lost. Either this
    // or the other address is first at the mail's row, and the second one finds what the first one left.
    [ST_REVIEW] = {"review",
                   "UPDATE receipts.mail SET state = 'review', due_at = NULL, "
                   "lease_token = NULL, lease_until = NULL, last_error = $3 WHERE mail_key = $1 "
                   "AND lease_token = $2 AND state IN ('waiting_address', 'due') AND attempts > 0"},
};

static const po_setting settings[] = {
    {"SMTP_URL", PO_SET_URL, NULL, 0, 512,
     "Mail server, `smtp://HOST:PORT`, or `smtps://HOST:PORT` for TLS from the first byte."},
    {"SMTP_TLS", PO_SET_TEXT, "try", 0, 16,
     "STARTTLS on an `smtp://` connection: `none`, `try` (when offered) or `require`."},
    {"SMTP_CA_FILE", PO_SET_PATH, "", 0, 0,
     "Certificates (PEM) that the mail server's must lead to; empty: the system's. A certificate "
     "that does not is told as an error at once, and no mail goes out."},
    {"SMTP_USER", PO_SET_TEXT, "", 0, 255, "Login at the mail server; empty: none."},
    {"SMTP_PASSWORD", PO_SET_SECRET, "", 0, 1024, "Password of that login."},
    {"SMTP_TIMEOUT", PO_SET_DURATION_MS, "30s", 100, 300000,
     "The longest one mail may take, from connecting to the last reply. Once the program is told "
     "to stop, what was not sent whole is given up at once, and the reply to what was after 5 s."},
    {"MAIL_FROM", PO_SET_TEXT, NULL, 0, 254, "Sender address of every receipt."},
    {"MAIL_DOMAIN", PO_SET_TEXT, "", 0, 253,
     "Domain of Message-IDs and name given in EHLO; empty: the domain of `PAYONCE_MAIL_FROM`."},
    {"MAIL_PARALLEL", PO_SET_INT, "2", 1, 64,
     "Mails sent at a time by one process; a process that is killed leaves at most so many in "
     "doubt."},
    {"MAIL_ATTEMPTS", PO_SET_INT, "720", 1, 10000,
     "Attempts before a mail goes to review; they are at most 10 minutes apart, so the default "
     "outlasts a mail server that is away for days."},
    {"MAIL_ADDRESS_WAIT", PO_SET_DURATION_MS, "15m", 0, 86400000,
     "How long a mail waits for the address of its order before it goes to review."},
    {0},
};

enum {
    BACKOFF_MS = 1000,
    BACKOFF_CAP_MS = 600000,
    IDLE_MS = 1000,
    RECORD_MS = 15000,
    ALARM_EVERY_MS = 60000, // of what concerns every mail alike
    MOST_DOUBTS = 3, // deliveries that may have been done: so many copies of one mail at most
};

typedef struct receipts {
    smtp_server server;
    const char *from, *domain;
    int64_t address_wait_ms, attempts_max;
    _Atomic int64_t alarm_at_ms; // not before then once more
    po_workers *workers;
} receipts;

static po_metric *mails_total;

static void declare_metrics(void) {
    po_work_declare_metrics();
    mails_total = po_metric_new(
        PO_COUNTER, "payonce_receipts_mails_total",
        "Attempts to send a mail: sent, later, in_doubt, certificate or review.", "outcome");
}

// --- Events

static bool on_same(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                    po_err *err) {
    (void)err;
    if (po_res_rows(rows) == 0 || !po_res_bool(rows, 0, 0))
        po_consumer_conflict(tx, delivery, "content of this mail");
    return true;
}

// The mail was there already. What it says is read by a statement of its own: it may have been committed by
// another session after the insert's snapshot.
static bool on_asked(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                     po_err *err) {
    (void)err;
    if (po_res_rows(rows) > 0)
        return true;
    const po_payment_event *event = delivery->payment;
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, mail_key(tx->arena, event->purpose, event->order_id));
    po_arg_text(args, event->order_id);
    po_arg_text(args, event->customer_id);
    po_arg_i64(args, event->due);
    po_arg_text(args, po_s(po_strdup(tx->arena, event->unit.currency)));
    po_arg_i32(args, event->unit.exponent);
    po_consumer_send(tx, delivery, &statements[ST_SAME], args, on_same);
    return true;
}

// The mail names what was due, not what came in: that stays the same when the order is topped up, overpaid or
// qualifies again, so the mail of a payment is one and the same whichever event asks for it.
static bool on_qualified(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    const receipts *self = tx->state;
    const po_payment_event *event = delivery->payment;
    if (event->purpose.n > 0 && memchr(event->purpose.p, ':', event->purpose.n))
        return po_fail(err, PO_REFUSED, "purpose", "a purpose with a ':' would share its key");
    po_str key = mail_key(tx->arena, event->purpose, event->order_id);
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, key);
    po_arg_text(args, mail_message_id(tx->arena, key, self->domain));
    po_arg_text(args, event->order_id);
    po_arg_text(args, event->customer_id);
    po_arg_text(args, event->purpose);
    po_arg_text(args, event->item);
    po_arg_i64(args, event->due);
    po_arg_text(args, po_s(po_strdup(tx->arena, event->unit.currency)));
    po_arg_i32(args, event->unit.exponent);
    po_arg_time(args, event->decided_at_us);
    po_arg_bool(args, event->receipt);
    po_arg_i64(args, self->address_wait_ms);
    po_consumer_send(tx, delivery, &statements[ST_ASK], args, on_asked);
    return true;
}

static bool on_contact_stored(po_consumer_tx *tx, const po_delivery *delivery, const po_res *rows,
                              po_err *err) {
    (void)err;
    if (po_res_rows(rows) == 0 || !po_res_bool(rows, 0, 0))
        return true;
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, delivery->key);
    po_consumer_send(tx, delivery, &statements[ST_WANT_AGAIN], args, NULL);
    return true;
}

// The key is the order.
static void store_contact(po_consumer_tx *tx, const po_delivery *delivery, po_str email,
                          po_rows_handler on_rows) {
    po_args *args = po_args_new(tx->arena);
    po_arg_text(args, delivery->key);
    po_arg_i64(args, delivery->ce.sequence);
    po_arg_text(args, email);
    po_consumer_send(tx, delivery, &statements[ST_CONTACT], args, on_rows);
}

static bool on_contact(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    (void)err;
    if (delivery->contact)
        store_contact(tx, delivery, delivery->contact->email, on_contact_stored);
    else
        store_contact(tx, delivery, (po_str){0}, NULL);
    return true;
}

// Erases whatever it carries; as a rule nothing, a tombstone.
static bool on_erased(po_consumer_tx *tx, const po_delivery *delivery, po_err *err) {
    (void)err;
    store_contact(tx, delivery, (po_str){0}, NULL);
    return true;
}

static const po_consumer_route routes[] = {
    {PO_TOPIC_PAYMENTS, "payment.qualified", on_qualified},
    {PO_TOPIC_PAYMENTS, "*", NULL}, // a refund or a reversal takes no mail back and asks for none
    {PO_TOPIC_CONTACTS, "contact.set", on_contact},
    {PO_TOPIC_CONTACTS, "contact.erased", on_erased},
    {0},
};

// --- Sending

// Records a final outcome. False when the database is away: then whoever holds the row next repeats, under the same
// Message-ID.
static bool record(po_pg *pg, const po_stmt *stmt, po_args *args, const char *outcome,
                   bool *ret_recorded) {
    PO_AUTO(po_res_done) po_res *res = NULL;
    po_err err = {0};
    if (!po_pg_run(pg, stmt, args, &res, &err)) {
        po_log_err(po_pg_is_deployment(&err) ? PO_ERROR : PO_WARN, "outcome of a mail not recorded",
                   &err, PO_TEXT("outcome", outcome));
        return false;
    }
    *ret_recorded = po_res_affected(res) > 0;
    if (*ret_recorded)
        po_count(mails_total, outcome, 1);
    return true;
}

static po_args *guard(const po_work_item *item, po_arena *arena) {
    po_args *args = po_args_new(arena);
    po_arg_text(args, item->id);
    po_arg_uuid(args, item->token);
    return args;
}

// LATER when nothing was recorded: another address came, which is due at once, or the lease is lost, and then LATER
// records nothing either.
static po_work_outcome review(po_pg *pg, const po_work_item *item, po_arena *arena,
                              const char *why) {
    po_args *args = guard(item, arena);
    po_arg_text(args, po_s(why));
    bool recorded = false;
    if (!record(pg, &statements[ST_REVIEW], args, "review", &recorded))
        return PO_WORK_SKIP;
    if (!recorded)
        return PO_WORK_LATER;
    po_log(PO_ERROR, "mail needs a person", PO_TEXT("mail_key", po_str_copy(arena, item->id).p),
           PO_TEXT("reason", why));
    return PO_WORK_DONE;
}

static receipt receipt_of_row(const po_work_item *item) {
    const po_res *row = item->row;
    int i = item->row_index;
    receipt one = {.message_id = po_res_text(row, i, 2),
                   .order_id = po_res_text(row, i, 3),
                   .purpose = po_res_text(row, i, 4),
                   .item = po_res_text(row, i, 5),
                   .amount = {.minor = po_res_i64(row, i, 6),
                              .unit = {.exponent = (int)po_res_i64(row, i, 8)}},
                   .paid_at_us = po_res_time(row, i, 9)};
    po_str currency = po_res_text(row, i, 7);
    size_t n = currency.n < sizeof one.amount.unit.currency - 1
                   ? currency.n
                   : sizeof one.amount.unit.currency - 1;
    memcpy(one.amount.unit.currency, currency.p, n);
    return one;
}

// A certificate that is not trusted: waiting mends nothing, and every mail meets the same.
static void alarm_certificate(receipts *self, const po_err *err) {
    int64_t now_ms = po_mono_ms(), at_ms = self->alarm_at_ms;
    if (now_ms >= at_ms &&
        atomic_compare_exchange_strong(&self->alarm_at_ms, &at_ms, now_ms + ALARM_EVERY_MS))
        po_log_err(PO_ERROR, "the mail server's certificate is not trusted: no mail goes out", err,
                   PO_TEXT("server", self->server.url));
}

// What a failed attempt leads to: later, or review once there is no use in another to this address, or too much harm.
static po_work_outcome after_failure(receipts *self, po_pg *pg, const po_work_item *item,
                                     int64_t doubts, po_arena *arena, const po_err *err) {
    bool stopped = strcmp(err->code, SMTP_STOPPING) == 0; // no attempt of its own to give up for
    const char *end = stopped                                              ? NULL
                      : err->kind == PO_REFUSED                            ? "refused"
                      : err->kind == PO_UNCERTAIN && doubts >= MOST_DOUBTS ? "in_doubt"
                      : item->attempts >= self->attempts_max               ? "gave_up"
                                                                           : NULL;
    po_work_outcome ended =
        end ? review(pg, item, arena, po_printf(arena, "%s %s", end, err->code)) : PO_WORK_LATER;
    if (ended != PO_WORK_LATER)
        return ended;
    bool certificate = strcmp(err->code, "certificate") == 0;
    if (certificate)
        alarm_certificate(self, err);
    po_count(mails_total,
             certificate                 ? "certificate"
             : err->kind == PO_UNCERTAIN ? "in_doubt"
                                         : "later",
             1);
    return PO_WORK_LATER;
}

static po_work_outcome send_one(void *arg, po_pg *pg, const po_work_item *item, po_arena *arena,
                                po_err *err) {
    receipts *self = arg;
    PO_AUTO(po_res_done) po_res *begun = NULL;
    if (!po_pg_run(pg, &statements[ST_BEGIN], guard(item, arena), &begun, err))
        return PO_WORK_SKIP; // the lease runs out
    if (po_res_rows(begun) == 0)
        return PO_WORK_SKIP;
    if (po_res_null(begun, 0, 0))
        return review(pg, item, arena, "no_address");
    po_str to = po_str_copy(arena, po_res_text(begun, 0, 0));
    int64_t doubts = po_res_i64(begun, 0, 1);
    if (!mail_address_valid(to))
        return review(pg, item, arena, "bad_address");
    if (doubts > MOST_DOUBTS)
        return review(pg, item, arena, "in_doubt no_record");

    receipt one = receipt_of_row(item);
    po_str text = mail_text(arena, &one, po_s(self->from), to);
    PO_AUTO(smtp_close)
    smtp_talk *talk = smtp_open(&self->server); // says QUIT after the outcome is recorded
    if (!smtp_send(talk, self->from, to.p, text, err))
        return after_failure(self, pg, item, doubts, arena, err);
    bool recorded = false;
    if (!record(pg, &statements[ST_SENT], guard(item, arena), "sent", &recorded) || !recorded)
        return PO_WORK_SKIP;
    po_log_outcome("mail_sent", "mail sent", PO_TEXT("mail_key", po_str_copy(arena, item->id).p),
                   PO_TEXT("order_id", po_str_copy(arena, one.order_id).p),
                   PO_TEXT("message_id", po_str_copy(arena, one.message_id).p),
                   PO_INT("attempts", item->attempts));
    return PO_WORK_DONE;
}

// --- Life

static bool tls_parse(const char *text, smtp_tls *ret_tls) {
    static const char *const names[] = {
        [SMTP_TLS_NONE] = "none", [SMTP_TLS_TRY] = "try", [SMTP_TLS_REQUIRE] = "require"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) != 0)
            continue;
        *ret_tls = (smtp_tls)i;
        return true;
    }
    return false;
}

// smtp[s]://HOST[:PORT] and nothing behind: our name in EHLO is put there.
static bool url_valid(const char *url) {
    const char *host = strncmp(url, "smtp://", 7) == 0    ? url + 7
                       : strncmp(url, "smtps://", 8) == 0 ? url + 8
                                                          : "";
    return *host && !strpbrk(host, "/?#@ ");
}

static const char *domain_of(const po_config *config) {
    const char *domain = po_config_text(config, "MAIL_DOMAIN");
    return *domain ? domain : strrchr(po_config_text(config, "MAIL_FROM"), '@') + 1;
}

static bool check(const po_config *config, po_err *err) {
    smtp_tls tls;
    if (!url_valid(po_config_text(config, "SMTP_URL")))
        return po_fail(err, PO_REFUSED, "setting",
                       "PAYONCE_SMTP_URL must be smtp://HOST:PORT or smtps://HOST:PORT");
    if (!tls_parse(po_config_text(config, "SMTP_TLS"), &tls))
        return po_fail(err, PO_REFUSED, "setting", "PAYONCE_SMTP_TLS must be none, try or require");
    if (!mail_address_valid(po_s(po_config_text(config, "MAIL_FROM"))))
        return po_fail(err, PO_REFUSED, "setting",
                       "PAYONCE_MAIL_FROM is not a plain ASCII address");
    if (!mail_domain_valid(po_s(domain_of(config))))
        return po_fail(err, PO_REFUSED, "setting", "PAYONCE_MAIL_DOMAIN is not a domain");
    return true;
}

static void stop(void *state) {
    receipts *self = state;
    if (!self)
        return;
    po_work_stop(&self->workers);
    curl_global_cleanup();
    free(self);
}

static bool start(const po_config *config, const po_pg_options *pg, void **ret_state, po_err *err) {
    receipts *self = calloc(1, sizeof *self);
    if (!self || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        abort();
    self->from = po_config_text(config, "MAIL_FROM");
    self->domain = domain_of(config);
    self->address_wait_ms = po_config_int(config, "MAIL_ADDRESS_WAIT");
    self->attempts_max = po_config_int(config, "MAIL_ATTEMPTS");
    self->server = (smtp_server){.url = po_config_text(config, "SMTP_URL"),
                                 .helo = self->domain,
                                 .user = po_config_text(config, "SMTP_USER"),
                                 .password = po_config_text(config, "SMTP_PASSWORD"),
                                 .ca_file = po_config_text(config, "SMTP_CA_FILE"),
                                 .timeout_ms = po_config_int(config, "SMTP_TIMEOUT")};
    (void)tls_parse(po_config_text(config, "SMTP_TLS"), &self->server.tls);
    // One row a claim: the lease covers one conversation, so no mail is sent twice for having waited its turn.
    const po_work work = {.name = "mail",
                          .claim = statements[ST_CLAIM],
                          .due_ms_column = 10,
                          .later = statements[ST_LATER],
                          .depth = statements[ST_DEPTH],
                          .workers = (unsigned)po_config_int(config, "MAIL_PARALLEL"),
                          .batch = 1,
                          .lease_ms = self->server.timeout_ms + RECORD_MS,
                          .idle_ms = IDLE_MS,
                          .backoff_ms = BACKOFF_MS,
                          .backoff_cap_ms = BACKOFF_CAP_MS,
                          .run = send_one,
                          .arg = self};
    if (!po_work_start(&work, pg, &self->workers, err)) {
        stop(self);
        return false;
    }
    *ret_state = self;
    return true;
}

static void committed(void *state) {
    po_work_wake(((receipts *)state)->workers);
}

static const po_consumer consumer = {
    .name = "receipts",
    .about = "Sends one mail per paid order.",
    .routes = routes,
    .migrations = migration_files,
    .settings = settings,
    .declare_metrics = declare_metrics,
    .check = check,
    .start = start,
    .committed = committed,
    .stop = stop,
};

int main(int argc, char **argv) {
    return po_consumer_main(argc, argv, &consumer);
}

// One handler behind both doors: the provider's struct says which door it uses.
#include "doors.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "log/log.h"
#include "metrics/metrics.h"

static po_metric *m_refused, *m_apart;

void doors_declare_metrics(void) {
    m_refused = po_metric_new(PO_COUNTER, "payonce_ingest_refused_total",
                              "Requests refused at a provider's door, by reason.", "reason");
    m_apart = po_metric_new(
        PO_COUNTER, "payonce_ingest_apart_total",
        "Verified events recorded apart, never decided: quarantined (unreadable), foreign (another "
        "account or mode), ignored (a type we do not use).",
        "disposition");
}

static bool is_traceparent(po_str s) {
    static const char shape[] = "hh-hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh-hhhhhhhhhhhhhhhh-hh";
    if (s.n != sizeof shape - 1 || memcmp(s.p, "ff", 2) == 0)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        bool hex = (s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f');
        if (shape[i] == 'h' ? !hex : s.p[i] != '-')
            return false;
    }
    return strspn(s.p + 3, "0") < 32 && strspn(s.p + 36, "0") < 16;
}

// Printable ASCII, at most 512 bytes, or it is dropped: a vendor's list is no reason to refuse an
// event.
static po_str read_tracestate(po_request *request, po_arena *arena) {
    po_str given = po_request_header(request, "tracestate", NULL);
    bool fine = given.n <= 512;
    for (size_t i = 0; fine && i < given.n; i++)
        fine = given.p[i] >= 0x20 && given.p[i] <= 0x7e;
    return fine ? po_str_copy(arena, given) : po_s("");
}

trace doors_trace(po_request *request, po_arena *arena) {
    po_str given = po_request_header(request, "traceparent", NULL);
    if (is_traceparent(given))
        return (trace){po_str_copy(arena, given), read_tracestate(request, arena)};
    uint8_t random[24];
    char id[33], span[17];
    po_random(random, sizeof random);
    po_hex(random, 16, id);
    po_hex(random + 16, 8, span);
    return (struct trace){po_s(po_printf(arena, "00-%s-%s-01", id, span)), po_s("")};
}

// The skew: how far the stated time is behind our clock; negative when ahead.
static void tell_refused(po_request *request, const account *account, const header_value *headers,
                         verify_result result) {
    static po_log_site sites[] = {
        [VERIFY_MISSING] = {.name = "refused_signature_missing", .per_second = PO_LOG_REFUSALS},
        [VERIFY_MALFORMED] = {.name = "refused_signature_malformed", .per_second = PO_LOG_REFUSALS},
        [VERIFY_WRONG] = {.name = "refused_signature_wrong", .per_second = PO_LOG_REFUSALS},
        [VERIFY_STALE] = {.name = "refused_signature_stale", .per_second = PO_LOG_REFUSALS},
    };
    if (!po_log_admit(&sites[result]))
        return;
    int64_t stated;
    char peer[PO_PEER_SIZE];
    po_request_peer(request, peer);
    const char *code = sites[result].name + strlen("refused_");
    char alias[PO_ID_MAX + 1];
    po_str segment = po_request_segment(request, 1);
    (void)snprintf(alias, sizeof alias, "%.*s", (int)segment.n, segment.p);
    const po_field who[] = {PO_TEXT("code", code), PO_TEXT("provider", account->provider->name),
                            PO_TEXT("account", account->name), PO_TEXT("alias", alias),
                            PO_TEXT("peer", peer)};
    if (result == VERIFY_STALE && account->provider->stated_time(headers, &stated)) {
        po_log(PO_WARN, "request refused", who[0], who[1], who[2], who[3], who[4],
               PO_INT("skew_seconds", po_now_us() / PO_SECOND_US - stated));
    } else {
        po_log(PO_WARN, "request refused", who[0], who[1], who[2], who[3], who[4]);
    }
}

static void refuse(po_request *request, verify_result result) {
    static const struct {
        unsigned status;
        const char *code, *message;
    } answers[] = {
        [VERIFY_MISSING] = {401, "signature_missing", "no signature"},
        [VERIFY_MALFORMED] = {400, "signature_malformed",
                              "the signature header is not as the provider writes it"},
        [VERIFY_WRONG] = {401, "signature_wrong", "no signature matches a secret of this account"},
        [VERIFY_STALE] = {401, "signature_stale",
                          "the signature's time is more than 300 s away from now"},
    };
    po_count(m_refused, answers[result].code, 1);
    po_reply_error(request, answers[result].status, answers[result].code, answers[result].message);
}

// What the log takes: text. A signature's unknown parts may hold any byte, and say nothing to us.
static po_str loggable(po_arena *arena, po_str value) {
    char *copy = po_alloc(arena, value.n + 1);
    for (size_t i = 0; i < value.n; i++)
        copy[i] = value.p[i] >= 0x20 && value.p[i] <= 0x7e ? value.p[i] : '?';
    return (po_str){copy, value.n};
}

static size_t read_headers(po_request *request, const provider *provider, po_arena *arena,
                           header_value *values, po_str *copies) {
    size_t n = 0;
    for (; n < 4 && provider->headers[n]; n++) {
        values[n].value = po_request_header(request, provider->headers[n], &values[n].count);
        values[n].value = po_str_copy(arena, values[n].value);
        copies[n] = loggable(arena, values[n].value);
    }
    return n;
}

static void note_apart(const event *e) {
    static const char *const names[] = {
        [OBS_IGNORED] = "ignored", [OBS_FOREIGN] = "foreign", [OBS_QUARANTINE] = "quarantined"};
    if (e->obs.disposition == OBS_FACTS)
        return;
    po_count(m_apart, names[e->obs.disposition], 1);
    if (e->obs.disposition != OBS_IGNORED) {
        po_log(PO_WARN, "event recorded apart", PO_TEXT("disposition", names[e->obs.disposition]),
               PO_TEXT("problem", e->obs.problem.p), PO_TEXT("account", e->alias.p),
               PO_TEXT("event_id", e->obs.event_id.p), PO_TEXT("traceparent", e->trace.parent.p));
    }
}

static void enter(po_request *request, const doors *d, const account *account) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    header_value headers[4] = {0};
    po_str *copies = po_alloc_array(arena, 4, sizeof *copies);
    size_t n = read_headers(request, account->provider, arena, headers, copies);
    po_str body = po_request_body(request);
    verify_result verified = account->provider->verify(account, headers, body, po_now_us());
    if (verified != VERIFY_OK) {
        tell_refused(request, account, headers, verified);
        refuse(request, verified);
        return;
    }
    event e = {.account = account,
               .provider = po_s(account->provider->name),
               .alias = po_s(account->name),
               .raw = po_str_copy(arena, body),
               .headers = copies,
               .n_headers = n,
               .trace = doors_trace(request, arena)};
    po_sha256(e.raw, e.raw_sha256);
    account->provider->read(account, headers, e.raw, arena, &e.obs);
    note_apart(&e);
    if (!intake_put(d->in, &e, &arena, request)) {
        po_count(m_refused, "queue_full", 1);
        po_reply(request, 503, NULL,
                 po_s("{\"error\":{\"code\":\"busy\",\"message\":\"send it again\"}}"), 1);
    }
}

// Names the alias, which may be any bytes of a stranger's.
static void tell_unknown(po_request *request) {
    static po_log_site site = {.name = "refused_unknown_account", .per_second = PO_LOG_REFUSALS};
    char peer[PO_PEER_SIZE], names[2][128];
    if (!po_log_admit(&site))
        return;
    for (unsigned i = 0; i < 2; i++) {
        po_str segment = po_request_segment(request, i);
        (void)snprintf(names[i], sizeof names[i], "%.*s", (int)segment.n, segment.p);
    }
    po_request_peer(request, peer);
    po_log(PO_WARN, "request refused", PO_TEXT("code", "unknown_account"),
           PO_TEXT("provider", names[0]), PO_TEXT("account", names[1]), PO_TEXT("peer", peer));
}

static void door(po_request *request, const doors *d, const char *name) {
    const account *account =
        accounts_at(d->accounts, po_request_segment(request, 0), po_request_segment(request, 1));
    if (!account || strcmp(account->provider->door, name) != 0) {
        tell_unknown(request);
        po_count(m_refused, "unknown_account", 1);
        po_reply_error(request, 404, "unknown_account", "no such provider and account here");
        return;
    }
    enter(request, d, account);
}

void doors_webhook(po_request *request, void *doors) {
    door(request, doors, "webhooks");
}

void doors_observation(po_request *request, void *doors) {
    door(request, doors, "observations");
}

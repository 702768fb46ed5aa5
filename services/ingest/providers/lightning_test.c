// Lightning's door: the Standard Webhooks vector and grammar, the observation's shape, and every
// row of the table that says what LND's facts mean for an order.
#include "decision/decide.h"
#include "providers/signature.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <cmocka.h>

#define NOW ((int64_t)1760000000 * PO_SECOND_US)
#define SECRET "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
#define BODY "{\"type\":\"order.paid\"}"
#define GOOD "v1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI="
#define BAD "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
#define HASH "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define SET "fb89a6c991f2c577dd52eb6183db5eb8dc6722dcb685cb4fc67713b068125194"

static const char *const secrets[] = {SECRET, NULL};
static const char *const rolled[] = {"whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", SECRET,
                                     NULL};
static const char *const no_secret[] = {"", NULL};

static verify_result verify_body(const char *const *keys, const char *id, const char *t,
                                 const char *signature, po_str body, int64_t now_us) {
    account a = {.provider = provider_find(po_s("lightning")), .name = "node", .secrets = keys};
    header_value headers[4] = {
        {po_s(id), id ? 1 : 0}, {po_s(t), t ? 1 : 0}, {po_s(signature), signature ? 1 : 0}};
    return a.provider->verify(&a, headers, body, now_us);
}

static verify_result verify(const char *const *keys, const char *id, const char *t,
                            const char *signature, int64_t now_us) {
    return verify_body(keys, id, t, signature, po_s(BODY), now_us);
}

static void standard_webhooks_is_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *id, *t, *signature;
        verify_result want;
    } rows[] = {
        {"msg_demo1", "1760000000", GOOD, VERIFY_OK},
        {"msg_demo1", "1760000000", BAD " " GOOD, VERIFY_OK},
        {"msg_demo1", "1760000000", GOOD " " BAD, VERIFY_OK},
        {"msg_demo1", "1760000000", "v1a,xx " GOOD, VERIFY_OK},
        {"msg_demo1", "1760000000", "v1,AAAA " GOOD, VERIFY_OK},
        {" msg_demo1 ", " 1760000000 ", " " GOOD " ", VERIFY_OK},
        {"msg_demo1", "1760000000", BAD, VERIFY_WRONG},
        {"msg_demo2", "1760000000", GOOD, VERIFY_WRONG},
        {"msg_demo1", "1760000001", GOOD, VERIFY_WRONG},
        {"msg_demo1", "1760000000",
         "v1a,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI=", VERIFY_WRONG},
        {"msg_demo1", "1760000000",
         "V1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI=", VERIFY_WRONG},
        {"msg_demo1", "1760000000",
         "v1,LZp19g-0ORvybD14kC2Iqg0zn6g-tzdUNVz0fHVXftI=", VERIFY_WRONG},
        {"msg_demo1", "1760000000",
         "v1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftJ=", VERIFY_WRONG}, // unused bits
        {"msg_demo1", "1760000000", "v1,LZp19g+0ORvybD14kC2Iqg0zn6g+tzdUNVz0fHVXftI", VERIFY_WRONG},
        {"msg_demo1", "1760000000", GOOD "  " BAD, VERIFY_MALFORMED},
        {"msg_demo1", "1760000000", "LZp19g", VERIFY_MALFORMED},
        {"msg.demo1", "1760000000", GOOD,
         VERIFY_MALFORMED}, // would move the border of the signed parts
        {"msg demo1", "1760000000", GOOD, VERIFY_MALFORMED},
        {"msg_demo1", "01760000000", GOOD, VERIFY_MALFORMED},
        {"msg_demo1", "1760000000.", GOOD, VERIFY_MALFORMED},
        {NULL, "1760000000", GOOD, VERIFY_MISSING},
        {"msg_demo1", NULL, GOOD, VERIFY_MISSING},
        {"msg_demo1", "1760000000", NULL, VERIFY_MISSING},
        {"msg_demo1", "1760000000", "", VERIFY_MISSING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        verify_result got = verify(secrets, rows[i].id, rows[i].t, rows[i].signature, NOW);
        if (got != rows[i].want)
            fail_msg("row %zu (%s): %d, wanted %d", i, rows[i].signature, got, rows[i].want);
    }
    assert_int_equal(verify(rolled, "msg_demo1", "1760000000", GOOD, NOW), VERIFY_OK);
    assert_int_equal(verify(no_secret, "msg_demo1", "1760000000", GOOD, NOW), VERIFY_WRONG);
    assert_int_equal(verify(secrets, "msg_demo1", "1760000000", GOOD, NOW + 300 * PO_SECOND_US),
                     VERIFY_OK);
    assert_int_equal(verify(secrets, "msg_demo1", "1760000000", GOOD, NOW + 301 * PO_SECOND_US),
                     VERIFY_STALE);
    assert_int_equal(verify(secrets, "msg_demo1", "1760000000", GOOD, NOW - 301 * PO_SECOND_US),
                     VERIFY_STALE);
}

// FAULTS 40: what the headers alone refuse is refused without a look at the body, which here cannot
// be read at all.
static void what_the_headers_refuse_costs_no_hash(void **state) {
    (void)state;
    void *closed = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(closed, MAP_FAILED);
    po_str body = {closed, 1 << 20};
    assert_int_equal(verify_body(rolled, "m", "1760000000", GOOD, body, NOW + 301 * PO_SECOND_US),
                     VERIFY_STALE);
    assert_int_equal(verify_body(rolled, "m", "1760000000", BAD, body, NOW - 301 * PO_SECOND_US),
                     VERIFY_STALE);
    assert_int_equal(verify_body(rolled, "m", "1760000000", "v1a,xx", body, NOW), VERIFY_WRONG);
    munmap(closed, 1 << 20);
}

static void signatures_are_bounded(void **state) {
    (void)state;
    po_buf header = {0};
    for (int i = 0; i < 15; i++)
        po_buf_puts(&header, BAD " ");
    po_buf_puts(&header, GOOD);
    assert_int_equal(verify(secrets, "msg_demo1", "1760000000", header.p, NOW), VERIFY_OK);
    po_buf_puts(&header, " " BAD);
    assert_int_equal(verify(secrets, "msg_demo1", "1760000000", header.p, NOW), VERIFY_MALFORMED);
    po_buf_done(&header);
}

static void secrets_are_checked_at_start(void **state) {
    (void)state;
    static const struct {
        const char *secret;
        bool good;
    } rows[] = {{"", false},
                {"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", false},
                {"whsec_", false},
                {"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRY=", false}, // 23 bytes
                {"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", true},  // 24
                {"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX\n", false},
                {SECRET, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(provider_find(po_s("lightning"))->check_secret(rows[i].secret) == NULL,
                         rows[i].good);
}

// --- Reading

typedef struct fixture {
    po_arena *arena;
    observation o;
    account account;
} fixture;

static int setup(void **state) {
    static fixture f;
    f = (fixture){.arena = po_arena_new(),
                  .account = {.provider = provider_find(po_s("lightning")),
                              .name = "node",
                              .secrets = secrets}};
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    po_arena_free(&f->arena);
    return 0;
}

static const observation *read_body(fixture *f, const char *id, const char *body) {
    header_value headers[4] = {{po_s(id), 1}};
    f->account.provider->read(&f->account, headers, po_s(body), f->arena, &f->o);
    return &f->o;
}

#define OBJECT(rest) \
    "\"object\":{\"payment_hash\":\"" HASH "\",\"creation_date\":\"1759999000\"," rest "}"
#define INVOICE(observed, rest) \
    "{\"kind\":\"invoice\",\"profile\":\"alice\",\"observed_at\":\"" observed "\"," OBJECT(rest) "}"
#define LOOKED "2026-01-01T00:00:00Z"
#define INVOICE_REST \
    "\"profile\":\"alice\",\"observed_at\":\"" LOOKED "\"," OBJECT("\"state\":\"OPEN\"") "}"

static const observation *read_invoice(fixture *f, const char *rest) {
    return read_body(f, "obs_1", po_printf(f->arena, INVOICE(LOOKED, "%s"), rest));
}

static void assert_str(po_str got, const char *want) {
    if (!po_str_is(got, want))
        fail_msg("\"%.*s\", wanted \"%s\"", (int)got.n, got.p ? got.p : "", want);
}

static void a_settled_invoice_states_the_money(void **state) {
    const observation *o =
        read_invoice(*state, "\"state\":\"SETTLED\",\"value_msat\":\"1500\",\"amt_paid_msat\":"
                             "\"2000\",\"settle_date\":\"1760000000\"");
    assert_int_equal(o->disposition, OBS_FACTS);
    assert_str(o->event_id, "obs_1");
    assert_str(o->type, "invoice.SETTLED");
    assert_str(o->profile, "alice");
    assert_int_equal(o->n_refs, 1);
    assert_str(o->refs[0].kind, "payment_hash");
    assert_str(o->refs[0].value, HASH);
    assert_str(o->refs[0].payment, HASH);
    const fact *f = &o->facts[0];
    assert_int_equal(o->n_facts, 1);
    assert_int_equal(f->state, STATE_PAID);
    assert_str(f->object, HASH);
    assert_string_equal(f->unit.currency, "BTC");
    assert_int_equal(f->unit.exponent, 11);
    assert_int_equal(f->amount, 2000);
    assert_int_equal(f->at_us, NOW);
    assert_int_equal(o->occurred_at_us, NOW);
}

static void each_state_of_an_invoice(void **state) {
    static const struct {
        const char *word;
        fact_state want;
        int rank;
    } rows[] = {{"OPEN", STATE_PENDING, 1},         {"ACCEPTED", STATE_HELD, 2},
                {"CANCELED", STATE_CANCELED, 3},    {"SETTLED", STATE_PAID, 3},
                {"settled", STATE_UNSUPPORTED, 0},  {"CANCELLED", STATE_UNSUPPORTED, 0},
                {"IN_FLIGHT", STATE_UNSUPPORTED, 0}};
    fixture *fx = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const observation *o =
            read_invoice(fx, po_printf(fx->arena, "\"state\":\"%s\",\"amt_paid_msat\":\"300000\"",
                                       rows[i].word));
        assert_int_equal(o->disposition, OBS_FACTS);
        assert_int_equal(o->facts[0].state, rows[i].want);
        assert_int_equal(o->facts[0].rank, rows[i].rank);
        // LND leaves the amount on held and canceled invoices: it is money only when SETTLED.
        assert_int_equal(o->facts[0].amount, rows[i].want == STATE_PAID ? 300000 : NO_AMOUNT);
        assert_int_equal(o->facts[0].canceled_seen, rows[i].want == STATE_CANCELED);
        // settle_date is missing: the invoice's creation, never the observer's clock.
        assert_int_equal(o->facts[0].at_us, NOW - 1000 * PO_SECOND_US);
    }
    // A date of settling says nothing about an invoice that is not settled.
    const observation *o =
        read_invoice(fx, "\"state\":\"ACCEPTED\",\"settle_date\":\"1760000000\"");
    assert_int_equal(o->facts[0].at_us, NOW - 1000 * PO_SECOND_US);
}

// Reports 45 and 47: 64 bits, and millisatoshi stay.
static void amounts_keep_every_millisatoshi(void **state) {
    const observation *o = read_invoice(*state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"1999\"");
    assert_int_equal(o->facts[0].amount, 1999);
    o = read_invoice(*state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"3000000000\"");
    assert_int_equal(o->facts[0].amount, 3000000000);
    o = read_invoice(*state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"9223372036854775807\"");
    assert_true(o->facts[0].amount == INT64_MAX);
    o = read_invoice(*state, "\"state\":\"SETTLED\"");
    assert_true(o->facts[0].amount == NO_AMOUNT);
}

static void each_set_of_an_amp_invoice_is_a_payment(void **state) {
    const observation *o = read_invoice(
        *state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"5\",\"set_id\":\"" SET "\"");
    assert_str(o->facts[0].object, HASH ":" SET);
    assert_str(o->refs[0].value, HASH);
    assert_int_equal(o->refs[0].payment.n, 0);
}

// FAULTS 31
static void what_nobody_reads_may_say_anything(void **state) {
    const observation *o = read_invoice(
        *state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"1500\",\"memo\":\"\\u0000\","
                "\"memo\":\"\\ud800\",\"value_msat\":1e400,\"htlcs\":[{\"a\":1,\"a\":-0}]");
    assert_int_equal(o->disposition, OBS_FACTS);
    assert_int_equal(o->facts[0].amount, 1500);
}

static void what_cannot_be_read_is_quarantined(void **state) {
    static const struct {
        const char *body, *problem;
    } rows[] = {
        {"", "json_syntax"},
        {"{}", "json_missing"},
        {"{\"kind\":\"address\"}", "kind"},
        {"{\"kind\":\"invoice\",\"profile\":\"alice\",\"observed_at\":\"" LOOKED "\"}",
         "json_missing"},
        {"{\"kind\":\"invoice\",\"observed_at\":\"" LOOKED "\"," OBJECT("\"state\":\"OPEN\"") "}",
         "json_missing"},
        {INVOICE("yesterday", "\"state\":\"OPEN\""), "time"},
        {INVOICE(LOOKED, "\"state\":3"), "json_type"},
        {INVOICE(LOOKED, "\"set_id\":\"\""), "json_missing"},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"amt_paid_msat\":2000"), "json_type"},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"-1\""), "amount_negative"},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"9223372036854775808\""), NULL},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"1e3\""), NULL},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"1\",\"amt_paid_msat\":\"2\""),
         "json_twice"},
        {"{\"object\":{},\"kind\":\"invoice\"," INVOICE_REST, "json_twice"},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\\u0000\""), "json_text"},
        {INVOICE(LOOKED, "\"state\":\"SETTLED\",\"settle_date\":\"9223372036854775807\""),
         "time_range"},
        {INVOICE(LOOKED, "\"state\":\"OPEN\",\"set_id\":\"zz\""), "hash"},
        {"{\"kind\":\"invoice\",\"profile\":\"alice\",\"observed_at\":\"" LOOKED
         "\",\"object\":{\"payment_hash\":\"00\",\"state\":\"OPEN\"}}",
         "hash"},
        {"{\"kind\":\"invoice\",\"profile\":\"alice\",\"observed_at\":\"" LOOKED
         "\",\"object\":{\"payment_hash\":\"" HASH
         "\",\"state\":\"OPEN\",\"creation_date\":\"0\"}}",
         "json_missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const observation *o = read_body(*state, "obs_9", rows[i].body);
        if (o->disposition != OBS_QUARANTINE)
            fail_msg("row %zu was read: %s", i, rows[i].body);
        if (rows[i].problem)
            assert_str(o->problem, rows[i].problem);
        assert_str(o->event_id, "obs_9");
        assert_int_equal(o->n_facts, 0);
    }
}

// FAULTS 29: a configured node is compared, and what names a node without one configured is not
// taken on trust.
static void another_node_is_set_apart(void **state) {
    static const struct {
        const char *id, *node, *problem; // problem NULL: taken
    } rows[] = {
        {NULL, "", NULL},
        {NULL, "\"node\":null,", NULL},
        {NULL, "\"node\":\"02aa\",", "account_unset"},
        {"02aa", "\"node\":\"02aa\",", NULL},
        {"02aa", "\"node\":\"02bb\",", "account"},
        {"02aa", "", "account"},
        {"02aa", "\"node\":null,", "account"},
    };
    fixture *f = *state;
    uint8_t digest[32];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        f->account.id = rows[i].id;
        const observation *o = read_body(
            f, "obs_1",
            po_printf(f->arena,
                      "{\"kind\":\"invoice\",%s\"profile\":\"alice\","
                      "\"observed_at\":\"" LOOKED
                      "\"," OBJECT("\"state\":\"SETTLED\",\"amt_paid_msat\":\"1500\"") "}",
                      rows[i].node));
        bool taken = o->disposition == OBS_FACTS && !rows[i].problem;
        bool apart = o->disposition == OBS_FOREIGN && rows[i].problem &&
                     po_str_is(o->problem, rows[i].problem);
        if (!taken && !apart)
            fail_msg("row %zu: disposition %d, problem %.*s", i, o->disposition, (int)o->problem.n,
                     o->problem.p ? o->problem.p : "");
        assert_str(o->event_id, taken ? "obs_1" : "foreign:obs_1");
        assert_int_equal(o->n_facts + o->n_refs, taken ? 2 : 0);
        // The same whoever looked.
        if (i == 0)
            memcpy(digest, o->digest, sizeof digest);
        assert_memory_equal(o->digest, digest, sizeof digest);
    }
}

// The example of docs/observations.md: the id of an observation is its content's.
static void the_digest_is_that_of_the_documented_content(void **state) {
    uint8_t want[32];
    assert_true(po_unhex(po_s("1033836de383f0e2ff05b50d07efa260dac0427b389dee4ba5c6bfab90bc58f7"),
                         want, 32));
    const observation *o =
        read_invoice(*state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"2000\",\"settle_date\":"
                             "\"1760000000\",\"settle_index\":\"3\"");
    assert_memory_equal(o->digest, want, 32);
    // Another observer, another clock, another settle_index: the same.
    o = read_body(*state, "obs_2",
                  INVOICE("2026-02-02T10:00:00.5+01:00",
                          "\"settle_index\":\"9\",\"settle_date\":\"1760000000\","
                          "\"amt_paid_msat\":\"2000\",\"state\":\"SETTLED\""));
    assert_memory_equal(o->digest, want, 32);
    o = read_invoice(
        *state, "\"state\":\"SETTLED\",\"amt_paid_msat\":\"2001\",\"settle_date\":\"1760000000\"");
    assert_memory_not_equal(o->digest, want, 32);
}

// --- The table of lightning-v1

static order order_of(int64_t price) {
    return (order){.id = po_s("o-1"),
                   .policy = policy_find(po_s("lightning-v1")),
                   .price = {price, {.currency = "BTC", .exponent = 11}},
                   .profile = po_s("alice")};
}

static void each_row_of_the_table(void **state) {
    static const struct {
        const char *rest;
        order_state state;
        verdict verdict;
        const char *reason;
        event_type emits;
        int64_t over;
    } rows[] = {
        {"\"state\":\"SETTLED\"", ORDER_REVIEW, VERDICT_INCONSISTENT, "amount_missing",
         EVENT_REVIEW_REQUIRED, 0},
        {"\"state\":\"SETTLED\",\"amt_paid_msat\":\"1499\"", ORDER_REVIEW, VERDICT_UNDERPAID,
         "underpaid", EVENT_REVIEW_REQUIRED, 0},
        {"\"state\":\"SETTLED\",\"amt_paid_msat\":\"1500\"", ORDER_PAID, VERDICT_QUALIFIED, "",
         EVENT_QUALIFIED, 0},
        {"\"state\":\"SETTLED\",\"amt_paid_msat\":\"1501\"", ORDER_PAID, VERDICT_QUALIFIED, "",
         EVENT_QUALIFIED, 1},
        {"\"state\":\"CANCELED\",\"amt_paid_msat\":\"1500\"", ORDER_CANCELED, VERDICT_CANCELED,
         "canceled", EVENT_CANCELED, 0},
        {"\"state\":\"OPEN\"", ORDER_OPEN, VERDICT_PENDING, "", EVENT_PENDING, 0},
        {"\"state\":\"ACCEPTED\",\"amt_paid_msat\":\"1500\"", ORDER_OPEN, VERDICT_PENDING, "",
         EVENT_PENDING, 0},
        {"\"state\":\"LOCKED\",\"amt_paid_msat\":\"1500\"", ORDER_OPEN, VERDICT_UNSUPPORTED, "",
         EVENT_NONE, 0},
    };
    fixture *fx = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        order o = order_of(1500);
        fact_set facts;
        decision d;
        fact_set_init(&facts, fx->arena);
        decide(&o, &facts, read_invoice(fx, rows[i].rest), &d);
        assert_int_equal(o.position.state, rows[i].state);
        assert_int_equal(o.position.verdict, rows[i].verdict);
        assert_string_equal(o.position.reason, rows[i].reason);
        assert_int_equal(d.emits, rows[i].emits);
        assert_int_equal(o.position.over, rows[i].over > 0);
        if (o.position.over)
            assert_int_equal(o.position.received - o.position.due, rows[i].over);
    }
}

// "Invoice or node profile is not the order's": inconsistent, and its money is not the order's.
static void another_nodes_invoice_moves_no_money(void **state) {
    static const char *const rests[] = {"\"state\":\"SETTLED\",\"amt_paid_msat\":\"1500\"",
                                        "\"state\":\"OPEN\""};
    fixture *fx = *state;
    for (size_t i = 0; i < 2; i++) {
        order o = order_of(1500);
        o.profile = po_s("bob");
        fact_set facts;
        decision d;
        fact_set_init(&facts, fx->arena);
        decide(&o, &facts, read_invoice(fx, rests[i]), &d);
        assert_int_equal(o.position.state, ORDER_REVIEW);
        assert_string_equal(o.position.reason, "foreign_profile");
        assert_int_equal(o.position.received, 0);
        assert_int_equal(facts.n, 1);
        assert_int_equal(facts.facts[0].kind, FACT_MISMATCH);
        decide(&o, &facts, read_invoice(fx, rests[i]), &d);
        assert_int_equal(d.emits, EVENT_NONE);
    }
}

static void orders_are_kept_in_millisatoshi(void **state) {
    (void)state;
    const policy *p = policy_find(po_s("lightning-v1"));
    po_unit unit = {0};
    assert_true(p->unit(po_s("BTC"), &unit));
    assert_int_equal(unit.exponent, 11);
    assert_false(p->unit(po_s("USD"), &unit));
    assert_false(p->unit(po_s("btc"), &unit));
    assert_null(policy_find(po_s("lightning-v2")));
}

#define READ(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_webhooks_is_read_strictly),
        cmocka_unit_test(what_the_headers_refuse_costs_no_hash),
        cmocka_unit_test(signatures_are_bounded),
        cmocka_unit_test(secrets_are_checked_at_start),
        READ(a_settled_invoice_states_the_money),
        READ(each_state_of_an_invoice),
        READ(amounts_keep_every_millisatoshi),
        READ(each_set_of_an_amp_invoice_is_a_payment),
        READ(what_nobody_reads_may_say_anything),
        READ(what_cannot_be_read_is_quarantined),
        READ(another_node_is_set_apart),
        READ(the_digest_is_that_of_the_documented_content),
        READ(each_row_of_the_table),
        READ(another_nodes_invoice_moves_no_money),
        cmocka_unit_test(orders_are_kept_in_millisatoshi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

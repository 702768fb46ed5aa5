// Events against bytes that another implementation wrote (Python's fastavro 1.13, from
// schemas/*.avsc), versions of a schema side by side, and docs/events.md against what the program
// prints.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "event/event.h"
#include <cmocka.h>
#include <jansson.h>

// A PaymentEvent of version 1 around its refund_id, and what version 2 puts after it: all of it, and
// nothing.
#define BEFORE                                                                                     \
    "4830313961303030302d303030302d373030302d383030302d303030303030303030303031207061796d656e742e" \
    "726566756e6465640e"                                                                           \
    "6f726465722d3114637573746f6d65722d310c636f7572736506632d390870616964064254431680bd831482bd83" \
    "1402010201000"                                                                                \
    "10c7374726970651273686f702d6c6976650a6576745f314830313961303030302d303030302d373030302d38303" \
    "0302d303030303030"                                                                            \
    "303030306666186c696768746e696e672d763102127175616c6966696564147a61c5bcc3b3c582c487"
#define AFTER "01f6f9e4be82670112"
#define REFUND "020872655f31"
#define MORE                                                                                     \
    "0c7265766f6b65040c7374726970651273686f702d6c69766580bd8314028001d804126c696768746e696e6708" \
    "6e6f646502000000000a8080808080408001020864705f310280f8e4be826702cec7f5c19467"
#define NO_MORE "0000000000000000"
#define TAGS       \
    "030802610262" \
    "00" // ["a", "b"], as a block with its size
#define RATE "000000000000f03f"
#define CONTACT "0e6f726465722d311a61406578616d706c652e6f726700"

static po_arena *arena;

static int setup(void **state) {
    (void)state;
    arena = po_arena_new();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    po_arena_free(&arena);
    return 0;
}

static po_str unhex(const char *hex) {
    size_t n = strlen(hex) / 2;
    char *out = po_alloc(arena, n + 1);
    assert_true(po_unhex(po_s(hex), out, n));
    return (po_str){out, n};
}

static const po_leg two_legs[] = {
    {{"stripe", 6}, {"shop-live", 9}, 21000000, 1, 64, 300},
    {{"lightning", 9}, {"node", 4}, 1, 0, 0, 0},
};

static po_payment_event example(void) {
    po_payment_event e = {.type = po_s("payment.refunded"),
                          .order_id = po_s("order-1"),
                          .customer_id = po_s("customer-1"),
                          .purpose = po_s("course"),
                          .item = po_s("c-9"),
                          .state = po_s("paid"),
                          .unit = {"BTC", 11},
                          .due = 21000000,
                          .received = 21000001,
                          .refunded = 1,
                          .delta = -1,
                          .qualification = 1,
                          .late = true,
                          .over = true,
                          .provider = po_s("stripe"),
                          .account = po_s("shop-live"),
                          .provider_event_id = po_s("evt_1"),
                          .policy = po_s("lightning-v1"),
                          .policy_version = 1,
                          .verdict = po_s("qualified"),
                          .reason = po_s("zażółć"),
                          .refund_id = po_s("re_1"),
                          .receipt = true,
                          .decided_at_us = -500,
                          .sequence = 9,
                          .right = po_s("revoke"),
                          .accounts = two_legs,
                          .n_accounts = 2,
                          .tax = 5,
                          .shipping = 1LL << 40,
                          .disputed = 64,
                          .dispute_id = po_s("dp_1")};
    assert_true(po_uuid_parse(po_s("019a0000-0000-7000-8000-000000000001"), &e.event_id));
    assert_true(po_uuid_parse(po_s("019a0000-0000-7000-8000-0000000000ff"), &e.decision_id));
    assert_true(po_parse_rfc3339(po_s("2026-01-31T12:00:00.123999Z"), &e.occurred_at_us));
    assert_true(po_parse_rfc3339(po_s("2026-01-31T12:00:00Z"), &e.period_start_us));
    assert_true(po_parse_rfc3339(po_s("2026-02-28T12:00:00.999Z"), &e.period_end_us));
    return e;
}

// The same event, as one reads it who was told by version 1.
static po_payment_event as_v1(po_payment_event e) {
    e.right = e.dispute_id = (po_str){0};
    e.accounts = NULL;
    e.n_accounts = 0;
    e.tax = e.shipping = e.disputed = e.period_start_us = e.period_end_us = 0;
    return e;
}

static void same_legs(const po_payment_event *a, const po_payment_event *b) {
    assert_int_equal(a->n_accounts, b->n_accounts);
    for (size_t i = 0; i < a->n_accounts; i++) {
        const po_leg *x = &a->accounts[i], *y = &b->accounts[i];
        assert_true(po_str_eq(x->provider, y->provider) && po_str_eq(x->account, y->account));
        assert_true(x->received == y->received && x->refunded == y->refunded &&
                    x->disputed == y->disputed && x->fee == y->fee);
    }
}

static void same(const po_payment_event *a, const po_payment_event *b) {
    assert_memory_equal(&a->event_id, &b->event_id, sizeof a->event_id);
    assert_memory_equal(&a->decision_id, &b->decision_id, sizeof a->decision_id);
    const po_str *texts[][2] = {{&a->type, &b->type},
                                {&a->order_id, &b->order_id},
                                {&a->customer_id, &b->customer_id},
                                {&a->purpose, &b->purpose},
                                {&a->item, &b->item},
                                {&a->state, &b->state},
                                {&a->provider, &b->provider},
                                {&a->account, &b->account},
                                {&a->provider_event_id, &b->provider_event_id},
                                {&a->policy, &b->policy},
                                {&a->verdict, &b->verdict},
                                {&a->reason, &b->reason},
                                {&a->refund_id, &b->refund_id},
                                {&a->right, &b->right},
                                {&a->dispute_id, &b->dispute_id}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_true(po_str_eq(*texts[i][0], *texts[i][1]));
    assert_true(po_unit_eq(a->unit, b->unit));
    assert_true(a->due == b->due && a->received == b->received && a->refunded == b->refunded &&
                a->delta == b->delta);
    assert_int_equal(a->qualification, b->qualification);
    assert_int_equal(a->policy_version, b->policy_version);
    assert_true(a->late == b->late && a->partial == b->partial && a->over == b->over &&
                a->receipt == b->receipt);
    assert_true(a->occurred_at_us == b->occurred_at_us && a->decided_at_us == b->decided_at_us);
    assert_true(a->sequence == b->sequence);
    assert_true(a->tax == b->tax && a->shipping == b->shipping && a->disputed == b->disputed);
    assert_true(a->period_start_us == b->period_start_us && a->period_end_us == b->period_end_us);
    same_legs(a, b);
}

static void read_back(const po_avro_schema *writer, const char *hex,
                      const po_payment_event *expected) {
    po_payment_event read;
    po_err err = {0};
    if (!po_payment_event_read(writer, unhex(hex), arena, &read, &err))
        fail_msg("%s: %s", err.code, err.text);
    same(&read, expected);
}

static void test_payment_event(void **state) {
    (void)state;
    po_payment_event e = example();
    PO_AUTO(po_buf_done) po_buf out = {0};
    po_err err = {0};
    assert_true(po_payment_event_write(&e, &out, &err));
    assert_true(po_str_eq(po_buf_view(&out), unhex(BEFORE REFUND AFTER MORE)));
    e.occurred_at_us -= 999; // the wire has milliseconds, rounded down
    e.decided_at_us = -1000;
    read_back(po_payment_event_schema(), BEFORE REFUND AFTER MORE, &e);
    e = as_v1(e);
    e.refund_id = (po_str){0};
    read_back(po_payment_event_schema(), BEFORE "00" AFTER NO_MORE, &e);
    out.n = 0;
    assert_true(po_payment_event_write(&e, &out, &err));
    assert_true(po_str_eq(po_buf_view(&out), unhex(BEFORE "00" AFTER NO_MORE)));
}

static void test_contact(void **state) {
    (void)state;
    po_contact c = {po_s("order-1"), po_s("a@example.org"), {0}}, read;
    PO_AUTO(po_buf_done) po_buf out = {0};
    po_err err = {0};
    assert_true(po_contact_write(&c, &out, &err));
    assert_true(po_str_eq(po_buf_view(&out), unhex(CONTACT)));
    assert_true(po_contact_read(po_contact_schema(), po_buf_view(&out), arena, &read, &err));
    assert_true(po_str_eq(read.order_id, c.order_id) && po_str_eq(read.email, c.email) &&
                read.language.n == 0);
    assert_false(po_contact_read(po_payment_event_schema(), po_buf_view(&out), arena, &read, &err));
    assert_string_equal(err.code, "avro_unresolvable");
}

// The schema of this build after `change`.
static po_avro_schema *version(void (*change)(json_t *fields)) {
    po_str text = po_avro_text(po_payment_event_schema());
    json_t *json = json_loadb(text.p, text.n, 0, NULL);
    change(json_object_get(json, "fields"));
    char *changed = json_dumps(json, 0);
    po_avro_schema *schema = NULL;
    po_err err = {0};
    assert_true(po_avro_parse(po_s(changed), &schema, &err));
    free(changed);
    json_decref(json);
    return schema;
}

static size_t place(const json_t *fields, const char *name) {
    for (size_t i = 0;; i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(fields, i), "name")), name))
            return i;
}

static void without_refund(json_t *fields) {
    json_array_remove(fields, place(fields, "refund_id"));
}

static void with_more(json_t *fields) {
    json_array_insert_new(
        fields, 0,
        json_pack("{s:s,s:{s:s,s:s}}", "name", "tags", "type", "type", "array", "items", "string"));
    json_array_append_new(fields, json_pack("{s:s,s:s}", "name", "rate", "type", "double"));
}

static void without_due(json_t *fields) {
    json_array_remove(fields, place(fields, "due"));
}

static void in_micros(json_t *fields) {
    json_t *type = json_object_get(json_array_get(fields, place(fields, "decided_at")), "type");
    json_object_set_new(type, "logicalType", json_string("timestamp-micros"));
}

// Versions follow each other in one topic; the schemas read for one must not serve another,
// whatever became of the first one's memory.
static void test_versions(void **state) {
    (void)state;
    po_payment_event e = example(), none = e;
    e.occurred_at_us -= 999;
    none.occurred_at_us -= 999;
    e.decided_at_us = none.decided_at_us = -1000;
    none.refund_id = (po_str){0};
    for (int round = 0; round < 3; round++) {
        po_avro_schema *older = version(without_refund);
        read_back(older, BEFORE AFTER MORE, &none);
        po_avro_free(&older);
        po_avro_schema *newer = version(with_more);
        read_back(newer, TAGS BEFORE REFUND AFTER MORE RATE, &e);
        po_avro_free(&newer);
        read_back(po_payment_event_schema(), BEFORE REFUND AFTER MORE, &e);
    }
    void (*const changes[])(json_t *) = {without_due, in_micros};
    for (size_t i = 0; i < 2; i++) {
        po_avro_schema *other = version(changes[i]);
        po_payment_event read;
        po_err err = {0};
        assert_false(
            po_payment_event_read(other, unhex(BEFORE REFUND AFTER MORE), arena, &read, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_string_equal(err.code, "avro_unresolvable");
        po_avro_free(&other);
    }
}

static char *whole_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("no %s", path);
    char *text = calloc(1, 1 << 16);
    assert_true(fread(text, 1, (1 << 16) - 1, file) < (1 << 16) - 1);
    fclose(file);
    return text;
}

static po_avro_schema *version_of(const char *file) {
    char *text = whole_file(po_printf(arena, PO_SOURCE_DIR "/schemas/history/%s", file));
    po_avro_schema *schema = NULL;
    po_err err = {0};
    assert_true(po_avro_parse(po_s(text), &schema, &err));
    free(text);
    return schema;
}

// FAULTS 47: what version 1 did not say is not stated, never nothing; and a reader of version 1
// reads on.
static void test_version_1(void **state) {
    (void)state;
    po_payment_event e = as_v1(example());
    e.occurred_at_us -= 999;
    e.decided_at_us = -1000;
    PO_AUTO(po_avro_free) po_avro_schema *v1 = version_of("payment_event.v1.avsc");
    read_back(v1, BEFORE REFUND AFTER, &e);

    PO_AUTO(po_avro_resolver_free) po_avro_resolver *old = NULL;
    po_avro_value *values = NULL;
    po_err err = {0};
    assert_true(po_avro_resolver_new(po_payment_event_schema(), v1, &old, &err));
    assert_true(po_avro_decode(old, unhex(BEFORE REFUND AFTER MORE), arena, &values, &err));
    PO_AUTO(po_buf_done) po_buf out = {0};
    assert_true(po_avro_encode(v1, values, 30, &out, &err));
    assert_true(po_str_eq(po_buf_view(&out), unhex(BEFORE REFUND AFTER)));
}

// P36: FULL_TRANSITIVE, as the registry will ask: every version reads every other.
static void test_every_version_reads_every_other(void **state) {
    (void)state;
    PO_AUTO(po_avro_free) po_avro_schema *v1 = version_of("payment_event.v1.avsc");
    const po_avro_schema *versions[] = {v1, po_payment_event_schema()};
    for (size_t i = 0; i < 4; i++) {
        PO_AUTO(po_avro_resolver_free) po_avro_resolver *resolver = NULL;
        po_err err = {0};
        if (!po_avro_resolver_new(versions[i / 2], versions[i % 2], &resolver, &err))
            fail_msg("%s", err.text);
    }
}

// What Avro's types cannot say is refused all the same, in both directions.
static void test_unsound(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        po_payment_event e = example();
        if (i == 0)
            e.unit.currency[0] = 0;
        if (i == 1)
            e.unit.currency[0] = 'b';
        if (i == 2)
            e.unit.exponent = 19;
        if (i == 3)
            e.unit.exponent = -1;
        if (i == 4)
            e.reason = po_s("\xff");
        PO_AUTO(po_buf_done) po_buf out = {0};
        po_err err = {0};
        assert_false(po_payment_event_write(&e, &out, &err));
        assert_int_equal(err.kind, PO_REFUSED);
        assert_int_equal(out.n, 0);
    }
    const po_avro_schema *schema = po_payment_event_schema();
    po_avro_resolver *resolver = NULL;
    po_err err = {0};
    assert_true(po_avro_resolver_new(schema, schema, &resolver, &err));
    char longer[1001];
    memset(longer, 'x', sizeof longer);
    const po_avro_value leg[] = {{PO_AVRO_STRING, .s = po_s("stripe")},
                                 {PO_AVRO_STRING, .s = {"a\0b", 3}},
                                 {PO_AVRO_LONG, .i = 1},
                                 {PO_AVRO_LONG, .i = 1},
                                 {PO_AVRO_LONG, .i = 1},
                                 {PO_AVRO_LONG, .i = 1}};
    const struct {
        const char *field;
        po_avro_value value;
    } cases[] = {
        {"event_id", {PO_AVRO_STRING, .s = po_s("1")}},
        {"decision_id", {PO_AVRO_STRING, .s = po_s("")}},
        {"currency", {PO_AVRO_STRING, .s = po_s("")}},
        {"currency", {PO_AVRO_STRING, .s = po_s("ABCDEFGH")}},
        {"exponent", {PO_AVRO_LONG, .i = 19}},
        {"occurred_at", {PO_AVRO_LONG, .i = INT64_MAX / 999}},
        {"occurred_at",
         {PO_AVRO_LONG, .i = -62135596800001}}, // before year 1: PostgreSQL has no such
        {"decided_at", {PO_AVRO_LONG, .i = 253402300800000}},
        // FAULTS 51: what PostgreSQL cannot keep is refused here, once.
        {"order_id", {PO_AVRO_STRING, .s = {"a\0b", 3}}},
        {"order_id", {PO_AVRO_STRING, .s = po_s("")}},
        {"order_id", {PO_AVRO_STRING, .s = {longer, 256}}},
        {"customer_id", {PO_AVRO_STRING, .s = {longer, 256}}},
        {"item", {PO_AVRO_STRING, .s = {longer, 1001}}},
        {"reason", {PO_AVRO_STRING, .s = {"\0", 1}}},
        {"refund_id", {PO_AVRO_STRING, .s = {"r\0", 2}}},
        {"right", {PO_AVRO_STRING, .s = {"grant\0", 6}}},
        {"accounts", {PO_AVRO_ARRAY, .records = {leg, 1}}},
        {"dispute_id", {PO_AVRO_STRING, .s = {longer, 1001}}},
        {"period_start", {PO_AVRO_LONG, .i = INT64_MAX / 999}},
        {"period_end", {PO_AVRO_LONG, .i = -62135596800001}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        po_avro_value *values = NULL;
        assert_true(
            po_avro_decode(resolver, unhex(BEFORE REFUND AFTER MORE), arena, &values, &err));
        values[po_avro_field(schema, cases[i].field)] = cases[i].value;
        PO_AUTO(po_buf_done) po_buf out = {0};
        assert_true(po_avro_encode(schema, values, 38, &out, &err));
        po_payment_event read = {.due = 5};
        assert_false(po_payment_event_read(schema, po_buf_view(&out), arena, &read, &err));
        assert_string_equal(err.code, "event");
        assert_non_null(strstr(err.text, cases[i].field));
        assert_int_equal(read.due, 5);
    }
    po_avro_resolver_free(&resolver);
}

// Every record and field says what it means.
static void test_docs_are_there(void **state) {
    (void)state;
    const po_avro_schema *schemas[] = {po_payment_event_schema(), po_contact_schema()};
    for (size_t i = 0; i < 2; i++) {
        po_str text = po_avro_text(schemas[i]);
        json_t *json = json_loadb(text.p, text.n, 0, NULL), *field;
        size_t k;
        assert_true(json_string_length(json_object_get(json, "doc")) > 20);
        json_array_foreach(json_object_get(json, "fields"), k, field)
            assert_true(json_string_length(json_object_get(field, "doc")) > 10);
        json_decref(json);
    }
}

static void test_events_page(void **state) {
    (void)state;
    char *printed = NULL, *page = whole_file(PO_SOURCE_DIR "/docs/events.md");
    size_t n = 0;
    FILE *out = open_memstream(&printed, &n);
    assert_non_null(out);
    po_events_markdown(out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(printed, "| `payments.v1` | PaymentEvent |"));
    assert_non_null(strstr(printed, "| `contacts.v1` | Contact, or a tombstone |"));
    if (strcmp(printed, page)) {
        FILE *wanted = fopen("events.md", "w");
        assert_non_null(wanted);
        fputs(printed, wanted);
        fclose(wanted);
        fail_msg("docs/events.md is behind: copy events.md of the current folder there");
    }
    free(printed);
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_payment_event),
        cmocka_unit_test(test_contact),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_every_version_reads_every_other),
        cmocka_unit_test(test_unsound),
        cmocka_unit_test(test_docs_are_there),
        cmocka_unit_test(test_events_page),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

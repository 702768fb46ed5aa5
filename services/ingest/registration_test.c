// The limits of an order's members: what is refused, what the message says, and what docs/orders.md
// says. And what a repeated registration must equal: the renderings of all versions, since stored
// digests are compared under the version that made them.
#include "registration.h"
#include "base/cleanup.h"
#include "json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

// The refusal of an order that is otherwise fit as far as its names go; it has no accounts.
static void read_with(const char *key, size_t length, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    char *text = po_alloc(arena, length + 1);
    memset(text, 'x', length);
    text[length] = 0;
    json_t *body = json_pack("{s:s, s:s, s:s, s:s, s:s}", "order_id", "o", "customer_id", "c",
                             "item", "i", "purpose", "course", "policy", "stripe-v1");
    json_object_set_new(body, key, json_string(text));
    registration read;
    *err = (po_err){0};
    assert_false(registration_read(body, NULL, arena, &read, err));
    json_decref(body);
}

// The number that docs/orders.md gives in the row that begins with this member.
static size_t documented(const char *key, const char *before) {
    char line[1024], begins[64];
    FILE *page = fopen(PO_SOURCE_DIR "/docs/orders.md", "r");
    assert_non_null(page);
    snprintf(begins, sizeof begins, "`%s`", key);
    long n = -1;
    while (n < 0 && fgets(line, sizeof line, page)) {
        char *cell = strstr(line, " | "), *name = strstr(line, begins);
        char *at = cell && name && name < cell ? strstr(cell, before) : NULL;
        if (at)
            n = strtol(at + strlen(before), NULL, 10);
    }
    fclose(page);
    assert_true(n > 0);
    return (size_t)n;
}

// FAULTS 66: the page, the check and the message speak of one limit.
static void test_every_limit_stands_once(void **state) {
    (void)state;
    static const char *const keys[] = {"order_id", "customer_id", "item"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t most = documented(keys[i], "≤ ");
        char words[64];
        snprintf(words, sizeof words, "%s is not an id of 1 to %zu ", keys[i], most);
        po_err err;
        for (size_t length = most; length <= 300; length++) {
            read_with(keys[i], length, &err);
            if ((strstr(err.text, words) != NULL) != (length > most))
                fail_msg("%zu: %s", length, err.text);
        }
        read_with(keys[i], 0, &err);
        assert_non_null(strstr(err.text, words));
    }
    po_err err;
    size_t most = documented("profile", "≤ ");
    read_with("profile", most, &err);
    assert_null(strstr(err.text, "profile"));
    read_with("profile", most + 1, &err);
    assert_non_null(strstr(err.text, "profile"));
}

static registration sample(void) {
    static po_str accounts[] = {{"shop", 4}};
    static struct stated_ref refs[] = {{{"shop", 4}, {"session", 7}, {"cs_1", 4}}};
    return (registration){.order_id = po_s("o-77"),
                          .customer_id = po_s("c-5"),
                          .purpose = po_s("course"),
                          .item = po_s("course-42"),
                          .policy = policy_find(po_s("stripe-v1")),
                          .accounts = accounts,
                          .n_accounts = 1,
                          .live = true,
                          .price = {4900, {"EUR", 2}},
                          .revoke_on_refund = true,
                          .refs = refs,
                          .n_refs = 1};
}

static void assert_digest(const registration *r, int version, const char *text) {
    uint8_t got[32], want[32];
    registration_digest(r, version, got);
    po_sha256(po_s(text), want);
    assert_memory_equal(got, want, sizeof want);
}

static void each_version_renders_as_it_always_did(void **state) {
    (void)state;
    registration r = sample();
    assert_digest(&r, 1,
                  "4:o-773:c-56:course9:course-429:stripe-v10:4900 EUR/2 0 1 0;"
                  "4:shop7:session4:cs_14:shop");
    assert_digest(&r, 2,
                  "4:o-77,3:c-5,6:course,9:course-42,9:stripe-v1,0:,4:4900,3:EUR,1:2,1:0,1:1,1:0,"
                  "1:1,4:shop,1:1,7:session,4:cs_1,4:shop,");
}

// FAULTS 40: the two lists ran into each other.
static void lists_do_not_run_into_each_other(void **state) {
    (void)state;
    po_str accounts[] = {po_s("shop"), po_s("session"), po_s("cs_1"), po_s("shop")};
    registration one = sample(), other = sample();
    other.accounts = accounts;
    other.n_accounts = 4;
    other.n_refs = 0;
    uint8_t a[32], b[32];
    registration_digest(&one, 1, a);
    registration_digest(&other, 1, b);
    assert_memory_equal(a, b, sizeof a); // why there is a second version
    registration_digest(&one, REGISTRATION_VERSION, a);
    registration_digest(&other, REGISTRATION_VERSION, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static bool read_ref(const char *policy, const char *kind, size_t length, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    char *value = po_alloc(arena, length + 1);
    memset(value, 'a', length);
    json_t *list = json_pack("[{s:s, s:s, s:s}]", "account", "shop", "kind", kind, "value", value);
    struct stated_ref *refs;
    size_t n;
    *err = (po_err){0};
    bool ok = registration_read_refs(list, policy_find(po_s(policy)), po_s("shop"), arena, &refs,
                                     &n, err);
    json_decref(list);
    return ok;
}

// A reference's kinds and lengths are its provider's own.
static void references_are_of_a_kind_of_the_provider(void **state) {
    (void)state;
    for (const provider *const *p = providers; *p; p++) {
        po_err err;
        for (const ref_kind *kind = (*p)->ref_kinds; kind->name; kind++) {
            assert_int_equal(read_ref((*p)->policy->name, kind->name, kind->max, &err),
                             kind->stated);
            assert_false(read_ref((*p)->policy->name, kind->name, kind->max + 1, &err));
        }
        assert_false(read_ref((*p)->policy->name, "order", 1, &err));
        assert_string_equal(err.code, "invalid");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_limit_stands_once),
        cmocka_unit_test(each_version_renders_as_it_always_did),
        cmocka_unit_test(references_are_of_a_kind_of_the_provider),
        cmocka_unit_test(lists_do_not_run_into_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// The limits of an order's members: what is refused, what the message says, and what docs/orders.md says.
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_limit_stands_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

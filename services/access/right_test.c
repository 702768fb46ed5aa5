// P22: the key is the order and the generation alone; the content tells recipient, purpose and item apart.
#include "base/cleanup.h"
#include "right.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_key(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    assert_string_equal(right_key(arena, po_s("o-1"), 1).p, "grant:o-1");
    assert_string_equal(right_key(arena, po_s("o-1"), 2).p, "grant.g2:o-1");
    assert_string_equal(right_key(arena, po_s("o-1"), 11).p, "grant.g11:o-1");
}

// FAULTS 45: no two operations share a key, whatever an order is called.
static void test_keys_are_injective(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    static const char *const orders[] = {
        "X",     "X:g2", "X:g2:g2", ":X",         "X:",  "g2:X",    "grant:X", "grant.g2:X",
        ".g2:X", "1",    "X:g11",   "grant.g1:X", "2:X", "X:g1:g1", ":"};
    enum { ORDERS = sizeof orders / sizeof *orders, GENERATIONS = 12 };
    const char *keys[ORDERS * GENERATIONS];
    size_t n = 0;
    for (size_t i = 0; i < ORDERS; i++)
        for (int generation = 1; generation <= GENERATIONS; generation++) {
            keys[n] = right_key(arena, po_s(orders[i]), generation).p;
            for (size_t j = 0; j < n; j++)
                assert_string_not_equal(keys[j], keys[n]);
            n++;
        }
}

static void test_content(void **state) {
    (void)state;
    static const char *const rows[][4] = {
        {"o-1", "c-1", "course", "go-101"},  {"o-1", "c-2", "course", "go-101"},
        {"o-1", "c-1", "package", "go-101"}, {"o-1", "c-1", "course", "go-102"},
        {"o-1", "c-1c", "ourse", "go-101"},  {"o-1", "c-1", "course:6", "go-101"},
        {"o-2", "c-1", "course", "go-101"},  {"", "", "", ""},
    };
    enum { N = sizeof rows / sizeof *rows };
    uint8_t seen[N][32], again[32];
    for (size_t i = 0; i < N; i++) {
        const po_str row[] = {po_s(rows[i][0]), po_s(rows[i][1]), po_s(rows[i][2]),
                              po_s(rows[i][3])};
        right_content(row[0], row[1], row[2], row[3], seen[i]);
        right_content(row[0], row[1], row[2], row[3], again);
        assert_memory_equal(seen[i], again, 32);
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], 32);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_key),
                                       cmocka_unit_test(test_keys_are_injective),
                                       cmocka_unit_test(test_content)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

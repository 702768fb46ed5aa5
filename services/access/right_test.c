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
    assert_string_equal(right_key(arena, po_s("o-1"), 2).p, "grant:o-1:g2");
    assert_string_equal(right_key(arena, po_s("o-1"), 11).p, "grant:o-1:g11");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_key), cmocka_unit_test(test_content)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/arena.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void pieces_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    po_arena *arena = po_arena_new();
    unsigned char *pieces[400];
    size_t sizes[400];
    for (int round = 0; round < 2; round++) { // the second one reuses memory that was written to
        for (size_t i = 0; i < 400; i++) {
            sizes[i] = (i * 37) % 3000;
            pieces[i] = po_alloc(arena, sizes[i]);
            assert_int_equal((uintptr_t)pieces[i] % 16, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(pieces[i][k], 0);
            memset(pieces[i], (int)(i % 255) + 1, sizes[i]);
        }
        for (size_t i = 0; i < 400; i++)
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(pieces[i][k], i % 255 + 1);
        po_arena_reset(arena);
        assert_int_equal(po_arena_used(arena), 0);
    }
    po_arena_free(&arena);
    assert_null(arena);
    po_arena_free(&arena);
}

static void a_large_piece_does_not_end_the_block(void **state) {
    (void)state;
    po_arena *arena = po_arena_new();
    char *before = po_alloc(arena, 16);
    char *large = po_alloc(arena, 1 << 20);
    large[(1 << 20) - 1] = 'x';
    char *after = po_alloc(arena, 16);
    assert_ptr_equal(after, before + 16);
    assert_int_equal(po_arena_used(arena), (1 << 20) + 32);
    po_arena_free(&arena);
}

static void texts_are_copied(void **state) {
    (void)state;
    po_arena *arena = po_arena_new();
    po_str copy = po_str_copy(arena, (po_str){"a\0b", 3});
    assert_int_equal(copy.n, 3);
    assert_memory_equal(copy.p, "a\0b\0", 4);
    assert_string_equal(po_str_copy(arena, (po_str){NULL, 0}).p, "");
    assert_null(po_strdup(arena, NULL));
    assert_string_equal(po_strdup(arena, "word"), "word");
    assert_string_equal(po_printf(arena, "%s:%05d", "n", 42), "n:00042");
    assert_int_equal(strlen(po_printf(arena, "%20000d", 1)), 20000);
    int64_t *numbers = po_alloc_array(arena, 5, sizeof *numbers);
    assert_int_equal(numbers[4], 0);
    po_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(a_large_piece_does_not_end_the_block),
        cmocka_unit_test(texts_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

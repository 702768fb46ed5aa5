// What undecided events await: FAULTS 45, no two things share a key, whatever an order or a reference is called. An
// alias holds no ':' (accounts.c), providers and kinds are words of ours.
#include "base/cleanup.h"
#include "undecided_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void keys_are_injective(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    static const char *const ids[] = {"X",         "X:Y",
                                      ":X",        "X:",
                                      ":",         "shop:session:X",
                                      "session:X", "stripe:shop:session:X",
                                      "order:X",   "pay:stripe:shop:X"};
    static const char *const aliases[] = {"shop", "session", "order"}, *const kinds[] = {
                                                                           "session",
                                                                           "payment_intent",
                                                                           "charge"};
    enum { IDS = 10, ALIASES = 3, KINDS = 3, EACH = 1 + ALIASES + ALIASES * KINDS + 1 };
    const char *keys[IDS * EACH];
    size_t n = 0;
    for (size_t i = 0; i < IDS; i++) {
        keys[n++] = await_order(arena, po_s(ids[i])).p;
        keys[n++] =
            await_ref(arena, po_s("lightning"), po_s("node"), po_s("payment_hash"), po_s(ids[i])).p;
        for (size_t a = 0; a < ALIASES; a++) {
            keys[n++] = await_payment(arena, po_s("stripe"), po_s(aliases[a]), po_s(ids[i])).p;
            for (size_t k = 0; k < KINDS; k++)
                keys[n++] =
                    await_ref(arena, po_s("stripe"), po_s(aliases[a]), po_s(kinds[k]), po_s(ids[i]))
                        .p;
        }
    }
    assert_int_equal(n, IDS * EACH);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(keys[i], keys[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_are_injective)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

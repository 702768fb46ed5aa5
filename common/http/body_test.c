#include "http/body.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { LIMIT = 20000, MEMORY = 50000 };

static void a_body_is_collected_up_to_its_limit(void **state) {
    (void)state;
    body b = {0};
    char piece[3000];
    memset(piece, 'x', sizeof piece);
    assert_int_equal(body_put(&b, (po_str){NULL, 0}, LIMIT, MEMORY), BODY_TAKEN);
    for (int i = 0; i < 6; i++)
        assert_int_equal(body_put(&b, (po_str){piece, sizeof piece}, LIMIT, MEMORY), BODY_TAKEN);
    assert_int_equal(body_put(&b, (po_str){piece, sizeof piece}, LIMIT, MEMORY), BODY_TOO_LARGE);
    assert_int_equal(body_put(&b, (po_str){piece, SIZE_MAX}, LIMIT, MEMORY), BODY_TOO_LARGE);
    assert_int_equal(b.n, 18000);
    assert_int_equal(body_put(&b, (po_str){piece, 2000}, LIMIT, MEMORY), BODY_TAKEN);
    assert_int_equal(b.n, LIMIT);
    assert_int_equal(body_put(&b, (po_str){piece, 1}, LIMIT, MEMORY), BODY_TOO_LARGE);
    for (size_t i = 0; i < b.n; i++)
        assert_int_equal(b.p[i], 'x');
    body_done(&b);
    assert_int_equal(bodies_held(), 0);
    body_done(&b);
    assert_int_equal(bodies_held(), 0);
}

static void all_bodies_share_one_bound(void **state) {
    (void)state;
    static char piece[16384];
    body bodies[4] = {0};
    po_str all = {piece, sizeof piece};
    for (int i = 0; i < 3; i++)
        assert_int_equal(body_put(&bodies[i], all, LIMIT, MEMORY), BODY_TAKEN);
    assert_int_equal(bodies_held(), 3 * 16384);
    assert_int_equal(body_put(&bodies[3], all, LIMIT, MEMORY), BODY_NO_ROOM);
    assert_int_equal(bodies_held(), 3 * 16384);
    assert_int_equal(body_put(&bodies[0], (po_str){piece, 1}, LIMIT, MEMORY), BODY_NO_ROOM);
    assert_int_equal(bodies[0].n, 16384); // what was taken stays whole
    body_done(&bodies[1]);
    assert_int_equal(body_put(&bodies[3], all, LIMIT, MEMORY), BODY_TAKEN);
    for (int i = 0; i < 4; i++)
        body_done(&bodies[i]);
    assert_int_equal(bodies_held(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_collected_up_to_its_limit),
        cmocka_unit_test(all_bodies_share_one_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

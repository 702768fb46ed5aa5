#include "http/route.h"
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const po_http_route routes[] = {
    {"GET", "/healthz", NULL, NULL},
    {"POST", "/v1/orders", NULL, NULL},
    {"GET", "/v1/orders/*", NULL, NULL},
    {"POST", "/v1/orders/*/cancel", NULL, NULL},
    {"POST", "/observations/*/*", NULL, NULL},
    {"DELETE", "/v1/orders/*", NULL, NULL},
    {0},
};

static void paths_find_their_route(void **state) {
    (void)state;
    static const struct {
        const char *method, *path;
        int route; // -1: none
        const char *allow, *first, *second;
    } rows[] = {
        {"GET", "/healthz", 0, "", NULL, NULL},
        {"POST", "/healthz", -1, "GET", NULL, NULL},
        {"HEAD", "/healthz", -1, "GET", NULL, NULL},
        {"get", "/healthz", -1, "GET", NULL, NULL},
        {"GET", "/healthz/", -1, "", NULL, NULL},
        {"GET", "/Healthz", -1, "", NULL, NULL},
        {"GET", "/health", -1, "", NULL, NULL},
        {"GET", "/", -1, "", NULL, NULL},
        {"GET", "", -1, "", NULL, NULL},
        {"GET", "*", -1, "", NULL, NULL},
        {"POST", "/v1/orders", 1, "", NULL, NULL},
        {"GET", "/v1/orders/o-77", 2, "", "o-77", NULL},
        {"GET", "/v1/orders/a%2Fb", 2, "", "a%2Fb", NULL},
        {"GET", "/v1/orders/", -1, "", NULL, NULL},
        {"GET", "/v1/orders//cancel", -1, "", NULL, NULL},
        {"PUT", "/v1/orders/o-77", -1, "GET, DELETE", NULL, NULL},
        {"POST", "/v1/orders/o-77/cancel", 3, "", "o-77", NULL},
        {"POST", "/v1/orders/o-77/cancel/x", -1, "", NULL, NULL},
        {"POST", "/observations/lightning/main", 4, "", "lightning", "main"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        match m = route_find(routes, rows[i].method, rows[i].path);
        if (m.route != (rows[i].route < 0 ? NULL : &routes[rows[i].route]))
            fail_msg("%s %s", rows[i].method, rows[i].path);
        if (!m.route) {
            assert_string_equal(m.allow, rows[i].allow);
            continue;
        }
        assert_int_equal(m.n, (rows[i].first != NULL) + (rows[i].second != NULL));
        assert_true(!rows[i].first || po_str_is(m.segments[0], rows[i].first));
        assert_true(!rows[i].second || po_str_is(m.segments[1], rows[i].second));
    }
}

static void escapes_are_decoded_once(void **state) {
    (void)state;
    static const struct {
        const char *in, *want;
        size_t n;
    } rows[] = {
        {"plain", "plain", 5}, {"a%2Fb%2fc", "a/b/c", 5}, {"%25%32%35", "%25", 3},
        {"%", "%", 1},         {"%4", "%4", 2},           {"%4g%g4", "%4g%g4", 6},
        {"x%00y", "x\0y", 3},  {"%C3%BC", "\xc3\xbc", 2}, {"", "", 0},
    };
    po_arena *arena = po_arena_new();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(
            po_str_eq(route_unescape(arena, po_s(rows[i].in)), (po_str){rows[i].want, rows[i].n}));
    po_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_find_their_route),
        cmocka_unit_test(escapes_are_decoded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// The table from SQLSTATE to kind, as pg.h promises it.
#include "pg/pg_impl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

static void test_kinds(void **state) {
    (void)state;
    static const struct {
        const char *sqlstate;
        po_kind kind;
        bool deployment;
    } cases[] = {
        {"08006", PO_RETRY, false},   {"53300", PO_RETRY, false},   {"57014", PO_RETRY, false},
        {"57P01", PO_RETRY, false},   {"40001", PO_RETRY, false},   {"40P01", PO_RETRY, false},
        {"55P03", PO_RETRY, false},   {"25006", PO_RETRY, false},   {"22001", PO_REFUSED, false},
        {"22P02", PO_REFUSED, false}, {"23505", PO_REFUSED, false}, {"23514", PO_REFUSED, false},
        {"P0001", PO_REFUSED, false}, {"42P01", PO_RETRY, true},    {"42501", PO_RETRY, true},
        {"0A000", PO_RETRY, true},    {"3D000", PO_RETRY, true},    {"3F000", PO_RETRY, true},
        {"28P01", PO_RETRY, true},    {"XX000", PO_BUG, false},     {"55000", PO_BUG, false},
        {"58030", PO_RETRY, false},   {"25P02", PO_BUG, false},     {"P0002", PO_BUG, false},
        {"25P03", PO_RETRY, false},   {"", PO_BUG, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        po_err err = {.kind = PO_RETRY};
        snprintf(err.code, sizeof err.code, "%s", cases[i].sqlstate);
        assert_int_equal(po_pg_kind(cases[i].sqlstate), cases[i].kind);
        assert_int_equal(po_pg_is_deployment(&err), cases[i].deployment);
        assert_true(po_pg_is(&err, cases[i].sqlstate));
        assert_false(po_pg_is(&err, "99999"));
    }
    // Codes of other libraries may begin with the same digits.
    assert_false(po_pg_is_deployment(&(po_err){.kind = PO_RETRY, .code = "28"}));
    assert_false(po_pg_is_deployment(&(po_err){.kind = PO_RETRY, .code = "42_too_large"}));
}

// FAULTS 44: what a smaller batch may cure, and what it cannot.
static void test_too_much(void **state) {
    (void)state;
    static const char *const much[] = {"57014", "25P03", "57P05", "53000", "53100", "53200"};
    static const char *const other[] = {"57P01", "55P03", "40001", "08006", "53", "53_full", ""};
    for (size_t i = 0; i < sizeof much / sizeof *much; i++) {
        po_err err = {.kind = PO_RETRY};
        snprintf(err.code, sizeof err.code, "%s", much[i]);
        assert_true(po_pg_is_too_much(&err));
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        po_err err = {.kind = PO_RETRY};
        snprintf(err.code, sizeof err.code, "%s", other[i]);
        assert_false(po_pg_is_too_much(&err));
    }
}

static void test_sqlstate_in_a_message(void **state) {
    (void)state;
    static const struct {
        const char *message, *sqlstate;
    } cases[] = {
        {"connection to server on socket \"/x\" failed: FATAL:  28P01: password …\nLOCATION:  a, "
         "b.c:1",
         "28P01"},
        {"… failed: FATAL:  3D000: database \"a:  b\" does not exist", "3D000"},
        {"failed: FEHLER:  nichts: FATAL:  57P03: starting", "57P03"},
        {"connection refused", NULL},
        {"FATAL:  28", NULL},
        {"FATAL:  28P01", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[6] = "";
        assert_int_equal(po_pg_find_sqlstate(cases[i].message, got), cases[i].sqlstate != NULL);
        assert_string_equal(got, cases[i].sqlstate ? cases[i].sqlstate : "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_sqlstate_in_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

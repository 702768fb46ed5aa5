// Routes as a table: what is known of an event's reference, and the words about it, against the
// orders that it leads to. P7: the same words found in any place, by any of two who come, end alike.
#include "routes.h"
#include "base/cleanup.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const char *const aliases[] = {"shop", NULL};
static account shop = {.name = "shop", .aliases = aliases, .live = true, .client_reference = true};
enum { REF, NAMED, ALSO, NOBODY = -1 };

typedef struct try {
    int by;            // what pi_1 is known by, as order a's; or NOBODY
    const char *named; // who else claims it
    const char *also;
    bool paid;
    const char *own, *visitor;
    const char *want; // orders; "!" conflict, "?" by a word alone; "+" elsewhere
}
try;

static const try tries[] = {
    {NOBODY, "", "", true, "a", "", "a?"},
    {NOBODY, "", "", true, "a", "b", "a?+b"}, // on one event the server's word counts alone
    {NOBODY, "", "", true, "x", "b", ""},     // and is waited for
    {NOBODY, "", "", true, "", "b", "b?"},
    {NOBODY, "b", "", true, "", "", "b?"},
    {NOBODY, "b", "", true, "", "b", "b?"},
    {NOBODY, "b", "", true, "", "c", "bc!?"},
    {NOBODY, "b", "c", true, "", "", "bc!?"},
    {NOBODY, "c", "b", true, "", "", "cb!?"},
    {NOBODY, "b", "c", true, "a", "", "a?"}, // money that names its order asks nobody
    {KNOWN_BY_SHOP, "", "", true, "b", "c", "a+bc"},
    {KNOWN_BY_SHOP, "", "", false, "b", "", "a+b"},
    {KNOWN_BY_MONEY, "", "", false, "b", "", "a+b"}, // FAULTS 37
    {KNOWN_BY_MONEY, "", "", true, "b", "", "ab!"},
    {KNOWN_BY_MONEY, "", "", true, "", "b", "ab!"},
    {KNOWN_BY_WORD, "", "", false, "b", "", "ab!"},
    {KNOWN_BY_WORD, "", "", false, "", "b", "a+b"},
    {KNOWN_BY_WORD, "", "", true, "", "b", "ab!"},
    {KNOWN_BY_WORD, "", "", false, "", "", "a"},
    {KNOWN_BY_CONFLICT, "", "", false, "", "", "a!"},
    {KNOWN_BY_CONFLICT, "", "", false, "b", "", "ab!"},
};

static void add_row(routes *r, found_ref *rows, size_t asked, const char *order, known_by by) {
    if (*order)
        rows[r->n_refs++] =
            (found_ref){asked, po_s("shop"), po_s(order), po_s("pi_1"), true, po_s("shop"), by};
}

static void print_route(const route *found, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < found->n; i++)
        out[n++] = found->orders[i].p[0];
    if (found->conflict)
        out[n++] = '!';
    if (found->by_word && found->n)
        out[n++] = '?';
    if (found->n_elsewhere)
        out[n++] = '+';
    for (size_t i = 0; i < found->n_elsewhere; i++)
        out[n++] = found->elsewhere[i].p[0];
    out[n] = 0;
}

static void words_lead_to_orders_by_their_strength(void **state) {
    (void)state;
    shop.provider = provider_find(po_s("stripe"));
    const found_order orders[] = {{po_s("a"), po_s("shop"), po_s("stripe-v1"), true},
                                  {po_s("b"), po_s("shop"), po_s("stripe-v1"), true},
                                  {po_s("c"), po_s("shop"), po_s("stripe-v1"), true}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const try *t = &tries[i];
        PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
        found_ref rows[3];
        routes r = {.arena = arena, .refs = rows, .orders = orders, .n_orders = 3};
        add_row(&r, rows, REF, t->by == NOBODY ? "" : "a", t->by == NOBODY ? 0 : (known_by)t->by);
        add_row(&r, rows, NAMED, t->named, KNOWN_BY_WORD);
        add_row(&r, rows, ALSO, t->also, KNOWN_BY_WORD);
        observation obs = {.n_refs = 1,
                           .refs = {{po_s("payment_intent"), po_s("pi_1"), po_s("pi_1")}},
                           .order_id = po_s(t->own),
                           .client_reference = po_s(t->visitor),
                           .n_facts = 1};
        obs.facts[0] = (fact){.kind = FACT_PAYMENT, .state = t->paid ? STATE_PAID : STATE_PENDING};
        speaker s = {&shop, po_s("stripe"), po_s("shop"), &obs, 0};
        bool unknown[OBS_MAX];
        route found = routes_find(&r, &s, unknown);
        char got[16];
        print_route(&found, got);
        if (strcmp(got, t->want) != 0)
            fail_msg("row %zu leads to \"%s\", not \"%s\"", i, got, t->want);
        assert_int_equal(unknown[0], t->by == NOBODY);
    }
}

static void a_second_word_is_kept_beside_the_first(void **state) {
    (void)state;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    routes r = {0};
    routes_init(&r, arena, 2);
    observation obs = {.n_refs = 1, .refs = {{po_s("payment_intent"), po_s("pi_1"), po_s("pi_1")}}};
    speaker s = {&shop, po_s("stripe"), po_s("shop"), &obs, 0};
    assert_true(routes_claim(&r, &s, 0, po_s("a")));
    assert_false(routes_claim(&r, &s, 0, po_s("a")));
    assert_true(routes_claim(&r, &s, 0, po_s("b")));
    assert_false(routes_claim(&r, &s, 0, po_s("b")));
    assert_false(routes_claim(&r, &s, 0, po_s("c"))); // two that differ are all there is to know
    assert_int_equal(r.n_taught, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_lead_to_orders_by_their_strength),
        cmocka_unit_test(a_second_word_is_kept_beside_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

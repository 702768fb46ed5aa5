// Which order an event is of, when its references and the names in it lead to several: every order
// of arrival, as a batch and one by one, against a private cluster with this service's tables.
#include "../../tests/support/pgtest.h"
#include "settle.h"
#include <glob.h>

static pgtest cluster;
static const char *const secrets[] = {"whsec_1", NULL};
static account shop = {.name = "shop", .live = true, .secrets = secrets};
static account node2 = {.name = "node2", .live = true, .secrets = secrets};

static char *whole_file(po_arena *arena, const char *path) {
    char *text = po_alloc(arena, 1 << 16);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_true(fread(text, 1, (1 << 16) - 1, in) > 0 && feof(in));
    fclose(in);
    return text;
}

static int start_cluster(void **state) {
    (void)state;
    shop.provider = provider_find(po_s("stripe"));
    node2.provider = provider_find(po_s("lightning"));
    pgtest_start(&cluster);
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_pg_close) po_pg *pg = pgtest_connection(&cluster);
    glob_t files;
    assert_int_equal(glob(PO_SOURCE_DIR "/services/ingest/migrations/0*.sql", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        pgtest_exec(pg, whole_file(arena, files.gl_pathv[i]));
    globfree(&files);
    return 0;
}

static int stop_cluster(void **state) {
    (void)state;
    pgtest_stop(&cluster);
    return 0;
}

// One try: its tables empty, its orders registered, its events in the order they came.
typedef struct world {
    po_pg *pg;
    po_arena *arena;
    event events[8];
    size_t n;
} world;

static world begin(void) {
    world w = {.arena = po_arena_new()};
    po_err err = {0};
    po_pg_options options = {.dsn = cluster.dsn, .application_name = "settle_test"};
    if (!store_open(&options, NULL, &w.pg, &err))
        fail_msg("%s", err.text);
    pgtest_exec(w.pg, "TRUNCATE ingest.provider_event, ingest.shop_order, ingest.order_ref,"
                      " ingest.order_contact, ingest.fact, ingest.decision, ingest.undecided,"
                      " ingest.outbox");
    return w;
}

static void end(world *w) {
    po_pg_close(&w->pg);
    po_arena_free(&w->arena);
}

static void add_order(world *w, const char *id, const char *policy, const char *accounts,
                      bool live) {
    bool stripe = strcmp(policy, "stripe-v1") == 0;
    pgtest_exec(w->pg,
                po_printf(w->arena,
                          "INSERT INTO ingest.shop_order (order_id, customer_id, purpose, item,"
                          " policy, profile, accounts, live, currency, exponent, price,"
                          " max_discount, revoke_on_refund, content, due) VALUES ('%s', 'c', "
                          "'course', 'i', '%s', '', '{%s}', %s, '%s', %d, 4900, 0, true, '', 4900)",
                          id, policy, accounts, live ? "true" : "false", stripe ? "EUR" : "BTC",
                          stripe ? 2 : 11));
}

static void add_ref(world *w, const char *order, const char *provider, const char *account,
                    const char *kind, const char *value) {
    pgtest_exec(w->pg, po_printf(w->arena,
                                 "INSERT INTO ingest.order_ref VALUES ('%s', '%s', '%s', '%s', "
                                 "'%s', '')",
                                 provider, kind, value, account, order));
}

static void add_event(world *w, const account *account, const char *body) {
    event *e = &w->events[w->n++];
    *e = (event){.account = account,
                 .provider = po_s(account->provider->name),
                 .alias = po_s(account->name),
                 .raw = po_s(body),
                 .trace = {po_s(""), po_s("")}};
    header_value headers[4] = {{po_s(po_printf(w->arena, "obs_%zu", w->n)), 1}};
    account->provider->read(account, headers, e->raw, w->arena, &e->obs);
    if (e->obs.disposition != OBS_FACTS)
        fail_msg("%s: %s", body, e->obs.problem.p);
}

static void add_stripe(world *w, const char *type, const char *object) {
    add_event(w, &shop,
              po_printf(w->arena,
                        "{\"id\":\"evt_%zu\",\"object\":\"event\",\"type\":\"%s\",\"created\":%zu,"
                        "\"livemode\":%s,\"data\":{\"object\":{%s}}}",
                        w->n, type, 1000 + w->n, shop.live ? "true" : "false", object));
}

static void settle_some(world *w, event *const *events, size_t n, const po_uuid *token) {
    po_err err = {0};
    settle_options options = {0};
    settle_report report;
    if (!(token ? settle_claimed(w->pg, w->arena, events, n, *token, false, &report, &err)
                : settle(w->pg, w->arena, events, n, &options, &report, &err)))
        fail_msg("settle: %s %s", err.code, err.text);
    assert_false(report.lost_lease);
}

// What the workers do with what waits, until a round changes nothing.
static void drain(world *w) {
    static const char waiting[] = "SELECT count(*) FROM ingest.undecided";
    int64_t before = -1;
    for (int64_t now; (now = pgtest_number(w->pg, waiting)) != before; before = now) {
        po_uuid token = po_uuid_v7(po_now_us());
        char text[PO_UUID_SIZE];
        po_uuid_text(token, text);
        for (size_t i = 0; i < w->n; i++) {
            const char *lease = po_printf(w->arena,
                                          "WITH leased AS (UPDATE ingest.undecided SET lease_token "
                                          "= '%s' WHERE event = %lld RETURNING 1)"
                                          " SELECT count(*) FROM leased",
                                          text, (long long)w->events[i].id);
            if (pgtest_number(w->pg, lease) == 1)
                settle_some(w, &(event *){&w->events[i]}, 1, &token);
        }
    }
}

// Settles the events in this order of arrival, and what waits after it.
static void arrive(world *w, const size_t *order, bool one_by_one) {
    event *events[8];
    for (size_t i = 0; i < w->n; i++) {
        events[i] = &w->events[order[i]];
        if (one_by_one)
            settle_some(w, &events[i], 1, NULL);
    }
    if (!one_by_one)
        settle_some(w, events, w->n, NULL);
    drain(w);
}

static void assert_columns(world *w, const char *id, const char *columns, const char *want) {
    po_err err = {0};
    PO_AUTO(po_res_done) po_res *row = NULL;
    const char *sql = po_printf(w->arena,
                                "SELECT concat_ws(' ', state, nullif(reason, ''), received, "
                                "refunded%s) FROM ingest.shop_order o WHERE order_id = '%s'",
                                columns, id);
    if (!po_pg_run(w->pg, &(po_stmt){NULL, sql}, NULL, &row, &err))
        fail_msg("%s", err.text);
    if (!po_str_is(po_res_text(row, 0, 0), want))
        fail_msg("%s is \"%.*s\", not \"%s\"", id, (int)po_res_text(row, 0, 0).n,
                 po_res_text(row, 0, 0).p, want);
}

static void assert_order(world *w, const char *id, const char *want) {
    assert_columns(w, id,
                   ", (SELECT string_agg(object, ',' ORDER BY object) FROM ingest.fact f"
                   " WHERE f.order_id = o.order_id AND kind = 'mismatch')",
                   want);
}

static void assert_position(world *w, const char *id, const char *want) {
    assert_columns(w, id, "", want);
}

// The next permutation in lexical order; false after the last.
static bool permute(size_t *idx, size_t n) {
    size_t i = n - 1, k = n - 1;
    while (i > 0 && idx[i - 1] > idx[i])
        i--;
    if (i == 0)
        return false;
    while (idx[k] < idx[i - 1])
        k--;
    size_t held = idx[i - 1];
    idx[i - 1] = idx[k];
    idx[k] = held;
    for (size_t a = i, b = n - 1; a < b; a++, b--) {
        held = idx[a];
        idx[a] = idx[b];
        idx[b] = held;
    }
    return true;
}

#define SESSION(id, intent, order)                                                                \
    "\"id\":\"" id "\",\"mode\":\"payment\",\"payment_status\":\"paid\",\"currency\":\"eur\","    \
    "\"amount_total\":4900,\"payment_intent\":\"" intent "\",\"metadata\":{\"order_id\":\"" order \
    "\"}"
#define NAMES(order) "\"metadata\":{\"order_id\":\"" order "\"}"

// FAULTS 37: an intent, a charge and a refund that name b, around the session that pays a.
static void without_money_a_name_is_evidence_in_any_order(void **state) {
    (void)state;
    for (int registered = 0; registered < 2; registered++)
        for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
            size_t order[] = {0, 1, 2, 3};
            do {
                world w = begin();
                add_order(&w, "a", "stripe-v1", "shop", true);
                add_order(&w, "b", "stripe-v1", "shop", true);
                if (registered)
                    add_ref(&w, "a", "stripe", "shop", "session", "cs_1");
                add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", "a"));
                add_stripe(&w, "payment_intent.succeeded", "\"id\":\"pi_1\"," NAMES("b"));
                add_stripe(&w, "charge.succeeded",
                           "\"id\":\"ch_1\",\"payment_intent\":\"pi_1\"," NAMES("b"));
                add_stripe(&w, "refund.created",
                           "\"id\":\"re_1\",\"charge\":\"ch_1\",\"amount\":10,\"currency\":\"eur\","
                           "\"status\":\"succeeded\",\"created\":2000," NAMES("b"));
                arrive(&w, order, one_by_one);
                assert_order(&w, "a", "paid 4900 10");
                assert_order(&w, "b", "open 0 0 named_elsewhere");
                assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided"), 0);
                end(&w);
            } while (permute(order, 4));
        }
}

// Where the money names no order, the intent's name is all there is.
static void a_session_without_a_name_follows_its_intents(void **state) {
    (void)state;
    for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
        size_t order[] = {0, 1, 2};
        do {
            world w = begin();
            add_order(&w, "a", "stripe-v1", "shop", true);
            add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", ""));
            add_stripe(&w, "payment_intent.succeeded",
                       "\"id\":\"pi_1\",\"latest_charge\":\"ch_1\"," NAMES("a"));
            add_stripe(&w, "refund.created",
                       "\"id\":\"re_1\",\"charge\":\"ch_1\",\"amount\":10,\"currency\":\"eur\","
                       "\"status\":\"succeeded\",\"created\":2000");
            arrive(&w, order, one_by_one);
            assert_order(&w, "a", "paid 4900 10");
            assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided"), 0);
            end(&w);
        } while (permute(order, 3));
    }
}

static void a_reference_beats_the_name_of_its_own_event(void **state) {
    (void)state;
    world w = begin();
    add_order(&w, "a", "stripe-v1", "shop", true);
    add_order(&w, "b", "stripe-v1", "shop", true);
    add_ref(&w, "a", "stripe", "shop", "session", "cs_1");
    add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", "b"));
    arrive(&w, (size_t[]){0}, true);
    assert_order(&w, "a", "paid 4900 0");
    assert_order(&w, "b", "open 0 0 named_elsewhere");
    end(&w);
}

// Where the shop's own words for one session differ, the money decides whose it is.
static void an_unpaid_session_teaches_nothing_by_a_name(void **state) {
    (void)state;
    for (size_t first = 0; first < 2; first++) {
        world w = begin();
        add_order(&w, "a", "stripe-v1", "shop", true);
        add_order(&w, "b", "stripe-v1", "shop", true);
        add_stripe(&w, "checkout.session.async_payment_succeeded", SESSION("cs_1", "pi_1", "a"));
        add_stripe(&w, "checkout.session.completed",
                   "\"id\":\"cs_1\",\"mode\":\"payment\",\"payment_status\":\"unpaid\","
                   "\"currency\":\"eur\",\"payment_intent\":\"pi_1\"," NAMES("b"));
        arrive(&w, (size_t[]){first, 1 - first}, true);
        assert_order(&w, "a", "paid 4900 0");
        assert_order(&w, "b", first ? "open 0 0" : "open 0 0 named_elsewhere");
        end(&w);
    }
}

static void two_references_to_two_orders_are_a_conflict(void **state) {
    (void)state;
    world w = begin();
    add_order(&w, "a", "stripe-v1", "shop", true);
    add_order(&w, "b", "stripe-v1", "shop", true);
    add_ref(&w, "a", "stripe", "shop", "session", "cs_1");
    add_ref(&w, "b", "stripe", "shop", "payment_intent", "pi_1");
    add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", "a"));
    arrive(&w, (size_t[]){0}, true);
    assert_order(&w, "a", "review route_conflict 0 0 route_conflict");
    assert_order(&w, "b", "review route_conflict 0 0 route_conflict");
    end(&w);
}

// FAULTS 37: metadata is the shop server's word, client_reference_id a visitor's.
static void the_shops_name_beats_the_visitors(void **state) {
    (void)state;
    world w = begin();
    shop.client_reference = true;
    add_order(&w, "a", "stripe-v1", "shop", true);
    add_order(&w, "b", "stripe-v1", "shop", true);
    add_stripe(&w, "checkout.session.completed",
               SESSION("cs_1", "pi_1", "a") ",\"client_reference_id\":\"b\"");
    arrive(&w, (size_t[]){0}, true);
    shop.client_reference = false;
    assert_order(&w, "a", "paid 4900 0");
    assert_order(&w, "b", "open 0 0 named_elsewhere");
    end(&w);
}

// P7: the money of a session that names no order itself, and every order of arrival.
typedef struct words {
    const char *const *intents; // the orders that the intent's events name
    const char *visitor;        // the session's client_reference_id, or ""
    const char *want_a, *want_b;
} words;

static void try_words(const words *t, const size_t *order, bool one_by_one) {
    world w = begin();
    add_order(&w, "a", "stripe-v1", "shop", true);
    add_order(&w, "b", "stripe-v1", "shop", true);
    add_stripe(&w, "checkout.session.completed",
               po_printf(w.arena, SESSION("cs_1", "pi_1", "") ",\"client_reference_id\":\"%s\"",
                         t->visitor));
    for (size_t i = 0; i < 2; i++)
        add_stripe(&w, i ? "payment_intent.succeeded" : "payment_intent.created",
                   po_printf(w.arena, "\"id\":\"pi_1\"," NAMES("%s"), t->intents[i]));
    add_stripe(&w, "charge.succeeded", "\"id\":\"ch_1\",\"payment_intent\":\"pi_1\"");
    add_stripe(&w, "refund.created",
               "\"id\":\"re_1\",\"charge\":\"ch_1\",\"amount\":10,\"currency\":\"eur\","
               "\"status\":\"succeeded\",\"created\":2000");
    arrive(&w, order, one_by_one);
    assert_position(&w, "a", t->want_a);
    assert_position(&w, "b", t->want_b);
    assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided"), 0);
    end(&w);
}

static void words_about_one_payment_end_alike_in_any_order(void **state) {
    (void)state;
    static const char *const aa[] = {"a", "a"}, *const ab[] = {"a", "b"}, *const none[] = {"", ""};
    static const words tries[] = {
        {aa, "", "paid 4900 10", "open 0 0"},
        {aa, "a", "paid 4900 10", "open 0 0"},
        {none, "a", "paid 4900 10", "open 0 0"},
        // Contradicting names of the shop's; a visitor's against the shop's on another event.
        {ab, "", "review route_conflict 0 0", "review route_conflict 0 0"},
        {ab, "a", "review route_conflict 0 0", "review route_conflict 0 0"},
        {aa, "b", "review route_conflict 0 0", "review route_conflict 0 0"},
    };
    shop.client_reference = true;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        size_t order[] = {0, 1, 2, 3, 4};
        do {
            try_words(&tries[i], order, false);
            try_words(&tries[i], order, true);
        } while (permute(order, 5));
    }
    shop.client_reference = false;
}

// What words differ about, with no money: nobody's order moves, and what waits alarms nobody.
static void words_that_differ_without_money_move_nothing(void **state) {
    (void)state;
    size_t order[] = {0, 1};
    do {
        world w = begin();
        add_order(&w, "a", "stripe-v1", "shop", true);
        add_order(&w, "b", "stripe-v1", "shop", true);
        add_stripe(&w, "payment_intent.created", "\"id\":\"pi_1\"," NAMES("a"));
        add_stripe(&w, "payment_intent.succeeded", "\"id\":\"pi_1\"," NAMES("b"));
        arrive(&w, order, true);
        assert_order(&w, "a", "open 0 0");
        assert_order(&w, "b", "open 0 0");
        assert_int_equal(
            pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided WHERE NOT unmatched"), 0);
        end(&w);
    } while (permute(order, 2));
}

// A name that the server wrote beats the visitor's, also while its order is not known yet.
static void a_visitors_name_never_stands_in_for_the_servers(void **state) {
    (void)state;
    world w = begin();
    shop.client_reference = true;
    add_order(&w, "b", "stripe-v1", "shop", true);
    add_stripe(&w, "checkout.session.completed",
               SESSION("cs_1", "pi_1", "a") ",\"client_reference_id\":\"b\"");
    arrive(&w, (size_t[]){0}, true);
    assert_order(&w, "b", "open 0 0");
    add_order(&w, "a", "stripe-v1", "shop", true);
    drain(&w);
    shop.client_reference = false;
    assert_order(&w, "a", "paid 4900 0");
    assert_order(&w, "b", "open 0 0 named_elsewhere");
    end(&w);
}

// Money that names an order of its own waits for that one, whatever its intent says.
static void a_name_that_is_not_known_yet_is_waited_for(void **state) {
    (void)state;
    world w = begin();
    add_order(&w, "a", "stripe-v1", "shop", true);
    add_stripe(&w, "payment_intent.succeeded",
               "\"id\":\"pi_1\",\"latest_charge\":\"ch_1\"," NAMES("a"));
    add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", "b"));
    arrive(&w, (size_t[]){0, 1}, true);
    assert_order(&w, "a", "open 0 0");
    add_order(&w, "b", "stripe-v1", "shop", true);
    drain(&w);
    assert_order(&w, "b", "paid 4900 0");
    end(&w);
}

// FAULTS 34: what is not ours today waits by reference alone, and may be ours once a setting is
// mended: registering the order again wakes it.
static void a_name_that_does_not_count_is_waited_for_too(void **state) {
    (void)state;
    world w = begin();
    add_stripe(&w, "checkout.session.completed",
               SESSION("cs_1", "pi_1", "") ",\"client_reference_id\":\"b\"");
    arrive(&w, (size_t[]){0}, true);
    assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided WHERE unmatched "
                                         "AND 'order:b' = ANY (awaits)"),
                     1);
    end(&w);
}

// FAULTS 58: what is wrong is named.
static void another_account_is_told_from_another_reference(void **state) {
    (void)state;
    static const char *const hash =
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    static const char *const rows[][2] = {
        {"node1", "review foreign_account 0 0 foreign_account"},
        {"node1,node2", "review registered_elsewhere 0 0 registered_elsewhere"}};
    for (size_t i = 0; i < 2; i++) {
        world w = begin();
        add_order(&w, "a", "lightning-v1", rows[i][0], true);
        add_ref(&w, "a", "lightning", "node1", "payment_hash", hash);
        add_event(&w, &node2,
                  po_printf(w.arena,
                            "{\"kind\":\"invoice\",\"profile\":\"p\",\"observed_at\":"
                            "\"2026-01-01T00:00:00Z\",\"object\":{\"payment_hash\":\"%s\","
                            "\"state\":\"SETTLED\",\"amt_paid_msat\":\"4900\","
                            "\"creation_date\":\"1000\"}}",
                            hash));
        arrive(&w, (size_t[]){0}, true);
        assert_order(&w, "a", rows[i][1]);
        end(&w);
    }
}

// FAULTS 40: a session of the alias's former life in the other mode, named by an order of today, was
// taught anew, met 23505, and would have done so for ever.
static void a_reference_of_the_other_mode_is_not_taught_again(void **state) {
    (void)state;
    world w = begin();
    add_order(&w, "live", "stripe-v1", "shop", true);
    add_order(&w, "test", "stripe-v1", "shop", false);
    add_ref(&w, "live", "stripe", "shop", "session", "cs_1");
    add_ref(&w, "live", "stripe", "shop", "charge", "ch_1");
    shop.live = false;
    add_stripe(&w, "checkout.session.completed", SESSION("cs_1", "pi_1", "test"));
    add_stripe(&w, "charge.succeeded", "\"id\":\"ch_1\",\"payment_intent\":\"pi_1\"");
    arrive(&w, (size_t[]){0, 1}, true);
    shop.live = true;
    assert_order(&w, "live", "open 0 0");
    assert_order(&w, "test", "paid 4900 0");
    assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.order_ref WHERE order_id = "
                                         "'live' AND payment = ''"),
                     2);
    end(&w);
}

// FAULTS 36: releases before 0002 left orders open for ever whose clock had run out; the migration
// has them decided once more.
static void what_stayed_open_for_ever_is_ended(void **state) {
    (void)state;
    world w = begin();
    static const char *const orders[] = {"a", "b"}; // b has no clock
    for (size_t i = 0; i < 2; i++) {
        add_order(&w, orders[i], "stripe-v1", "shop", true);
        add_stripe(&w, "checkout.session.async_payment_failed",
                   po_printf(w.arena,
                             "\"id\":\"cs_%zu\",\"mode\":\"payment\",\"currency\":\"eur\","
                             "\"payment_status\":\"unpaid\"," NAMES("%s"),
                             i, orders[i]));
    }
    w.events[w.n++] = settle_expiry_event(w.arena, po_s("a"), 1500 * PO_SECOND_US);
    arrive(&w, (size_t[]){0, 1, 2}, true);
    assert_order(&w, "a", "canceled expired 0 0");
    pgtest_exec(w.pg,
                "UPDATE ingest.shop_order SET state = 'open', verdict = 'failed', reason = ''");
    const char *migration =
        strstr(whole_file(w.arena,
                          PO_SOURCE_DIR "/services/ingest/migrations/0002_clocks_and_content.sql"),
               "INSERT");
    pgtest_exec(w.pg, migration);
    assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided"), 1);
    drain(&w);
    assert_order(&w, "a", "canceled expired 0 0");
    assert_order(&w, "b", "open 0 0");
    pgtest_exec(w.pg, migration); // nothing is left to do
    assert_int_equal(pgtest_number(w.pg, "SELECT count(*) FROM ingest.undecided"), 0);
    end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_money_a_name_is_evidence_in_any_order),
        cmocka_unit_test(a_session_without_a_name_follows_its_intents),
        cmocka_unit_test(a_reference_beats_the_name_of_its_own_event),
        cmocka_unit_test(an_unpaid_session_teaches_nothing_by_a_name),
        cmocka_unit_test(two_references_to_two_orders_are_a_conflict),
        cmocka_unit_test(the_shops_name_beats_the_visitors),
        cmocka_unit_test(words_about_one_payment_end_alike_in_any_order),
        cmocka_unit_test(words_that_differ_without_money_move_nothing),
        cmocka_unit_test(a_visitors_name_never_stands_in_for_the_servers),
        cmocka_unit_test(a_name_that_is_not_known_yet_is_waited_for),
        cmocka_unit_test(a_name_that_does_not_count_is_waited_for_too),
        cmocka_unit_test(another_account_is_told_from_another_reference),
        cmocka_unit_test(a_reference_of_the_other_mode_is_not_taught_again),
        cmocka_unit_test(what_stayed_open_for_ever_is_ended),
    };
    return cmocka_run_group_tests(tests, start_cluster, stop_cluster);
}

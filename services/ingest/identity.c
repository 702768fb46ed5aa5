// Insert, then compare in a later statement: of several programs that start at once, each sees what
// the first one wrote. In one transaction, so that a file with a slip in it can be corrected.
#include "identity.h"
#include "base/cleanup.h"

enum { PUT, GIVE_ID, COMPARE, TAKEN };
static const po_stmt SQL[] = {
    [PUT] = {"put_accounts",
             "INSERT INTO ingest.account (provider, name, id, mode)"
             " SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])"
             " AS u(provider, name, id, mode) ORDER BY provider, name ON CONFLICT DO NOTHING"},
    [GIVE_ID] = {"give_account_ids",
                 "UPDATE ingest.account a SET id = u.id"
                 " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])"
                 " AS u(provider, name, id, mode) WHERE a.provider = u.provider"
                 " AND a.name = u.name AND a.mode = u.mode AND a.id IS NULL AND u.id IS NOT NULL"
                 " AND NOT EXISTS (SELECT FROM ingest.account o WHERE o.provider = u.provider"
                 " AND o.mode = u.mode AND o.id = u.id)"},
    [COMPARE] = {"compare_accounts",
                 "SELECT a.mode, a.id, o.name"
                 " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])"
                 " WITH ORDINALITY AS u(provider, name, id, mode, i)"
                 " LEFT JOIN ingest.account a ON a.provider = u.provider AND a.name = u.name"
                 " LEFT JOIN ingest.account o ON o.provider = u.provider AND o.mode = u.mode"
                 " AND o.id = u.id AND o.name <> u.name ORDER BY u.i"},
    // One look at an index each: a hashed EXISTS would read the whole log at every start.
    [TAKEN] = {"find_taken_aliases",
               "SELECT u.i, u.alias FROM unnest($1::int4[], $2::text[], $3::text[])"
               " AS u(i, provider, alias)"
               " WHERE (SELECT true FROM ingest.account a WHERE a.provider = u.provider"
               " AND a.name = u.alias LIMIT 1)"
               " OR (SELECT true FROM ingest.provider_event e WHERE e.provider = u.provider"
               " AND e.account = u.alias ORDER BY e.event_id LIMIT 1) ORDER BY u.i"},
};

static const char *mode_of(const account *a) {
    return a->live ? "live" : "test";
}

static size_t count(const accounts *accounts, size_t *ret_aliases) {
    size_t n = 0;
    *ret_aliases = 0;
    for (const account *a; (a = accounts_entry(accounts, n)) != NULL; n++)
        for (const char *const *alias = a->aliases; *alias; alias++)
            ++*ret_aliases;
    return n;
}

static po_args *entries(po_arena *arena, const accounts *accounts, size_t n) {
    po_str *columns[4];
    for (size_t c = 0; c < 4; c++)
        columns[c] = po_alloc_array(arena, n, sizeof **columns);
    for (size_t i = 0; i < n; i++) {
        const account *a = accounts_entry(accounts, i);
        columns[0][i] = po_s(a->provider->name);
        columns[1][i] = po_s(a->name);
        columns[2][i] = po_s(a->id); // NULL stays NULL
        columns[3][i] = po_s(mode_of(a));
    }
    po_args *args = po_args_new(arena);
    for (size_t c = 0; c < 4; c++)
        po_arg_texts(args, columns[c], n);
    return args;
}

static bool differs(po_err *err, const accounts *accounts, size_t i, const char *what,
                    po_str stored) {
    const account *a = accounts_entry(accounts, i);
    return po_fail(err, PO_REFUSED, "setting", "ACCOUNTS_FILE: entry %zu: account %s/%s: %s%.*s",
                   i + 1, a->provider->name, a->name, what, (int)stored.n,
                   stored.p ? stored.p : "");
}

// An id is given once, and never taken back: a check does not end with its setting.
static bool compare(const accounts *accounts, const po_res *rows, size_t i, po_err *err) {
    const account *a = accounts_entry(accounts, i);
    int row = (int)i;
    po_str mode = po_res_text(rows, row, 0), id = po_res_text(rows, row, 1);
    if (!po_res_null(rows, row, 2))
        return differs(err, accounts, i, "its id is that of account ", po_res_text(rows, row, 2));
    if (po_res_null(rows, row, 0))
        return po_fail(err, PO_RETRY, "40001", "an account was neither inserted nor found");
    if (!po_str_is(mode, mode_of(a)))
        return differs(err, accounts, i, "a name keeps its mode, which is ", mode);
    if (!po_str_eq(id, a->id ? po_s(a->id) : po_s("")))
        return differs(err, accounts, i, "a name keeps its id, which is ", id);
    return true;
}

// The aliases that are not their account's own name.
static po_args *other_words(po_arena *arena, const accounts *accounts, size_t most) {
    int32_t *entry = po_alloc_array(arena, most, sizeof *entry);
    po_str *provider = po_alloc_array(arena, most, sizeof *provider);
    po_str *word = po_alloc_array(arena, most, sizeof *word);
    size_t n = 0;
    const account *a;
    for (size_t i = 0; (a = accounts_entry(accounts, i)) != NULL; i++) {
        for (const char *const *alias = a->aliases; *alias; alias++) {
            if (strcmp(*alias, a->name) == 0)
                continue;
            entry[n] = (int32_t)i;
            provider[n] = po_s(a->provider->name);
            word[n++] = po_s(*alias);
        }
    }
    po_args *args = po_args_new(arena);
    po_arg_i32s(args, entry, n);
    po_arg_texts(args, provider, n);
    po_arg_texts(args, word, n);
    return args;
}

bool identity_check(po_pg *pg, accounts *accounts, po_err *err) {
    if (accounts_agreed(accounts))
        return true;
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    size_t n_aliases, n = count(accounts, &n_aliases);
    po_args *args = entries(arena, accounts, n);
    po_args *words = other_words(arena, accounts, n_aliases);
    PO_AUTO(po_res_done) po_res *rows = NULL;
    PO_AUTO(po_res_done) po_res *taken = NULL;
    PO_AUTO(po_tx_done) po_tx tx = {0};
    if (!po_tx_begin(pg, &tx, err) || !po_pg_run(pg, &SQL[PUT], args, NULL, err) ||
        !po_pg_run(pg, &SQL[GIVE_ID], args, NULL, err) ||
        !po_pg_run(pg, &SQL[COMPARE], args, &rows, err) ||
        !po_pg_run(pg, &SQL[TAKEN], words, &taken, err))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!compare(accounts, rows, i, err))
            return false;
    if (po_res_rows(taken) > 0) {
        return differs(err, accounts, (size_t)po_res_i64(taken, 0, 0),
                       "rows hold as an account's name its alias ", po_res_text(taken, 0, 1));
    }
    if (!po_tx_commit(&tx, err))
        return false;
    accounts_set_agreed(accounts);
    return true;
}

// Migrations. Each file runs in a transaction of its own that also takes the advisory lock, looks
// whether the file is needed, and records it: killed anywhere, the next run finds the file done or
// not begun. Two programs that start at once take turns at the lock; the second sees what the first
// has committed.
#include "pg/migrate.h"
#include "pg/pg_impl.h"
#include <assert.h>
#include <stdlib.h>

static const po_stmt lock = {
    "migrate_lock",
    "SELECT pg_advisory_xact_lock(hashtextextended('payonce.migrate.' || $1, 0))::text"};
static const po_stmt table_there = {"migrate_table_there",
                                    "SELECT to_regclass($1 || '.schema_migration') IS NOT NULL"};

// The table lives in the owner's schema, so its statements are composed of the (checked) schema
// name.
typedef struct statements {
    const char *create;
    const char *show; // programs see with their own roles how far the schema is
    po_stmt find, record;
} statements;

static statements statements_for(po_arena *arena, const char *schema) {
    return (statements){
        .create =
            po_printf(arena,
                      "CREATE TABLE IF NOT EXISTS %s.schema_migration (version int PRIMARY KEY, "
                      "name text NOT NULL, sha256 bytea NOT NULL, "
                      "applied_at timestamptz NOT NULL DEFAULT now())",
                      schema),
        .show = po_printf(arena, "GRANT SELECT ON %s.schema_migration TO PUBLIC", schema),
        .find = {po_printf(arena, "migrate_find_%s", schema),
                 po_printf(arena, "SELECT sha256 FROM %s.schema_migration WHERE version = $1",
                           schema)},
        .record = {po_printf(arena, "migrate_record_%s", schema),
                   po_printf(arena,
                             "INSERT INTO %s.schema_migration (version, name, sha256) "
                             "VALUES ($1, $2, $3)",
                             schema)},
    };
}

typedef struct migration {
    int version;
    const po_file *file;
    uint8_t sha256[32];
} migration;

// "0001_first.sql" is version 1, and the table of files counts up without a hole.
static void check_name(const migration *m) {
    const char *name = m->file->name;
    assert(strspn(name, "0123456789") == 4 && name[4] == '_' && atoi(name) == m->version);
}

static bool already_applied(po_pg *pg, const statements *sql, const char *schema,
                            const migration *m, po_arena *arena, bool *ret_applied, po_err *err) {
    PO_AUTO(po_res_done) po_res *there = NULL;
    PO_AUTO(po_res_done) po_res *found = NULL;
    po_args *name = po_args_new(arena), *version = po_args_new(arena);
    po_arg_text(name, po_s(schema));
    po_arg_i32(version, m->version);
    if (!po_pg_run(pg, &table_there, name, &there, err))
        return false;
    bool applied = false;
    if (po_res_bool(there, 0, 0)) {
        if (!po_pg_run(pg, &sql->find, version, &found, err))
            return false;
        applied = po_res_rows(found) == 1;
        if (applied && !po_str_eq(po_res_bytea(found, 0, 0),
                                  (po_str){(const char *)m->sha256, sizeof m->sha256}))
            return po_fail(err, PO_REFUSED, "migration_changed",
                           "%s was applied with another text; add a new file instead",
                           m->file->name);
    }
    *ret_applied = applied;
    return true;
}

static bool record(po_pg *pg, const statements *sql, const migration *m, po_arena *arena,
                   po_err *err) {
    po_args *args = po_args_new(arena);
    po_arg_i32(args, m->version);
    po_arg_text(args, po_s(m->file->name));
    po_arg_bytea(args, (po_str){(const char *)m->sha256, sizeof m->sha256});
    return po_pg_exec(pg, sql->create, err) && po_pg_run(pg, &sql->record, args, NULL, err);
}

// Waiting for the other program's migration may take long; waiting for a table's lock may not,
// since all later readers of that table queue up behind us.
static bool apply(po_pg *pg, const char *schema, const migration *m, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_tx_done) po_tx tx = {0};
    statements sql = statements_for(arena, schema);
    po_args *name = po_args_new(arena);
    bool applied = false;
    po_arg_text(name, po_s(schema));
    if (!po_tx_begin(pg, &tx, err) ||
        !po_pg_exec(pg, "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0", err) ||
        !po_pg_run(pg, &lock, name, NULL, err) ||
        !already_applied(pg, &sql, schema, m, arena, &applied, err))
        return false;
    if (applied)
        return po_pg_exec(pg, sql.show, err) && po_tx_commit(&tx, err);
    return po_pg_exec(pg, "SET LOCAL lock_timeout = '10s'", err) &&
           po_pg_exec(pg, m->file->text, err) && record(pg, &sql, m, arena, err) &&
           po_pg_exec(pg, sql.show, err) && po_tx_commit(&tx, err);
}

bool po_migrate(po_pg *pg, const char *schema, const po_file *files, po_err *err) {
    assert(*schema && schema[strspn(schema, "abcdefghijklmnopqrstuvwxyz_0123456789")] == 0);
    int patience_ms = pg->patience_ms;
    bool fine = true;
    pg->patience_ms = -1; // an index takes as long as it takes
    for (int i = 0; fine && files[i].name; i++) {
        migration m = {.version = i + 1, .file = &files[i]};
        check_name(&m);
        po_sha256(po_s(files[i].text), m.sha256);
        fine = apply(pg, schema, &m, err) || po_wrap(err, "migration %s", files[i].name);
    }
    pg->patience_ms = patience_ms;
    return fine;
}

bool po_migrated(po_pg *pg, const char *schema, const po_file *files, po_err *err) {
    PO_AUTO(po_arena_free) po_arena *arena = po_arena_new();
    PO_AUTO(po_res_done) po_res *found = NULL;
    po_stmt version = {
        "migrate_version",
        po_printf(arena, "SELECT coalesce(max(version), 0) FROM %s.schema_migration", schema)};
    int64_t wanted = 0;
    while (files[wanted].name)
        wanted++;
    if (!po_pg_run(pg, &version, NULL, &found, err))
        return po_pg_is_deployment(err)
                   ? po_wrap(err, "schema %s, which payonce-%s migrate brings up to date", schema,
                             schema)
                   : false;
    int64_t is = po_res_i64(found, 0, 0);
    return is >= wanted ||
           po_fail(err, PO_RETRY, "schema_version",
                   "schema %s is at version %lld and has to be at %lld: run payonce-%s migrate",
                   schema, (long long)is, (long long)wanted, schema);
}

// Numbered migrations, embedded in the program that owns the schema, applied in order, each in its
// own transaction together with its row in SCHEMA.schema_migration (version, name, sha256,
// applied_at), under an advisory lock. An applied file whose text has changed is refused.
#pragma once
#include "pg/pg.h"

// files: "0001_name.sql"…; `schema` is the service's name. The first migration creates the schema
// and role.
PO_MUST_CHECK bool po_migrate(po_pg *pg, const char *schema, const po_file *files, po_err *err);

// Whether the schema is at least at the last of `files`; a newer one is fine, for the programs of
// the release before go on beside it. RETRY "schema_version" when it is older; the database's own
// failure (42P01, 3F000) when nothing was migrated. Any role may ask.
PO_MUST_CHECK bool po_migrated(po_pg *pg, const char *schema, const po_file *files, po_err *err);

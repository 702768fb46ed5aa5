// What outlives the process: relay.cursor, one row per outbox, holds the lease (with its epoch) and the checkpoint.
// Every write carries `epoch = mine`: a relay that was overtaken writes nothing more.
#pragma once
#include "gaps.h"
#include "keys.h"
#include "pg/pg.h"

// The server that handed out the ids. Another one may hand them out again.
typedef struct server {
    int64_t system_id;
    char timeline[16];
    int64_t started_us;
    int64_t sequence; // last id handed out; 0: none yet
} server;

typedef struct cursor {
    const char *outbox, *holder; // holder: a text that no other process has ever had
    int64_t lease_ms, overlap_us;
    int64_t epoch;
    int64_t written_ms; // po_mono_ms of the last write
    // As it stands in the row.
    int64_t floor;
    int64_t *lo, *hi; // open ranges, ascending; ids > floor are open anyway
    size_t n;
    bool known; // the server's columns are filled
    server server;
    int64_t checkpoint_us;
} cursor;

void cursor_done(cursor *cursor);

// PO_REFUSED "settings" when ids could run backwards here or the sequence cannot be read; RETRY on a standby.
PO_MUST_CHECK bool cursor_identify(po_pg *pg, server *ret_server, po_err *err);
// Why `now` is not the server whose ids we know (up to high); NULL when it is.
const char *cursor_moved(const cursor *cursor, const server *now, int64_t high);

// Takes the lease when it is free or still the one that this cursor held last, and reads the checkpoint.
PO_MUST_CHECK bool cursor_take(cursor *cursor, po_pg *pg, bool *ret_mine, po_err *err);
// Where to begin: the checkpoint's floor and gaps; on another server from checkpoint − overlap on, and an alarm.
PO_MUST_CHECK bool cursor_begin(cursor *cursor, po_pg *pg, const server *now, gaps **ret_gaps,
                                po_err *err);
// Renews the lease, and writes how far we are if that has changed. A row or gap is listed as open once it is
// unfinished for a second; a younger one holds the floor back. RETRY "fenced": another relay has taken over, or
// the row is older than what was written: a restored database.
PO_MUST_CHECK bool cursor_checkpoint(cursor *cursor, po_pg *pg, po_arena *arena, const keys *keys,
                                     const gaps *gaps, int64_t now_ms, po_err *err);
PO_MUST_CHECK bool cursor_release(cursor *cursor, po_pg *pg, po_err *err);

// --- The pure part, for the test.
typedef struct plan {
    int64_t floor;
    int64_t *lo, *hi; // in the arena
    size_t n;
} plan;
#define CURSOR_MOST_OPEN 10000
plan cursor_plan(po_arena *arena, const keys *keys, const gaps *gaps, int64_t durable_floor,
                 int64_t now_ms);

// The marks in memory and their rows. What is in memory is never behind the row of a member that is
// alone, so a row is read again for its turn only.
#include "consumer/position.h"

#include "base/cleanup.h"

#include <stdlib.h>

static const po_mark none = {.offset = -1, .time_us = PO_NO_TIME};

struct po_positions {
    po_position *at;
    size_t n;
    bool stale; // the rows are to be read
    po_arena *names;
    po_stmt read, write;
};

po_positions *po_positions_new(const char *schema) {
    po_positions *positions = calloc(1, sizeof *positions);
    if (!positions)
        abort();
    positions->names = po_arena_new();
    // The schema's name is the consumer's: a constant of the program, not data.
    positions->read = (po_stmt){
        "position_read",
        po_printf(positions->names,
                  "SELECT topic, partition, turn, next_offset - 1, event_id, record_time, "
                  "sure_offset, sure_id, sure_time FROM %s.position",
                  schema)};
    positions->write = (po_stmt){
        "position_write",
        po_printf(positions->names,
                  "INSERT INTO %s.position AS p (topic, partition, turn, next_offset, event_id, "
                  "record_time, sure_offset, sure_id, sure_time) "
                  "SELECT * FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bigint[], "
                  "$5::uuid[], $6::timestamptz[], $7::bigint[], $8::uuid[], $9::timestamptz[]) "
                  "ORDER BY 1, 2 ON CONFLICT (topic, partition) DO UPDATE SET turn = "
                  "excluded.turn, next_offset = excluded.next_offset, event_id = "
                  "excluded.event_id, record_time = excluded.record_time, sure_offset = "
                  "excluded.sure_offset, sure_id = excluded.sure_id, sure_time = "
                  "excluded.sure_time WHERE p.turn = excluded.turn - 1 RETURNING 1",
                  schema)};
    return positions;
}

void po_positions_free(po_positions **positions_ref) {
    po_positions *positions = *positions_ref;
    if (!positions)
        return;
    *positions_ref = NULL;
    po_positions_assign(positions, NULL);
    po_arena_free(&positions->names);
    free(positions);
}

void po_positions_assign(po_positions *positions, const rd_kafka_topic_partition_list_t *list) {
    for (size_t i = 0; i < positions->n; i++)
        free(positions->at[i].topic);
    free(positions->at);
    positions->at = NULL;
    positions->n = list ? (size_t)list->cnt : 0;
    positions->stale = true;
    if (positions->n == 0)
        return;
    positions->at = calloc(positions->n, sizeof *positions->at);
    if (!positions->at)
        abort();
    for (size_t i = 0; i < positions->n; i++) {
        positions->at[i] = (po_position){.partition = list->elems[i].partition,
                                         .last = none,
                                         .sure = none,
                                         .doubt = none,
                                         .taken = none};
        if (!(positions->at[i].topic = strdup(list->elems[i].topic)))
            abort();
    }
}

po_position *po_positions_find(po_positions *positions, const char *topic, int32_t partition) {
    for (size_t i = 0; i < positions->n; i++)
        if (positions->at[i].partition == partition && strcmp(positions->at[i].topic, topic) == 0)
            return &positions->at[i];
    return NULL;
}

void po_position_doubt(po_position *position) {
    if (position->doubt.offset < 0)
        position->doubt = position->last;
}

void po_position_found(po_position *position) {
    position->sure = position->last;
    position->doubt = none;
}

void po_position_forget(po_position *position) {
    position->last = position->sure = position->doubt = none;
}

// --- Rows

static po_mark mark_of(const po_res *res, int row, int col) {
    return (po_mark){.offset = po_res_i64(res, row, col),
                     .id = po_res_uuid(res, row, col + 1),
                     .time_us = po_res_time(res, row, col + 2)};
}

static void row_read(po_positions *positions, const po_res *res, int row) {
    po_str topic = po_res_text(res, row, 0);
    for (size_t i = 0; i < positions->n; i++) {
        po_position *one = &positions->at[i];
        if (po_res_i64(res, row, 1) != one->partition || !po_str_is(topic, one->topic))
            continue;
        one->turn = po_res_i64(res, row, 2);
        if (!one->known) {
            one->last = one->doubt = mark_of(res, row, 3);
            one->sure = mark_of(res, row, 6);
        }
    }
}

bool po_positions_stale(const po_positions *positions) {
    return positions->stale;
}

bool po_positions_read(po_positions *positions, po_pg *pg, po_arena *arena, po_err *err) {
    if (!positions->stale)
        return true;
    PO_AUTO(po_res_done) po_res *res = NULL;
    if (!po_pg_run(pg, &positions->read, po_args_new(arena), &res, err))
        return false;
    for (size_t i = 0; i < positions->n; i++)
        positions->at[i].turn = 0;
    for (int row = 0; row < po_res_rows(res); row++)
        row_read(positions, res, row);
    for (size_t i = 0; i < positions->n; i++)
        positions->at[i].known = true;
    positions->stale = false;
    return true;
}

// --- A batch

void po_positions_begin(po_positions *positions) {
    for (size_t i = 0; i < positions->n; i++)
        positions->at[i].taken = none;
}

void po_positions_take(po_positions *positions, const char *topic, int32_t partition,
                       po_mark mark) {
    po_position *one = po_positions_find(positions, topic, partition);
    if (one)
        one->taken = mark;
}

static size_t taken(const po_positions *positions) {
    size_t n = 0;
    for (size_t i = 0; i < positions->n; i++)
        n += positions->at[i].taken.offset >= 0;
    return n;
}

bool po_positions_send(po_positions *positions, po_pg *pg, po_arena *arena, po_err *err) {
    size_t max = positions->n, n = 0;
    po_str *topics = po_alloc_array(arena, max, sizeof *topics);
    int32_t *partitions = po_alloc_array(arena, max, sizeof *partitions);
    int64_t *turns = po_alloc_array(arena, max, sizeof *turns);
    int64_t *offsets[2], *times[2];
    po_uuid *ids[2];
    for (size_t k = 0; k < 2; k++) {
        offsets[k] = po_alloc_array(arena, max, sizeof *offsets[k]);
        ids[k] = po_alloc_array(arena, max, sizeof *ids[k]);
        times[k] = po_alloc_array(arena, max, sizeof *times[k]);
    }
    for (size_t i = 0; i < max; i++) {
        const po_position *one = &positions->at[i];
        if (one->taken.offset < 0)
            continue;
        const po_mark marks[2] = {one->taken, one->sure.offset < 0 ? one->taken : one->sure};
        topics[n] = po_s(one->topic);
        partitions[n] = one->partition;
        turns[n] = one->turn + 1;
        for (size_t k = 0; k < 2; k++) {
            offsets[k][n] = marks[k].offset + (k == 0);
            ids[k][n] = marks[k].id;
            times[k][n] = marks[k].time_us;
        }
        n++;
    }
    po_args *args = po_args_new(arena);
    po_arg_texts(args, topics, n);
    po_arg_i32s(args, partitions, n);
    po_arg_i64s(args, turns, n);
    for (size_t k = 0; k < 2; k++) {
        po_arg_i64s(args, offsets[k], n);
        po_arg_uuids(args, ids[k], n);
        po_arg_times(args, times[k], n);
    }
    return po_pipe_send(pg, &positions->write, args, err);
}

bool po_positions_moved(const po_positions *positions, const po_res *res, po_err *err) {
    if ((size_t)po_res_rows(res) == taken(positions))
        return true;
    return po_fail(err, PO_RETRY, "position_moved",
                   "another member has moved on in a partition of this batch");
}

void po_positions_done(po_positions *positions, bool committed) {
    for (size_t i = 0; i < positions->n; i++) {
        po_position *one = &positions->at[i];
        if (committed && one->taken.offset >= 0) {
            one->last = one->taken;
            one->turn++;
            if (one->sure.offset < 0)
                one->sure = one->taken;
        }
        one->taken = none;
    }
    if (!committed)
        positions->stale = true;
}

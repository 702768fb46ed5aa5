// Where a consumer stands in each partition, and by which records it would know the log again. An
// offset says nothing of the log that it belongs to: a topic that is deleted and made anew begins
// again at 0, and a log may lose its end. So the table NAME.position keeps, written in the
// transaction of each batch, the id, time and offset of two records per partition: the last one
// taken, and a *sure* one, which is moved only after it was found in the log once more (see
// witness.h). A consumer that reads on in another log before it notices, and dies, knows the sure
// one still.
// Each write of a row counts its turn and is refused unless the turn is the next one, so a member
// that is fenced, or too late, moves nothing. Used by the loop's thread alone.
#pragma once
#include "kafka/kafka.h"
#include "pg/pg.h"

typedef struct po_mark { // a record of a log
    int64_t offset;      // -1: none
    po_uuid id;          // its ce_id
    int64_t time_us;     // its timestamp; PO_NO_TIME: it has none
} po_mark;

typedef struct po_position {
    char *topic;
    int32_t partition;
    bool known;    // its row was read since the partition was assigned
    int64_t turn;  // of its row; 0: there is none
    po_mark last;  // the last record taken
    po_mark sure;  // older, or the same: was in the log when it was last asked for
    po_mark doubt; // the last record taken before an assignment or an error: to be asked for, too
    po_mark taken; // by the batch in hand
} po_position;

typedef struct po_positions po_positions;
po_positions *po_positions_new(const char *schema); // its text is copied
void po_positions_free(po_positions **positions);   // accepts NULL, leaves NULL

// These partitions, of which nothing is known; NULL: none.
void po_positions_assign(po_positions *positions, const rd_kafka_topic_partition_list_t *list);
po_position *po_positions_find(po_positions *positions, const char *topic, int32_t partition);
// The last record taken becomes one to ask for, unless there is an older one already.
void po_position_doubt(po_position *position);
// It was asked for and found.
void po_position_found(po_position *position);
// Its log is another one: none of the records is in it. The row stays until the next is taken.
void po_position_forget(po_position *position);

// Are the rows to be read, since the last assignment or since a batch failed?
bool po_positions_stale(const po_positions *positions);
// Reads them, if need be.
PO_MUST_CHECK bool po_positions_read(po_positions *positions, po_pg *pg, po_arena *arena,
                                     po_err *err);

// A batch: begin, take each record in order, send (within the transaction, in pipeline mode: one
// send), moved with its answer, and done after COMMIT or failure.
void po_positions_begin(po_positions *positions);
void po_positions_take(po_positions *positions, const char *topic, int32_t partition, po_mark mark);
PO_MUST_CHECK bool po_positions_send(po_positions *positions, po_pg *pg, po_arena *arena,
                                     po_err *err);
// RETRY "position_moved" when somebody else has moved a row meanwhile.
PO_MUST_CHECK bool po_positions_moved(const po_positions *positions, const po_res *res,
                                      po_err *err);
void po_positions_done(po_positions *positions, bool committed);

// What a right is called and what makes two requests for it the same.
#pragma once
#include "base/arena.h"

// "grant:ORDER" for the first qualification, "grant.gN:ORDER" for the N-th from 2 on: an order that was taken back and
// paid anew is a new operation, and nothing else is. What stands before the first ':' is ours and holds none, so an
// order may hold what it likes and no two operations share a key.
po_str right_key(po_arena *arena, po_str order_id, int32_t qualification);
// SHA-256 over the immutable data: order, recipient, purpose and item. Never an event's id, a decision or a time.
void right_content(po_str order_id, po_str customer_id, po_str purpose, po_str item,
                   uint8_t out[32]);

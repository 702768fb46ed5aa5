// The content digest of an event: SHA-256 over what an adapter read, as
// netstrings (`LENGTH:BYTES,`) one behind the other, so that no two contents render alike and the
// order of JSON keys, spaces or fields nobody reads do not matter. Never over the observer's clock,
// a request id or our own alias.
#pragma once
#include "provider.h"

void content_put(po_buf *content, po_str value);
void content_put_i64(po_buf *content, int64_t value); // NO_AMOUNT as the empty string

// Of a whole observation: type, object, references, order ids and facts.
void content_digest(observation *observation, po_str object);

// Turns a half-read observation into a quarantined one: what was read of its id and type stays, all
// else goes. Its digest is the SHA-256 of the body, and so is its id where it has none of its own.
void observation_quarantine(observation *observation, const char *problem, po_str body,
                            po_arena *arena);

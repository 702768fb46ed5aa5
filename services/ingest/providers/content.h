// The content digest of an event: SHA-256 over what an adapter read, as
// netstrings (`LENGTH:BYTES,`) one behind the other, so that no two contents render alike and the
// order of JSON keys, spaces or fields nobody reads do not matter. Never over the observer's clock,
// a request id or our own alias.
#pragma once
#include "providers/provider.h"

void content_put(po_buf *content, po_str value);
void content_put_i64(po_buf *content, int64_t value); // NO_AMOUNT as the empty string

// Of a whole observation: type, object, references, order ids and facts.
void content_digest(observation *observation, po_str object);

// Turns a half-read observation into a quarantined one: what was read of its id and type stays, all
// else goes. Its digest is the SHA-256 of the body, and so is its id where it has none of its own.
void observation_quarantine(observation *observation, const char *problem, po_str body,
                            po_arena *arena);

// Turns it into a foreign one: test and live never meet, nor do two accounts. Only its order id
// stays, and its prefixed id keeps it from taking the place of one of ours in the log.
void observation_set_apart(observation *observation, const char *problem, po_arena *arena);

// What is wrong with an event that names this account id ("": it names none, where its kind has
// to), or NULL. An alias without an id has nothing to compare with, so that is wrong too.
const char *account_differs(const account *alias, po_str id);

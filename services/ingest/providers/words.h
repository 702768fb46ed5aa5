// The words a provider has for the state of a payment or refund, and what they mean here: the table
// an adapter reads by and docs/states.md is printed from. The first row that matches counts.
#pragma once
#include "providers/provider.h"

typedef struct word {
    const char *type;   // event type; a trailing '*' stands for any ending
    const char *status; // the provider's word; "*" = any
    fact_state state;
    int rank; // the provider's own order: the highest rank seen wins
    bool waived;
    const char *why;
} word;

// A table is ended by a row without a type; what no row names is unsupported, at the lowest rank.
const word *word_find(const word *words, po_str type, po_str status);

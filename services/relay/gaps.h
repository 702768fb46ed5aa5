// Which ids may still appear below those already read. Ids are handed out before they are committed, so a read
// up to some id can miss lower ones: gaps. This is the pure part of the relay's reading, without a clock or a
// connection of its own: what a look returned and which transactions hold the table go in, what is missing comes
// out. README.md shows why it is right.
//
// A gap is *unsampled* (nothing known of who could fill it), *held* by a set H of virtual transactions, or
// *checked empty* (nobody is left who could; the next look that covers it decides).
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct gaps gaps;

// Everything ≤ high is known; no gaps.
gaps *gaps_new(int64_t high);
void gaps_free(gaps **gaps);
// A gap below high that a checkpoint has left behind: unsampled. Added in ascending order, before the first look.
void gaps_restore(gaps *gaps, int64_t lo, int64_t hi);

int64_t gaps_high(const gaps *gaps);
// The ranges, ascending and disjoint: lent until the next change.
size_t gaps_ranges(const gaps *gaps, const int64_t **ret_lo, const int64_t **ret_hi);
int64_t gaps_since_ms(const gaps *gaps, size_t range); // when it was first seen, 0 if restored

// One look has returned these ids, ascending: of the ranges and above high. `all`: nothing more was to be had,
// else the look stopped at a limit and says nothing about ids above its last.
// Returns how many ids have turned out dead: rolled back, never to appear.
int64_t gaps_look(gaps *gaps, const int64_t *ids, size_t n, bool all, int64_t now_ms);

// Whether a sample can tell more than is known: some gap is unsampled or held.
bool gaps_want_sample(const gaps *gaps);
bool gaps_unsampled(const gaps *gaps); // some gap is unsampled
// The transactions that hold the table now, taken by a statement later than the last look; ascending.
// Returns true when somebody who held a gap is gone: then a look will find something.
bool gaps_sample(gaps *gaps, const uint64_t *holders, size_t n);
// What was sampled on another session proves nothing on this one.
void gaps_forget_samples(gaps *gaps);

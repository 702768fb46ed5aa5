// The configured accounts (docs/accounts.md): what we have at each provider, in one mode, so that
// test and live never meet (P17). Read once at start; thread-safe afterwards.
//   {"accounts": [{"provider": "…", "name": "shop", "aliases": ["shop", "shop-2"], "mode": "live",
//                  "account": "…", "client_reference_id": false, "secret_files": ["FILE", …]}]}
// An entry of before has `alias` instead of name and aliases: both are that one. `account` is the
// provider's id of it. Where it is missing, an event that names any is foreign: what cannot be
// compared is not taken on trust; and two accounts of a provider in one mode both have one, or
// nobody knows that they are two. Secrets are files, a trailing newline is cut; an empty or unusable
// one is refused. Every secret of an account signs for all of its aliases.
#pragma once
#include "providers/provider.h"

typedef struct accounts accounts;
// PO_REFUSED "accounts" names the entry and what is wrong with it.
PO_MUST_CHECK bool accounts_load(const char *path, accounts **ret_accounts, po_err *err);
void accounts_free(accounts **accounts);
// Both NULL when there is none.
const account *accounts_at(const accounts *accounts, po_str provider, po_str alias); // of a path
const account *accounts_named(const accounts *accounts, po_str provider, po_str name);
const account *accounts_entry(const accounts *accounts, size_t i); // in the file's order, then NULL
// Whether the database is known to agree on who they are: said once per process (identity.h).
bool accounts_agreed(const accounts *accounts);
void accounts_set_agreed(accounts *accounts);
// Whether a list of names, as "a b c", has this one.
bool accounts_lists(po_str names, po_str name);

// The configured accounts: an alias in the path is a provider account *and mode* with its secrets,
// so that test and live never meet (P17). Read once at start; immutable and thread-safe afterwards.
//   {"accounts": [{"provider": "stripe", "alias": "shop", "mode": "live", "account": null,
//                  "client_reference_id": false, "secret_files": ["FILE", …]}]}
// `account` is the provider's id of it (acct_…; of a Lightning node its public key). Where it is
// missing, an event that names any is foreign: what cannot be compared is not taken on trust.
// Secrets are files, a trailing newline is cut; several during a roll-over. An empty or unusable
// one is refused.
#pragma once
#include "providers/provider.h"

typedef struct accounts accounts;
PO_MUST_CHECK bool accounts_load(const char *path, accounts **ret_accounts, po_err *err);
void accounts_free(accounts **accounts);
const account *accounts_find(const accounts *accounts, po_str provider,
                             po_str alias); // NULL when unknown
// Whether a list of aliases, as "a b c", has this one.
bool accounts_lists(po_str aliases, po_str alias);

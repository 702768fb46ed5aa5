// Who an account is: its name, id and mode, which the database keeps from the first start on
// (docs/accounts.md), because every row that names an account relies on it (P2, P17).
#pragma once
#include "accounts.h"
#include "pg/pg.h"

// Writes what is new and compares the rest; the second time in a process it does nothing. PO_REFUSED
// "setting" names the file's entry: a name that had another id or mode, an id that has another name,
// an alias that rows hold as a name. What is refused leaves nothing behind.
PO_MUST_CHECK bool identity_check(po_pg *pg, accounts *accounts, po_err *err);
